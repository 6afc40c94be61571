"""GT-GRC and EGT-GRC: the sweep against plain autograd, and what straight-through trees promise."""

import copy

import pytest
import torch
from own_cells import D, make_input
from torch import Tensor

from beamtree import create_encoder
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.zoo.gumbel_tree import gumbel_tree_by_autograd
from beamtree.zoo.straight_through import Timetable, straight_through_tree
from beamtree.zoo.tree_encoder import sum_by_blocks

LENGTHS = [[1], [2], [3], [5, 1, 2, 3, 9, 9, 4], [1, 1], [2, 1, 2]]


def make_case(lengths: list[int], entangled: bool, dropout: float) -> tuple:
    torch.manual_seed(len(lengths))
    n = max(lengths)
    cell = GatedRecursiveCell(D, dropout=dropout, dtype=torch.float64)
    scorer = (
        EntangledScorer(D, dtype=torch.float64)
        if entangled
        else SlicedScorer(D, slice_size=4, hidden_size=5, dtype=torch.float64)
    )
    for parameter in scorer.parameters():  # sharp choices, so that the gradient of q is not tiny everywhere
        parameter.data *= 3
    leaves = torch.randn(len(lengths), n, D, dtype=torch.float64, requires_grad=True)
    return leaves, torch.tensor(lengths), cell, scorer


def gradients(root: Tensor, leaves: Tensor, *modules: torch.nn.Module) -> list[Tensor]:
    inputs = [leaves, *(p for module in modules for p in module.parameters())]
    torch.manual_seed(7)
    found = torch.autograd.grad(root, inputs, torch.randn_like(root), allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for i, g in zip(inputs, found, strict=True)]


def pair_numbers(merges: Tensor, lengths: Tensor, timetable: Timetable) -> list[list[list[int]]]:
    """By sequence and own step: which pair of the fast path's store stands at each position."""
    n, table = timetable.n, []
    rank = timetable.order.argsort().tolist()
    for b, length in enumerate(lengths.tolist()):
        pairs, steps = [rank[b] * (n - 1) + i for i in range(length - 1)], []
        for k in range(length - 1):
            steps.append(list(pairs))
            j = int(merges[b, k])
            made = timetable.first_pair + 2 * (timetable.starts[n - length + k] + rank[b])
            pairs = (
                pairs[: max(j - 1, 0)] + [made] * (j > 0) + [made + 1] * (j + 2 < length - k) + pairs[j + 2 :]
            )
        table.append(steps)
    return table


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("entangled", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_sweep_equals_autograd_through_every_state(lengths, entangled, noisy, dropout):
    leaves, lengths, cell, scorer = make_case(lengths, entangled, dropout)
    B, n, _ = leaves.shape
    timetable = Timetable(lengths, n)
    noise_table = torch.randn(B, n, n, dtype=torch.float64)  # sequence, own step, position

    def noise(t: int, sequences: int, pairs: int) -> Tensor:
        rows = timetable.order[:sequences]
        return noise_table[rows, t - n + lengths[rows], :pairs]

    rows = timetable.pairs if entangled else timetable.made
    keep = cell.draw_keep(rows)
    root, merges, _ = straight_through_tree(leaves, timetable, cell, scorer, keep, noise if noisy else None)

    pairs_at = pair_numbers(merges, lengths, timetable)
    merge_rows = [
        (timetable.starts[t] + r, b, t - n + int(lengths[b]))
        for t in range(n - 1)
        for r, b in enumerate(timetable.order[: timetable.counts[t]].tolist())
    ]

    def masks(t: int, pairs: int) -> Tensor | None:
        if keep is None:
            return None
        table = torch.zeros(B, pairs, cell.hidden_size, dtype=torch.float64)
        if entangled:
            for b in range(B):
                if t < lengths[b] - 1:
                    table[b, : len(pairs_at[b][t])] = keep[pairs_at[b][t]]
        else:
            for place, b, own in merge_rows:
                if own == t:
                    table[b, 0] = keep[place]
        return table

    plain_root, plain_merges = gumbel_tree_by_autograd(
        leaves,
        lengths,
        cell,
        scorer,
        entangled=entangled,
        noise=lambda t, pairs: noise_table[:, t, :pairs] if noisy else None,
        keep=masks,
    )
    torch.testing.assert_close(merges, plain_merges)
    torch.testing.assert_close(root, plain_root, rtol=0, atol=1e-10)
    ours, theirs = gradients(root, leaves, cell, scorer), gradients(plain_root, leaves, cell, scorer)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    if max(lengths) > 2:
        assert theirs[-2].abs().max() > 1e-6, "the scorer must take part in this test"


def test_faithful_and_cached_are_the_same_without_dropout_and_noise():
    x, is_padding = make_input([7, 1, 2, 3, 5])
    found = []
    for mode in ("cached", "faithful"):
        torch.manual_seed(0)
        encoder = create_encoder("gt-grc", D, mode=mode, stochastic=False, dtype=torch.float64).train()
        root, trees = encoder(x, is_padding, need_trees=True)
        found.append((trees.merges, root, *gradients(root, x, encoder)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_faithful_gives_zero_gradients_where_there_is_nothing_to_merge():
    encoder = create_encoder("gt-grc", D, mode="faithful", dtype=torch.float64).train()
    encoder(make_input([1])[0]).sum().backward()
    assert all(p.grad.eq(0).all() for p in [*encoder.cell.parameters(), *encoder.scorer.parameters()])


def test_faithful_draws_masks_for_all_pairs_at_every_step(monkeypatch):
    encoder = create_encoder("gt-grc", D, mode="faithful", dropout=0.5, dtype=torch.float64).train()
    drawn = []
    draw = encoder.cell.draw_keep
    monkeypatch.setattr(encoder.cell, "draw_keep", lambda *shape: drawn.append(shape) or draw(*shape))
    x, _ = make_input([4, 4])
    encoder(x)
    assert drawn == [(2, 3), (2, 2), (2, 1)]


@pytest.mark.parametrize("name", ["gt-grc", "egt-grc"])
def test_noise_changes_trees_in_training_only(name):
    encoder = create_encoder(name, D, dtype=torch.float64)
    x, is_padding = make_input([9] * 8)
    trees = [encoder.train()(x, is_padding, need_trees=True)[1].merges for _ in range(2)]
    assert not torch.equal(*trees)
    trees = [encoder.eval()(x, is_padding, need_trees=True)[1].merges for _ in range(2)]
    assert torch.equal(*trees)
    encoder.stochastic = False
    assert torch.equal(encoder.train()(x, is_padding, need_trees=True)[1].merges, trees[0])


def test_the_choice_follows_gumbel_s_law():
    """With logits e the best of e + noise is chosen with probability softmax(e)."""
    encoder = create_encoder("egt-grc", D, dtype=torch.float64).train()
    encoder.scorer.out.weight.data *= 5
    x, _ = make_input([3])
    with torch.no_grad():
        leaves = encoder.leaf(x)
        expected = encoder.scorer(leaves[:, :-1], leaves[:, 1:]).softmax(-1)[0, 0]
        merges = encoder(x.expand(4000, -1, -1), need_trees=True)[1].merges
    share = (merges[:, 0, 0] == 0).double().mean()
    assert abs(share - expected) < 4 * (0.25 / 4000) ** 0.5


@pytest.mark.parametrize("name", ["gt-grc", "egt-grc"])
def test_changing_the_trees_before_the_backward_pass_changes_no_gradient(name):
    torch.manual_seed(0)
    encoder = create_encoder(name, D, dtype=torch.float64).eval()
    x, is_padding = make_input([5, 3, 1])
    root, trees = encoder(x, is_padding, need_trees=True)
    expected = gradients(root, x, encoder)
    root, trees = encoder(x, is_padding, need_trees=True)
    for part in (trees.lengths, trees.merges, trees.offset):
        part.fill_(0)
    for found, wanted in zip(gradients(root, x, encoder), expected, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("entangled", [False, True])
def test_the_scorer_s_output_bias_gets_no_gradient(entangled):
    leaves, lengths, cell, scorer = make_case([9, 4, 9], entangled, 0.0)
    root, *_ = straight_through_tree(leaves, Timetable(lengths, leaves.shape[1]), cell, scorer)
    *_, weight, bias = gradients(root, leaves, scorer)
    assert bias.abs().max() < 1e-12 < weight.abs().max()


class Doubled(torch.nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("name", ["gt-grc", "egt-grc"])
def test_a_parametrized_weight_is_read_for_what_it_stands_for(name):
    encoder = create_encoder(name, D, dtype=torch.float64).eval()
    x, is_padding = make_input([5, 2])
    doubled = copy.deepcopy(encoder)
    torch.nn.utils.parametrize.register_parametrization(encoder.cell.w1, "weight", Doubled())
    doubled.cell.w1.weight.data *= 2
    torch.testing.assert_close(encoder(x, is_padding), doubled(x, is_padding), rtol=0, atol=0)


@pytest.mark.parametrize("m", [1, 2, 3, 10, 49, 50])
def test_sums_by_blocks_are_running_sums(m):
    x = torch.randn(3, m, dtype=torch.float64)
    torch.testing.assert_close(sum_by_blocks(x), x.cumsum(-1))


def test_what_is_kept_for_the_gradient_is_linear_vectors_and_half_n_squared_scalars():
    """Bytes of all saved tensors at n and 2n: the quadratic part is one float for each of n²/2 pairs."""

    def saved_bytes(n: int) -> int:
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        encoder = create_encoder("egt-grc", 16).train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            encoder(torch.randn(1, n, 16)).sum()
        return sum(storages.values())

    small, large = saved_bytes(200), saved_bytes(400)
    quadratic = large - 2 * small
    assert quadratic < 1.1 * 4 * 200**2
    assert 2 * small - quadratic < 400 * 16 * 4 * 40


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be 'cached' or 'faithful', got 'slow'"):
        create_encoder("gt-grc", D, mode="slow")
