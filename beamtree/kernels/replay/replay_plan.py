"""The kernels of the gradient of beams, in order, and graphs of them.

A plan contains no size of a batch, so one graph serves all batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from beamtree.kernels.replay import cell_replay, level_kernels, survivor_kernels
from beamtree.kernels.replay.cell_replay import CellStages, by_levels
from beamtree.kernels.runtime import address_kernels as tables
from beamtree.kernels.runtime.math_kernels import BLOCK, BLOCK_R
from beamtree.pytorch.capturing import GraphCache
from beamtree.pytorch.launch import launch, power_of_two

GRAPHS_AT_MOST = 16
WIDEST_FUSED = 256  # for a larger d the library's products, level by level, are faster
PAIRS_AT_ONCE = 8 * cell_replay.PROGRAMS  # programs of one warp each


@dataclass(frozen=True)
class ReplayPlan(CellStages):
    drops: bool
    inner: bool  # inner nodes have gradients
    few: bool  # all products are ours, and everything is one graph; else the library's come between two
    many: bool  # levels are large enough for larger tiles

    def before_cell(self, table: Tensor) -> None:
        """Link the rows, and give them the gradients that do not come through the cell."""
        self.link(table)
        self.project(table)
        self.pairs(table, table, table)
        self.scores_to_rows(table)
        self.roots(table)

    def link(self, table: Tensor) -> None:
        self._run(survivor_kernels.clear_kernel, table, K=self.K, H=self.H, BLOCK=1024)
        self._run(survivor_kernels.link_kernel, table, K=self.K, S=self.s, BLOCK_M=16, BLOCK_D=self._block_d)

    def project(self, table: Tensor) -> None:
        self._product(
            table, "slices", "by_role", "projections", 2 * self.H, self.s,
            leaves=True, across=True, precision=self.scorer_precision,
        )  # fmt: skip

    def pairs(self, table: Tensor, pair_rows: Tensor, pair_grads: Tensor) -> None:
        """Differentiate the scores of pairs. The result is added atomically, in any order; or stored in
        `pair_rows` and `pair_grads`, unless these are just the table."""
        launch(survivor_kernels.pair_kernel, (PAIRS_AT_ONCE,), table, pair_rows, pair_grads,
            K=self.K, H=self.H, UNITS=power_of_two(self.H), ATOMIC=pair_rows is table, BLOCK=128, num_warps=1,
        )  # fmt: skip

    def scores_to_rows(self, table: Tensor) -> None:
        self._product(
            table, "grad_projections", "by_role", "gradients", self.s, 2 * self.H,
            leaves=True, across=False, precision=self.scorer_precision, stride=self.d,
        )  # fmt: skip

    def roots(self, table: Tensor) -> None:
        """Add the gradients of roots and inner nodes that come from the loss."""
        self._run(survivor_kernels.roots_kernel, table, K=self.K, BLOCK_D=self._block_d, num_warps=1)
        if self.inner:
            kernel = survivor_kernels.inner_gradients_kernel
            self._run(kernel, table, K=self.K, BLOCK_M=16, BLOCK_D=self._block_d)

    def recall(self, table: Tensor) -> None:
        self._product(table, "pairs", "w1", "hidden", self.units, 2 * self.d)
        self.activate(table)
        self._product(table, "activated", "w2", "gates", 4 * self.d, self.units)

    def activate(self, table: Tensor) -> None:
        launch(level_kernels.activate_survivors_kernel, (cell_replay.PROGRAMS,), table,
            K=self.K, UNITS=self.units, DROPS=self.drops, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip

    def after_cell(self, table: Tensor) -> None:
        self.open_gates(table)
        self.descend(table, table)
        self.close(table)
        self.weights(table, cell=self.few)

    def descend(self, table: Tensor, height: Tensor) -> None:
        """The cell's gradient from the highest level down, on a GPU in one launch. `height` is read only
        without a GPU."""
        options = {
            "D": self.d, "K": self.K, "UNITS": self.units, "ALL_D": max(16, power_of_two(self.d)),
            **self.level_tile, "BLOCK_K": min(64, max(16, power_of_two(self.units))),
            "PRECISION": self.precision, "num_stages": 1,
        }  # fmt: skip
        by_levels(level_kernels.descend_kernel, (table,), height, options)

    def parts(self) -> dict[str, Callable[[Tensor], None]]:
        """The parts to capture: everything, or the kernels before and those after the library's products."""

        def everything(table: Tensor) -> None:
            self.before_cell(table)
            self.recall(table)
            self.after_cell(table)

        return {"all": everything} if self.few else {"before": self.before_cell, "after": self.after_cell}

    @property
    def level_tile(self) -> dict[str, int]:
        """The tile of `descend_kernel`. If nodes are wide, a large tile cannot take its own rows through the
        layer norm: registers would spill."""
        if self.many:
            rows = 0 if self.d <= 128 else 8
            return {"ROWS": rows, "BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 8}
        return {"ROWS": 0, "BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 4}

    @property
    def _block_d(self) -> int:
        return min(128, power_of_two(self.d))

    def _run(self, kernel: object, table: Tensor, **options: int) -> None:
        launch(kernel, (cell_replay.PROGRAMS,), table, D=self.d, **{"num_warps": 4, **options})

    def _product(
        self,
        table: Tensor,
        left: str,
        right: str,
        out: str,
        columns: int,
        terms: int,
        *,
        leaves: bool = False,
        across: bool = True,
        precision: str = "",
        stride: int = 0,
    ) -> None:
        slot = tables.SLOT
        launch(level_kernels.rows_product_kernel, (cell_replay.PROGRAMS,), table,
            LEFT=slot[left], RIGHT=slot[right], OUT=slot[out], LEAVES=leaves,
            N=columns, R=terms, OUT_STRIDE=stride or columns, ACROSS=across,
            PRECISION=precision or self.precision, BLOCK=BLOCK, BLOCK_R=BLOCK_R, num_warps=4, num_stages=3,
        )  # fmt: skip


plan_of = lru_cache(maxsize=64)(ReplayPlan)  # a plan also caches what it derives from its sizes

_graphs: GraphCache[tables.AddressedGraphs] = GraphCache(GRAPHS_AT_MOST)


def graphs_for(plan: ReplayPlan, device: torch.device) -> tables.AddressedGraphs:
    def capture() -> tables.AddressedGraphs:
        parts = plan.parts()
        return tables.AddressedGraphs(device, parts, parts.values())

    return tables.find_graphs(_graphs, plan, device, capture)
