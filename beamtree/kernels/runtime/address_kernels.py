# mypy: allow-untyped-defs, disable-error-code=valid-type
"""The board: one small int64 tensor on the device that holds every address and size a search step reads.

A captured graph bakes in the arguments of its kernels. Baking in only the board lets one graph serve every
length, every batch of tensors and every set of weights: the host writes the board anew before each search.
"""

from collections.abc import Mapping

import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch.launch import launch

ADDRESSES = (
    "seed",  # () int64
    "lengths",  # (B,) int64
    "leaves",  # (B, n, d)
    "nodes",  # (B, n + (n−1)·K, d): leaves, then K nodes a step
    "projections",  # (B, n + (n−1)·K, 2·H): what the scorer's first layer makes of a node as left, as right
    "ids",  # (2, B, K, n) int32: each beam's node list, double-buffered by the step's parity
    "pair_scores",  # (2, B, K, n): score of the pair (ids[i], ids[i+1])
    "scores",  # (2, B, K): accumulated, relative to the best beam, −inf for dead beams
    "shifts",  # (B, n−1): what was subtracted at each step
    "tops",  # (B, K, C, 5, K'): a chunk's best old pairs: value, score, position, left, right
    "log_sums",  # (B, K, C): log-sum-exp of a chunk's old pairs
    "fresh",  # (B, K, 4) int32: the newest node's position and neighbours
    "first_noise",  # (2, B, K, n): by position; double-buffered, as it is drawn a step ahead
    "second_noise",  # (2, B, K, K): by rank at the first level
    "keep",  # (2, B, K, hidden) bytes: dropout masks
    "children",  # (B, K, 2) int32: ids of the pair that each survivor merges, −1 where there is nothing to do
    "hidden",  # (B, K, hidden)
    "sums",  # (B, K, d): the newest nodes before their layer norm
    "parents",  # (B, n−1, K) int32: the beam a survivor comes from, −1 for dead beams
    "positions",  # (B, n−1, K) int32
    "links",  # (B, n−1, K, 4) int32: ids of left neighbour, left, right, right neighbour; −1 for none
    "energies",  # (B, n−1, K, 4): scores of the three dying pairs; log Z of the parent beam
    "heights",  # (B, n−1, K) int32
    "slots",  # (B, K, n−1) int32: the slot of each final beam's lineage after each step, −1 for none
    "log_z",  # (B, K, n−1): log Z along each lineage
    "roots",  # (B, K, d)
    "relative",  # (B, K)
    "offset",  # (B,) float64
    "merges",  # (B, K, n−1) int64
    "w1",
    "b1",
    "w2",
    "b2",
    "gamma",
    "beta",
    "scorer_w1",
    "scorer_b1",
    "scorer_w2",
    "scorer_b2",
    "last_slots",  # (B, K) int32: the slot of each final beam, −1 for dead beams
    "maps",  # (B, C, K) int32: the slots of a stretch's parents, by slots after it
    "candidates",  # (B, n−1 + (n−1)·K·2, d) of an entangled scorer: each pair's parent
    "new_pairs",  # (B, K, 2, 2) int32 of an entangled scorer: ids of the two pairs a survivor makes; −1: none
)
SIZE = 48  # four numbers (steps done, B, n, what dropout drops of 65536), then the addresses

i64 = tl.int64  # Triton would take a small number for 32 bits, and keep to that at the next launch

# Triton reads a global only when it is a constexpr, so each slot has its name here.
BASE, BATCH, LENGTH, DROPPED, SEED = (tl.constexpr(i) for i in range(5))
LENGTHS, LEAVES, NODES, PROJECTIONS, IDS, PAIR_SCORES = (tl.constexpr(i) for i in range(5, 11))
SCORES, SHIFTS, TOPS, LOG_SUMS, FRESH, FIRST_NOISE, SECOND_NOISE = (tl.constexpr(i) for i in range(11, 18))
KEEP, CHILDREN, HIDDEN, SUMS = (tl.constexpr(i) for i in range(18, 22))
PARENTS, POSITIONS, LINKS, ENERGIES, HEIGHTS = (tl.constexpr(i) for i in range(22, 27))
SLOTS, LOG_Z, ROOTS, RELATIVE, OFFSET, MERGES = (tl.constexpr(i) for i in range(27, 33))
W1, B1, W2, B2, GAMMA, BETA = (tl.constexpr(i) for i in range(33, 39))
SCORER_W1, SCORER_B1, SCORER_W2, SCORER_B2 = (tl.constexpr(i) for i in range(39, 43))
LAST_SLOTS, MAPS = (tl.constexpr(i) for i in range(43, 45))
CANDIDATES, NEW_PAIRS = (tl.constexpr(i) for i in range(45, 47))


@triton.jit
def floats(board, slot: tl.constexpr):
    return tl.multiple_of(tl.load(board + slot).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def integers(board, slot: tl.constexpr):
    return tl.multiple_of(tl.load(board + slot).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def bytes(board, slot: tl.constexpr):
    return tl.multiple_of(tl.load(board + slot).to(tl.pointer_type(tl.int8)), 16)


@triton.jit
def number(board, slot: tl.constexpr):
    return tl.load(board + slot).to(tl.int32)


@triton.jit
def seed(board):
    return tl.load(tl.load(board + SEED).to(tl.pointer_type(tl.int64)))


@triton.jit
def length_of(board, sequence, mask):
    lengths = tl.load(board + LENGTHS).to(tl.pointer_type(tl.int64))
    return tl.load(lengths + sequence, mask=mask, other=0).to(tl.int32)


@triton.jit
def _eight(place, a, b, c, d, e, f, g, h):
    tl.store(place, a)
    tl.store(place + 1, b)
    tl.store(place + 2, c)
    tl.store(place + 3, d)
    tl.store(place + 4, e)
    tl.store(place + 5, f)
    tl.store(place + 6, g)
    tl.store(place + 7, h)


@triton.jit(do_not_specialize=list(range(1, SIZE + 1)))
def write_kernel(
    board,
    v00: i64, v01: i64, v02: i64, v03: i64, v04: i64, v05: i64, v06: i64, v07: i64,
    v08: i64, v09: i64, v10: i64, v11: i64, v12: i64, v13: i64, v14: i64, v15: i64,
    v16: i64, v17: i64, v18: i64, v19: i64, v20: i64, v21: i64, v22: i64, v23: i64,
    v24: i64, v25: i64, v26: i64, v27: i64, v28: i64, v29: i64, v30: i64, v31: i64,
    v32: i64, v33: i64, v34: i64, v35: i64, v36: i64, v37: i64, v38: i64, v39: i64,
    v40: i64, v41: i64, v42: i64, v43: i64, v44: i64, v45: i64, v46: i64, v47: i64,
):  # fmt: skip
    """The numbers travel as arguments: a copy would need pinned memory, an event that tells when it is free
    again, and several times the host's time."""
    _eight(board + 0, v00, v01, v02, v03, v04, v05, v06, v07)
    _eight(board + 8, v08, v09, v10, v11, v12, v13, v14, v15)
    _eight(board + 16, v16, v17, v18, v19, v20, v21, v22, v23)
    _eight(board + 24, v24, v25, v26, v27, v28, v29, v30, v31)
    _eight(board + 32, v32, v33, v34, v35, v36, v37, v38, v39)
    _eight(board + 40, v40, v41, v42, v43, v44, v45, v46, v47)


def write(board: Tensor, addresses: Mapping[str, int], B: int, n: int, dropped: int) -> None:
    """Fill the board in stream order."""
    values = [0, B, n, dropped] + [addresses.get(name, 0) for name in ADDRESSES]
    launch(write_kernel, (1,), board, *values, *[0] * (SIZE - len(values)), num_warps=1)
