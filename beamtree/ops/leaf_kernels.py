# mypy: allow-untyped-defs
"""Reading an input without a gradient by one kernel: its mask's lengths, and leaf = LayerNorm(W x + b)."""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from beamtree.ops.launch import blocks, launch, power_of_two
from beamtree.ops.math_kernels import product
from beamtree.ops.products import float32_precision


def read_leaves(
    x: Tensor, is_padding: Tensor | None, linear: nn.Linear, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """Leaves (B, n, d) of x (B, n, width), as if zero at padding, and lengths (B,)."""
    B, n, width = x.shape
    d = linear.out_features
    x = x.contiguous()
    mask = x if is_padding is None else is_padding.contiguous()
    parameters = (p.contiguous() for p in (linear.weight, linear.bias, norm.weight, norm.bias))
    leaves = x.new_empty(B, n, d)
    lengths = x.new_empty(B, dtype=torch.int64)
    block_m = 32 if d <= 128 else 16
    tiles = blocks(B * n, block_m)
    with torch.cuda.device_of(x):
        launch(read_kernel, (tiles + B,),
            x, mask, *parameters, leaves, lengths, B * n, tiles, n,
            D=d, WIDTH=width, EPS=norm.eps, MASKED=is_padding is not None, PRECISION=float32_precision(),
            ALL_D=max(16, power_of_two(d)), BLOCK_M=block_m,
            BLOCK_K=min(2 * block_m, max(16, power_of_two(width))), num_warps=4,
        )  # fmt: skip
    return leaves, lengths


@triton.jit(do_not_specialize=["rows", "tiles", "n"])
def read_kernel(
    x, is_padding, weight, bias, gamma, beta, leaves, lengths, rows, tiles, n,
    D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
    ALL_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The first `tiles` programs each make rows of leaves, the others count a sequence's tokens."""
    program = tl.program_id(0)
    if program < tiles:
        row = (program * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        inside = row < rows
        real = inside
        if MASKED:
            real = inside & (tl.load(is_padding + row, mask=inside, other=0) == 0)
        column = tl.arange(0, ALL_D)
        wanted = column < D
        total = tl.zeros([BLOCK_M, ALL_D], tl.float32)
        for first in range(0, WIDTH, BLOCK_K):
            feature = first + tl.arange(0, BLOCK_K)
            given = feature < WIDTH
            a = x + row[:, None] * WIDTH + feature[None, :]
            a = tl.load(a, mask=real[:, None] & given[None, :], other=0.0)
            b = weight + column[None, :] * WIDTH + feature[:, None]
            b = tl.load(b, mask=wanted[None, :] & given[:, None], other=0.0)
            total = product(a, b, total, PRECISION)
        total += tl.load(bias + column, mask=wanted, other=0.0)[None, :]
        total = tl.where(wanted[None, :], total - tl.sum(total, 1)[:, None] / D, 0.0)
        scale = tl.rsqrt(tl.sum(total * total, 1) / D + EPS)
        gain = tl.load(gamma + column, mask=wanted, other=0.0)
        shift = tl.load(beta + column, mask=wanted, other=0.0)
        leaf = total * scale[:, None] * gain[None, :] + shift[None, :]
        target = leaves + row[:, None] * D + column[None, :]
        tl.store(target, leaf, mask=inside[:, None] & wanted[None, :])
    else:
        sequence = program - tiles
        count = n
        if MASKED:
            for first in range(0, n, 1024):
                index = first + tl.arange(0, 1024)
                place = is_padding + sequence.to(tl.int64) * n + index
                count -= tl.sum((tl.load(place, mask=index < n, other=0) != 0).to(tl.int32), 0)
        tl.store(lengths + sequence, count.to(tl.int64))
