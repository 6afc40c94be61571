"""The cell's gradient on a GPU: recompute all nodes at once, then differentiate from the highest down.

Beams, given trees and straight-through trees differ in a node's parents, in the gradient that reaches it
before any goes through the cell, and in the order of descent; everything else is here. The kernels read their
arguments from a table (address_kernels.py), so that one capture serves all sizes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.fused_recursion import padded
from beamtree.kernels.replay import level_kernels, sum_kernels
from beamtree.kernels.runtime import address_kernels as tables
from beamtree.kernels.runtime.math_kernels import BLOCK, BLOCK_R, splits_of
from beamtree.kernels.runtime.products import SMALL, product
from beamtree.parts.weights import CellWeights
from beamtree.pytorch.launch import PROGRAMS, blocks, launch, pieces, power_of_two

SPLITS = 16  # programs that share the rows of a sum over rows

Activate = Callable[[Tensor], Tensor]  # h (m, hidden) -> u = keep·GELU(h); h becomes ∂u/∂h


class Recalled(NamedTuple):
    """The parents of m pairs, normalised, and what their derivative needs."""

    pairs: Tensor  # (m, 2·d)
    hidden: Tensor  # (m, hidden): ∂u/∂h, becomes ∂L/∂h
    activated: Tensor  # (m, hidden): u
    gates: Tensor  # (m, 4·d): ∂p/∂gates, becomes ∂L/∂gates
    opened: Tensor  # (m, 2·d): σ(a), σ(b), becomes the gradient of the children
    normed: Tensor  # (m, d): the parents before the layer norm's scale and shift
    scales: Tensor  # (m,)


def recall(pairs: Tensor, weights: CellWeights, activate: Activate, precision: str) -> Recalled:
    """Compute the cell for pairs (m, 2·d), m > 0."""
    m, d = len(pairs), weights.gamma.shape[0]
    opened, normed, scales = pieces(torch.empty, pairs.device, (m, 2 * d), (m, d), (m,))
    hidden = product(pairs, weights.w1.t(), precision, bias=weights.b1)
    activated = activate(hidden)
    gates = product(activated, weights.w2.t(), precision, bias=weights.b2)
    rows = whole_rows(d)
    launch(level_kernels.open_gates_kernel, (blocks(m, rows["BLOCK_M"]),),
        gates, pairs, opened, normed, scales, m, D=d, **rows, num_warps=4,
    )  # fmt: skip
    return Recalled(pairs, hidden, activated, gates, opened, normed, scales)


def whole_rows(d: int) -> dict[str, int]:
    """The tile sizes of a program that holds all features of its rows."""
    all_d = power_of_two(d)
    return {"BLOCK_M": max(1, 2048 // all_d), "ALL_D": all_d}


class Workspace:
    """Named arrays of float32 or int32 in one allocation. Each starts at a multiple of 16 bytes."""

    def __init__(
        self,
        device: torch.device,
        shapes: Mapping[str, tuple[int, ...]],
        least: Mapping[str, int] | None = None,  # the least size of an array, if it is to share its memory
    ) -> None:
        self.shapes, self.starts, end = shapes, {}, 0
        self.views: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            self.starts[name] = end
            words = prod(shape) if least is None else max(prod(shape), least.get(name, 0))
            end += padded(words)
        self.words = torch.empty(end, device=device)

    def addresses(self) -> dict[str, int]:
        base = self.words.data_ptr()
        return {name: base + 4 * start for name, start in self.starts.items()}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.views:
            shape = self.shapes[name]
            self.views[name] = self.words.as_strided(shape, (*shape[1:], 1), self.starts[name])
        return self.views[name]


@dataclass(frozen=True)
class CellStages:
    """The kernels that take a gradient through the cell. They are compiled for any number of rows."""

    K: int  # the most parents that a row can have
    d: int
    units: int  # of the cell's hidden layer
    s: int  # features that the scorer sees; 0 if the scorer is not differentiated here
    H: int  # the scorer's hidden units; 0 likewise
    precision: str
    scorer_precision: str

    @cached_property
    def cell(self) -> int:
        """How many numbers the cell's two matrices have."""
        return 6 * self.d * self.units

    @cached_property
    def sums(self) -> int:
        """How many numbers the other weights have, whose gradients are sums over rows."""
        return 6 * self.d + self.units + 2 * self.H + 1

    def shapes(self, N: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the buffers for the way down. The first five are free again when the gradients of the
        matrices are computed, whose partial sums share their memory."""
        d = self.d
        return {
            "child_grads": (N, 2 * d), "normed": (N, d), "scales": (N,), "totals": (N, d), "sums": (N, d),
            "partial_sums": (SPLITS, self.sums), "counter": (1,),
        }  # fmt: skip

    @property
    def biased(self) -> bool:
        """Whether the cell's products include their biases. With a sliced scorer the kernels that follow add
        them: the library launches products without bias in half the time."""
        return self.H == 0

    def open_gates(self, table: Tensor) -> None:
        """Store the gates' local derivatives and everything else that the way down reads."""
        launch(level_kernels.open_survivors_kernel, (PROGRAMS,), table,
            D=self.d, **whole_rows(self.d), BIASED=self.biased, num_warps=4,
        )  # fmt: skip

    def close(self, table: Tensor) -> None:
        """Compute the gradient of the leaves, ∂L/∂gates, and the parts of the sums over rows."""
        d, H, block = self.d, self.H, 64
        launch(level_kernels.collect_kernel, (PROGRAMS,), table, D=d, K=self.K, **whole_rows(d), num_warps=4)
        columns = sum(blocks(size, block) for size in (4 * d, self.units, d, H)) + 1
        launch(
            sum_kernels.close_kernel, (SPLITS, columns), table,
            D=d, UNITS=self.units, H=H, BLOCK_M=32, BLOCK_N=block, num_warps=4,
        )  # fmt: skip

    def weights(self, table: Tensor, *, cell: bool) -> None:
        """Compute the gradients of the scorer's matrix, and with `cell` of the cell's two; then add up the
        parts of all sums."""
        launch(
            sum_kernels.weights_kernel, (PROGRAMS,), table,
            D=self.d, UNITS=self.units, S=self.s, H=self.H, CELL=cell, PRECISION=self.precision,
            SCORER_PRECISION=self.scorer_precision, BLOCK=BLOCK, BLOCK_R=BLOCK_R, num_warps=4, num_stages=3,
        )  # fmt: skip
        launch(
            sum_kernels.add_parts_kernel, (PROGRAMS,), table,
            SUMS=self.sums, SPLITS=SPLITS, SCORER=2 * self.H * self.s, CELL=self.cell, BLOCK=256, num_warps=4,
        )  # fmt: skip

    def grads(self, flat: Tensor) -> list[Tensor]:
        """Views of `flat`: the gradients of the cell's six weights and the scorer's four. With H = 0, of the
        scorer there is only its last bias."""
        d, units, s, H = self.d, self.units, self.s, self.H
        scorer = padded(self.sums)
        w1 = scorer + padded(2 * H * s)
        of_cell = [
            flat.as_strided((units, 2 * d), (2 * d, 1), w1),
            flat.as_strided((units,), (1,), 4 * d),
            flat.as_strided((4 * d, units), (units, 1), w1 + 2 * d * units),
            *(flat.as_strided((size,), (1,), start) for size, start in self._vectors),
        ]
        last = flat.as_strided((1,), (1,), self.sums - 1)
        if H == 0:
            return [*of_cell, last]
        return [
            *of_cell,
            flat.as_strided((H, 2 * s), (2 * s, 1), scorer),
            flat.as_strided((H,), (1,), self.sums - 1 - 2 * H),
            flat.as_strided((1, H), (H, 1), self.sums - 1 - H),
            last,
        ]

    @cached_property
    def _vectors(self) -> list[tuple[int, int]]:
        """Size and start of the cell's second bias, and of its layer norm's scale and shift."""
        d, units = self.d, self.units
        return [(4 * d, 0), (d, 4 * d + units), (d, 5 * d + units)]

    def flat(self, device: torch.device) -> Tensor:
        """One buffer for the gradients of all weights."""
        return torch.empty(padded(self.sums) + padded(2 * self.H * self.s) + self.cell, device=device)

    def outputs(self, addresses: dict[str, int], flat: Tensor, N: int, leaves: int, *, cell: bool) -> None:
        """Add the addresses of the weights' gradients and of their parts. `cell` says whether the gradients
        of the cell's matrices may be split into parts."""
        size = 2 * self.H * self.s
        of_scorer = padded(self.sums)
        of_cell = of_scorer + padded(size)
        # Parts take the memory from `child_grads` to `sums`, so there are only as many as fit into it.
        free, room = addresses["child_grads"], N * (5 * self.d + 1)  # room in words
        base = flat.data_ptr()
        addresses |= {
            "survivors": N, "grad_weights": base, "scorer_splits": 1, "cell_splits": 1,
            "partial_scorer": base + 4 * of_scorer, "partial_cell": base + 4 * of_cell,
        }  # fmt: skip
        tiles = blocks(2 * self.H, BLOCK) * blocks(self.s, BLOCK)
        splits = min(splits_of(leaves + N, tiles), room // max(1, size))
        if splits > 1 and size:
            addresses |= {"scorer_splits": splits, "partial_scorer": free}
            free, room = free + 4 * padded(splits * size), room - padded(splits * size)
        splits = min(splits_of(N, 1), room // self.cell, 4)
        if splits > 1 and cell:
            addresses |= {"cell_splits": splits, "partial_cell": free}


class Descent(NamedTuple):
    """Buffers that the way down reads and writes. Gradient rows are the B·n leaves, then the N nodes."""

    child_grads: Tensor  # (N, 2·d): σ(a), σ(b), becomes the gradient sent to the children
    normed: Tensor
    scales: Tensor
    gamma: Tensor
    gates: Tensor  # (N, 4·d): ∂p/∂gates
    hidden: Tensor  # (N, hidden): ∂u/∂h, becomes ∂L/∂h
    w1: Tensor
    w2: Tensor
    totals: Tensor  # (N, d): becomes ∂L/∂node
    sums: Tensor  # (N, d): becomes ∂L/∂p, the gradient before the layer norm


def through_cell(
    pairs: Tensor,  # (N, 2·d)
    gradients: Tensor,  # (B·n + N, d): of leaves and nodes, before anything has gone through the cell
    parents: Tensor,  # (B·n + N, K) int32: 1 + 2 · a parent's row + side, 0 for none
    weights: CellWeights,
    activate: Activate,
    descend: Callable[[Descent, Tensor], None],  # from the highest nodes down; gets the table too
    levels: tuple[Tensor, ...],  # `starts` and `height` as in `Survivors`, if `descend` goes by levels
    *,
    B: int,
    n: int,
    precision: str,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the leaves and of the cell's six parameters."""
    N, d, units = pairs.shape[0], gradients.shape[1], weights.b1.shape[0]
    stages = CellStages(parents.shape[1], d, units, 0, 0, precision, precision)
    hidden = product(pairs, weights.w1.t(), precision, bias=weights.b1)
    activated = activate(hidden)
    gates = product(activated, weights.w2.t(), precision, bias=weights.b2)
    work = Workspace(pairs.device, stages.shapes(N))
    grad_leaves = torch.empty(B, n, d, device=pairs.device)
    own = are_few(N, d, units)
    given = {
        "pairs": pairs, "gradients": gradients, "tree_parents": parents, "hidden": hidden, "gates": gates,
        "activated": activated, "gamma": weights.gamma, "w1": weights.w1, "w2": weights.w2,
        "grad_energies": gradients, "grad_leaves": grad_leaves,
        **dict(zip(("starts", "height"), levels, strict=False)),
    }  # fmt: skip
    addresses = work.addresses() | {name: tensor.data_ptr() for name, tensor in given.items()}
    flat = stages.flat(pairs.device)
    stages.outputs(addresses, flat, N, B * n, cell=own)
    table = torch.empty(tables.SIZE, dtype=torch.int64, device=pairs.device)
    tables.write(table, addresses, B, n, 0)
    if N:
        stages.open_gates(table)
        state = Descent(
            work["child_grads"], work["normed"], work["scales"], weights.gamma, gates, hidden,
            weights.w1, weights.w2, work["totals"], work["sums"],
        )  # fmt: skip
        descend(state, table)
    stages.close(table)
    stages.weights(table, cell=own)
    *by_cell, _ = stages.grads(flat)
    if not own:
        product(hidden.t(), pairs, precision, out=by_cell[0])
        product(gates.t(), activated, precision, out=by_cell[2])
    return grad_leaves, by_cell


def are_few(N: int, d: int, units: int) -> bool:
    """Return True if the cell's products over N rows are small enough for our kernels."""
    return N * 4 * d * units <= SMALL


def by_levels(
    kernel: Any, arguments: tuple[Any, ...], height: Tensor, options: dict[str, Any], *, up: bool = False
) -> None:
    """Run all levels in one cooperative launch; without a GPU, each phase of each level in a launch of its
    own."""
    if height.is_cuda:
        launch(
            kernel, (processors(height.device),), *arguments, 0, **options, PHASE=0,
            launch_cooperative_grid=True,
        )  # fmt: skip
        return
    levels = range(1, int(height.view(-1)[0]) + 1)
    for level in levels if up else reversed(levels):
        for phase in (1, 2, 3):
            launch(kernel, (2,), *arguments, level, **options, PHASE=phase)


@cache
def processors(device: torch.device) -> int:
    """How many programs a cooperative launch has: one per processor, as all must be resident at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count
