# mypy: allow-untyped-defs
"""The board: one small int64 tensor on the device that holds every address and size a search step reads.

A captured graph bakes in the arguments of its kernels. Baking in only the board lets one graph serve every
length, every batch of tensors and every set of weights: the host writes the board anew before each search.
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

ADDRESSES = (
    "lengths",  # (B,) int64
    "nodes",  # (B, n + (n−1)·K, d): leaves, then K nodes a step
    "projections",  # (B, n + (n−1)·K, 2·H): what the scorer's first layer makes of a node as left, as right
    "ids",  # (2, B, K, n) int32: each beam's node list, double-buffered by the step's parity
    "pair_scores",  # (2, B, K, n): score of the pair (ids[i], ids[i+1])
    "scores",  # (2, B, K): accumulated, relative to the best beam, −inf for dead beams
    "shifts",  # (B, n−1): what was subtracted at each step
    "top_values",  # (B, K, C, K): perturbed scores of the best old pairs of each chunk of a list
    "top_positions",  # (B, K, C, K) int32
    "top_scores",  # (B, K, C, K)
    "log_sums",  # (B, K, C): log-sum-exp of a chunk's old pairs
    "hidden",  # (B, K, hidden)
    "sums",  # (B, K, d): the newest nodes before their layer norm
    "parents",  # (B, n−1, K) int32: the beam a survivor comes from, −1 for dead beams
    "positions",  # (B, n−1, K) int32
    "links",  # (B, n−1, K, 4) int32: ids of left neighbour, left, right, right neighbour; −1 for none
    "energies",  # (B, n−1, K, 4): scores of the three dying pairs; log Z of the parent beam
    "heights",  # (B, n−1, K) int32
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
)
_NUMBERS = ("base", "batch", "n", "seed", "dropped")
_SLOT = {name: i for i, name in enumerate(_NUMBERS + ADDRESSES)}
SIZE = len(_SLOT)

# Triton reads globals only when they are constexpr, so the slots a kernel uses are named here once.
BASE, BATCH, LENGTH, SEED, DROPPED = (tl.constexpr(i) for i in range(5))
LENGTHS = tl.constexpr(_SLOT["lengths"])
NODES = tl.constexpr(_SLOT["nodes"])
PROJECTIONS = tl.constexpr(_SLOT["projections"])
IDS = tl.constexpr(_SLOT["ids"])
PAIR_SCORES = tl.constexpr(_SLOT["pair_scores"])
SCORES = tl.constexpr(_SLOT["scores"])
SHIFTS = tl.constexpr(_SLOT["shifts"])
TOP_VALUES = tl.constexpr(_SLOT["top_values"])
TOP_POSITIONS = tl.constexpr(_SLOT["top_positions"])
TOP_SCORES = tl.constexpr(_SLOT["top_scores"])
LOG_SUMS = tl.constexpr(_SLOT["log_sums"])
HIDDEN = tl.constexpr(_SLOT["hidden"])
SUMS = tl.constexpr(_SLOT["sums"])
PARENTS = tl.constexpr(_SLOT["parents"])
POSITIONS = tl.constexpr(_SLOT["positions"])
LINKS = tl.constexpr(_SLOT["links"])
ENERGIES = tl.constexpr(_SLOT["energies"])
HEIGHTS = tl.constexpr(_SLOT["heights"])
W1 = tl.constexpr(_SLOT["w1"])
B1 = tl.constexpr(_SLOT["b1"])
W2 = tl.constexpr(_SLOT["w2"])
B2 = tl.constexpr(_SLOT["b2"])
GAMMA = tl.constexpr(_SLOT["gamma"])
BETA = tl.constexpr(_SLOT["beta"])
SCORER_W1 = tl.constexpr(_SLOT["scorer_w1"])
SCORER_B1 = tl.constexpr(_SLOT["scorer_b1"])
SCORER_W2 = tl.constexpr(_SLOT["scorer_w2"])
SCORER_B2 = tl.constexpr(_SLOT["scorer_b2"])


@triton.jit
def floats(board, slot: tl.constexpr):
    return tl.multiple_of(tl.load(board + slot).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def integers(board, slot: tl.constexpr):
    return tl.multiple_of(tl.load(board + slot).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def number(board, slot: tl.constexpr):
    return tl.load(board + slot).to(tl.int32)


@triton.jit
def length_of(board, sequence, mask):
    lengths = tl.load(board + LENGTHS).to(tl.pointer_type(tl.int64))
    return tl.load(lengths + sequence, mask=mask, other=0).to(tl.int32)


def write(board: Tensor, addresses: Mapping[str, int], seed: Tensor, B: int, n: int, dropped: int) -> None:
    """Fill the board in stream order. The staging tensor is fresh, so no pending copy can be overtaken."""
    values = [0, B, n, 0, dropped] + [addresses[name] for name in ADDRESSES]
    staged = torch.tensor(values, dtype=torch.int64, pin_memory=board.is_cuda)
    board.copy_(staged, non_blocking=True)
    board[_SLOT["seed"]].copy_(seed, non_blocking=True)
