"""Ordered Memory's cells and attention by kernels of ours, where PyTorch takes ten a slot and direction."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.cell_kernels import activate_kernel
from beamtree.kernels.runtime.products import float32_precision
from beamtree.kernels.zoo.attention_kernels import (
    attention_back_kernel,
    attention_kernel,
    score_back_kernel,
    score_kernel,
    write_back_kernel,
)
from beamtree.kernels.zoo.slot_kernels import (
    close_kernel,
    hidden_kernel,
    mix_kernel,
    recall_kernel,
    to_hidden_kernel,
    to_left_kernel,
    value_kernel,
)
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


class Attention:
    """The attention of query (B, d) over the candidates (S, B, d), and the memory with those below it.

    `weights` are those of keys, their norm and the score; `keep` (S, B, 2d) or None masks keys and scores.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        query: Tensor,
        memory: Tensor,
        candidates: Tensor,
        p_before: Tensor,
        keep: Tensor | None,
        *,
        eps: float,
        unreached: float,
    ) -> None:
        self.weights, self.query, self.keep = weights, query, keep
        self.memory, self.candidates, self.p_before = memory, candidates, p_before
        S, B, d = candidates.shape
        key_weight, key_bias, gamma, beta, out, out_bias = weights
        self.asked = (candidates if keep is None else candidates * keep[..., :d]).view(-1, d)
        self.keys = torch.addmm(key_bias, self.asked, key_weight.t())
        self.scores, self.p, self.cp, self.rcp = query.new_empty(4, S, B)
        self.rows = {"D": d, "EPS": eps, "ROOT": math.sqrt(d), "DROPS": keep is not None}
        self.rows |= {"ALL_D": max(16, power_of_two(d)), "BLOCK_M": 4}
        self.columns = {"UNREACHED": unreached, "SLOTS": power_of_two(S), "BLOCK_B": 8}
        launch(score_kernel, (blocks(S * B, 4),),
            self.keys, query, query if keep is None else keep, gamma, beta, out, out_bias, self.scores,
            B, S * B, **self.rows, num_warps=4,
        )  # fmt: skip
        launch(attention_kernel, (blocks(B, 8),),
            self.scores, p_before, self.p, self.cp, self.rcp, B, S, **self.columns, num_warps=4,
        )  # fmt: skip
        self.written = torch.lerp(memory, candidates, self.rcp.unsqueeze(-1))

    def differentiate(
        self,
        d_p: Tensor,
        d_cp: Tensor,
        d_written: Sequence[Tensor],
        cell_keep: Tensor | None,
        sums: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of query, memory, candidates and p before, those of the weights added to the sums.

        Into the written memory flows `d_written`: what comes from later tokens, from the cells what passes
        their gates, as two factors, and what passes their products, which `cell_keep` (S, B, 6d) masks.
        """
        key_weight, _, gamma, beta, out, _ = self.weights
        S, B, d = self.candidates.shape
        d_rcp, d_scores, d_before = self.query.new_empty(3, S, B)
        d_memory, d_candidates, d_keys = self.query.new_empty(3, S, B, d)
        d_query, programs = torch.empty_like(self.query), blocks(B, 4)
        partial = self.query.new_empty(programs, 3 * d + 1)
        launch(write_back_kernel, (blocks(S * B, 4),),
            *d_written, d_before if cell_keep is None else cell_keep, self.memory, self.candidates,
            self.rcp, d_memory, d_candidates, d_rcp, S * B,
            D=d, DROPS=cell_keep is not None, ALL_D=self.rows["ALL_D"], BLOCK_M=4, num_warps=4,
        )  # fmt: skip
        launch(attention_back_kernel, (blocks(B, 8),),
            self.scores, self.p_before, d_p, d_cp, d_rcp, d_scores, d_before, B, S,
            **self.columns, num_warps=4,
        )  # fmt: skip
        launch(score_back_kernel, (programs,),
            self.keys, self.query, self.query if self.keep is None else self.keep, gamma, beta, out, d_scores,
            d_keys, d_query, partial, B, S, **self.rows, num_warps=4,
        )  # fmt: skip
        d_keys = d_keys.view(-1, d)
        sums[0].addmm_(d_keys.t(), self.asked)
        sums[1].addmv_(d_keys.t(), d_keys.new_ones(len(d_keys)))
        gradients = partial.sum(0).split([d, d, d, 1])
        torch._foreach_add_(list(sums[2:]), [g.view_as(s) for g, s in zip(gradients, sums[2:], strict=True)])
        if self.keep is None:
            d_candidates.view(-1, d).addmm_(d_keys, key_weight)
        else:
            d_candidates.addcmul_((d_keys @ key_weight).view(S, B, d), self.keep[..., :d])
        return d_query, d_memory, d_candidates, d_before
