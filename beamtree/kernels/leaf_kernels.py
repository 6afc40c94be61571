# mypy: allow-untyped-defs
"""Reading an input by one kernel: its mask's lengths, and leaf = LayerNorm(W x + b)."""

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from beamtree.kernels.runtime import math_kernels
from beamtree.kernels.runtime.products import FEW, float32_precision, product
from beamtree.pytorch.launch import blocks, launch, power_of_two


def read_leaves(
    x: Tensor, is_padding: Tensor | None, linear: nn.Linear, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """Leaves (B, n, d) of x (B, n, width), as if zero at padding, and lengths (B,)."""
    parameters = (linear.weight, linear.bias, norm.weight, norm.bias)
    if torch.is_grad_enabled():
        return _Read.apply(x, is_padding, norm.eps, *parameters)
    leaves, lengths, *_ = _read(x, is_padding, norm.eps, parameters, record=False)
    return leaves, lengths


def _read(
    x: Tensor, is_padding: Tensor | None, eps: float, parameters: Iterable[Tensor], *, record: bool
) -> tuple[Tensor, ...]:
    """Leaves and lengths; with `record` also what the gradient needs: x without padding, W x + b, its mean
    and reciprocal standard deviation."""
    weight, *vectors = (p.contiguous() for p in parameters)
    B, n, width = x.shape
    d = weight.shape[0]
    x = x.contiguous()
    mask = x if is_padding is None else is_padding.contiguous()
    leaves, lengths = x.new_empty(B, n, d), x.new_empty(B, dtype=torch.int64)
    clean, mixed, mean, scale = x, leaves, leaves, leaves
    if record:
        clean = x if is_padding is None else torch.empty_like(x)
        mixed, (mean, scale) = x.new_empty(B * n, d), x.new_empty(2, B * n + -B * n % 4, 1)
    block_m = 32 if d <= 128 else 16
    tiles = blocks(B * n, block_m)
    with torch.cuda.device_of(x):
        launch(read_kernel, (tiles + B,),
            x, mask, weight, *vectors, leaves, lengths, clean, mixed, mean, scale, B * n, tiles, n,
            D=d, WIDTH=width, EPS=eps, MASKED=is_padding is not None, RECORD=record,
            PRECISION=float32_precision(), ALL_D=max(16, power_of_two(d)), BLOCK_M=block_m,
            BLOCK_K=min(2 * block_m, max(16, power_of_two(width))), num_warps=4,
        )  # fmt: skip
    return leaves, lengths, clean, mixed, mean[: B * n], scale[: B * n]


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, is_padding: Tensor | None, eps: float, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        leaves, lengths, *saved = _read(x, is_padding, eps, parameters, record=True)
        weight, _, gamma, beta = parameters
        ctx.save_for_backward(is_padding, weight, gamma, beta, *saved)
        ctx.mark_non_differentiable(lengths)
        return leaves, lengths

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        is_padding, weight, gamma, beta, x, mixed, mean, scale = ctx.saved_tensors
        d, width = weight.shape
        to_mixed, to_gamma, to_beta = torch.ops.aten.native_layer_norm_backward(
            grad.reshape(-1, d), mixed, (d,), mean, scale, gamma, beta, (True, True, True)
        )
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = _product(to_mixed, weight).view(x.shape)
            if is_padding is not None:
                to_x = to_x.masked_fill_(is_padding.unsqueeze(-1), 0.0)
        to_weight = _product(to_mixed.t(), x.view(-1, width))
        return to_x, None, None, to_weight, to_mixed.sum(0), to_gamma, to_beta


def _product(x: Tensor, y: Tensor) -> Tensor:
    """The library is faster, but holds a workspace that a few numbers do not deserve (products.py)."""
    with torch.cuda.device_of(x):
        return product(x, y, float32_precision()) if max(x.numel(), y.numel()) <= FEW else torch.mm(x, y)


@triton.jit(do_not_specialize=["rows", "tiles", "n"])
def read_kernel(
    x, is_padding, weight, bias, gamma, beta, leaves, lengths, clean, mixed, mean, scale, rows, tiles, n,
    D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, MASKED: tl.constexpr, RECORD: tl.constexpr,
    PRECISION: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
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
            tl.store(mean + row, middle, mask=inside)
            tl.store(scale + row, sharpness, mask=inside)
    else:
        sequence = program - tiles
        count = n
        if MASKED:
            for first in range(0, n, 1024):
                index = first + tl.arange(0, 1024)
                place = is_padding + sequence.to(tl.int64) * n + index
                count -= tl.sum((tl.load(place, mask=index < n, other=0) != 0).to(tl.int32), 0)
        tl.store(lengths + sequence, count.to(tl.int64))
