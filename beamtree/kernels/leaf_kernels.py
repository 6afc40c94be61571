# mypy: allow-untyped-defs
"""Reads an input with one kernel: lengths from the padding mask, and leaf = LayerNorm(W x + b)."""

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.kernels import cell_kernels as cell
from beamtree.kernels.runtime import math_kernels
from beamtree.kernels.runtime.products import FEW, float32_precision, product
from beamtree.pytorch.launch import blocks, launch, power_of_two

PROGRAMS = 264  # at most, that share the rows of a sum


def read_leaves(
    x: Tensor, is_padding: Tensor | None, linear: nn.Linear, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """Leaves (B, n, d) of x (B, n, width), and lengths (B,). x counts as zero at padding."""
    parameters = (linear.weight, linear.bias, norm.weight, norm.bias)
    if torch.is_grad_enabled():
        return _Read.apply(x, is_padding, norm.eps, *parameters)
    leaves, lengths, *_ = _read(x, is_padding, norm.eps, parameters, record=False)
    return leaves, lengths


def _read(
    x: Tensor, is_padding: Tensor | None, eps: float, parameters: Iterable[Tensor], *, record: bool
) -> tuple[Tensor, ...]:
    """Leaves and lengths. With `record` also what the gradient needs: x with zeros at padding, and one buffer
    with W x + b of all rows, then their means, then their reciprocal standard deviations."""
    weight, *vectors = (p.contiguous() for p in parameters)
    B, n, width = x.shape
    d = weight.shape[0]
    x = x.contiguous()
    mask = x if is_padding is None else is_padding.contiguous()
    leaves, lengths = x.new_empty(B, n, d), x.new_empty(B, dtype=torch.int64)
    clean = torch.empty_like(x) if record and is_padding is not None else x
    mixed = x.new_empty(B * n * (d + 2)) if record else leaves
    block_m = 32 if d <= 128 else 16
    tiles = blocks(B * n, block_m)
    with torch.cuda.device_of(x):
        launch(read_kernel, (tiles + B,),
            x, mask, weight, *vectors, leaves, lengths, clean, mixed, B * n, tiles, n,
            D=d, WIDTH=width, EPS=eps, MASKED=is_padding is not None, RECORD=record,
            PRECISION=float32_precision(), ALL_D=max(16, power_of_two(d)), BLOCK_M=block_m,
            BLOCK_K=min(2 * block_m, max(16, power_of_two(width))), num_warps=4,
        )  # fmt: skip
    return leaves, lengths, clean, mixed


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, is_padding: Tensor | None, eps: float, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        leaves, lengths, *saved = _read(x, is_padding, eps, parameters, record=True)
        weight, _, gamma, _ = parameters
        ctx.save_for_backward(is_padding, weight, gamma, *saved)
        ctx.mark_non_differentiable(lengths)
        return leaves, lengths

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        is_padding, weight, gamma, x, mixed = ctx.saved_tensors
        d, width = weight.shape
        grad, need_x = grad.contiguous(), ctx.needs_input_grad[0]
        rows = x.shape[0] * x.shape[1]
        programs = min(blocks(rows, 16), PROGRAMS)
        to_mixed, partial = x.new_empty(rows, d), x.new_empty(programs, 3, d)
        to_x = torch.empty_like(x) if need_x else None
        with torch.cuda.device_of(x):
            launch(read_back_kernel, (programs,),
                grad, mixed, gamma.contiguous(), weight.contiguous(),
                x if is_padding is None else is_padding.contiguous(), to_mixed, x if to_x is None else to_x,
                partial, rows,
                D=d, WIDTH=width, MASKED=is_padding is not None, NEED_X=need_x,
                PRECISION=float32_precision(), ALL_D=max(16, power_of_two(d)), BLOCK_M=16,
                BLOCK_W=min(32, max(16, power_of_two(width))), num_warps=4, num_stages=1,
            )  # fmt: skip
            to_gamma, to_beta, to_bias = partial.sum(0).unbind()
            to_weight = _product(to_mixed.t(), x.view(-1, width))
        return to_x, None, None, to_weight, to_bias, to_gamma, to_beta


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The library is faster, but for a few numbers its workspace is not worth it (see products.py)."""
    return product(x, y, float32_precision()) if max(x.numel(), y.numel()) <= FEW else torch.mm(x, y)


@triton.jit(do_not_specialize=["rows", "tiles", "n"])
def read_kernel(
    x, is_padding, weight, bias, gamma, beta, leaves, lengths, clean, mixed, rows, tiles, n,
    D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, MASKED: tl.constexpr, RECORD: tl.constexpr,
    PRECISION: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The first `tiles` programs each make a tile of leaves, the others each count the tokens of a
    sequence."""
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
            place = row[:, None] * WIDTH + feature[None, :]
            a = tl.load(x + place, mask=real[:, None] & given[None, :], other=0.0)
            if RECORD and MASKED:
                tl.store(clean + place, a, mask=inside[:, None] & given[None, :])
            b = weight + column[None, :] * WIDTH + feature[:, None]
            b = tl.load(b, mask=wanted[None, :] & given[:, None], other=0.0)
            total = math_kernels.product(a, b, total, PRECISION)
        total += tl.load(bias + column, mask=wanted, other=0.0)[None, :]
        middle = tl.sum(total, 1) / D
        centred = tl.where(wanted[None, :], total - middle[:, None], 0.0)
        sharpness = tl.rsqrt(tl.sum(centred * centred, 1) / D + EPS)
        gain = tl.load(gamma + column, mask=wanted, other=0.0)
        shift = tl.load(beta + column, mask=wanted, other=0.0)
        leaf = centred * sharpness[:, None] * gain[None, :] + shift[None, :]
        target = row[:, None] * D + column[None, :]
        tl.store(leaves + target, leaf, mask=inside[:, None] & wanted[None, :])
        if RECORD:
            tl.store(mixed + target, total, mask=inside[:, None] & wanted[None, :])
            mean = mixed + rows.to(tl.int64) * D + row
            tl.store(mean, middle, mask=inside)
            tl.store(mean + rows, sharpness, mask=inside)
    else:
        sequence = program - tiles
        count = n
        if MASKED:
            for first in range(0, n, 1024):
                index = first + tl.arange(0, 1024)
                place = is_padding + sequence.to(tl.int64) * n + index
                count -= tl.sum((tl.load(place, mask=index < n, other=0) != 0).to(tl.int32), 0)
        tl.store(lengths + sequence, count.to(tl.int64))


@triton.jit(do_not_specialize=["rows"])
def read_back_kernel(
    grad, mixed, gamma, weight, is_padding, to_mixed, to_x, partial, rows,
    D: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, NEED_X: tl.constexpr,
    PRECISION: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Gradients of W x + b and, with NEED_X, of x; and each program's part of the sums for γ, β and b."""
    feature = tl.arange(0, ALL_D)
    gain = tl.load(gamma + feature, mask=feature < D, other=0.0)
    to_gamma = tl.zeros([ALL_D], tl.float32)
    to_beta = tl.zeros([ALL_D], tl.float32)
    to_bias = tl.zeros([ALL_D], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.num_programs(0)):
        row, inside, _, _, mask, place = math_kernels.row_tile(tile, rows, D, ALL_D, BLOCK_M)
        g = tl.load(grad + place, mask=mask, other=0.0)
        mean = mixed + rows.to(tl.int64) * D + row
        middle = tl.load(mean, mask=inside, other=0.0)
        sharpness = tl.load(mean + rows, mask=inside, other=0.0)
        centred = tl.load(mixed + place, mask=mask, other=0.0) - middle[:, None]
        normed = tl.where(mask, centred * sharpness[:, None], 0.0)
        through = tl.where(mask, cell.through_norm(g * gain[None, :], normed, sharpness, D), 0.0)
        tl.store(to_mixed + place, through, mask=mask)
        to_gamma += tl.sum(g * normed, 0)
        to_beta += tl.sum(g, 0)
        to_bias += tl.sum(through, 0)
        if NEED_X:
            real = inside
            if MASKED:
                real = inside & (tl.load(is_padding + row, mask=inside, other=1) == 0)
            for first in range(0, WIDTH, BLOCK_W):
                column = first + tl.arange(0, BLOCK_W)
                wanted = (column < WIDTH)[None, :]
                w = weight + feature[:, None] * WIDTH + column[None, :]
                w = tl.load(w, mask=(feature < D)[:, None] & wanted, other=0.0)
                total = tl.zeros([BLOCK_M, BLOCK_W], tl.float32)
                total = math_kernels.product(through, w, total, PRECISION)
                target = to_x + row[:, None] * WIDTH + column[None, :]
                tl.store(target, tl.where(real[:, None], total, 0.0), mask=inside[:, None] & wanted)
    target = partial + tl.program_id(0) * (3 * D) + feature
    tl.store(target, to_gamma, mask=feature < D)
    tl.store(target + D, to_beta, mask=feature < D)
    tl.store(target + 2 * D, to_bias, mask=feature < D)
