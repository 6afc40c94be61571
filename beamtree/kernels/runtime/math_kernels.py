# mypy: allow-untyped-defs
"""Small device functions that several kernels share, and small matrix products."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch.launch import PROGRAMS, blocks, launch

WORST = tl.constexpr(-(2**63))  # below the key of any value


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def gelu_slope(x):
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * density


@triton.jit
def row_tile(tile, rows, D: tl.constexpr, ALL_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """A tile of rows × all features: row indices and which of them exist; feature indices and which of them
    are real; both as one mask; and the offsets of the entries."""
    row = (tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    inside = row < rows
    feature = tl.arange(0, ALL_D)
    real = feature < D
    return row, inside, feature, real, inside[:, None] & real[None, :], row[:, None] * D + feature[None, :]


@triton.jit
def normalised(x, mask, D: tl.constexpr, EPS: tl.constexpr):
    """Rows minus their means, over their standard deviations; and the reciprocals of these deviations."""
    mean = tl.sum(x, 1) / D
    centred = tl.where(mask, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + EPS)
    return centred * scale[:, None], scale


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """total + a·b; with "tf32x3" as accurate as float32."""
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "fp16":
        return tl.dot(a.to(tl.float16), b.to(tl.float16), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def up_to_rounding(value):
    """As in engine/choosing.py: make values equal that differ by rounding only. Adding 24 rounds values near
    0 to multiples of 2⁻¹⁹ and keeps the order."""
    return value + 24.0


@triton.jit
def key_of(value, index):
    """An int64 key: greater for a greater value, and among equal values for a lower index."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)  # + 0.0 turns −0 into +0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats: reverse their order as integers
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
    """a (M, R) · b (R, N) + bias (N,). Each of a and b must be dense along one axis, `out` along its rows."""
    M, R = a.shape
    N = b.shape[1]
    if out is None:
        out = torch.empty(M, N, device=a.device)
    across_a, across_b = a.stride(1) != 1, b.stride(1) != 1
    strides = a.stride(1 if across_a else 0), b.stride(1 if across_b else 0)
    tiles = blocks(M, BLOCK), blocks(N, BLOCK)
    splits = 1 if bias is not None else splits_of(R, tiles[0] * tiles[1])
    parts = out if splits == 1 else torch.empty(splits, M, N, device=a.device)
    launch(
        product_kernel, (*tiles, splits),
        a, b, out if bias is None else bias, parts, M, N, R,
        A_STRIDE=strides[0], B_STRIDE=strides[1], OUT_STRIDE=parts.stride(-2),
        ACROSS_A=across_a, ACROSS_B=across_b,
        BIASED=bias is not None, PRECISION=precision, BLOCK=BLOCK, BLOCK_R=BLOCK_R, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out if splits == 1 else torch.sum(parts, 0, out=out)


BLOCK, BLOCK_R = 32, 64  # a tile of a product: its rows and its columns, and the terms it sums at a time
LEAST = 256  # terms that justify one more program


def splits_of(terms: int, tiles: int) -> int:
    """Into how many parts a product's sums are split: few tiles would leave most of a GPU idle."""
    return max(1, min(terms // LEAST, PROGRAMS // max(1, tiles)))


@triton.jit
def product_tile(
    a, b, row, column, first, end, M, N,
    A_STRIDE: tl.constexpr, B_STRIDE: tl.constexpr, ACROSS_A: tl.constexpr, ACROSS_B: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Rows (m, 1) and columns (1, n) of a·b, summed over the terms from `first` to `end`. ACROSS means that
    an operand's first axis is the dense one: it is a transposed view."""
    total = tl.zeros([row.shape[0], column.shape[1]], tl.float32)
    for start in range(first, end, BLOCK_R):
        along = start + tl.arange(0, BLOCK_R)
        down, right = along[:, None], along[None, :]
        a_place = right * A_STRIDE + row if ACROSS_A else row * A_STRIDE + right
        b_place = column * B_STRIDE + down if ACROSS_B else down * B_STRIDE + column
        x = tl.load(a + a_place, mask=(row < M) & (right < end), other=0.0)
        y = tl.load(b + b_place, mask=(down < end) & (column < N), other=0.0)
        total = product(x, y, total, PRECISION)
    return total


@triton.jit
def share_of(part, parts, terms, BLOCK_R: tl.constexpr):
    """Where one of the parts of a sum starts and ends, in whole blocks of BLOCK_R terms."""
    size = tl.cdiv(tl.cdiv(terms, parts), BLOCK_R) * BLOCK_R
    return part * size, tl.minimum(terms, (part + 1) * size)


@triton.jit(do_not_specialize=["M", "N", "R"])
def product_kernel(
    a, b, bias, out, M, N, R,
    A_STRIDE: tl.constexpr, B_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    ACROSS_A: tl.constexpr, ACROSS_B: tl.constexpr, BIASED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """A tile of the product; if its sums are split, one part of them. Parts follow one another in `out`."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    first, end = share_of(tl.program_id(2), tl.num_programs(2), R, BLOCK_R)
    total = product_tile(
        a, b, row, column, first, end, M, N, A_STRIDE, B_STRIDE, ACROSS_A, ACROSS_B, PRECISION, BLOCK_R
    )
    if BIASED:
        total += tl.load(bias + column, mask=column < N, other=0.0)
    out += tl.program_id(2) * M * OUT_STRIDE
    tl.store(out + row * OUT_STRIDE + column, total, mask=(row < M) & (column < N))
