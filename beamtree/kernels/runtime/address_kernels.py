# mypy: allow-untyped-defs, disable-error-code=valid-type
"""The address table: one small int64 tensor on the device that holds every address and size a search step, or
the gradient of one, reads.

A captured graph bakes in the arguments of its kernels. Baking in only the table lets one graph serve every
length, every batch of tensors and every set of weights: the host writes the table anew before each use.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from beamtree.pytorch import capturing
from beamtree.pytorch.capturing import GraphCache
from beamtree.pytorch.launch import launch

ADDRESSES = (
    "seed",  # () int64
    "lengths",  # (B,) int64
    "leaves",  # (B, n, d)
    "nodes",  # (B, n + (n−1)·K, d): leaves, then K nodes a step
    # What the scorer's first layer makes of a node as left, as right: (B, n + (n−1)·K, 2·H), and (R, 2·H) in
    # the gradient, whose R rows are B·n leaves, then N survivors.
    "projections",
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
    "hidden",  # (B, K, hidden); in the gradient (N, hidden): h, then ∂u/∂h, then ∂L/∂h
    "sums",  # (B, K, d): the newest nodes before their layer norm; in the gradient (N, d): theirs
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
    # From here on: of the gradient alone.
    "survivors",  # the number N
    "scorer_splits",  # into how many sums over rows the product for the scorer's first layer is cut
    "cell_splits",  # those for the cell
    "grad_roots",  # (B, K, d)
    "grad_inner",  # (B, K, n−1, d)
    "order",  # (B·K·(n−1),) int64: entries (beam, step), the survivors' first, highest first
    "rows",  # (B, n−1, K) int32: node -> survivor
    "entry_weights",  # (B, K, n−1): ∂L/∂S summed over the beams that inherit an entry
    "tree_parents",  # (R, K) int32: 1 + twice a parent's row + side, 0 for none
    "pairs",  # (N, 2·d): the children's vectors
    "slices",  # (R, s)
    "by_role",  # (2·H, s): the scorer's first layer, for left, for right
    "grad_projections",  # (R, 2·H)
    "activity",  # (N, H)
    "grad_energies",  # (N,)
    "gradients",  # (R, d): what reaches a row first
    "activated",  # (N, hidden)
    "gates",  # (N, 4·d): the gates, then ∂p/∂gates, then ∂L/∂gates
    "child_grads",  # (N, 2·d): σ(a), σ(b), then what the children are sent
    "normed",  # (N, d)
    "scales",  # (N,)
    "totals",  # (N, d): ∂L/∂node
    "starts",  # int32: level h lies between starts[h − 1] and starts[h]
    "height",  # () int32: how many levels there are
    "counter",  # () int32: arrivals at a barrier
    "grad_leaves",  # (B, n, d)
    "grad_weights",  # of all weights, flat: sums over rows, the scorer's first layer, the cell's two
    "partial_sums",
    "partial_scorer",
    "partial_cell",
)
SLOT = {name: number for number, name in enumerate(ADDRESSES, 4)}
SIZE = 80  # four numbers (steps done, B, n, what dropout drops of 65536), then the addresses
EMPTY = dict.fromkeys((*ADDRESSES, *range(4 + len(ADDRESSES), SIZE)), 0)  # in the table's order

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
CANDIDATES, NEW_PAIRS, SURVIVORS, SCORER_SPLITS, CELL_SPLITS = (tl.constexpr(i) for i in range(45, 50))
GRAD_ROOTS, GRAD_INNER, ORDER, ROWS, ENTRY_WEIGHTS, TREE_PARENTS = (tl.constexpr(i) for i in range(50, 56))
PAIRS, SLICES, BY_ROLE, GRAD_PROJECTIONS, ACTIVITY = (tl.constexpr(i) for i in range(56, 61))
GRAD_ENERGIES, GRADIENTS, ACTIVATED, GATES, CHILD_GRADS = (tl.constexpr(i) for i in range(61, 66))
NORMED, SCALES, TOTALS, STARTS, HEIGHT, COUNTER = (tl.constexpr(i) for i in range(66, 72))
GRAD_LEAVES, GRAD_WEIGHTS, PARTIAL_SUMS = (tl.constexpr(i) for i in range(72, 75))
PARTIAL_SCORER, PARTIAL_CELL = (tl.constexpr(i) for i in range(75, 77))


@triton.jit
def floats(table, slot: tl.constexpr):
    return tl.multiple_of(tl.load(table + slot).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def integers(table, slot: tl.constexpr):
    return tl.multiple_of(tl.load(table + slot).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def bytes(table, slot: tl.constexpr):
    return tl.multiple_of(tl.load(table + slot).to(tl.pointer_type(tl.int8)), 16)


@triton.jit
def number(table, slot: tl.constexpr):
    return tl.load(table + slot).to(tl.int32)


@triton.jit
def longs(table, slot: tl.constexpr):
    return tl.multiple_of(tl.load(table + slot).to(tl.pointer_type(tl.int64)), 16)


@triton.jit
def seed(table):
    return tl.load(tl.load(table + SEED).to(tl.pointer_type(tl.int64)))


@triton.jit
def length_of(table, sequence, mask):
    lengths = tl.load(table + LENGTHS).to(tl.pointer_type(tl.int64))
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
    table,
    v00: i64, v01: i64, v02: i64, v03: i64, v04: i64, v05: i64, v06: i64, v07: i64,
    v08: i64, v09: i64, v10: i64, v11: i64, v12: i64, v13: i64, v14: i64, v15: i64,
    v16: i64, v17: i64, v18: i64, v19: i64, v20: i64, v21: i64, v22: i64, v23: i64,
    v24: i64, v25: i64, v26: i64, v27: i64, v28: i64, v29: i64, v30: i64, v31: i64,
    v32: i64, v33: i64, v34: i64, v35: i64, v36: i64, v37: i64, v38: i64, v39: i64,
    v40: i64, v41: i64, v42: i64, v43: i64, v44: i64, v45: i64, v46: i64, v47: i64,
    v48: i64, v49: i64, v50: i64, v51: i64, v52: i64, v53: i64, v54: i64, v55: i64,
    v56: i64, v57: i64, v58: i64, v59: i64, v60: i64, v61: i64, v62: i64, v63: i64,
    v64: i64, v65: i64, v66: i64, v67: i64, v68: i64, v69: i64, v70: i64, v71: i64,
    v72: i64, v73: i64, v74: i64, v75: i64, v76: i64, v77: i64, v78: i64, v79: i64,
):  # fmt: skip
    """The numbers travel as arguments: a copy would need pinned memory, an event that tells when it is free
    again, and several times the host's time."""
    _eight(table + 0, v00, v01, v02, v03, v04, v05, v06, v07)
    _eight(table + 8, v08, v09, v10, v11, v12, v13, v14, v15)
    _eight(table + 16, v16, v17, v18, v19, v20, v21, v22, v23)
    _eight(table + 24, v24, v25, v26, v27, v28, v29, v30, v31)
    _eight(table + 32, v32, v33, v34, v35, v36, v37, v38, v39)
    _eight(table + 40, v40, v41, v42, v43, v44, v45, v46, v47)
    _eight(table + 48, v48, v49, v50, v51, v52, v53, v54, v55)
    _eight(table + 56, v56, v57, v58, v59, v60, v61, v62, v63)
    _eight(table + 64, v64, v65, v66, v67, v68, v69, v70, v71)
    _eight(table + 72, v72, v73, v74, v75, v76, v77, v78, v79)


def write(table: Tensor, addresses: dict[Any, int], B: int, n: int, dropped: int) -> None:
    """Fill the table in stream order."""
    launch(write_kernel, (1,), table, 0, B, n, dropped, *(EMPTY | addresses).values(), num_warps=1)


class AddressedGraphs:
    """Graphs that read one table, by name: `parts` replay them. A table serves one use at a time."""

    def __init__(
        self,
        device: torch.device,
        parts: Mapping[Any, Callable[[Tensor], None]],
        kernels: Iterable[Callable[[Tensor], None]],  # what launches every kernel once
    ) -> None:
        self.lock = threading.Lock()
        self.table = torch.zeros(SIZE, dtype=torch.int64, device=device)
        self.nbytes = self.table.nbytes
        # With an empty table every kernel is a no-op: this compiles them, which a capture must not do.
        for part in kernels:
            part(self.table)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self.parts = {
            name: capturing.capture(partial(part, self.table), stream)[0].replay
            for name, part in parts.items()
        }
        torch.cuda.current_stream(device).wait_stream(stream)


Graphs = TypeVar("Graphs", bound=AddressedGraphs)


def find_graphs(
    cache: GraphCache[Graphs], plan: Hashable, device: torch.device, capture: Callable[[], Graphs]
) -> Graphs:
    # By stream too: a table may be rewritten only after the kernels that read it.
    key = (plan, device, torch._C._cuda_getCurrentRawStream(device.index))
    graphs = cache.get(key, capture)
    assert graphs is not None
    return graphs
