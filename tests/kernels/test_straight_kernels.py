"""The kernels of straight-through trees against autograd through every state, in float64 and with the same
noise and masks; without a GPU in Triton's interpreter."""

import copy

import pytest
import torch
from kernel_cases import DEVICE, Case, make_case
from torch import Tensor
from torch.nn.utils import parametrizations

from beamtree import create_encoder
from beamtree.engine.randomness import FIRST_SELECTION, draw_keep, gumbel
from beamtree.kernels import entangled_kernels, straight_replay
from beamtree.kernels import straight as operator
from beamtree.kernels.fused_recursion import FusedSearchCall
from beamtree.kernels.straight import straight_through, supports
from beamtree.parts.scorer import EntangledScorer
from beamtree.zoo import gumbel_tree

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's log(0)
    pytest.mark.usefixtures("few_programs", "unwritten_memory_is_nan"),
]
MADE = 1 << 32


def make(lengths: list[int], entangled: bool, **sizes: int) -> Case:
    return make_case(lengths, entangled=entangled, s=12, hidden=20, scale=3.0, **sizes)


def call_of(case: Case, noisy: bool = False, dropout: float = 0.0) -> FusedSearchCall:
    options = 1, noisy, dropout, torch.float32, False
    return FusedSearchCall(case.leaves, case.lengths, case.seed, *options, case.weights)


def exact(case: Case, noisy: bool, dropout: float, merges: Tensor) -> tuple[Case, Tensor, Tensor]:
    """The case in float64, with its roots and merges by autograd through every state."""
    B, n, _ = case.leaves.shape
    leaves = case.leaves.detach().double().requires_grad_()
    cell, scorer = copy.deepcopy(case.cell).double(), copy.deepcopy(case.scorer).double()
    sequence, zero = torch.arange(B, device=DEVICE), torch.zeros(B, dtype=torch.int64, device=DEVICE)
    entangled = isinstance(scorer, EntangledScorer)
    lists = [names_before(m.tolist(), n) for m in merges]

    def noise(t: int, pairs: int) -> Tensor | None:
        if not noisy:
            return None
        return gumbel(case.seed, FIRST_SELECTION, zero + t, sequence, zero, pairs, torch.float32).double()

    def keep(t: int, pairs: int) -> Tensor | None:
        if dropout == 0.0:
            return None
        step, slot = (zero + t).unsqueeze(1), zero.unsqueeze(1)
        if entangled:
            names = [(steps[t] + [0] * n)[: pairs + 1] for steps in lists]
            step, slot = (torch.tensor([x[i : i + pairs] for x in names], device=DEVICE) for i in (0, 1))
        rows = sequence.unsqueeze(1)
        return draw_keep(case.seed, step, rows, slot, cell.hidden_size, dropout, torch.float64)

    root, found = gumbel_tree.gumbel_tree_by_autograd(
        leaves, case.lengths, cell, scorer, entangled=entangled, noise=noise, keep=keep
    )
    return Case(leaves, case.lengths, cell, scorer, case.seed), root, found


def names_before(merges: list[int], n: int) -> list[list[int]]:
    """The names of the live nodes before each step, as the counter of a pair's mask has them."""
    live, steps = list(range(n)), []
    for t, position in enumerate(merges):
        steps.append(list(live))
        if position >= 0:
            live[position : position + 2] = [MADE + t]
    return steps


def assert_gradients_agree(case: Case, loss: Tensor, other: Case, other_loss: Tensor, rtol: float) -> None:
    got = torch.autograd.grad(loss, [case.leaves, *case.weights])
    inputs = [other.leaves, *other.weights]
    expected = torch.autograd.grad(other_loss, inputs, allow_unused=True, materialize_grads=True)
    assert len(got) == len(expected)
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert (mine - theirs).norm() <= rtol * theirs.norm() + 2e-5, number
    if max(case.lengths) > 2:
        assert expected[-2].norm() > 1e-3, "the scorer must take part"


def compare(case: Case, *, noisy: bool = False, dropout: float = 0.0, rtol: float = 2e-4) -> None:
    root, merges, nodes = straight_through(call_of(case, noisy, dropout))
    assert nodes.shape[1] == 0
    other, other_root, other_merges = exact(case, noisy, dropout, merges)
    assert torch.equal(merges, other_merges)
    torch.testing.assert_close(root.double(), other_root, atol=2e-5, rtol=1e-4)
    direction = torch.randn_like(root)
    assert_gradients_agree(case, (root * direction).sum(), other, (other_root * direction).sum(), rtol)


BOTH = pytest.mark.parametrize("entangled", [False, True], ids=["sliced", "entangled"])


@BOTH
@pytest.mark.parametrize("lengths", [[2], [3, 1], [5, 2, 3]])
def test_a_tree_and_all_its_gradients_are_those_of_the_definition(
    lengths: list[int], entangled: bool
) -> None:
    compare(make(lengths, entangled))


@BOTH
def test_noise_and_masks_enter_as_in_the_definition(entangled: bool) -> None:
    compare(make([4, 2], entangled, d=20, units=24), noisy=True, dropout=0.3)


@BOTH
def test_lists_and_batches_in_pieces_give_the_same(entangled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = straight_replay._options
    monkeypatch.setattr(straight_replay, "_options", lambda *given: options(*given) | {"ROWS": 1})
    monkeypatch.setattr(entangled_kernels, "ROWS_AT_ONCE", 40)
    compare(make([*[1] * 15, 3, 3], entangled), noisy=True)


@pytest.mark.parametrize("lengths", [[1, 1], [2, 1]])
def test_a_sequence_of_one_token_is_its_leaf(lengths: list[int]) -> None:
    case = make(lengths, False)
    leaves = torch.cat((case.leaves, case.leaves), 1).detach().requires_grad_()  # longer than any sequence
    root, merges, _ = straight_through(call_of(case)._replace(leaves=leaves))
    assert torch.equal(root[1], leaves[1, 0])
    assert (merges[1] == -1).all()
    grads = torch.autograd.grad(root[1].sum(), [leaves, *case.weights])
    assert torch.equal(grads[0][1, 0], torch.ones_like(root[1]))
    assert grads[0][1, 1:].eq(0).all()
    assert all(grad.eq(0).all() for grad in grads[1:])


@BOTH
def test_an_encoder_hands_out_the_same_forest_with_and_without_kernels(
    entangled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inner nodes and roots, and their gradients together."""
    torch.manual_seed(3)
    encoder = create_encoder("gt-grc" if entangled else "egt-grc", 16, stochastic=False).to(DEVICE).train()
    x = torch.randn(2, 4, 16, device=DEVICE, requires_grad=True)
    is_padding = torch.arange(4, device=DEVICE) >= torch.tensor([[4], [3]], device=DEVICE)
    found = []
    for by_kernels in (True, False):
        monkeypatch.setattr(gumbel_tree, "supports", lambda *_, by_kernels=by_kernels: by_kernels)
        forest = encoder.forest(x, is_padding)
        loss = forest.nodes.square().sum() + forest.roots.sin().sum()
        grads = torch.autograd.grad(loss, [x, *encoder.parameters()])
        root, trees = encoder(x, is_padding, need_trees=True)
        assert torch.equal(root, forest.roots[:, 0])
        found.append((forest.trees.merges, trees.merges, forest.nodes, forest.roots, *grads))
    assert found[0][2].shape == (2, 1, 3, 16)
    for mine, theirs in zip(*found, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).double().norm() <= 2e-4 * theirs.double().norm() + 2e-5


def test_noise_and_dropout_are_for_training_only_and_new_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gumbel_tree, "supports", lambda *_: True)
    encoder = create_encoder("egt-grc", 16, dropout=0.5).to(DEVICE)
    x = torch.randn(1, 2, 16, device=DEVICE)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(x), encoder(x))
        assert not torch.equal(encoder.train()(x), encoder(x))


def test_a_second_derivative_and_changed_weights_are_refused() -> None:
    case = make([2], False)
    root, *_ = straight_through(call_of(case))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(root.sum(), case.leaves, create_graph=True)
    with torch.no_grad():
        case.cell.w1.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        root.sum().backward()


def test_the_plain_path_takes_what_the_kernels_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make([2], False)
    assert supports(case.leaves, case.weights) == case.leaves.is_cuda
    monkeypatch.setattr(operator.fused, "supports", lambda leaves, *_: leaves.dtype == torch.float32)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert supports(case.leaves, case.weights)
    assert not supports(case.leaves.double(), case.weights)
    assert not supports(case.leaves[:, :1], case.weights)
    assert not supports(case.leaves[:, :1].expand(-1, operator.LONGEST + 1, -1), case.weights)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not supports(case.leaves, case.weights)


@pytest.mark.parametrize("name", ["egt-grc", "gt-grc"])
def test_a_parametrization_is_computed_once_a_forward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = create_encoder(name, 16, stochastic=False).to(DEVICE).train()
    parametrizations.spectral_norm(encoder.cell.w1)
    calls = []
    monkeypatch.setattr(
        type(encoder.cell.w1.parametrizations.weight[0]),
        "forward",
        lambda _, weight: calls.append(1) or weight,
    )
    encoder(torch.randn(2, 4, 16, device=DEVICE))
    assert calls == [1]
