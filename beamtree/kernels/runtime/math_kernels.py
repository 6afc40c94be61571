# mypy: allow-untyped-defs
"""Small device functions that several kernels share."""

import triton
import triton.language as tl

WORST = tl.constexpr(-(2**63))  # below the key of any value


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def gelu_slope(x):
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    return 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * density


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
    """As in reference.py: values that differ by rounding only become equal."""
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
