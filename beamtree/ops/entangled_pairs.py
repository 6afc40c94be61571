# mypy: allow-untyped-defs
"""The pairs whose score was read off their parent, in the gradient: who they are, what their scores get, and
their dropout masks."""

import triton
import triton.language as tl

from beamtree.ops.draw_kernels import DROPOUT, kept, row_key
from beamtree.ops.entangled_kernels import name_of
from beamtree.ops.math_kernels import gelu, gelu_slope
from beamtree.ops.survivor_kernels import gradient_row, locate, slope_of_score


@triton.jit(do_not_specialize=["B", "n"])
def ended_pairs_kernel(
    order, slots, rows, links, energies, log_z, weights, chosen, beside, ids, children, names, B, n,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A survivor's three dying pairs: ∂L/∂e of the chosen one (`chosen`, N) and of those beside it (`beside`,
    N × 2). Of the latter also the node rows `ids` and the gradient rows `children` (N × 2 × 2), and `names`
    (3 × N × 2): sequence, left, right. A missing pair gets zero, and stands for a leaf of its sequence."""
    row = tl.program_id(0)
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
        if which == 1:
            tl.store(chosen + row, grad)
        else:
            place = row.to(tl.int64) * 2 + which // 2
            left = tl.where(exists, left, 0)
            right = tl.where(exists, right, 0)
            tl.store(beside + place, grad)
            for side in tl.static_range(2):
                node = left if side == 0 else right
                tl.store(ids + place * 2 + side, first_node + node)
                child = gradient_row(rows, sequence, node, True, B, n, K)
                tl.store(children + place * 2 + side, child.to(tl.int64))
            stride = 2 * tl.num_programs(0).to(tl.int64)
            tl.store(names + place, sequence.to(tl.int64))
            tl.store(names + stride + place, name_of(left, n))
            tl.store(names + 2 * stride + place, name_of(right, n))


@triton.jit(do_not_specialize=["N", "n", "dropped"])
def activate_chosen_kernel(
    order, slots, links, hidden, activated, seed, N, n, dropped,
    K: tl.constexpr, UNITS: tl.constexpr, DROPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """u = keep·GELU(h) of survivors beside h, and h itself becomes ∂u/∂h; the mask is that of their pair."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (row < N)[:, None] & (column < UNITS)[None, :]
    place = row[:, None].to(tl.int64) * UNITS + column[None, :]
    h = tl.load(hidden + place, mask=inside, other=0.0)
    u, slope = gelu(h), gelu_slope(h)
    if DROPS:
        _, sequence, _, _, record = locate(order, slots, row, row < N, n - 1, K)
        left = tl.load(links + record.to(tl.int64) * 4 + 1, mask=row < N, other=0)
        right = tl.load(links + record.to(tl.int64) * 4 + 2, mask=row < N, other=0)
        key = row_key(tl.load(seed), DROPOUT, name_of(left, n), sequence, name_of(right, n))
        keep = kept(key[:, None], column[None, :], dropped)
        scale = 65536.0 / (65536 - dropped)
        u = tl.where(keep, u * scale, 0.0)
        slope = tl.where(keep, slope * scale, 0.0)
    tl.store(activated + place, u, mask=inside)
    tl.store(hidden + place, slope, mask=inside)
