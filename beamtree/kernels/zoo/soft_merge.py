"""An iteration of CRvNN and its derivative: the library's products, and kernels of ours between them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.zoo.neighbour_kernels import (
    absorb_back_kernel,
    absorb_kernel,
    neighbours_back_kernel,
    neighbours_kernel,
)
from beamtree.kernels.zoo.soft_merge_kernels import (
    activate_tokens_kernel,
    grow_back_kernel,
    grow_kernel,
    spread_kernel,
    token_score_back_kernel,
    token_score_kernel,
)
from beamtree.pytorch.launch import blocks, launch, power_of_two


class SoftMerge:
    """The activations of one iteration: h is (B, T, d), existence (B, T); seed and time give the masks."""

    def __init__(
        self,
        w: Any,
        h: Tensor,
        exists: Tensor,
        present: Tensor,
        absorbable: Tensor,
        seed: Tensor,
        time: Tensor,
        *,
        dropout: float,
        eps: float,
        slopes: bool,
    ) -> None:
        self.w, self.exists, self.present, self.absorbable = w, exists, present, absorbable
        self.B, self.T, self.d = B, T, d = h.shape
        self.h = h
        self.rows = B * T
        all_d, all_t = max(16, power_of_two(d)), max(16, power_of_two(T))
        block = min(16, max(1, 1024 // all_d))
        self.programs = blocks(self.rows, block)
        self.by_row = {"D": d, "ALL_D": all_d, "BLOCK_M": block}
        self.norm = {"D": d, "EPS": eps, "ALL_D": all_d, "BLOCK_M": block}
        self.by_token = {"ALL_T": all_t, "ROWS": min(16, max(4, 2048 // all_t))}
        self.both = h.new_empty(B, 2, T, T)
        launch(neighbours_kernel, (B, blocks(T, self.by_token["ROWS"])),
            exists, self.both, T, **self.by_token, num_warps=4,
        )  # fmt: skip
        self.first = (self.both.view(B, 2 * T, T) @ h).view(2 * B, T, d)
        second = (self.both.view(2 * B, T, T) @ self.first).view(B, 2, T, d)
        first = self.first.view(B, 2, T, d)
        self.window = torch.cat((second[:, 0], first[:, 0], h, first[:, 1], second[:, 1]), -1).view(-1, 5 * d)
        self.conv = torch.addmm(w.conv_bias, self.window, w.conv_weight.t())
        self.scores = torch.empty_like(exists)
        launch(token_score_kernel, (self.programs,),
            self.conv, w.scorer_weight, w.scorer_bias, present, self.scores, self.rows,
            **self.by_row, num_warps=4,
        )  # fmt: skip
        self.pair = self.window[:, d : 3 * d]
        before = torch.addmm(w.b1, self.pair, w.w1.t())
        self.slope = torch.empty_like(before) if slopes else before
        self.hidden = torch.empty_like(before) if slopes else before
        launch(activate_tokens_kernel, (blocks(self.rows, 16), blocks(4 * d, 128)),
            before, self.hidden, self.slope, seed, time, T, self.rows, round(dropout * 65536),
            UNITS=4 * d, SLOPES=slopes, DROPS=dropout > 0.0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
        self.gates = torch.addmm(w.b2, self.hidden, w.w2.t())

    def absorb(
        self, halted: Tensor, left: Tensor, lifetime: Tensor, still_exists: float
    ) -> tuple[Tensor, ...]:
        """How much every token grows into a parent; then existence, halted, iterations left, lifetime."""
        after = tuple(torch.empty_like(part) for part in (self.exists, self.exists, halted, left, lifetime))
        launch(absorb_kernel, (self.B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, left, lifetime,
            *after, self.T, AGAIN=False, STILL_EXISTS=still_exists, **self.by_token, num_warps=4,
        )  # fmt: skip
        return after

    def grow(self, grows: Tensor, halted: Tensor) -> Tensor:
        h_after = torch.empty_like(self.h)
        launch(grow_kernel, (self.programs,),
            self.gates, self.window, self.w.norm_weight, self.w.norm_bias, grows, halted, h_after,
            self.T, self.rows, **self.norm, num_warps=4,
        )  # fmt: skip
        return h_after

    def differentiate(
        self, halted: Tensor, d_h: Tensor, d_exists: Tensor, sums: Any
    ) -> tuple[Tensor, Tensor]:
        """Gradients of h and existence before, from those after; those of the weights are added to sums."""
        w, B, T, d, rows = self.w, self.B, self.T, self.d, self.rows
        programs, new = self.programs, self.h.new_empty
        partial, d_pair, ones = new(programs, 3 * d + 1), new(rows, 2 * d), self.h.new_ones(rows)
        grows, d_grows, alphas, absorbed, through, to_score, shared, d_direct, d_before = new(9, B, T)
        nothing = [grows] * 4
        launch(absorb_kernel, (B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, *nothing[:2],
            grows, *nothing, T, AGAIN=True, STILL_EXISTS=0.0, **self.by_token, num_warps=4,
        )  # fmt: skip
        launch(grow_back_kernel, (programs,),
            self.gates, self.window, w.norm_weight, w.norm_bias, grows, halted, d_h, d_grows, d_pair, partial,
            T, rows, **self.norm, num_warps=4,
        )  # fmt: skip
        d_hidden = (self.gates @ w.w2).mul_(self.slope)
        d_pair.addmm_(d_hidden, w.w1)
        launch(absorb_back_kernel, (B,),
            self.scores, self.both, self.exists, self.absorbable, self.present, halted, d_grows, d_exists,
            alphas, absorbed, through, to_score, shared, d_direct, T, **self.by_token, num_warps=4,
        )  # fmt: skip
        launch(token_score_back_kernel, (programs,),
            self.conv, w.scorer_weight, self.present, to_score, shared, partial, rows,
            **self.by_row, num_warps=4,
        )  # fmt: skip
        d_first, d_second = new(2, 2 * B, T, d)
        d_h = torch.empty_like(self.h)
        launch(spread_kernel, (programs,),
            self.conv @ w.conv_weight, d_pair, d_first, d_second, d_h, T, rows, **self.by_row, num_warps=4,
        )  # fmt: skip
        each, stacked = self.both.view(2 * B, T, T), self.both.view(B, 2 * T, T)
        d_first.baddbmm_(each.transpose(1, 2), d_second)
        d_both = d_second @ self.first.transpose(1, 2)
        d_first = d_first.view(B, 2 * T, d)
        d_both.view(B, 2 * T, T).baddbmm_(d_first, self.h.transpose(1, 2))
        d_h.baddbmm_(stacked.transpose(1, 2), d_first)
        launch(neighbours_back_kernel, (B,),
            self.exists, self.present, d_both, d_grows, alphas, absorbed, through, d_direct, d_before, T,
            **self.by_token, num_warps=4,
        )  # fmt: skip
        for gradient, source, weight, bias in (
            (self.conv, self.window, sums.conv_weight, sums.conv_bias),
            (d_hidden, self.pair, sums.w1, sums.b1),
            (self.gates, self.hidden, sums.w2, sums.b2),
        ):
            weight.addmm_(gradient.t(), source)
            bias.addmv_(gradient.t(), ones)
        _add([sums.norm_weight, sums.norm_bias, sums.scorer_weight, sums.scorer_bias], partial.sum(0))
        return d_h, d_before


def _add(sums: Sequence[Tensor], gradients: Tensor) -> None:
    parts = gradients.split([total.numel() for total in sums])
    torch._foreach_add_(list(sums), [part.view_as(total) for part, total in zip(parts, sums, strict=True)])
