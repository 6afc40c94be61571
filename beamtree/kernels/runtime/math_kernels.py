# mypy: allow-untyped-defs
"""Small device functions that several kernels share, and small matrix products."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch.launch import blocks, launch

WORST = tl.constexpr(-(2**63))  # below the key of any value


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def gelu_slope(x):
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def row_tile(rows, D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """A program's rows of vectors: their numbers, which of them exist; the features, which of them are real;
    both as a mask, and where they are in memory."""
    row = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < rows
    feature = tl.arange(0, ALL_D)
    real = feature < D
    return row, inside, feature, real, inside[:, None] & real[None, :], row[:, None] * D + feature[None, :]


@triton.jit
def normalised(x, mask, D: tl.constexpr, EPS: tl.constexpr):
    """Rows less their means, over their standard deviations, and these deviations' reciprocals."""
    mean = tl.sum(x, 1) / D
    centred = tl.where(mask, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + EPS)
    return centred * scale[:, None], scale


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a·b; "tf32x3" is accurate to float32."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "fp16":
        return tl.dot(a.to(tl.float16), b.to(tl.float16), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def up_to_rounding(value):
    """As in engine/choosing.py: values that differ by rounding only become equal."""
    return value + 24.0


@triton.jit
def key_of(value, index):
    """An int64 whose order is that of the values, the lower index first among equals."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


def matrix_product(
    a: Tensor, b: Tensor, precision: str, *, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """a (M, R) · b (R, N) + bias (N,). Of each of a, b and `out` one axis must be dense."""
    M, R = a.shape
    N = b.shape[1]
    if out is None:
        out = torch.empty(M, N, device=a.device)
    across_a, across_b = a.stride(1) != 1, b.stride(1) != 1
    strides = a.stride(1 if across_a else 0), b.stride(1 if across_b else 0), out.stride(0)
    launch(
        product_kernel, (blocks(M, 32), blocks(N, 32)),
        a, b, out if bias is None else bias, out, M, N, R,
        A_STRIDE=strides[0], B_STRIDE=strides[1], OUT_STRIDE=strides[2], ACROSS_A=across_a, ACROSS_B=across_b,
        BIASED=bias is not None, PRECISION=precision, BLOCK=32, BLOCK_R=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["M", "N", "R"])
def product_kernel(
    a, b, bias, out, M, N, R,
    A_STRIDE: tl.constexpr, B_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ACROSS_A: tl.constexpr, ACROSS_B: tl.constexpr, BIASED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A tile of the product; ACROSS says that an operand's first axis is the dense one."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for first in range(0, R, BLOCK_R):
        along = first + tl.arange(0, BLOCK_R)
        down, right = along[:, None], along[None, :]
        a_place = right * A_STRIDE + row if ACROSS_A else row * A_STRIDE + right
        b_place = column * B_STRIDE + down if ACROSS_B else down * B_STRIDE + column
        x = tl.load(a + a_place, mask=(row < M) & (right < R), other=0.0)
        y = tl.load(b + b_place, mask=(down < R) & (column < N), other=0.0)
        total = product(x, y, total, PRECISION)
    if BIASED:
        total += tl.load(bias + column, mask=column < N, other=0.0)
    tl.store(out + row * OUT_STRIDE + column, total, mask=(row < M) & (column < N))
