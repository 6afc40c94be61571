# mypy: allow-untyped-defs
"""Random numbers by counter, bit for bit those of random_bits.py: splitmix64 on (seed, stream, step,
sequence, slot)."""

import triton
import triton.language as tl

DROPOUT, FIRST_LEVEL, SECOND_LEVEL = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)
_STREAM = tl.constexpr(0x2545F4914F6CDD1D)
_STEP = tl.constexpr(0x5851F42D4C957F2D)
_SEQUENCE = tl.constexpr(0x369DEA0F31A53F85)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def row_key(seed, stream: tl.constexpr, step, sequence, slot):
    start = _mix(seed.to(tl.uint64) + stream * _STREAM)
    where = step.to(tl.uint64) * _STEP + sequence.to(tl.uint64) * _SEQUENCE + slot.to(tl.uint64) * _GOLDEN
    return _mix(start + where)


@triton.jit
def gumbel(key, lane):
    """Standard Gumbel noise: half a word a lane."""
    word = _mix(key + ((lane >> 1) + 1).to(tl.uint64) * _GOLDEN)
    bits = (word >> ((lane & 1) * 32).to(tl.uint64)).to(tl.uint32).to(tl.int32, bitcast=True)
    uniform = bits.to(tl.float32) * 2.3283064365386963e-10 + 0.5
    uniform = tl.minimum(tl.maximum(uniform, 1.1641532182693481e-10), 0.99999994)
    return -tl.log(-tl.log(uniform))


@triton.jit
def kept(key, lane, dropped):
    """Whether a hidden unit survives dropout, `dropped` in 65536: a quarter of a word a lane."""
    word = _mix(key + ((lane >> 2) + 1).to(tl.uint64) * _GOLDEN)
    piece = (word >> ((lane & 3) * 16).to(tl.uint64)).to(tl.uint16).to(tl.int16, bitcast=True)
    return piece.to(tl.int32) >= dropped - 32768
