# mypy: allow-untyped-defs
"""Inner nodes of the final beams: vectors out of the node store, gradients into the survivors' rows."""

import triton
import triton.language as tl

from beamtree.kernels.replay.survivor_kernels import locate


@triton.jit(do_not_specialize=["B", "n"])
def inner_nodes_kernel(
    slots, nodes, inner, B, n, D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """The node made at each step of each lineage, zero where none."""
    T = n - 1
    entry = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = entry < B.to(tl.int64) * K * T
    slot = tl.load(slots + entry, mask=inside, other=-1)
    node = entry // (T * K) * (n + T * K) + n + entry % T * K + slot
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        real = (feature < D)[None, :]
        made = (slot >= 0)[:, None] & real
        x = tl.load(nodes + node[:, None] * D + feature[None, :], mask=made, other=0.0)
        tl.store(inner + entry[:, None] * D + feature[None, :], x, mask=inside[:, None] & real)


@triton.jit(do_not_specialize=["first_row", "N", "T"])
def inner_gradients_kernel(
    order, slots, grad_inner, gradients, first_row, N, T,
    D: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add to each survivor's row what all beams that own its node send to it."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < N
    _, sequence, _, t, record = locate(order, slots, row, inside, T, K)
    mine = record - (sequence * T + t) * K
    for first in range(0, D, BLOCK_D):
        feature = first + tl.arange(0, BLOCK_D)
        mask = inside[:, None] & (feature < D)[None, :]
        target = gradients + (first_row + row)[:, None].to(tl.int64) * D + feature[None, :]
        total = tl.load(target, mask=mask, other=0.0)
        for beam in range(K):
            entry = (sequence * K + beam).to(tl.int64) * T + t
            owns = tl.load(slots + entry, mask=inside, other=-1) == mine
            sent = grad_inner + entry[:, None] * D + feature[None, :]
            total += tl.load(sent, mask=mask & owns[:, None], other=0.0)
        tl.store(target, total, mask=mask)
