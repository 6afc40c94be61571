"""Gated attention against sums written out, and parent attention in both of its layouts."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from beamtree import BeamTrees
from beamtree.nn.attention import GatedAttention, GatedAttentionUnit, ParentAttention, masked_softmax
from beamtree.trees.forest import DenseAncestry, ListedAncestry, find_ancestry

D = 6


def random_trees(lengths: list[int], K: int, seed: int = 0, *, shallow: bool = False) -> BeamTrees:
    """K trees for each length; from the third sequence on the last beam is dead."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    merges = torch.full((len(lengths), K, n - 1), -1)
    scores = torch.zeros(len(lengths), K)
    for b, length in enumerate(lengths):
        for k in range(K):
            if b >= 2 and k == K - 1 > 0:
                scores[b, k] = -torch.inf
                continue
            width = length
            while width > 1:
                places = range(width // 2) if shallow else [None]
                for place in places:
                    if place is None:
                        place = int(torch.randint(width - 1, (), generator=generator))
                    merges[b, k, length - width] = place
                    width -= 1
    return BeamTrees(merges, scores, torch.zeros(len(lengths)).double(), torch.tensor(lengths))


def transformed(unit: GatedAttention, x: Tensor) -> tuple[Tensor, ...]:
    read = F.layer_norm(unit.init.linear(x), (D,), unit.init.norm.weight, unit.init.norm.bias)
    return F.silu(unit.u(read)), F.silu(unit.v(read)), F.silu(unit.z(read))


def finished(unit: GatedAttention, x: Tensor, u: Tensor, mixed: Tensor) -> Tensor:
    o = unit.out(u * mixed)
    g = unit.gate(torch.cat((o, x), -1)).sigmoid()
    return g * o + (1 - g) * x


def written_out(unit: GatedAttention, x: Tensor, p: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    """One sequence, pair by pair: x (n, d), p (l, d), the row of E and leave for every pair (n, l)."""
    u, _, z = transformed(unit, x)
    _, v, z_key = transformed(unit, p)
    mixed = torch.zeros_like(u)
    for i in range(len(x)):
        scores = []
        for j in range(len(p)):
            key = unit.z_scale[-1] * z_key[j] + unit.z_offset[-1]
            score = (unit.z_scale[0] * z[i] + unit.z_offset[0]) @ key
            if unit.scalar_bias:
                score = (score + unit.relative[rows[i, j], 0]) / math.sqrt(2 * D)
            else:
                query = unit.z_scale[1] * z[i] + unit.z_offset[1]
                score = (score + query @ unit.relative[rows[i, j]]) / math.sqrt(2 * unit.head_size)
            scores.append(score)
        keys = allowed[i].nonzero().flatten().tolist()
        if keys:
            weights = torch.stack([scores[j] for j in keys]).softmax(0)
            mixed[i] = sum(w * v[j] for w, j in zip(weights, keys, strict=True))
    return finished(unit, x, u, mixed)


def stir(unit: GatedAttention) -> None:
    """Scales as drawn are so small that attention is nearly uniform."""
    with torch.no_grad():
        unit.z_scale.normal_()
        unit.z_offset.normal_()


@pytest.mark.parametrize("scalar_bias", [False, True])
@pytest.mark.parametrize("head_size", [None, 4])
def test_a_unit_is_the_written_out_sum_over_real_tokens(scalar_bias, head_size):
    torch.manual_seed(0)
    unit = GatedAttentionUnit(
        D, max_distance=2, head_size=head_size, scalar_bias=scalar_bias, dtype=torch.float64
    )
    stir(unit)
    x = torch.randn(2, 6, D, dtype=torch.float64)
    is_padding = torch.tensor([[False] * 6, [False, True, False, False, True, True]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 2, 2]])
    found = unit(x, is_padding, positions=positions)
    for b in range(2):
        rows = (positions[b] - positions[b][:, None]).clamp(-2, 2) + 2
        real = ~is_padding[b]
        expected = written_out(unit, x[b], x[b], rows, real.expand(6, 6))
        torch.testing.assert_close(found[b][real], expected[real])
    torch.testing.assert_close(unit(x[:1]), found[:1])


def test_what_stands_in_padding_does_not_matter_to_a_unit():
    torch.manual_seed(0)
    unit = GatedAttentionUnit(D, dtype=torch.float64)
    x = torch.randn(1, 5, D, dtype=torch.float64)
    is_padding = torch.arange(5)[None] >= 3
    dirty = x.masked_fill(is_padding.unsqueeze(-1), torch.nan)
    found = unit(dirty, is_padding)[:, :3]
    torch.testing.assert_close(found, unit(x[:, :3]))
    found.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in unit.parameters())


def test_a_unit_names_the_argument_that_is_wrong():
    unit = GatedAttentionUnit(D)
    with pytest.raises(ValueError, match=r"x must have shape \(B, n, 6\), got \(2, 3, 5\)"):
        unit(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match=r"key_padding_mask must be a bool tensor, .* got torch\.float32"):
        unit(torch.zeros(2, 3, D), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"key_padding_mask must be a bool tensor, .* got list"):
        unit(torch.zeros(2, 3, D), [[False] * 3] * 2)
    with pytest.raises(
        ValueError, match=r"x must have the parameters' dtype torch\.float32, got torch\.float64"
    ):
        unit(torch.zeros(2, 3, D, dtype=torch.float64))
    with pytest.raises(ValueError, match="d_model must be at least 1"):
        GatedAttentionUnit(0)
    assert "d_model=6" in repr(unit)


@pytest.mark.parametrize("attend_self", [False, True])
@pytest.mark.parametrize("scalar_bias", [False, True])
@pytest.mark.parametrize("layout", [DenseAncestry, ListedAncestry])
def test_parent_attention_is_the_written_out_sum_over_ancestors(layout, scalar_bias, attend_self):
    torch.manual_seed(0)
    lengths, K = [7, 1, 2, 4], 3
    unit = ParentAttention(D, scalar_bias=scalar_bias, attend_self=attend_self, dtype=torch.float64)
    stir(unit)
    trees = random_trees(lengths, K)
    leaves = torch.randn(4, 7, D, dtype=torch.float64)
    nodes = torch.randn(4, K, 6, D, dtype=torch.float64)
    found = unit(leaves, nodes, trees, refinements=2, ancestry=layout(trees))
    for b, length in enumerate(lengths):
        for k in range(K - (b >= 2)):
            x = leaves[b, :length]
            spans, heights = trees.spans[b, k, : length - 1], trees.heights[b, k, : length - 1]
            leaf = torch.arange(length)[:, None]
            allowed = (spans[:, 0] <= leaf) & (leaf < spans[:, 1])
            rows = heights.clamp(1, 10).expand(length, -1) - 1
            if attend_self:
                allowed = torch.cat((torch.eye(length, dtype=torch.bool), allowed), 1)
                rows = F.pad(rows + 1, (length, 0))
            for _ in range(2):
                inner = nodes[b, k, : length - 1]
                x = written_out(unit, x, torch.cat((x, inner)) if attend_self else inner, rows, allowed)
            torch.testing.assert_close(found[b, k, :length], x)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_every_leaf_spends_all_its_attention_on_its_ancestors(lengths, K, seed, shallow):
    torch.manual_seed(seed)
    unit = ParentAttention(D, dtype=torch.float64)
    stir(unit)
    trees = random_trees(lengths, K, seed, shallow=shallow)
    n = max(lengths)
    read = torch.randn(len(lengths), 1, n, D, dtype=torch.float64)
    nodes = torch.randn(len(lengths), K, n - 1, D, dtype=torch.float64)
    key, _ = unit.keys_of_nodes(nodes, trees)
    dense, listed = DenseAncestry(trees), ListedAncestry(trees)
    assert torch.equal(dense.allowed.sum(-1), listed.allowed.sum(-1))
    for ancestry in (dense, listed):
        weights = unit.weights(read, key, ancestry)
        assert (weights[~ancestry.allowed] == 0).all()
        for b, length in enumerate(lengths):
            for k in range(K):
                alive = bool(trees.alive[b, k]) and length > 1
                expected = torch.zeros(n, dtype=torch.float64)
                expected[:length] = float(alive)
                torch.testing.assert_close(weights[b, k].sum(-1), expected)
                if alive:
                    counts = ancestry.allowed[b, k, :length].sum(-1)
                    assert 1 <= counts.min() <= counts.max() <= length - 1
                    assert dense.allowed[b, k, :length, length - 2].all()  # the root


def test_lists_of_ancestors_refuse_a_second_derivative_instead_of_cutting_it():
    trees = random_trees([5], K=1)
    unit = ParentAttention(D, dtype=torch.float64)
    leaves = torch.randn(1, 5, D, dtype=torch.float64, requires_grad=True)
    nodes = torch.randn(1, 1, 4, D, dtype=torch.float64)
    found = unit(leaves, nodes, trees, ancestry=ListedAncestry(trees))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(found.sum(), leaves, create_graph=True)


@pytest.mark.parametrize("lengths", [[1], [1, 1], [2, 1], [9, 5, 3]])
@pytest.mark.parametrize("attend_self", [False, True])
def test_both_layouts_have_the_same_gradients(lengths, attend_self):
    torch.manual_seed(1)
    unit = ParentAttention(D, attend_self=attend_self, dtype=torch.float64)
    stir(unit)
    trees = random_trees(lengths, 2)
    n = max(lengths)
    found = []
    for layout in (DenseAncestry, ListedAncestry):
        torch.manual_seed(2)
        leaves = torch.randn(len(lengths), n, D, dtype=torch.float64, requires_grad=True)
        nodes = torch.randn(len(lengths), 2, n - 1, D, dtype=torch.float64, requires_grad=True)
        y = unit(leaves, nodes, trees, refinements=2, ancestry=layout(trees))
        loss = (y * torch.randn_like(y)).sum()
        found.append([y, *torch.autograd.grad(loss, [leaves, nodes, *unit.parameters()])])
    torch.testing.assert_close(*found)


def test_the_lists_of_a_shallow_tree_keep_far_fewer_scalars_than_all_pairs():
    n = 512
    trees = random_trees([n], 1, shallow=True)
    listed = find_ancestry(trees)
    assert isinstance(listed, ListedAncestry)
    assert listed.allowed.shape == (1, 1, n, 9)
    kept = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    unit = ParentAttention(4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        unit(torch.randn(1, n, 4), torch.randn(1, 1, n - 1, 4), trees)
    assert max(kept) <= n * 9


def test_a_deep_tree_and_a_short_sequence_get_matrices():
    n = 300
    chain = BeamTrees.from_merges(torch.zeros(1, n - 1, dtype=torch.int64))
    assert isinstance(find_ancestry(chain), DenseAncestry)
    assert isinstance(find_ancestry(random_trees([40], 1, shallow=True)), DenseAncestry)


def test_a_row_that_allows_nothing_is_zero_and_passes_no_gradient():
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[False, False], [True, False]]))
    assert weights.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    weights.sum().backward()
    assert scores.grad.eq(0).all()


def test_dropout_acts_on_what_attention_adds_in_training_alone():
    torch.manual_seed(0)
    unit = GatedAttentionUnit(D, dropout=0.5)
    x = torch.randn(1, 4, D)
    assert not torch.equal(unit(x), unit(x))
    unit.eval()
    assert torch.equal(unit(x), unit(x))


@pytest.mark.parametrize("layout", [DenseAncestry, ListedAncestry])
def test_autocast_keeps_the_type_of_the_leaves(layout):
    torch.manual_seed(0)
    unit = ParentAttention(D)
    trees = random_trees([5, 3], 2)
    leaves, nodes = torch.randn(2, 5, D, requires_grad=True), torch.randn(2, 2, 4, D)
    exact = unit(leaves, nodes, trees, ancestry=layout(trees))
    with torch.autocast("cpu", torch.bfloat16):
        found = unit(leaves, nodes, trees, ancestry=layout(trees))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.1)
    found.sum().backward()
    assert leaves.grad.isfinite().all()
