# mypy: allow-untyped-defs, disable-error-code=valid-type
"""The address table: a small int64 tensor on the device with every address and size that the kernels of a
search, or of its gradient, read.

A captured graph bakes in the arguments of its kernels. Ours get only the table, so one graph serves every
length, all tensors and all weights: the host rewrites the table before each use.
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
    # The scorer's first layer of every node, as a left child and as a right child: (B, n + (n−1)·K, 2·H). In
    # the gradient (R, 2·H); its R rows are the B·n leaves, then the N surviving nodes ("survivors").
    "projections",
    "ids",  # (2, B, K, n) int32: each beam's list of nodes, double-buffered by the step's parity
    "pair_scores",  # (2, B, K, n): score of the pair (ids[i], ids[i+1])
    "scores",  # (2, B, K): accumulated scores, relative to the best beam; −inf for dead beams
    "shifts",  # (B, n−1): what was subtracted from the scores at each step
    # A list is cut into C chunks. Old pairs are those that the last merge left as they were; K' is K rounded
    # up to a power of two.
    "tops",  # (B, K, C, 5, K'): a chunk's best old pairs: value, score, position, left, right
    "log_sums",  # (B, K, C): log-sum-exp of a chunk's old pairs
    "fresh",  # (B, K, 4) int32: the newest node's position, left neighbour and right neighbour
    "first_noise",  # (2, B, K, n): by position; double-buffered, as it is drawn a step ahead
    "second_noise",  # (2, B, K, K): by a candidate's beam and its rank in it
    "keep",  # (2, B, K, hidden) bytes: dropout masks
    "children",  # (B, K, 2) int32: ids of the pair that each beam merges, −1 if it merges nothing
    # With an entangled scorer the next two have a row for each of the 2·K new pairs.
    "hidden",  # (B, K, hidden): u; in the gradient (N, hidden): h, then ∂u/∂h, then ∂L/∂h
    "sums",  # (B, K, d): p, the newest nodes before their layer norm; in the gradient (N, d): ∂L/∂p
    "parents",  # (B, n−1, K) int32: the slot that each beam had before the step, −1 for dead beams
    "positions",  # (B, n−1, K) int32: of the left child in its list
    "links",  # (B, n−1, K, 4) int32: ids of left neighbour, left, right, right neighbour; −1 for none
    "energies",  # (B, n−1, K, 4): scores of the three pairs that end; log Z of the beam before the step
    "heights",  # (B, n−1, K) int32
    "slots",  # (B, K, n−1) int32: the slot that each final beam's lineage had after each step, −1 for none
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
    "maps",  # (B, stretches, K) int32: the slot before a stretch of steps, by the slot after it
    "candidates",  # (B, n−1 + (n−1)·K·2, d) with an entangled scorer: each pair's parent
    "new_pairs",  # (B, K, 2, 2) int32 with an entangled scorer: ids of the two pairs a merge makes; −1: none
    # From here on: for the gradient only.
    "survivors",  # the number N of surviving nodes
    "scorer_splits",  # how many partial sums the product for the scorer's first layer is split into
    "cell_splits",  # the same for the cell's products
    "grad_roots",  # (B, K, d)
    "grad_inner",  # (B, K, n−1, d)
    "order",  # (B·K·(n−1),) int64: entries (beam, step); those of survivors come first, highest node first
    "rows",  # (B, n−1, K) int32: node -> its row among the survivors
    "entry_weights",  # (B, K, n−1): ∂L/∂S summed over the final beams that own an entry's node
    "tree_parents",  # (R, K) int32: 1 + 2 · a parent's row + side (0 left, 1 right); 0 for none
    "pairs",  # (N, 2·d): the children's vectors
    "slices",  # (R, s)
    "by_role",  # (2·H, s): the scorer's first layer, for left children, then for right ones
    "grad_projections",  # (R, 2·H)
    "activity",  # (N, H): GELU of the scorer's hidden layer times ∂L/∂e, summed over a survivor's pairs
    "grad_energies",  # (N,): ∂L/∂e summed over a survivor's pairs; with an entangled scorer its chosen pair's
    "gradients",  # (R, d): ∂L/∂row before anything has gone through the cell
    "activated",  # (N, hidden): u
    "gates",  # (N, 4·d): the gates, then ∂p/∂gates, then ∂L/∂gates
    "child_grads",  # (N, 2·d): σ(a), σ(b), then the gradient sent to the children
    "normed",  # (N, d): the nodes before the scale and shift of their layer norm
    "scales",  # (N,): reciprocal standard deviations of that norm
    "totals",  # (N, d): ∂L/∂node
    "starts",  # int32: level h has the rows between starts[h − 1] and starts[h]
    "height",  # () int32: how many levels there are
    "counter",  # () int32: arrivals at the barrier
    "grad_leaves",  # (B, n, d)
    # Gradients of all weights, flat: those that are sums of rows, the scorer's first layer, the cell's two
    # matrices.
    "grad_weights",
    # Where a sum is split, the parts of these three groups.
    "partial_sums",
    "partial_scorer",
    "partial_cell",
)
SLOT = {name: number for number, name in enumerate(ADDRESSES, 4)}
SIZE = 80  # four numbers (steps done, B, n, the dropout rate in 65536ths), then the addresses
EMPTY = dict.fromkeys((*ADDRESSES, *range(4 + len(ADDRESSES), SIZE)), 0)  # in the table's order

i64 = tl.int64  # else Triton would compile for 32 bits if the first number is small

# Kernels can read a global only if it is a constexpr, so here each slot of the table gets a name.
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


# A slot of the table holds a number, or the address of numbers of some type, aligned to 16 bytes.


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
    """Write 80 numbers into the table. They are passed as arguments: a copy would need pinned memory, an
    event to know when that is free again, and several times the host time."""
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
    """Fill the table, in the order of the stream."""
    launch(write_kernel, (1,), table, 0, B, n, dropped, *(EMPTY | addresses).values(), num_warps=1)


class AddressedGraphs:
    """Graphs that read the same table; `parts` has a function for each name that replays its graph.

    A table serves one use at a time: callers hold `lock` while they write it and replay.
    """

    def __init__(
        self,
        device: torch.device,
        parts: Mapping[Any, Callable[[Tensor], None]],
        kernels: Iterable[Callable[[Tensor], None]],  # together they launch every kernel
    ) -> None:
        self.lock = threading.Lock()
        self.table = torch.zeros(SIZE, dtype=torch.int64, device=device)
        self.nbytes = self.table.nbytes
        # Compile the kernels, which must not happen during a capture. With an empty table they do nothing.
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
    # The stream is part of the key: a table must be rewritten on the stream of the kernels that read it.
    key = (plan, device, torch._C._cuda_getCurrentRawStream(device.index))
    graphs = cache.get(key, capture)
    assert graphs is not None
    return graphs
