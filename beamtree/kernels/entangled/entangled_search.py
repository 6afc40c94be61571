"""The search on a GPU with an entangled scorer, e = w·cell(l, r) + b: BT-GRC's `cached` mode.

The same board, lists, choices and graphs as with a sliced scorer; the products and what follows them differ.
"""

from collections.abc import Mapping
from functools import cached_property, partial

import torch
import triton
from torch import Tensor

from beamtree.kernels.entangled import entangled_cell
from beamtree.kernels.entangled import entangled_kernels as kernels
from beamtree.kernels.search import plan as plans
from beamtree.kernels.search.fused_search import Found, Tape, follow
from beamtree.kernels.search.plan import Plan, can_chain, chunks_of
from beamtree.kernels.search.step_kernels import leaf_lists_kernel
from beamtree.kernels.weights import EntangledScorerWeights, Weights


class EntangledPlan(Plan):
    """A plan whose scorer has no hidden layer (s = H = 0), and whose steps make two parents a survivor."""

    @cached_property
    def rows(self) -> int:
        return 2 * self.B * self.K

    def more_words(self, n: int) -> dict[str, int]:
        return {
            "keep": 0,
            "hidden": self.rows * self.units,
            "sums": self.rows * self.d,
            "new_pairs": 2 * self.rows,
            "candidates": self.B * (n - 1) * (1 + 2 * self.K) * self.d,
        }

    def hidden(self, board: Tensor, step: int) -> None:
        block_m, block_n, _ = self.tiles
        products = triton.cdiv(self.rows, block_m) * triton.cdiv(self.units, block_n)
        kernels.pair_hidden_kernel[(products + self.lists,)](
            board, step, products, DROPS=self.drops, BLOCK_M=block_m, BLOCK_N=block_n,
            num_stages=2, **self._lists, **self._cell, **self._launch,
        )  # fmt: skip

    def gates(self, board: Tensor, step: int, *, products: bool = True) -> None:
        block_m, _, block_f = self.tiles
        tiles = triton.cdiv(self.rows, block_m) * triton.cdiv(self.d, block_f) if products else 0
        # Shared memory that the products take limits how many list programs run beside them.
        pipeline = {"BLOCK_K": 32, "num_stages": 4} if block_m == 64 else {"num_stages": 3}
        kernels.pair_gates_kernel[(tiles + 2 * self.lists,)](
            board, step, tiles, self.lists, NOISY=self.noisy, BEAMS=self.beams,
            BLOCK_M=block_m, BLOCK_F=block_f, **self._lists, **self._launch, **(self._cell | pipeline),
        )  # fmt: skip

    def choose(self, board: Tensor, step: int, *, choices: bool = True) -> None:
        count, draws = self.B if choices else 0, self.lists if self.noisy else 0
        if count + draws:
            kernels.pair_choose_kernel[(count + draws,)](
                board, step, count, D=self.d, NOISY=self.noisy, BEAMS=self.beams,
                WIDTH=triton.next_power_of_2(self.K + 2), BLOCK_D=self.block_d, **self._lists, **self._launch,
            )  # fmt: skip

    def step(self, board: Tensor, step: int) -> None:
        self.hidden(board, step)
        self.gates(board, step)
        self.choose(board, step + 1)

    def begin(self, board: Tensor) -> None:
        """Rank the leaves' pairs, which are scored, and make the first choice."""
        leaf_lists_kernel[(plans.PROGRAMS,)](
            board, K=self.K, H=0, BEAMS=self.beams, BLOCK=32, BLOCK_H=16, num_warps=4
        )
        self.choose(board, -1, choices=False)
        self.gates(board, -1, products=False)
        self.choose(board, 0)


def search(
    leaves: Tensor,  # (B, n, d) float32, contiguous
    lengths: Tensor,  # (B,) int64, contiguous
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    *,
    beam_size: int,
    dropout: float,
    noisy: bool,
    precision: str,
    record: bool,
) -> tuple[Found, Tape]:
    B, n, d = leaves.shape
    units = weights.cell.b1.shape[0]
    chains = leaves.is_cuda and can_chain(leaves.device)
    plan = EntangledPlan(B, beam_size, d, 0, 0, units, *chunks_of(n), noisy, dropout > 0, precision, chains)
    prepare = partial(_score_leaves, leaves, weights, seed, dropout, plan)
    return follow(plan, leaves, lengths, weights, seed, dropout, record, prepare)


def _score_leaves(
    leaves: Tensor,
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    dropout: float,
    plan: Plan,
    nodes: Tensor,  # (B, n + (n−1)·K, d)
    scratch: Mapping[str, Tensor],
) -> None:
    """Put the leaves into the node store, the parents of their pairs with the candidates, their scores in the
    lists."""
    B, n, d = leaves.shape
    count, rows = B * (n - 1), (n - 1) * (1 + 2 * plan.K)
    nodes[:, :n] = leaves
    if count == 0:
        return
    pairs = torch.cat((leaves[:, :-1], leaves[:, 1:]), -1).view(count, 2 * d)
    names = _leaf_pairs(B, n, leaves.device) if dropout > 0 else pairs  # without dropout nobody looks at it
    parents = leaves.new_empty(count, d)
    for start in range(0, count, entangled_cell.ROWS_AT_ONCE):
        some = slice(start, start + entangled_cell.ROWS_AT_ONCE)
        made = entangled_cell.make(pairs[some], names[some], weights, seed, dropout, plan.precision)
        torch.addcmul(weights.cell.beta, made.normed, weights.cell.gamma, out=parents[some])
    candidates = scratch["candidates"][: B * rows * d].view(B, rows, d)
    candidates[:, : n - 1] = parents.view(B, n - 1, d)
    scores = torch.addmv(weights.scorer.b2, parents, weights.scorer.w2[0])
    lists = scratch["pair_scores"][: B * plan.K * n].view(B, plan.K, n)
    lists[:, 0, : n - 1] = scores.view(B, n - 1)


def _leaf_pairs(B: int, n: int, device: torch.device) -> Tensor:
    """Sequence, left and right of all pairs of neighbours, (B·(n−1), 3)."""
    names = torch.empty(B, n - 1, 3, dtype=torch.int64, device=device)
    names[:, :, 0] = torch.arange(B, device=device).unsqueeze(1)
    names[:, :, 1] = torch.arange(n - 1, device=device)
    names[:, :, 2] = torch.arange(1, n, device=device)
    return names.view(-1, 3)
