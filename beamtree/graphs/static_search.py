"""The search of engine/search.py in a form that a CUDA graph can capture: fixed sizes, and the number of the
step on the device.

One step is captured once and replayed for every step of every batch that fits. The plain search drops
finished sequences; here they go on with numbers that nobody reads.
"""

from functools import partial

import torch
from torch import Tensor

from beamtree.engine.choosing import Fence
from beamtree.engine.randomness import FIRST_SELECTION, SECOND_SELECTION, Randomness, draw_keep, gumbel
from beamtree.engine.record import (
    NONE,
    ROWS_AT_ONCE,
    Compose,
    Score,
    Tape,
)
from beamtree.engine.search import Lists, Places, rank_beams, refuse_stuck, start, step

DRAWS_AT_ONCE = 1 << 22


class StaticSearch:
    """Buffers for B sequences of n tokens, padding included, and the search on them.

    Call `load`, then `step` once per step, then `tape`. If `steps_drawn` is not 0, call `draw` before the
    first step and again after every `steps_drawn` steps.
    """

    def __init__(
        self,
        leaves: Tensor,  # (B, n, d), for its shape, type and device only
        beam_size: int,
        *,
        noisy: bool = False,
        dropout: float = 0.0,
        hidden_size: int = 0,
        pins: int | None = None,  # how many spans may be pinned in a sequence
    ) -> None:
        B, n, d = leaves.shape
        self.sizes = B, beam_size, n
        self.noisy, self.dropout = noisy, dropout
        K, rows = beam_size, B * beam_size
        self.first = 1 + B * n
        capacity = rows * (n - 1)
        device = leaves.device
        integers = partial(torch.zeros, dtype=torch.int64, device=device)
        wide = torch.promote_types(leaves.dtype, torch.float32)
        numbers = partial(torch.zeros, dtype=wide, device=device)

        self.t = integers(1)
        self.seed = integers(())
        self.order, self.lengths = integers(B), integers(B)  # longest first
        self.stuck = torch.zeros(B, dtype=torch.bool, device=device)  # no merge was permitted
        self.nodes = torch.zeros(self.first + capacity, d, dtype=leaves.dtype, device=device)
        self.heights = integers(self.first + capacity)
        self.links, self.ended = integers(capacity, 6), numbers(capacity, 4)
        self.lists = Lists(integers(rows, n + 2), numbers(rows, n + 2), numbers(B, K))
        self.offset = torch.zeros(B, 1, dtype=torch.float64, device=device)

        self.at = Places(B, K, n + 2, device)
        # The lists keep their width when they close up: the last column, which is empty, is taken twice.
        self.moving = self.at.column.clamp(max=n)
        self.row = torch.arange(rows, device=device)
        self.fence: Fence | None = None
        if pins is not None:
            nowhere = torch.full((B, pins, 2), -1, device=device)
            self.fence = Fence(nowhere, self.order, n, self.first + capacity)

        per_beam = (n - 1 + K) * noisy + hidden_size * (dropout > 0.0)
        self.steps_drawn = max(1, min(n - 1, DRAWS_AT_ONCE // (rows * per_beam))) if per_beam else 0
        S = self.steps_drawn
        self.ahead = torch.arange(S, device=device).view(S, 1, 1)
        self.noise = (numbers(S, B, K, n - 1), numbers(S, B, K, K)) if noisy else None
        self.masks = leaves.new_zeros(S, rows, hidden_size) if dropout > 0.0 else None

    @property
    def nbytes(self) -> int:
        held = [
            *vars(self).values(),
            *self.lists,
            *(self.noise or ()),
            *([self.fence.spans] if self.fence else ()),
        ]
        return sum(tensor.nbytes for tensor in held if isinstance(tensor, Tensor))

    def load(
        self,
        leaves: Tensor,  # (B, n, d)
        lengths: Tensor,  # (B,)
        score: Score,
        randomness: Randomness | None = None,
        pins: Tensor | None = None,
    ) -> None:
        """Start a search of these leaves."""
        B, K, n = self.sizes
        order = lengths.argsort(descending=True, stable=True)
        self.t.zero_()
        self.order.copy_(order)
        self.lengths.copy_(lengths[order])
        self.nodes[1 : self.first] = leaves.reshape(B * n, -1)
        if randomness is not None:
            self.seed.copy_(randomness.seed)
        if self.fence is not None and pins is not None:
            self.fence.pins.copy_(pins[order])

        column = self.at.column
        is_token = (column >= 1) & (column <= self.lengths.unsqueeze(1))
        ids = torch.where(is_token, order.unsqueeze(1) * n + column, NONE)  # (B, n+2)
        for buffer, fresh in zip(self.lists, start(ids, self._score_leaves(ids, score), K), strict=True):
            buffer.copy_(fresh)
        self.offset.zero_()
        self.stuck.zero_()

    def _score_leaves(self, ids: Tensor, score: Score) -> Tensor:
        """Scores of all pairs of neighbouring leaves, (B, n+2), −inf where there is no pair."""
        pairs = torch.stack((ids[:, :-1], ids[:, 1:]), -1)  # (B, n+1, 2)
        is_pair = (pairs != NONE).all(-1)
        if self.fence is not None:
            is_pair &= ~self.fence.crosses(pairs)
        some_pairs = pairs.view(-1, 2).split(ROWS_AT_ONCE)
        scored = [score(torch.embedding(self.nodes, some), None) for some in some_pairs]
        found = torch.cat(scored).to(self.ended.dtype).view(is_pair.shape)
        return torch.nn.functional.pad(found.masked_fill(~is_pair, -torch.inf), (0, 1), value=-torch.inf)

    def draw(self) -> None:
        """Draw the noise and the masks of the next `steps_drawn` steps."""
        step, sequence, slot = self.t + self.ahead, self.order.unsqueeze(1), self.at.slot
        if self.noise is not None:
            for stream, noise in zip((FIRST_SELECTION, SECOND_SELECTION), self.noise, strict=True):
                noise.copy_(gumbel(self.seed, stream, step, sequence, slot, noise.shape[-1], noise.dtype))
        if self.masks is not None:
            width, dtype = self.masks.shape[-1], self.masks.dtype
            keep = draw_keep(self.seed, step, sequence, slot, width, self.dropout, dtype)
            self.masks.copy_(keep.view_as(self.masks))

    def step(self, compose: Compose, score: Score) -> None:
        noise = keep = None
        if self.steps_drawn:
            drawn = self.t % self.steps_drawn
            if self.noise is not None:
                first, second = (some.index_select(0, drawn).squeeze(0) for some in self.noise)
                noise = (first, second)
            if self.masks is not None:
                keep = self.masks.index_select(0, drawn).squeeze(0)
        begin = self.t * len(self.row)
        rows = begin + self.row  # of the tape
        new_ids = rows + self.first
        after, made = step(
            self.lists,
            new_ids.unsqueeze(1),
            self.moving,
            partial(torch.embedding, self.nodes),
            compose,
            score,
            self.at,
            noise=noise,
            keep=keep,
            fence=self.fence,
        )
        self.nodes.index_copy_(0, new_ids, made.parents)
        before = torch.where(self.t > 0, made.source + (self.first + begin - len(self.row)), NONE)
        self.links.index_copy_(0, rows, torch.cat((before, made.near, made.column - 1), 1))
        self.ended.index_copy_(0, rows, made.ended)
        self.heights.index_copy_(0, new_ids, self.heights.take(made.near[:, 1:3]).amax(1) + 1)
        ids, pair_scores, scores = self.lists
        ids.copy_(after.ids)
        pair_scores.copy_(after.pair_scores)
        merging = (self.lengths - 1 > self.t).unsqueeze(1)
        self.stuck |= (merging & (made.lead == -torch.inf)).squeeze(1)
        torch.where(merging, after.scores, scores, out=scores)
        torch.where(merging, self.offset + made.lead, self.offset, out=self.offset)
        self.t += 1

    def refuse_if_stuck(self) -> None:
        refuse_stuck(self.order[self.stuck])

    def tape(self, steps: int) -> tuple[Tape, Tensor]:
        """The record of the search after this many steps, and the heights of the nodes, as copies."""
        B, K, n = self.sizes
        made = B * K * steps
        last = (self.lengths - 2).unsqueeze(1) * len(self.row)  # (B, 1): where the last step begins
        leaf = torch.where(self.at.slot == 0, self.order.unsqueeze(1) * n + 1, NONE)
        roots = torch.where(self.lengths.unsqueeze(1) == 1, leaf, self.first + last + self.row.view(B, K))
        ranked = rank_beams(roots, self.lists.scores, self.offset, self.order)
        nodes, links = self.nodes[: self.first + made].clone(), self.links[:made].clone()
        tape = Tape(nodes, links, self.ended[:made].clone(), *ranked)
        return tape, self.heights[: self.first + made].clone()
