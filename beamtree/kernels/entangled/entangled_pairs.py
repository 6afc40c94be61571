# mypy: allow-untyped-defs
"""The pairs whose score was read off their parent, in the gradient: who they are, what their scores get, and
the way from a score through the parent's layer norm to the gates."""

import triton
import triton.language as tl

from beamtree.kernels.entangled.entangled_kernels import name_of
from beamtree.kernels.replay.survivor_kernels import gradient_row, locate, slope_of_score
from beamtree.kernels.runtime.draw_kernels import DROPOUT, kept, row_key
from beamtree.kernels.runtime.math_kernels import gelu, gelu_slope


@triton.jit(do_not_specialize=["B", "n"])
def ended_pairs_kernel(
    order, slots, rows, links, energies, log_z, weights, chosen, chosen_names, beside, beside_names,
    ids, children, B, n,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a survivor's three dying pairs, the chosen one (N of them) and those beside it (2·N): ∂L/∂e, and the
    names: sequence, left, right. Of those beside also the node rows `ids` and the gradient rows `children`
    (2·N × 2). A missing pair gets zero, and stands for a leaf of its sequence."""
    row = tl.program_id(0).to(tl.int64)
    T = n - 1
    entry, sequence, beam, t, record = locate(order, slots, row, True, T, K)
    weight = tl.load(weights + entry)
    lineage = log_z + (sequence * K + beam).to(tl.int64) * T
    first_node = sequence.to(tl.int64) * (n + T * K)
    for which in tl.static_range(3):
        left = tl.load(links + record.to(tl.int64) * 4 + which)
        right = tl.load(links + record.to(tl.int64) * 4 + which + 1)
        energy = tl.load(energies + record.to(tl.int64) * 4 + which)
        exists = (left >= 0) & (right >= 0)
        grad = 0.0
        if exists:
            grad = weight * slope_of_score(lineage, energy, left, right, t, n, which == 1, K, BLOCK)
        left = tl.where(exists, left, 0)
        right = tl.where(exists, right, 0)
        pair = row if which == 1 else row * 2 + which // 2
        names = (chosen_names if which == 1 else beside_names) + pair * 3
        tl.store((chosen if which == 1 else beside) + pair, grad)
        tl.store(names, sequence.to(tl.int64))
        tl.store(names + 1, name_of(left, n))
        tl.store(names + 2, name_of(right, n))
        if which != 1:
            for side in tl.static_range(2):
                node = left if side == 0 else right
                tl.store(ids + pair * 2 + side, first_node + node)
                child = gradient_row(rows, sequence, node, True, B, n, K)
                tl.store(children + pair * 2 + side, child.to(tl.int64))


@triton.jit(do_not_specialize=["rows", "dropped"])
def activate_pairs_kernel(
    hidden, activated, names, seed, rows, dropped,
    UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) beside h, and h itself becomes ∂u/∂h; a mask belongs to a pair."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < rows)[:, None] & (column < UNITS)[None, :]
    place = row[:, None].to(tl.int64) * UNITS + column[None, :]
    h = tl.load(hidden + place, mask=inside, other=0.0)
    u, slope = gelu(h), gelu_slope(h)
    if DROPS:
        name = names + row.to(tl.int64) * 3
        sequence = tl.load(name, mask=row < rows, other=0)
        left = tl.load(name + 1, mask=row < rows, other=0)
        right = tl.load(name + 2, mask=row < rows, other=0)
        key = row_key(tl.load(seed), DROPOUT, left, sequence, right)
        keep = kept(key[:, None], column[None, :], dropped)
        scale = 65536.0 / (65536 - dropped)
        u = tl.where(keep, u * scale, 0.0)
        slope = tl.where(keep, slope * scale, 0.0)
    tl.store(activated + place, u, mask=inside)
    tl.store(hidden + place, slope, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def pull_scores_kernel(
    grads, normed, scales, gamma, scorer, gates, opened, rows,
    D: tl.constexpr, BLOCK_M: tl.constexpr, ALL_D: tl.constexpr,
):  # fmt: skip
    """From scores to gates: ∂p/∂gates become ∂L/∂gates, and σ(a), σ(b) the children's direct share."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, ALL_D)
    mask = (row < rows)[:, None] & (feature < D)[None, :]
    y = tl.load(normed + row[:, None].to(tl.int64) * D + feature[None, :], mask=mask, other=0.0)
    slope = tl.load(gamma + feature, mask=feature < D, other=0.0)
    slope *= tl.load(scorer + feature, mask=feature < D, other=0.0)
    mean = tl.sum(slope, 0) / D
    along = tl.sum(slope[None, :] * y, 1) / D
    factor = tl.load(grads + row, mask=row < rows, other=0.0) * tl.load(
        scales + row, mask=row < rows, other=0.0
    )
    through = (slope[None, :] - mean - y * along[:, None]) * factor[:, None]
    for gate in tl.static_range(4):
        place = gates + row[:, None].to(tl.int64) * (4 * D) + gate * D + feature[None, :]
        tl.store(place, tl.load(place, mask=mask, other=0.0) * through, mask=mask)
    for side in tl.static_range(2):
        place = opened + row[:, None].to(tl.int64) * (2 * D) + side * D + feature[None, :]
        tl.store(place, tl.load(place, mask=mask, other=0.0) * through, mask=mask)
