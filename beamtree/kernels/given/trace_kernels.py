# mypy: allow-untyped-defs
"""The log-probability of given merges: one program walks through a sequence's list of live nodes.

S = Σ_t e_chosen − log Z_t      Z_t = Σ exp(e) over the pairs that stand at step t
"""

import triton
import triton.language as tl

from beamtree.kernels.runtime.math_kernels import gelu


@triton.jit
def pair_scores(
    projections, scorer_b1, scorer_w2, scorer_b2, left, right, exists, H: tl.constexpr, UNITS: tl.constexpr
):
    """The scorer's second layer for pairs of node rows; −inf where there is none."""
    unit = tl.arange(0, UNITS)[None, :]
    mask = exists[:, None] & (unit < H)
    h = tl.load(projections + left[:, None] * (2 * H) + unit, mask=mask, other=0.0)
    h += tl.load(projections + right[:, None] * (2 * H) + H + unit, mask=mask, other=0.0)
    h += tl.load(scorer_b1 + unit, mask=unit < H, other=0.0)
    w = tl.load(scorer_w2 + unit, mask=unit < H, other=0.0)
    return tl.where(exists, tl.sum(gelu(h) * w, 1) + tl.load(scorer_b2), float("-inf"))


@triton.jit(do_not_specialize=["n"])
def trace_kernel(
    merges, lengths, projections, scorer_b1, scorer_w2, scorer_b2,
    live, scores, links, slots, energies, log_z, offset, n,
    H: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What a search with one beam writes down: each step's children between their neighbours, the scores of
    the three pairs that end, log Z; and the whole score."""
    tree = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + tree).to(tl.int32)
    first_node, first_step = tree * (2 * n - 1), tree * (n - 1)
    live += tree * n
    scores += tree * n
    for first in range(0, n, ROWS):
        place = first + tl.arange(0, ROWS)
        exists = place + 1 < length
        node = first_node + place
        energy = pair_scores(projections, scorer_b1, scorer_w2, scorer_b2, node, node + 1, exists, H, UNITS)
        tl.store(live + place, place, mask=place < n)
        tl.store(scores + place, energy, mask=place < n)
    around = tl.arange(0, 4)
    side = tl.arange(0, 2)
    whole = tl.zeros([1], tl.float64)
    for t in range(0, length - 1):
        tl.debug_barrier()
        here = first_step + t
        pairs = length - 1 - t
        top = tl.full([1], float("-inf"), tl.float32)
        mass = tl.zeros([1], tl.float32)
        for first in range(0, pairs, BLOCK):
            place = first + tl.arange(0, BLOCK)
            energy = tl.load(scores + place, mask=place < pairs, other=float("-inf"))
            higher = tl.maximum(top, tl.max(energy, 0))
            mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(energy - higher), 0)
            top = higher
        z = top + tl.log(mass)
        position = tl.load(merges + here).to(tl.int32)
        index = position - 1 + around
        node = tl.load(live + index, mask=(index >= 0) & (index <= pairs), other=-1)
        energy = tl.load(
            scores + index, mask=(index >= 0) & (index < pairs) & (around < 3), other=float("-inf")
        )
        tl.store(links + here * 4 + around, node)
        tl.store(energies + here * 4 + around, energy)
        tl.store(slots + here, 0)
        tl.store(log_z + here + tl.arange(0, 1), z)
        whole += (tl.max(tl.where(around == 1, energy, float("-inf")), 0) - z).to(tl.float64)

        made = n + t
        before = tl.max(tl.where(around == 0, node, -1), 0)
        after = tl.max(tl.where(around == 3, node, -1), 0)
        left = tl.where(side == 0, before, made)
        right = tl.where(side == 0, made, after)
        exists = (left >= 0) & (right >= 0)
        fresh = pair_scores(
            projections, scorer_b1, scorer_w2, scorer_b2, first_node + left, first_node + right, exists,
            H, UNITS,
        )  # fmt: skip
        for first in range(position // BLOCK * BLOCK, pairs, BLOCK):
            place = first + tl.arange(0, BLOCK)
            changes = (place >= position) & (place < pairs)
            moved = tl.load(live + place + 1, mask=changes, other=0)
            score = tl.load(scores + place + 1, mask=changes & (place + 1 < pairs), other=float("-inf"))
            tl.debug_barrier()
            tl.store(live + place, tl.where(place == position, made, moved), mask=changes)
            tl.store(scores + place, score, mask=changes)
        tl.debug_barrier()
        tl.store(scores + position - 1 + side, fresh, mask=position - 1 + side >= 0)
    tl.store(offset + tree + tl.arange(0, 1), whole)
