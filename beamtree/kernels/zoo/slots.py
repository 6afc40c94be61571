"""Ordered Memory's cells by kernels of ours, where PyTorch takes ten a slot and direction."""

from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.runtime.products import float32_precision
from beamtree.kernels.zoo.cell_row_kernels import activate_kernel
from beamtree.kernels.zoo.slot_kernels import (
    hidden_kernel,
    mix_kernel,
    to_hidden_kernel,
    to_left_kernel,
    value_kernel,
)
from beamtree.kernels.zoo.slot_row_kernels import close_kernel, recall_kernel
from beamtree.pytorch.launch import blocks, launch, power_of_two

ROWS = 16  # of a tile: the fewest that a tensor core takes


class Slots:
    """x (B, d) composed with the memory (S, B, d) by the cell, slot by slot; cp is (S, B).

    `keep` (S, B, 6d) or None has the masks of left child, right child and hidden layer.
    """

    def __init__(
        self, w: Any, x: Tensor, memory: Tensor, cp: Tensor, keep: Tensor | None, eps: float
    ) -> None:
        self.w, self.x, self.memory, self.cp, self.keep, self.eps = w, x, memory, cp, keep, eps
        d = x.shape[-1]
        self.w1_left = w.w1_left.contiguous()
        self.right = memory if keep is None else memory * keep[..., d : 2 * d]
        wide = max(16, power_of_two(d))
        rounding = float32_precision()
        drops = {"DROPS": keep is not None, "KEEP_STRIDE": 6 * d}
        self.norm = {"D": d, "EPS": eps, "ALL_D": wide}
        self.tile = {"BLOCK_M": ROWS, "BLOCK_N": 64, "BLOCK_K": min(64, wide), "PRECISION": rounding}
        self.narrow_tile = self.tile | {"BLOCK_N": 32, "BLOCK_K": 64}
        self.sizes, self.drops = {"D": d, "UNITS": 4 * d}, drops

    def compose(self) -> Tensor:
        """v of all slots, (S, B, d)."""
        w, x = self.w, self.x
        S, B, d = self.memory.shape
        from_memory = torch.addmm(w.b1, self.right.view(-1, d), w.w1_right.t()).view(S, B, 4 * d)
        values, mixed, hidden = (
            torch.empty_like(self.memory),
            torch.empty_like(x),
            torch.empty_like(from_memory[0]),
        )
        tiles = blocks(B, ROWS)
        for j in range(S):
            left = values[j - 1] if j else x
            launch(hidden_kernel, (tiles, blocks(4 * d, 64)),
                x, mixed, self.cp[j - 1], w.norm_weight, w.norm_bias, self.w1_left, from_memory[j],
                self._keep(j), left, hidden, B,
                **self.sizes, EPS=self.eps, FIRST=j == 0, **self.drops, ALL_D=self.norm["ALL_D"], **self.tile,
                num_warps=4, num_stages=2,
            )  # fmt: skip
            launch(mix_kernel, (tiles, blocks(d, 16)),
                left, self.memory[j], hidden, w.w2, w.b2, mixed, B,
                **self.sizes, BLOCK_M=ROWS, BLOCK_F=16, BLOCK_K=64, PRECISION=self.tile["PRECISION"],
                num_warps=4, num_stages=3,
            )  # fmt: skip
        launch(value_kernel, (tiles,),
            x, mixed, self.cp[-1], w.norm_weight, w.norm_bias, values[-1], B,
            **self.norm, BLOCK_M=ROWS, num_warps=4,
        )  # fmt: skip
        return values

    def differentiate(
        self, values: Tensor, d_values: Tensor, sums: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of x (B, d) and cp (S, B), and what the memory's is made of, (S, B, d) each: ∂t, its gate
        and what passes the product, before its mask. Those of the weights are added to the sums."""
        w, (S, B, d) = self.w, self.memory.shape
        rows, tiles, ones = S * B, blocks(B, ROWS), self.x.new_ones(S * B)
        left = torch.cat((self.x.unsqueeze(0), values[:-1])).view(rows, d)
        dropped = left if self.keep is None else left * self.keep[..., :d].view(rows, d)
        right = self.right.view(rows, d)
        before = torch.addmm(w.b1, right, w.w1_right.t()).addmm_(dropped, w.w1_left.t())
        hidden, slope = torch.empty_like(before), torch.empty_like(before)
        launch(activate_kernel, (blocks(rows, 16), blocks(4 * d, 128)),
            before, self._keep(slice(None)), hidden, slope, rows,
            UNITS=4 * d, SLOPES=True, **self.drops, KEEP_START=2 * d, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
        gates = torch.addmm(w.b2, hidden, w.w2.t())
        normed, left_gate, right_gate, to_mixed, d_outs = (torch.empty_like(values) for _ in range(5))
        scales, d_cp = torch.empty_like(self.cp), torch.empty_like(self.cp)
        launch(recall_kernel, (blocks(rows, 4),),
            gates, left, self.memory, self.cp, normed, scales, left_gate, right_gate, rows,
            **self.norm, BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        slopes, slope, to_before = gates.view(S, B, 4 * d), slope.view(S, B, 4 * d), before.view(S, B, 4 * d)
        d_x = torch.empty_like(self.x)
        d_outs[-1] = d_values[-1]
        for j in reversed(range(S)):
            launch(to_hidden_kernel, (tiles, blocks(4 * d, 64)),
                d_outs[j], normed[j], scales[j], w.norm_weight, slopes[j], w.w2, slope[j],
                to_mixed[j], to_before[j], B,
                **self.sizes, ALL_D=self.norm["ALL_D"], **self.tile, num_warps=4, num_stages=2,
            )  # fmt: skip
            launch(to_left_kernel, (tiles, blocks(d, 32)),
                to_before[j], self.w1_left, self._keep(j), to_mixed[j], left_gate[j],
                d_values[j - 1], d_outs[j - 1] if j else d_x, B,
                **self.sizes, FIRST=j == 0, **self.drops, **self.narrow_tile, num_warps=4, num_stages=3,
            )  # fmt: skip
        to_x, programs = torch.empty_like(self.x), blocks(B, 4)
        partial = self.x.new_empty(programs, 2 * d)
        launch(close_kernel, (programs,),
            d_outs, d_x, normed, self.x, self.cp, w.norm_weight, w.norm_bias, to_mixed, slopes,
            to_x, d_cp, partial, B, S,
            D=d, ALL_D=self.norm["ALL_D"], BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        before = to_before.view(rows, 4 * d)
        sums.w2.addmm_(gates.t(), hidden)
        sums.b2.addmv_(gates.t(), ones)
        sums.w1_left.addmm_(before.t(), dropped)
        sums.w1_right.addmm_(before.t(), right)
        sums.b1.addmv_(before.t(), ones)
        torch._foreach_add_([sums.norm_weight, sums.norm_bias], list(partial.sum(0).chunk(2)))
        return to_x, d_cp, to_mixed, right_gate, (before @ w.w1_right).view(S, B, d)

    def _keep(self, j: int | slice) -> Tensor:
        return self.x if self.keep is None else self.keep[j]
