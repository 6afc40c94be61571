"""The recursion for `torch.export`: inference only, as one `while_loop` over plain tensor operations.

It runs the step of search.py. The state of such a loop keeps its size and is replaced by every step, so each
step copies the table of nodes. In return the exported program runs without this package.
"""

from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.record import NONE, Beams
from beamtree.engine.search import Lists, Places, start, step
from beamtree.parts.contract import Cell, Scorer
from beamtree.parts.scorer import EntangledScorer
from beamtree.pytorch.tracing import State, check_exported, traced_loop
from beamtree.trees.forest import Forest


class TreeReader(Protocol):
    """An encoder that merges the best-scored pairs in evaluation."""

    training: bool

    @property
    def cell(self) -> nn.Module: ...
    @property
    def scorer(self) -> nn.Module: ...
    def read(self, x: Tensor, key_padding_mask: Tensor | None) -> tuple[Tensor, Tensor]: ...


def exported_root(
    encoder: TreeReader, x: Tensor, key_padding_mask: Tensor | None, *refused: object, beam_size: int
) -> Tensor:
    """The encoder's result under export, (B, d); raises an error if any of `refused` is given."""
    return _grow(encoder, x, key_padding_mask, *refused, beam_size=beam_size)[1].root()


def exported_forest(
    encoder: TreeReader, x: Tensor, key_padding_mask: Tensor | None, *refused: object, beam_size: int
) -> Forest:
    """The result of the encoder's `forest` under export."""
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
    cell: Cell,
    scorer: Scorer,
    *,
    beam_size: int,
    need_nodes: bool = False,
) -> Beams:
    """The beams found in evaluation; their merges and nodes only if `need_nodes`."""
    B, n, d = leaves.shape
    K, rows, first = beam_size, B * beam_size, 1 + B * n
    wide = torch.promote_types(leaves.dtype, torch.float32)
    at = Places(B, K, n + 2 + K, leaves.device, at_least_K=True)  # K spare columns, for few pairs
    column, last = at.column, n + 1 + K
    moving = column.clamp(max=last - 1)  # the last column is empty and fills the gap
    row = torch.arange(rows, device=leaves.device).unsqueeze(1)
    length, sequence = lengths.unsqueeze(1), at.row // K  # (B, 1)

    def compose(children: Tensor, keep: Tensor | None) -> Tensor:
        parents: Tensor = cell(*children.unbind(1))
        return parents

    def score(pairs: Tensor, keep: Tensor | None) -> Tensor:
        return scorer(*pairs.unbind(1))

    # Room for n steps, one more than needed: a size of n − 1 would specialise the export to n > 2.
    nodes = F.pad(leaves.reshape(B * n, d), (0, 0, 1, rows * n))
    ids = torch.where((column >= 1) & (column <= length), sequence * n + column, NONE)  # (B, width)
    right = ids[:, (column + 1).clamp(max=last)]
    pair_scores = scorer(torch.embedding(nodes, ids), torch.embedding(nodes, right)).to(wide)
    lists = start(ids, pair_scores.masked_fill((ids == NONE) | (right == NONE), -torch.inf), K)
    state: State = (nodes, *lists)
    if need_nodes:  # for every step: the position merged and the node made
        positions, made_ids = lengths.new_full((rows, n), -1), lengths.new_full((rows, n), NONE)
        state += (leaves.new_zeros(B, 1, dtype=torch.float64), positions, made_ids)

    def is_running(t: Tensor, *_: Tensor) -> Tensor:
        return t < length.max() - 1

    def merge(t: Tensor, nodes: Tensor, *rest: Tensor) -> State:
        old, done = Lists(*rest[:3]), rest[3:]
        new_ids = first + t * rows + row
        after, made = step(old, new_ids, moving, partial(torch.embedding, nodes), compose, score, at)
        runs = length - t > 1  # (B, 1)
        now = (
            nodes.index_copy(0, new_ids.squeeze(1), made.parents),
            after.ids,
            after.pair_scores,
            torch.where(runs, after.scores, old.scores),
        )
        if not done:
            return now
        offset, positions, made_ids = done
        is_now = (column[:n] == t) & runs.repeat_interleave(K, 0)  # (rows, n)
        source = torch.where(runs.repeat_interleave(K, 0), made.source, row).squeeze(1)
        return (
            *now,
            torch.where(runs, offset + made.lead, offset),
            torch.where(is_now, made.column - 1, positions[source]),
            torch.where(is_now, new_ids, made_ids[source]),
        )

    nodes, _, _, scores, *done = traced_loop(is_running, merge, state)
    made_last = first + (length - 2) * rows + at.row + at.slot  # (B, K)
    leaf = torch.where(at.slot == 0, sequence * n + 1, NONE)
    vectors = torch.embedding(nodes, torch.where(length == 1, leaf, made_last))
    if not done:
        no_nodes, no_merges = leaves.new_empty(B, K, 0, d), lengths.new_empty(B, K, 0)
        return Beams(vectors, scores, no_nodes, scores.new_zeros(B), no_merges, lengths)
    offset, positions, made_ids = done
    is_dead = (scores == -torch.inf).unsqueeze(-1)
    merges = positions.view(B, K, n).masked_fill(is_dead, -1)[..., : n - 1].contiguous()
    inner = torch.embedding(nodes, made_ids.view(B, K, n).masked_fill(is_dead, NONE))[:, :, : n - 1]
    roots = vectors.masked_fill(is_dead, 0.0)
    return Beams(roots, scores, inner.contiguous(), offset.squeeze(1), merges, lengths)
