"""The engine against the published algorithm written plainly: outputs and every gradient, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree import recursion
from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.recursion import beam_tree_recursion

MIXED_LENGTHS = [7, 12, 3, 1, 5, 2, 40, 12, 9, 40, 4]
SEED = torch.tensor(20231215)

pytestmark = pytest.mark.usefixtures("in_c_and_in_pytorch")


class OwnCell(nn.Module):
    """A user's cell: the engine knows nothing of what is inside."""

    def __init__(self, inner: GatedRecursiveCell) -> None:
        super().__init__()
        self.inner, self.dropout, self.hidden_size = inner, inner.dropout, inner.hidden_size

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.inner(left, right, keep)


def parts(d: int = 10, scale: float = 1.0, dropout: float = 0.0) -> tuple[GatedRecursiveCell, SlicedScorer]:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(d, dropout=dropout, dtype=torch.float64)
    scorer = SlicedScorer(d, slice_size=7, dtype=torch.float64)
    with torch.no_grad():
        scorer.out.weight *= scale
    return cell, scorer


def gradients(root: Tensor, cotangent: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad((root * cotangent).sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


@pytest.mark.parametrize("own", [False, True], ids=["built-in", "own cell"])
@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
@pytest.mark.parametrize(("noisy", "dropout"), [(False, 0.0), (True, 0.0), (True, 0.3)])
@pytest.mark.parametrize("lengths", [[1], [2], [3], [1, 1], MIXED_LENGTHS], ids=str)
def test_fast_path_equals_the_published_algorithm(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], noisy: bool, dropout: float, scale: float, own: bool
) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    cell, scorer = parts(scale=scale, dropout=dropout)
    leaves = torch.randn(len(lengths), max(lengths), 10, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(len(lengths), 10, dtype=torch.float64)
    inputs = [leaves, *cell.parameters(), *scorer.parameters()]

    beams = beam_tree_recursion(
        leaves, torch.tensor(lengths), OwnCell(cell) if own else cell, scorer, beam_size=5, noisy=noisy
    )
    roots, scores, merges = naive_beam_tree_recursion(
        leaves, torch.tensor(lengths), cell, scorer, beam_size=5, seed=SEED, noisy=noisy, dropout=dropout
    )
    root = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)

    trees = beams.trees()
    assert torch.equal(trees.merges[:, : merges.shape[1]], merges)
    assert (trees.log_scores[:, merges.shape[1] :] == -torch.inf).all()
    torch.testing.assert_close(trees.log_scores[:, : merges.shape[1]], scores, rtol=0, atol=1e-10)
    torch.testing.assert_close(beams.root(), root, rtol=0, atol=1e-10)
    fast, naive = gradients(beams.root(), cotangent, inputs), gradients(root, cotangent, inputs)
    torch.testing.assert_close(fast, naive, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 8])
def test_every_beam_size_equals_the_published_algorithm(
    monkeypatch: pytest.MonkeyPatch, beam_size: int
) -> None:
    monkeypatch.setattr(recursion, "draw_seed", lambda device: SEED)
    cell, scorer = parts()
    lengths = torch.tensor([9, 4, 1, 13, 2])
    leaves = torch.randn(5, 13, 10, dtype=torch.float64, requires_grad=True)
    beams = beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=beam_size, noisy=True)
    roots, scores, _ = naive_beam_tree_recursion(
        leaves, lengths, cell, scorer, beam_size=beam_size, seed=SEED, noisy=True
    )
    weights = torch.randn(5, beam_size, dtype=torch.float64)[:, : scores.shape[1]]
    alive = scores > -torch.inf
    loss = (beams.relative[:, : scores.shape[1]][alive] * weights[alive]).sum()
    expected = (scores[alive] * weights[alive]).sum()
    inputs = [leaves, *cell.parameters(), *scorer.parameters()]
    mine = torch.autograd.grad(loss, inputs, allow_unused=True)
    theirs = torch.autograd.grad(expected, inputs, allow_unused=True)
    torch.testing.assert_close(beams.vectors[:, : scores.shape[1]][alive], roots[alive], rtol=0, atol=1e-10)
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        zero = torch.zeros_like(inputs[i])
        torch.testing.assert_close(a, zero if b is None else b, rtol=1e-8, atol=1e-8)


def test_gradcheck_of_roots_and_scores() -> None:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(3, hidden_size=4, dtype=torch.float64)
    scorer = SlicedScorer(3, slice_size=2, hidden_size=3, dtype=torch.float64)
    leaves = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    weights = [p.requires_grad_() for p in (*cell.parameters(), *scorer.parameters())]

    def run(leaves: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        beams = beam_tree_recursion(leaves, torch.tensor([5, 3]), cell, scorer, beam_size=3)
        log_scores = beams.trees().log_scores
        return beams.root(), log_scores[log_scores > -torch.inf]

    torch.autograd.gradcheck(run, (leaves, *weights), eps=1e-6, atol=1e-7)


def test_long_lineages_with_sharp_scores_have_exact_gradients() -> None:
    """log Z moves by hundreds of nats along a lineage: differences of prefix sums would be lost here."""
    cell, scorer = parts(scale=100.0)
    leaves = (3 * torch.randn(1, 90, 10, dtype=torch.float64)).requires_grad_()
    beams = beam_tree_recursion(leaves, torch.tensor([90]), cell, scorer, beam_size=3)
    _, scores, _ = naive_beam_tree_recursion(leaves, torch.tensor([90]), cell, scorer, beam_size=3)
    cotangent = torch.randn(1, 3, dtype=torch.float64)
    mine = torch.autograd.grad((beams.relative * cotangent).sum(), [leaves, *scorer.parameters()])
    theirs = torch.autograd.grad((scores * cotangent).sum(), [leaves, *scorer.parameters()])
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * float(b.abs().max()) + 1e-11)


@pytest.mark.parametrize("own", [False, True], ids=["built-in", "own cell"])
def test_long_sequences_equal_the_published_algorithm(own: bool) -> None:
    """Soft scores, so that pairs which wait for many steps weigh as much as others; past 128 tokens."""
    cell, scorer = parts()
    lengths = torch.tensor([150, 131])
    leaves = torch.randn(2, 150, 10, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(2, 10, dtype=torch.float64)
    inputs = [leaves, *cell.parameters(), *scorer.parameters()]
    beams = beam_tree_recursion(leaves, lengths, OwnCell(cell) if own else cell, scorer, beam_size=3)
    roots, scores, merges = naive_beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=3)
    root = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)
    assert torch.equal(beams.trees().merges, merges)
    # Of a mean over beams that end alike the scorer's gradient is small: one beam's score shows it in full.
    for one, other in ((beams.root() * cotangent, root * cotangent), (beams.relative[:, -1], scores[:, -1])):
        fast, naive = (torch.autograd.grad(y.sum(), inputs, retain_graph=True) for y in (one, other))
        torch.testing.assert_close(fast, naive, rtol=1e-8, atol=1e-9)


def test_the_scorer_bias_and_the_greedy_scorer_get_no_gradient() -> None:
    cell, scorer = parts()
    leaves = torch.randn(3, 8, 10, dtype=torch.float64)
    lengths = torch.tensor([8, 5, 2])
    beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=5).root()[:, 0].sum().backward()
    assert scorer.out.bias.grad is not None
    assert scorer.out.bias.grad.abs().max() < 1e-12
    assert scorer.out.weight.grad.abs().max() > 1e-6
    scorer.zero_grad()
    beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=1).root()[:, 0].sum().backward()
    for parameter in scorer.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))


def second_derivative(root: Tensor, leaves: Tensor) -> None:
    (gradient,) = torch.autograd.grad(root.sum(), leaves, create_graph=True)
    gradient.sum().backward()


def test_double_backward_is_refused_with_the_reason() -> None:
    for own in (False, True):
        cell, scorer = parts()
        leaves = torch.randn(1, 5, 10, dtype=torch.float64, requires_grad=True)
        used = OwnCell(cell) if own else cell
        root = beam_tree_recursion(leaves, torch.tensor([5]), used, scorer).root()
        with pytest.raises(RuntimeError, match="no second derivative"):
            second_derivative(root, leaves)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_users_cell_is_differentiated_in_the_precision_of_its_forward_pass(autocast: bool) -> None:
    """Whatever the precision around the backward pass, which is called outside of autocast here."""
    cell, scorer = (part.float() for part in parts())
    leaves = torch.randn(2, 6, 10, requires_grad=True)
    inputs, cotangent = [leaves, *cell.parameters(), *scorer.parameters()], torch.randn(2, 10)
    found = []
    for used in (cell, OwnCell(cell)):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            root = beam_tree_recursion(leaves, torch.tensor([6, 4]), used, scorer).root()
        found.append(gradients(root, cotangent, inputs))
    off = max((a - b).abs().max().item() for a, b in zip(*found, strict=True))
    assert off < (0.05 if autocast else 1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.1),
        nn.BatchNorm1d(10),
        nn.MultiheadAttention(10, 2, dropout=0.1),
        nn.LSTM(10, 10, num_layers=2, dropout=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_random_layers_inside_a_users_cell_or_scorer_are_refused_by_name(layer: nn.Module) -> None:
    cell, scorer = parts()
    leaves = torch.randn(1, 5, 10, dtype=torch.float64)
    own = OwnCell(cell)
    own.extra = layer
    own.train()
    with pytest.raises(ValueError, match=rf"cell contains {type(layer).__name__} \(extra\) in training mode"):
        beam_tree_recursion(leaves, torch.tensor([5]), own, scorer)
    own.extra.eval()
    own.idle = nn.ModuleList([nn.Dropout(0.0), nn.MultiheadAttention(10, 2)])  # they draw nothing
    beam_tree_recursion(leaves, torch.tensor([5]), own, scorer)


@pytest.mark.parametrize("role", ["cell", "scorer"])
def test_a_part_that_draws_random_numbers_by_itself_is_refused_in_training(role: str) -> None:
    class Dropping(nn.Module):
        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            mean = F.dropout(left + right, 0.5, self.training) / 2
            return mean if role == "cell" else mean.sum(-1)

    cell, scorer = parts()
    own = OwnCell(cell).train() if role == "scorer" else Dropping()
    leaves = torch.randn(2, 5, 10, dtype=torch.float64)
    given = leaves, torch.tensor([5, 3]), own, Dropping() if role == "scorer" else scorer
    for _ in range(2):
        with pytest.raises(
            ValueError, match=f"{role} gives other results for the same rows in training, but must be"
        ):
            beam_tree_recursion(*given)
    for part in given[2:]:
        part.eval()
    beam_tree_recursion(*given)


def test_a_rate_that_is_raised_after_some_steps_is_refused_too() -> None:
    class Dropping(nn.Module):
        rate = 0.0

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return F.dropout(left + right, self.rate, self.training) / 2

    _, scorer = parts()
    own, leaves = Dropping(), torch.randn(2, 5, 10, dtype=torch.float64)
    beam_tree_recursion(leaves, torch.tensor([5, 3]), own, scorer)
    own.rate = 0.5
    with pytest.raises(ValueError, match="cell gives other results for the same rows in training"):
        beam_tree_recursion(leaves, torch.tensor([5, 3]), own, scorer)


def test_a_cell_that_works_in_place_leaves_the_tokens_alone_and_has_its_gradient() -> None:
    class Halving(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left.mul_(0.5) + right.mul_(0.5)

    class Mean(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left * 0.5 + right * 0.5

    _, scorer = parts()
    leaves = torch.randn(2, 5, 10, dtype=torch.float64, requires_grad=True)
    before, lengths = leaves.detach().clone(), torch.tensor([5, 3])
    roots = [beam_tree_recursion(leaves, lengths, own, scorer).root() for own in (Halving(), Mean())]
    assert torch.equal(leaves, before)
    assert torch.equal(*roots)
    inputs = [leaves, *scorer.parameters()]
    torch.testing.assert_close(*(gradients(root, before[:, 0], inputs) for root in roots))


@pytest.mark.parametrize("merge_equal_trees", [False, True])
def test_an_entangled_scorer_needs_the_built_in_cell_and_says_so(merge_equal_trees: bool) -> None:
    cell, _ = parts()
    given = cell if merge_equal_trees else OwnCell(cell)
    leaves = torch.randn(1, 5, 10, dtype=torch.float64)
    scorer = EntangledScorer(10, dtype=torch.float64)
    with pytest.raises(ValueError, match="scorer is an EntangledScorer, which reads the parents"):
        beam_tree_recursion(leaves, torch.tensor([5]), given, scorer, merge_equal_trees=merge_equal_trees)


def test_a_cell_and_scorer_without_parameters_work() -> None:
    class Mean(nn.Module):
        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return (left + right) / 2

    class Closeness(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return -(left - right).square().sum(-1)

    leaves = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    beams = beam_tree_recursion(leaves, torch.tensor([6, 4]), Mean(), Closeness(), beam_size=3)
    roots, scores, _ = naive_beam_tree_recursion(
        leaves, torch.tensor([6, 4]), Mean(), Closeness(), beam_size=3
    )
    root = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)
    torch.testing.assert_close(beams.root(), root)
    assert beam_tree_recursion(leaves, torch.tensor([6, 4]), Mean(), Closeness()).merges.shape == (2, 5, 5)
    (mine,) = torch.autograd.grad(beams.root().square().sum(), leaves)
    (theirs,) = torch.autograd.grad(root.square().sum(), leaves)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("detached", [False, True])
def test_a_cell_that_passes_no_gradient_to_its_children_passes_none(detached: bool) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parent = nn.Parameter(torch.ones(10, dtype=torch.float64))

        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return (left + right).detach() if detached else self.parent.expand_as(left)

    (_, scorer), cell = parts(), Fixed()
    leaves = torch.randn(2, 4, 10, dtype=torch.float64, requires_grad=True)
    beam_tree_recursion(leaves, torch.tensor([4, 1]), cell, scorer, beam_size=1).root().sum().backward()
    assert leaves.grad[0].eq(0).all()
    assert leaves.grad[1, 0].eq(1).all()  # one token is its own root
    assert cell.parent.grad.eq(0 if detached else 1).all()


@pytest.mark.parametrize("detached", [False, True])
def test_a_scorer_that_passes_no_gradient_to_its_pairs_passes_none(detached: bool) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level, self.idle = (nn.Parameter(torch.ones((), dtype=torch.float64)) for _ in range(2))

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return (left - right).detach().sum(-1) if detached else self.level.expand(left.shape[:-1])

    (cell, _), scorer = parts(), Flat()
    leaves = torch.randn(2, 5, 10, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 3])
    root = beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=3).root()
    roots, scores, _ = naive_beam_tree_recursion(leaves, lengths, cell, scorer, beam_size=3)
    expected = (scores.detach().softmax(1).unsqueeze(-1) * roots).sum(1)
    mine, *of_scorer = torch.autograd.grad(root.square().sum(), [leaves, *scorer.parameters()])
    (theirs,) = torch.autograd.grad(expected.square().sum(), leaves)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(of_scorer, [torch.zeros_like(leaves[0, 0, 0])] * 2)


@pytest.mark.parametrize("own", [False, True], ids=["built-in", "own cell"])
def test_inner_nodes_are_those_of_each_surviving_tree_and_carry_gradient(own: bool) -> None:
    cell, scorer = parts()
    lengths = torch.tensor([6, 1, 4])
    leaves = torch.randn(3, 6, 10, dtype=torch.float64, requires_grad=True)
    used = OwnCell(cell) if own else cell
    beams = beam_tree_recursion(leaves, lengths, used, scorer, beam_size=3, need_nodes=True)
    trees = beams.trees()
    cotangent = torch.randn(3, 3, 5, 10, dtype=torch.float64)
    expected = torch.zeros_like(beams.nodes)
    built = torch.zeros((), dtype=torch.float64)
    for b in range(3):
        for k in range(3):
            state = list(leaves[b, : lengths[b]])
            for t, position in enumerate(trees.merges[b, k].tolist()):
                if position >= 0:
                    state[position : position + 2] = [cell(state[position], state[position + 1])]
                    expected[b, k, t] = state[position].detach()
                    built = built + (state[position] * cotangent[b, k, t]).sum()
    torch.testing.assert_close(beams.nodes, expected, rtol=0, atol=1e-12)
    inputs = [leaves, *cell.parameters()]
    mine = torch.autograd.grad((beams.nodes * cotangent).sum(), inputs)
    theirs = torch.autograd.grad(built, inputs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


class KeepsAMark(OwnCell):
    """A node's first feature is that of its right child."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return torch.cat((right[..., :1], super().forward(left, right, keep)[..., 1:]), -1)


class OppositesOnly(nn.Module):
    """Scores by another scorer, but rules out, by −∞, every pair whose first features have the same sign."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner(left, right).masked_fill(left[..., 0] * right[..., 0] > 0, -torch.inf)


def test_a_users_scorer_may_forbid_merges_by_minus_infinity() -> None:
    """Orders of merging that get stuck have no weight; here the beam can hold all others."""
    cell, scorer = parts()
    cell, scorer = KeepsAMark(cell), OppositesOnly(scorer)
    leaves = torch.randn(1, 6, 10, dtype=torch.float64)
    leaves[0, :, 0] = torch.tensor([1, 1, 1, 1, -1, 1])
    leaves.requires_grad_()
    inputs = [leaves, *cell.parameters(), *scorer.parameters()]

    stuck, orders = 0, [(leaves[0], leaves.new_zeros(()))]
    for _ in range(5):
        longer = []
        for nodes, log_score in orders:
            scores = scorer(nodes[:-1], nodes[1:])
            permitted = (scores > -torch.inf).nonzero().flatten().tolist()
            stuck += not permitted
            for i in permitted:
                parent = cell(nodes[i : i + 1], nodes[i + 1 : i + 2])
                merged = torch.cat((nodes[:i], parent, nodes[i + 2 :]))
                longer.append((merged, log_score + scores.log_softmax(0)[i]))
        orders = longer
        assert 1 <= len(orders) <= 4
    assert stuck
    weights = torch.stack([log_score for _, log_score in orders]).softmax(0)
    expected = weights @ torch.cat([nodes for nodes, _ in orders])

    found = beam_tree_recursion(leaves, torch.tensor([6]), cell, scorer, beam_size=4).root()
    torch.testing.assert_close(found[0], expected)
    cotangent = torch.randn(10, dtype=torch.float64)
    torch.testing.assert_close(gradients(found[0], cotangent, inputs), gradients(expected, cotangent, inputs))


@pytest.mark.parametrize("merge_equal_trees", [False, True])
def test_a_scorer_that_leaves_a_sequence_without_a_tree_is_refused(merge_equal_trees: bool) -> None:
    cell, scorer = parts()
    leaves = torch.randn(2, 6, 10, dtype=torch.float64)
    leaves[0, :, 0] = torch.tensor([1, -1, 1, -1, 1, -1])
    leaves[1, :, 0] = 1
    with pytest.raises(ValueError, match="every merge that the beams of sequence 1 have left"):
        beam_tree_recursion(
            leaves,
            torch.tensor([6, 4]),
            KeepsAMark(cell),
            OppositesOnly(scorer),
            beam_size=8,
            merge_equal_trees=merge_equal_trees,
        )
