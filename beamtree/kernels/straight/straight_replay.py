"""The gradient of a straight-through tree on a GPU, from the tape that a search with one beam left.

What does not depend on gradients, the cell at all merges and the scores of all pairs, is recomputed at once;
then one launch goes back through the steps (straight_kernels.py).
"""

from typing import Any

import torch
from torch import Tensor

from beamtree.kernels.replay import entangled_pair_kernels as entangled_pairs
from beamtree.kernels.replay.cell_replay import Descent, processors, through_cell
from beamtree.kernels.replay.survivors import pieces
from beamtree.kernels.search.fused_search import Tape
from beamtree.kernels.straight import straight_kernels
from beamtree.kernels.straight.places import find_places
from beamtree.kernels.straight.scores import ParentScores, SlicedScores
from beamtree.kernels.weights import CellWeights, Weights
from beamtree.pytorch.launch import launch, power_of_two

WIDE = 256  # beyond, a step's products are large enough for larger tiles
SHORT = 128  # lengths up to here share a compiled kernel


def replay(
    grad_roots: Tensor,  # (B, d)
    grad_inner: Tensor,  # (B, n−1 or 0, d)
    lengths: Tensor,  # (B,)
    merges: Tensor,  # (B, n−1)
    tape: Tape,
    weights: Weights[Any],
    seed: Tensor,
    *,
    noisy: bool,
    dropout: float,
    precision: str,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the weights; n > 1."""
    B, total, d = tape.nodes.shape
    n = (total + 1) // 2
    links, *_ = tape.parts(1)
    at = find_places(links, lengths, n, entangled=weights.entangled)
    nodes = tape.nodes.view(-1, d)
    scored: SlicedScores | ParentScores
    if weights.entangled:
        scored = ParentScores(nodes, at.pairs, at.pair_names, weights, seed, dropout, precision)
    else:
        scored = SlicedScores(nodes, at.pairs, weights.scorer, precision)
    gradients, score_grads, no_parents, counter = pieces(
        torch.zeros, nodes.device, (B * total, d), scored.scores.shape, (B * total, 1), (1,)
    )
    gradients.index_copy_(0, at.roots, grad_roots)
    options = _options(d, scored.slopes.shape[1] // 2, weights.cell, n, precision) | {
        "ENTANGLED": weights.entangled, "NOISY": noisy, "INNER": grad_inner.shape[1] > 0,
    }  # fmt: skip

    def descend(state: Descent) -> None:
        parents = nodes if scored.parents is None else scored.parents
        arguments = (
            gradients, grad_inner if grad_inner.numel() else gradients, state.child_grads, *state[3:],
            nodes, parents, scored.slopes, scored.scores, score_grads, links, merges, at.children, lengths,
            torch.empty(B, n, dtype=torch.int32, device=nodes.device), nodes.new_empty(B, 2, n), seed,
            counter.view(torch.int32), B, n,
        )  # fmt: skip
        # The interpreter runs one after the other: a barrier for two would never open.
        programs = processors(nodes.device) if nodes.is_cuda else 1
        launch(
            straight_kernels.sweep_kernel, (programs,), *arguments, **options, launch_cooperative_grid=True
        )

    pairs = nodes[at.merged].flatten(1)
    no_scorer = (pairs[:, :0], gradients, gradients[:, :0])
    grad_leaves, by_cell, _ = through_cell(
        pairs,
        gradients,
        no_parents.view(torch.int32),
        weights.cell,
        lambda hidden: entangled_pairs.activate(hidden, at.merge_names, seed, dropout),
        descend,
        no_scorer,
        B=B,
        n=n,
        precision=precision,
    )
    more_by_cell, by_scorer = scored.weight_gradients(score_grads)
    if more_by_cell is not None:
        by_cell = list(torch._foreach_add(by_cell, list(more_by_cell)))
    return [grad_leaves, *by_cell, *by_scorer]


def _options(d: int, s: int, weights: CellWeights, n: int, precision: str) -> dict[str, Any]:
    all_d, units = max(16, power_of_two(d)), weights.b1.shape[0]
    return {
        "D": d, "S": s, "UNITS": units, "ALL_D": all_d, "ALL_S": max(16, power_of_two(s)),
        "BLOCK": max(SHORT, power_of_two(n)), "ROWS": max(2, 4096 // all_d),
        "BLOCK_M": 16 if d <= WIDE else 32, "BLOCK_N": 32,
        "BLOCK_K": min(all_d, 128 if d <= WIDE else 64), "PRECISION": precision,
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
