"""A plan: everything that the kernels of a search are compiled and launched for, except lengths."""

from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from triton.language.extra import cuda

from beamtree.kernels.search import step_kernels as kernels
from beamtree.kernels.search.finish_kernels import finish_kernel, lineages_kernel
from beamtree.pytorch.launch import PROGRAMS, blocks, power_of_two

SHORT_CHUNK, CHUNK, LONG_CHUNK = 128, 1024, 2048  # places of a list that one program ranks


@dataclass(frozen=True)
class SearchPlan:
    B: int
    K: int
    d: int
    s: int  # features that the scorer sees; 0 with an entangled scorer, which reads the parent
    H: int  # the scorer's hidden units; 0 with an entangled scorer
    units: int  # the cell's hidden units
    chunks: int  # into which a list is cut
    chunk: int  # places in each
    noisy: bool
    drops: bool
    precision: str
    chains: bool  # the device can launch a dependent kernel early

    @cached_property
    def beams(self) -> int:
        return max(2, power_of_two(self.K))

    @cached_property
    def entangled(self) -> bool:
        return self.H == 0

    @cached_property
    def rows(self) -> int:
        """How many pairs a step composes: those it merges, or with an entangled scorer the two new pairs that
        each merge makes."""
        return self.B * self.K * (2 if self.entangled else 1)

    @cached_property
    def chained(self) -> bool:
        """Whether to launch each kernel while the one before still runs. With many programs the two would get
        in each other's way."""
        return self.chains and self.rows <= 64

    @cached_property
    def narrow(self) -> bool:
        """Whether `choose_kernel` itself applies the scorer to the new nodes; otherwise `project_kernel` has
        computed the scorer's first layer before."""
        return self.entangled or (self.K <= 16 and self.d <= 256 and self.H <= 128)

    @cached_property
    def tiles(self) -> tuple[int, int, int]:
        """The tiles of the cell's two products: rows, hidden units of the first, features of the second."""
        if self.rows <= 64:
            return 16, 16, 4
        return (32, 32, 8) if self.rows <= 256 else (64, 32, 16)

    @cached_property
    def list_rows(self) -> int:
        """How many beams' lists one program handles: all of a sequence, or one."""
        return self.beams if self.chunk == SHORT_CHUNK and self.beams <= 8 and self.rows > 64 else 1

    @cached_property
    def lists(self) -> int:
        """How many programs share each kind of list work."""
        return self.B * self.chunks * (self.K if self.list_rows == 1 else 1)

    @cached_property
    def _launch(self) -> dict[str, Any]:
        chained = {"launch_pdl": True} if self.chained else {}
        return {"CHAINED": self.chained, "num_warps": 4, **chained}

    @cached_property
    def _lists(self) -> dict[str, Any]:
        return {"K": self.K, "CHUNKS": self.chunks, "CHUNK": self.chunk, "ROWS": self.list_rows}

    @cached_property
    def _cell(self) -> dict[str, Any]:
        return {
            "D": self.d, "UNITS": self.units, "ENTANGLED": self.entangled,
            "BLOCK_K": self.block_k, "PRECISION": self.precision,
        }  # fmt: skip

    @cached_property
    def _vectors(self) -> dict[str, Any]:
        return {"D": self.d, "S": self.s, "H": self.H, "BLOCK_K": self.block_k, "BLOCK_D": self.block_d}

    @cached_property
    def block_k(self) -> int:
        return min(64, max(16, power_of_two(self.d)))

    @cached_property
    def block_d(self) -> int:
        return min(128, max(16, power_of_two(self.d)))

    @cached_property
    def block_h(self) -> int:
        # If a tile has fewer elements than a program has threads, 128, Triton may compute the choice in
        # several layouts, each from its own copies of the scores. These must agree to the last bit
        # (`pair_score`).
        return max(128 // self.beams, min(128, power_of_two(self.H)))

    # The kernels of a step. `step` counts from the number of steps in the table, so that it can be captured.

    def hidden(self, table: Tensor, step: int) -> None:
        block_m, block_n, _ = self.tiles
        products = blocks(self.rows, block_m) * blocks(self.units, block_n)
        kernels.hidden_kernel[(products + self.lists,)](
            table, step, products, DROPS=self.drops, BLOCK_M=block_m, BLOCK_N=block_n,
            num_stages=2, **self._lists, **self._cell, **self._launch,
        )  # fmt: skip

    def gates(self, table: Tensor, step: int, *, products: bool = True) -> None:
        block_m, _, block_f = self.tiles
        tiles = blocks(self.rows, block_m) * blocks(self.d, block_f) if products else 0
        # The more shared memory the products take, the fewer list programs run at the same time.
        pipeline = {"BLOCK_K": 32, "num_stages": 4} if block_m == 64 else {"num_stages": 3}
        kernels.gates_kernel[(tiles + 2 * self.lists,)](
            table, step, tiles, self.lists, NOISY=self.noisy, BEAMS=self.beams,
            BLOCK_M=block_m, BLOCK_F=block_f, **self._lists, **self._launch, **(self._cell | pipeline),
        )  # fmt: skip

    def project(self, table: Tensor, step: int) -> None:
        grid = (blocks(self.rows, 16), blocks(2 * self.H, 64))
        kernels.project_kernel[grid](
            table, step, K=self.K, BLOCK_M=16, BLOCK_N=64, **self._vectors, **self._launch
        )

    def choose(self, table: Tensor, step: int, *, choices: bool = True) -> None:
        drops = self.drops and not self.entangled  # with an entangled scorer `hidden_kernel` draws the masks
        draws = self.lists if self.noisy or drops else 0
        count = self.B if choices else 0
        if count + draws:
            kernels.choose_kernel[(count + draws,)](
                table, step, count, UNITS=self.units, ENTANGLED=self.entangled, NOISY=self.noisy, DROPS=drops,
                BEAMS=self.beams, WIDTH=power_of_two(self.K + 2), PROJECTS=self.narrow,
                BLOCK_M=16, BLOCK_N=128, BLOCK_H=self.block_h, **self._lists, **self._vectors, **self._launch,
            )  # fmt: skip

    def step(self, table: Tensor, step: int) -> None:
        self.hidden(table, step)
        self.gates(table, step)
        if not self.narrow:
            self.project(table, step + 1)
        self.choose(table, step + 1)

    def advance(self, table: Tensor, steps: int) -> None:
        kernels.advance_kernel[(1,)](table, steps, num_warps=1)

    def begin(self, table: Tensor) -> None:
        """Score the pairs of leaves (an entangled scorer has done so already), rank them, and make the first
        choice."""
        if not self.entangled:
            kernels.leaves_kernel[(PROGRAMS,)](
                table, K=self.K, BLOCK_M=16, BLOCK_N=64, num_warps=4, **self._vectors
            )
        kernels.leaf_lists_kernel[(PROGRAMS,)](
            table, K=self.K, H=self.H, BEAMS=self.beams, BLOCK=32, BLOCK_H=self.block_h, num_warps=4
        )
        self.choose(table, -1, choices=False)
        self.gates(table, -1, products=False)
        self.choose(table, 0)

    def finish(self, table: Tensor) -> None:
        """Sort the final beams and trace their lineages."""
        finish_kernel[(self.B + PROGRAMS,)](
            table, D=self.d, H=self.H, K=self.K, BEAMS=self.beams, BLOCK_D=self.block_d, num_warps=4
        )
        lineages_kernel[(PROGRAMS,)](table, K=self.K, BEAMS=self.beams, num_warps=1)


@cache
def can_chain(device: torch.device) -> bool:
    """Return True if a kernel can be launched before the one it depends on has ended."""
    return hasattr(cuda, "gdc_wait") and torch.cuda.get_device_capability(device) >= (9, 0)


def chunks_of(n: int) -> tuple[int, int]:
    """Into how many chunks a list of n is cut, and how long they are."""
    chunk = next((chunk for chunk in (SHORT_CHUNK, CHUNK) if n <= chunk), LONG_CHUNK)
    return power_of_two(ceil(n / chunk)), chunk
