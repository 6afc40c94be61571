"""The recursion for `torch.export`: inference only, one `while_loop` over plain tensor operations.

Every beam keeps its own copy of its live nodes, in a row of n of which fewer count with every merge. That is
O(n²·K·d) work; search.py copies nothing, but is an operator that only this package can run.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.record import Beams
from beamtree.engine.ties import stable_topk
from beamtree.parts.scorer import EntangledScorer
from beamtree.pytorch.loops import State, check_exported, traced_loop
from beamtree.trees.forest import Forest


class TreeReader(Protocol):
    """An encoder that in evaluation merges the best pairs by score."""

    training: bool

    @property
    def cell(self) -> nn.Module: ...
    @property
    def scorer(self) -> nn.Module: ...
    def read(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]: ...


def exported_root(
    encoder: TreeReader, x: Tensor, key_padding_mask: Tensor | None, *refused: object, beam_size: int
) -> Tensor:
    """What the encoder returns while it is exported, (B, d); options that were given are refused."""
    return _grow(encoder, x, key_padding_mask, *refused, beam_size=beam_size)[1].root()


def exported_forest(
    encoder: TreeReader, x: Tensor, key_padding_mask: Tensor | None, *refused: object, beam_size: int
) -> Forest:
    """What the encoder's `forest` returns while it is exported."""
    found = _grow(encoder, x, key_padding_mask, *refused, beam_size=beam_size, need_nodes=True)
    leaves, beams = found
    return Forest(leaves, beams.nodes, beams.vectors, beams.trees())


def _grow(
    encoder: TreeReader,
    x: Tensor,
    key_padding_mask: Tensor | None,
    *refused: object,
    beam_size: int,
    need_nodes: bool = False,
) -> tuple[Tensor, Beams]:
    check_exported(encoder)
    if any(option is not None and option is not False for option in refused):
        raise ValueError("need_trees, merges and pinned_spans cannot be exported: leave them out")
    cell, score = encoder.cell, encoder.scorer

    def score_parent(left: Tensor, right: Tensor) -> Tensor:
        scores: Tensor = score(cell(left, right))
        return scores

    entangled = isinstance(score, EntangledScorer)
    leaves, lengths = encoder.read(x, key_padding_mask)
    scorer = score_parent if entangled else score
    grown = search_in_a_loop(leaves, lengths, cell, scorer, beam_size=beam_size, need_nodes=need_nodes)
    return leaves, grown


def search_in_a_loop(
    leaves: Tensor,  # (B, n, d), n ≥ 2, finite everywhere, padding included
    lengths: Tensor,  # (B,)
    cell: nn.Module,
    scorer: Callable[[Tensor, Tensor], Tensor],
    *,
    beam_size: int,
    need_nodes: bool = False,
) -> Beams:
    """The beams that the search finds in evaluation; their merges and nodes only if asked for."""
    B, n, d = leaves.shape
    K = beam_size
    device = leaves.device
    column = torch.arange(n, device=device)
    slot = torch.arange(K, device=device)
    sequence = torch.arange(B, device=device).unsqueeze(1)  # (B, 1)
    length = lengths.unsqueeze(1)  # (B, 1)

    # An index, not a slice: slices would be specialised to n > 2.
    energy = scorer(leaves, leaves[:, (column + 1).clamp(max=n - 1)])  # (B, n): of the pair at a column
    energy = energy.to(torch.promote_types(leaves.dtype, torch.float32))
    energy = energy.masked_fill(column + 1 >= length, -torch.inf)
    state: State = (
        leaves.unsqueeze(1).repeat(1, K, 1, 1),  # (B, K, n, d)
        energy.unsqueeze(1).repeat(1, K, 1),  # (B, K, n)
        energy.new_zeros(B, K).masked_fill(slot > 0, -torch.inf),
    )
    if need_nodes:  # what has been done, one column a step: n of them, as n − 1 would be specialised to n > 2
        merges = torch.full((B, K, n), -1, dtype=torch.int64, device=device)
        state += (energy.new_zeros(B, dtype=torch.float64), merges, leaves.new_zeros(B, K, n, d))

    def is_running(t: Tensor, *_: Tensor) -> Tensor:
        return t < length.max() - 1

    def merge(t: Tensor, nodes: Tensor, energy: Tensor, scores: Tensor, *done: Tensor) -> State:
        # There may be fewer than K pairs; those that do not exist are never chosen before one that does.
        top, position = stable_topk(F.pad(energy, (0, K), value=-torch.inf), K)  # (B, K, K)
        candidates = (top + (scores - energy.logsumexp(-1)).unsqueeze(-1)).flatten(1)
        candidates = candidates.masked_fill(candidates.isnan(), -torch.inf)  # a finished sequence's
        new_scores, chosen = stable_topk(candidates, K)  # (B, K)
        chosen = torch.where(new_scores > -torch.inf, chosen, chosen[:, :1])  # a dead beam follows the best
        beam = chosen // K
        here = position.flatten(1).gather(1, chosen).clamp(max=n - 2)  # (B, K): the left child's column

        parents = cell(nodes[sequence, beam, here], nodes[sequence, beam, here + 1])  # (B, K, d)
        here = here.unsqueeze(-1)
        stays = (column + (column > here)).clamp(max=n - 1)  # (B, K, n): the right child's place closed
        kept = (sequence.unsqueeze(-1), beam.unsqueeze(-1), stays)
        new_nodes = torch.where((column == here).unsqueeze(-1), parents.unsqueeze(2), nodes[kept])
        starts = torch.cat(((here - 1).clamp(min=0), here), -1)  # (B, K, 2): where the new pairs start
        pairs = (sequence.unsqueeze(-1), slot.view(1, K, 1), starts)
        new_pairs = scorer(new_nodes[pairs], new_nodes[(*pairs[:2], starts + 1)]).to(energy.dtype)
        new_pairs = new_pairs.masked_fill(starts + 2 >= (length - t).unsqueeze(-1), -torch.inf)
        new_energy = torch.where(column == here - 1, new_pairs[..., :1], energy[kept])
        new_energy = torch.where(column == here, new_pairs[..., 1:], new_energy)

        runs = (length - t > 1).unsqueeze(-1)  # (B, 1, 1)
        best = new_scores[:, 0]
        now = (
            torch.where(runs.unsqueeze(-1), new_nodes, nodes),
            torch.where(runs, new_energy, energy),
            torch.where(runs.squeeze(-1), new_scores - best.unsqueeze(1), scores),
        )
        if not done:
            return now
        offset, merges, made = done
        new_merges = torch.where(column == t, here, merges[sequence, beam])
        new_made = torch.where((column == t).unsqueeze(-1), parents.unsqueeze(2), made[sequence, beam])
        return (
            *now,
            torch.where(runs.flatten(), offset + best, offset),
            torch.where(runs, new_merges, merges),
            torch.where(runs.unsqueeze(-1), new_made, made),
        )

    nodes, _, scores, *done = traced_loop(is_running, merge, state)
    if not done:
        no_nodes, no_merges = leaves.new_empty(B, K, 0, d), lengths.new_empty(B, K, 0)
        return Beams(nodes[:, :, 0], scores, no_nodes, scores.new_zeros(B), no_merges, lengths)
    offset, merges, made = done
    is_dead = (scores == -torch.inf).unsqueeze(-1)
    merges = merges.masked_fill(is_dead, -1)[..., : n - 1].contiguous()
    made = made.masked_fill(is_dead.unsqueeze(-1), 0.0)[:, :, : n - 1].contiguous()
    return Beams(nodes[:, :, 0].masked_fill(is_dead, 0.0), scores, made, offset, merges, lengths)
