"""Ordered Memory's attention by kernels of ours."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from beamtree.kernels.zoo.attention_kernels import (
    attention_back_kernel,
    attention_kernel,
    score_back_kernel,
    score_kernel,
    write_back_kernel,
)
from beamtree.pytorch.launch import blocks, launch, power_of_two


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
