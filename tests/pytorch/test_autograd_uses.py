"""The ways a training loop may use an encoder: each gives the gradients of the plain way."""

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from beamtree import BeamTreeEncoder
from beamtree.parts.cell import GatedRecursiveCell

D = 6


class OwnCell(GatedRecursiveCell):
    """Not the built-in class, so it takes the path of a user's cell."""


def encoder(own: bool = False, **options: object) -> BeamTreeEncoder:
    torch.manual_seed(0)
    cell = OwnCell(D, dropout=0.3, dtype=torch.float64) if own else None
    dropout = 0.0 if own else 0.3
    return BeamTreeEncoder(D, cell=cell, dropout=dropout, dtype=torch.float64, **options).train()


@pytest.fixture(params=[False, True], ids=["built-in", "own cell"])
def model(request: pytest.FixtureRequest) -> BeamTreeEncoder:
    return encoder(request.param)


@pytest.fixture
def batches() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, n, D, dtype=torch.float64) for n in (7, 5)]


def loss(model: nn.Module, x: Tensor, seed: int) -> Tensor:
    """A loss under the noise and the dropout masks of a seed."""
    torch.manual_seed(seed)
    return model(x).square().sum() * (seed + 1)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def plain_gradients(model: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    model = copy.deepcopy(model)
    model.zero_grad()
    loss(model, x, seed).backward()
    return gradients(model)


def add(*terms: list[Tensor]) -> list[Tensor]:
    return [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert max(float(gradient.abs().max()) for gradient in expected) > 0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_several_forwards_before_their_backwards(model: BeamTreeEncoder, batches: list[Tensor]) -> None:
    expected = add(*(plain_gradients(model, x, seed) for seed, x in enumerate(batches)))
    losses = [loss(model, x, seed) for seed, x in enumerate(batches)]
    for one in losses:
        one.backward()
    assert_equal(gradients(model), expected)


def test_both_sides_of_a_pair_through_one_encoder(model: BeamTreeEncoder, batches: list[Tensor]) -> None:
    model.eval()
    product = (model(batches[0]) * model(batches[1])).sum()
    product.backward()
    found = gradients(model)
    fixed = copy.deepcopy(model)
    one, other = (fixed(x).detach() for x in batches)
    fixed.zero_grad()
    (fixed(batches[0]) * other).sum().backward()
    (fixed(batches[1]) * one).sum().backward()
    assert_equal(found, gradients(fixed))


def test_a_retained_graph_gives_the_same_gradient_twice(
    model: BeamTreeEncoder, batches: list[Tensor]
) -> None:
    expected = plain_gradients(model, batches[0], 0)
    one = loss(model, batches[0], 0)
    one.backward(retain_graph=True)
    assert_equal(gradients(model), expected)
    model.zero_grad()
    one.backward()
    assert_equal(gradients(model), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        one.backward()


def test_gradients_accumulate(model: BeamTreeEncoder, batches: list[Tensor]) -> None:
    expected = add(*(plain_gradients(model, x, seed) for seed, x in enumerate(batches)))
    for seed, x in enumerate(batches):
        loss(model, x, seed).backward()
    assert_equal(gradients(model), expected)


def test_evaluation_between_forward_and_backward(model: BeamTreeEncoder, batches: list[Tensor]) -> None:
    expected = plain_gradients(model, batches[0], 0)
    one = loss(model, batches[0], 0)
    model.eval()
    with torch.no_grad():
        model(batches[1])
        model(batches[0], need_trees=True)
    model.train()
    one.backward()
    assert_equal(gradients(model), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(model: BeamTreeEncoder, batches: list[Tensor], use_reentrant: bool) -> None:
    expected = plain_gradients(model, batches[0], 0)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x.requires_grad_(), use_reentrant=use_reentrant)

    loss(Checkpointed(), batches[0], 0).backward()
    assert_equal(gradients(model), expected)


def test_parameters_changed_in_place_before_the_backward_are_noticed(
    model: BeamTreeEncoder, batches: list[Tensor]
) -> None:
    for parameter in (model.cell.w1.weight, model.scorer.out.weight):
        one = loss(model, batches[0], 0)
        with torch.no_grad():
            parameter.mul_(1.1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            one.backward()


def test_a_users_cell_is_differentiated_as_it_was_in_the_forward_pass(batches: list[Tensor]) -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(2 * D, D, dtype=torch.float64)
            self.dropout = nn.Dropout(0.5)
            self.register_buffer("temperature", torch.ones((), dtype=torch.float64))

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            mixed = self.mix(torch.cat((left, right), -1)) * self.temperature
            return torch.tanh(self.dropout(mixed))

    model = BeamTreeEncoder(D, cell=Cell(), dtype=torch.float64).eval()
    expected = plain_gradients(model, batches[0], 0)
    one = loss(model, batches[0], 0)
    model.train()
    model.cell.temperature = model.cell.temperature * 2
    one.backward()
    assert_equal(gradients(model), expected)
    assert (model.cell.training, float(model.cell.temperature)) == (True, 2.0)


def test_parameters_changed_under_hooks_that_copy_what_is_saved_never_give_a_wrong_gradient(
    model: BeamTreeEncoder, batches: list[Tensor]
) -> None:
    expected = plain_gradients(model, batches[0], 0)
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda tensor: tensor):
        one = loss(model, batches[0], 0)
    with torch.no_grad():
        model.cell.w1.weight.mul_(1.1)
    if type(model.cell) is OwnCell:
        with pytest.raises(RuntimeError, match=r"w1\.weight of OwnCell has been modified by an inplace op"):
            one.backward()
    else:
        one.backward()
        assert_equal(gradients(model), expected)


def test_memory_that_was_never_written_is_never_read(model: BeamTreeEncoder) -> None:
    x = torch.randn(4, 9, D, dtype=torch.float64)
    is_padding = torch.arange(9) >= torch.tensor([9, 1, 4, 2])[:, None]

    def outcome() -> list[Tensor]:
        torch.manual_seed(0)
        model.zero_grad()
        root, trees = model(x, key_padding_mask=is_padding, need_trees=True)
        root.square().sum().backward()
        return [root.detach(), trees.log_scores.detach().exp(), *gradients(model)]

    expected = outcome()
    torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
    try:
        assert torch.empty(3).isnan().all()
        assert_equal(outcome(), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_frozen_parameters_get_no_gradient_and_change_no_other(
    model: BeamTreeEncoder, batches: list[Tensor]
) -> None:
    expected = dict(zip(dict(model.named_parameters()), plain_gradients(model, batches[0], 0), strict=True))
    model.cell.requires_grad_(False)
    model.scorer.out.bias.requires_grad_(False)
    loss(model, batches[0], 0).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-12)
        else:
            assert parameter.grad is None


def test_a_second_forward_draws_other_noise_and_the_seed_of_torch_fixes_it(
    model: BeamTreeEncoder, batches: list[Tensor]
) -> None:
    first, second, again = (loss(model, batches[0], seed) / (seed + 1) for seed in (0, 1, 0))
    assert first != second
    assert first == again


def test_a_copy_is_independent_and_equal(model: BeamTreeEncoder, batches: list[Tensor]) -> None:
    model(batches[0])
    twin = copy.deepcopy(model)
    torch.testing.assert_close(loss(twin, batches[0], 3), loss(model, batches[0], 3), rtol=0, atol=0)
    with torch.no_grad():
        twin.cell.w1.weight.zero_()
    assert model.cell.w1.weight.abs().max() > 0


def test_a_state_dict_makes_another_encoder_the_same(batches: list[Tensor]) -> None:
    model = encoder()
    torch.manual_seed(9)
    other = BeamTreeEncoder(D, dropout=0.3, dtype=torch.float64)
    assert not torch.equal(other(batches[0]), model(batches[0]))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(batches[0]), model.eval()(batches[0]))
    assert set(model.state_dict()) == {
        f"{layer}.{kind}"
        for layer in (
            "leaf.linear",
            "leaf.norm",
            "cell.w1",
            "cell.w2",
            "cell.norm",
            "scorer.hidden",
            "scorer.out",
        )
        for kind in ("weight", "bias")
    }


def test_device_and_dtype_reach_every_parameter() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = BeamTreeEncoder(D, device="meta", dtype=dtype)
        assert {(p.dtype, p.device.type) for p in model.parameters()} == {(dtype, "meta")}


def test_the_meta_device_gives_the_shapes_of_a_forest() -> None:
    x = torch.empty(2, 7, D, device="meta")
    is_padding = torch.empty(2, 7, dtype=torch.bool, device="meta")
    for cell in (None, OwnCell(D, device="meta")):
        block = BeamTreeEncoder(D, cell=cell, device="meta")
        for K, merges in ((5, None), (1, torch.empty(2, 6, dtype=torch.int64, device="meta"))):
            forest = block.forest(x, is_padding, merges=merges)
            assert (forest.roots.shape, forest.nodes.shape) == ((2, K, D), (2, K, 6, D))
            assert (forest.trees.merges.shape, forest.trees.weights.shape) == ((2, K, 6), (2, K))


def operator_arguments() -> Iterator[tuple[Callable[..., object], tuple[object, ...]]]:
    """A call of each operator, as a training step makes them."""
    torch.manual_seed(0)
    cell_and_scorer = encoder(beam_size=3)
    weights = [*cell_and_scorer.cell.parameters(), *cell_and_scorer.scorer.parameters()]
    lengths, seed = torch.tensor([5, 5]), torch.tensor(7)
    leaves = torch.randn(2, 5, D, dtype=torch.float64, requires_grad=True)
    options = (3, seed, True, 0.3, None, None, True, torch.float64)
    yield torch.ops.beamtree.search.default, (leaves, lengths, weights, *options)
    with torch.no_grad():
        vectors, relative, inner, offset, lineages, links, nodes, pair_scores, roots = (
            torch.ops.beamtree.search(leaves, lengths, weights, *options)
        )
    tape = [nodes, links, pair_scores, roots, relative, offset]
    grads = (torch.randn_like(vectors), torch.randn_like(relative), torch.randn_like(inner))
    fixed = [weight.detach() for weight in weights]
    yield (
        torch.ops.beamtree.replay.default,
        (*grads, lineages, lengths, tape, fixed, 5, seed, 0.3, torch.float64),
    )


@pytest.mark.parametrize("which", [0, 1], ids=["search", "replay"])
def test_the_operators_are_registered_as_pytorch_wants_them(which: int) -> None:
    operator, arguments = list(operator_arguments())[which]
    torch.library.opcheck(operator, arguments)


def train_on_one_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = encoder()
    model.eval()
    wrapped = DistributedDataParallel(model)
    for step in range(2):  # a parameter without a gradient would make the second step fail
        wrapped.zero_grad()
        wrapped(rank_batch(rank)).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), step
    torch.save(gradients(model), f"{folder}/gradients-{rank}.pt")
    dist.destroy_process_group()


def rank_batch(rank: int) -> Tensor:
    """One rank has sequences of one token only: no merge and no score on it."""
    return torch.randn(3, [6, 1][rank], D, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


@pytest.mark.slow
def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    processes = mp.spawn(train_on_one_rank, args=(str(tmp_path),), nprocs=2, join=False)
    deadline = time.monotonic() + 300
    while not processes.join(timeout=10):
        assert time.monotonic() < deadline
    model = encoder().eval()
    for rank in range(2):
        (model(rank_batch(rank)).square().sum() / 2).backward()
    for rank in range(2):
        assert_equal(torch.load(tmp_path / f"gradients-{rank}.pt"), gradients(model))
