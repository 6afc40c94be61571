"""A compiled model around an encoder gives the eager outputs and gradients, compiled once for all lengths."""

from functools import partial

import pytest
import torch
from small_encoders import trees_to_follow
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

from beamtree import BeamTreeContextualizer, BeamTreeEncoder, create_encoder
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.trees.forest import DENSE_UP_TO

D = 6


class OwnCell(GatedRecursiveCell):
    """Not the built-in class, so it takes the path of a user's cell."""


class Classifier(nn.Module):
    def __init__(self, encoder: BeamTreeEncoder) -> None:
        super().__init__()
        self.before = nn.Linear(D, D, dtype=torch.float64)
        self.encoder = encoder
        self.after = nn.Linear(D, 3, dtype=torch.float64)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return self.after(self.encoder(self.before(x).tanh(), key_padding_mask=is_padding)).log_softmax(-1)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def batch(n: int) -> tuple[Tensor, Tensor]:
    is_padding = torch.arange(n) >= torch.tensor([n, max(1, n - 2), 1])[:, None]
    return torch.randn(3, n, D, dtype=torch.float64, requires_grad=True), is_padding


def outcome(run: nn.Module, model: nn.Module, x: Tensor, is_padding: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    output = run(x, is_padding)
    gradients = torch.autograd.grad(output.square().sum(), [x, *model.parameters()])
    return [output.detach(), *gradients]


def assert_compiled_equals_eager(compiled: nn.Module, model: nn.Module, n: int) -> None:
    x, is_padding = batch(n)
    found, expected = (outcome(run, model, x, is_padding) for run in (compiled, model))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_the_whole_model_is_one_graph_for_all_lengths(training: bool) -> None:
    model = Classifier(BeamTreeEncoder(D, dropout=0.2, dtype=torch.float64)).train(training)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for n in (5, 7, 3, 12, 9, 4):
        assert_compiled_equals_eager(compiled, model, n)
    assert counter.frame_count <= 2  # one for the first length, one for all others


@pytest.mark.parametrize("training", [False, True])
def test_a_contextualizer_is_one_graph_for_all_lengths(training: bool) -> None:
    model = BeamTreeContextualizer(D, residual=True, dropout=0.2, dtype=torch.float64).train(training)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for n in (5, 7, 12, 3):
        assert_compiled_equals_eager(compiled, model, n)
    assert counter.frame_count <= 2  # one for the first length, one for all others


def test_attention_over_more_tokens_than_are_looked_at_together_is_left_to_python() -> None:
    model = BeamTreeContextualizer(D, beam_size=2, dtype=torch.float64)
    assert_compiled_equals_eager(torch.compile(model, backend="aot_eager"), model, DENSE_UP_TO + 1)
    torch.compiler.reset()
    with pytest.raises(Unsupported, match="leaves this model's loop to Python"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(*batch(DENSE_UP_TO + 1))


def test_one_and_two_tokens_compile() -> None:
    model = Classifier(BeamTreeEncoder(D, dtype=torch.float64))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for n in (1, 2):
        assert_compiled_equals_eager(compiled, model, n)


def test_a_given_tree_and_pins_compile() -> None:
    encoder = BeamTreeEncoder(D, dtype=torch.float64).eval()
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    x, _ = batch(5)
    for given in (
        {"merges": torch.tensor([[3, 0, 1, 0]] * 3)},
        {"pinned_spans": torch.tensor([[[1, 3]]] * 3)},
    ):
        torch.testing.assert_close(compiled(x, **given), encoder(x, **given), rtol=0, atol=1e-12)


def test_trees_come_out_of_a_compiled_encoder() -> None:
    encoder = BeamTreeEncoder(D, dtype=torch.float64).eval()
    compiled = torch.compile(encoder, backend="aot_eager")
    x, is_padding = batch(6)
    _, found = compiled(x, is_padding, need_trees=True)
    _, expected = encoder(x, is_padding, need_trees=True)
    assert torch.equal(found.merges, expected.merges)
    assert found.brackets() == expected.brackets()
    torch.testing.assert_close(found.log_scores, expected.log_scores)


def test_a_users_cell_breaks_the_graph_and_nothing_else() -> None:
    model = Classifier(
        BeamTreeEncoder(D, cell=OwnCell(D, dropout=0.2, dtype=torch.float64), dtype=torch.float64)
    )
    compiled = torch.compile(model, backend="aot_eager")
    for n in (5, 7):
        assert_compiled_equals_eager(compiled, model, n)


@pytest.mark.parametrize(
    "name",
    ["egt-grc", "gt-grc", "bt-grc-os", "crvnn", "om", "recurrent-grc", "balanced-grc", "gold-grc", "bilstm"],
)
def test_the_loops_of_rivals_are_left_alone(name: str) -> None:
    model = create_encoder(name, D, dropout=0.2, dtype=torch.float64)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, backend=counter)
    for training, n in ((True, 12), (False, 5)):
        model.train(training)
        x, is_padding = batch(n)
        given = trees_to_follow(model, x, is_padding)
        found, expected = (outcome(partial(run, **given), model, x, is_padding) for run in (compiled, model))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert counter.op_count < 60  # unrolled, there would be some for every merge


def test_who_asks_for_one_graph_of_a_loop_is_told_why_not() -> None:
    compiled = torch.compile(create_encoder("egt-grc", D).eval(), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compile it without fullgraph=True"):
        compiled(torch.randn(2, 5, D))


@pytest.mark.slow
def test_inductor_gives_the_eager_outputs_and_gradients() -> None:
    model = Classifier(BeamTreeEncoder(D, dtype=torch.float64)).eval()
    assert_compiled_equals_eager(torch.compile(model, fullgraph=True), model, 5)
