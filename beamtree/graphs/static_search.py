"""The search of engine/search.py as a CUDA graph can hold it: sizes fixed, the step's number on the device.

One step, captured once, is replayed for every step of every batch that fits. Where the plain search leaves
finished sequences behind, here they go on with numbers that nobody reads: what they write lies beyond the
merges of their step, where the next step writes.
"""

from functools import partial

import torch
from torch import Tensor

from beamtree.engine.pinned import Fence
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import BEFORE, NONE, ROWS_AT_ONCE, Compose, Score, Tape
from beamtree.engine.search import choose, rank_beams
from beamtree.kernels.runtime.random_bits import FIRST_LEVEL, SECOND_LEVEL, draw_keep, gumbel

DRAWS_AT_ONCE = 1 << 22


class StaticSearch:
    """Buffers for B sequences of n tokens, padding included, and the search on them.

    `load`, then n−1 times `step`, before every `steps_drawn`-th of them `draw`, then `tape`.
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
        self.begins = integers(n)  # the first merge of each step
        self.nodes = torch.zeros(self.first + capacity, d, dtype=leaves.dtype, device=device)
        self.heights = integers(self.first + capacity)
        self.links, self.energies = integers(capacity, 6), numbers(capacity, 4)
        self.ids, self.pair_scores = integers(rows, n + 2), numbers(rows, n + 2)
        self.scores, self.offset = numbers(B, K), torch.zeros(B, 1, dtype=torch.float64, device=device)
        self.before = integers(B, K)  # each beam's last merge

        self.column = torch.arange(n + 2, device=device)
        self.moving = self.column.clamp(max=n)  # the last column is empty: it moves up behind the others
        self.around = torch.arange(-1, 3, device=device)
        self.row = torch.arange(rows, device=device)
        self.slot = torch.arange(K, device=device)
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
        held = [*vars(self).values(), *(self.noise or ()), *([self.fence.spans] if self.fence else ())]
        return sum(tensor.nbytes for tensor in held if isinstance(tensor, Tensor))

    def load(
        self,
        leaves: Tensor,  # (B, n, d)
        lengths: Tensor,  # (B,)
        score: Score,
        steps: int,
        randomness: Randomness | None = None,
        pins: Tensor | None = None,
    ) -> None:
        """Start a search of this many steps."""
        B, K, n = self.sizes
        order = lengths.argsort(descending=True, stable=True)
        self.t.zero_()
        self.order.copy_(order)
        self.lengths.copy_(lengths[order])
        merging = (self.lengths > self.column[1:n].unsqueeze(1)).sum(1)  # (n−1,) sequences at each step
        self.begins[1:] = (merging * K).cumsum(0)
        self.nodes[1 : self.first] = leaves.reshape(B * n, -1)
        self.links[: B * K * steps, BEFORE] = NONE  # where nothing is written nothing must be read
        if randomness is not None:
            self.seed.copy_(randomness.seed)
        if self.fence is not None and pins is not None:
            self.fence.pins.copy_(pins[order])

        is_token = (self.column >= 1) & (self.column <= self.lengths.unsqueeze(1))
        ids = torch.where(is_token, order.unsqueeze(1) * n + self.column, NONE)  # (B, n+2)
        self.ids.copy_(ids.repeat_interleave(K, 0))
        self.pair_scores.copy_(self._score_leaves(ids, score).repeat_interleave(K, 0))
        self.scores.fill_(-torch.inf)
        self.scores[:, 0] = 0
        self.offset.zero_()
        self.before.zero_()

    def _score_leaves(self, ids: Tensor, score: Score) -> Tensor:
        """Scores of all pairs of neighbouring leaves, (B, n+2), −inf where there is no pair."""
        pairs = torch.stack((ids[:, :-1], ids[:, 1:]), -1)  # (B, n+1, 2)
        is_pair = (pairs != NONE).all(-1)
        if self.fence is not None:
            is_pair &= ~self.fence.crosses(pairs)
        scored = [score(torch.embedding(self.nodes, some)) for some in pairs.view(-1, 2).split(ROWS_AT_ONCE)]
        found = torch.cat(scored).to(self.scores.dtype).view(is_pair.shape)
        return torch.nn.functional.pad(found.masked_fill(~is_pair, -torch.inf), (0, 1), value=-torch.inf)

    def draw(self) -> None:
        """The noise and the masks of the next steps."""
        step, sequence, slot = self.t + self.ahead, self.order.unsqueeze(1), self.slot
        if self.noise is not None:
            for stream, noise in zip((FIRST_LEVEL, SECOND_LEVEL), self.noise, strict=True):
                noise.copy_(gumbel(self.seed, stream, step, sequence, slot, noise.shape[-1], noise.dtype))
        if self.masks is not None:
            width, dtype = self.masks.shape[-1], self.masks.dtype
            keep = draw_keep(self.seed, step, sequence, slot, width, self.dropout, dtype)
            self.masks.copy_(keep.view_as(self.masks))

    def step(self, compose: Compose, score: Score) -> None:
        """As in `search`, where it is explained."""
        B, K, n = self.sizes
        rows, width = B * K, n + 2
        noise = keep = None
        if self.steps_drawn:
            drawn = self.t % self.steps_drawn
            if self.noise is not None:
                first, second = (some.index_select(0, drawn).squeeze(0) for some in self.noise)
                noise = (first, second)
            if self.masks is not None:
                keep = self.masks.index_select(0, drawn).squeeze(0)
        energy = self.pair_scores.view(B, K, width)[..., 1:n]  # (B, K, n−1)
        log_z = energy.logsumexp(-1)
        scores, parent, position = choose(energy, self.scores - log_z, noise, True, self.ids)
        best = scores[:, :1]

        parent = (parent + self.row.view(B, K)[:, :1]).view(rows, 1)
        position = position.view(rows, 1)
        here = position + 1
        line = parent * width
        window = line + here + self.around  # (rows, 4)
        near = self.ids.take(window)
        merges = self.begins.index_select(0, self.t) + self.row
        new_ids = merges + self.first
        self.links.index_copy_(0, merges, torch.cat((self.before.take(parent), near, position), 1))
        ended = torch.cat((self.pair_scores.take(window[:, :3]), log_z.take(parent)), 1)
        self.energies.index_copy_(0, merges, ended)

        children = near[:, 1:3]
        parents = compose(torch.embedding(self.nodes, children), keep)
        self.nodes.index_copy_(0, new_ids, parents.to(self.nodes.dtype))
        self.heights.index_copy_(0, new_ids, self.heights.take(children).amax(1) + 1)
        if self.fence is not None:
            self.fence.enclose(new_ids, *children.unbind(1))
        border = near[:, ::3] == NONE  # (rows, 2)
        near[:, 1:3] = new_ids.unsqueeze(1)
        pairs = near.view(2 * rows, 2)
        new_scores = score(torch.embedding(self.nodes, pairs)).to(scores.dtype).view(rows, 2)
        if self.fence is not None:
            border |= self.fence.crosses(pairs.view(B, 2 * K, 2)).view(rows, 2)
        new_scores = new_scores.masked_fill(border, -torch.inf)

        shift = (self.moving > here) + self.moving + line
        self.pair_scores.copy_(self.pair_scores.take(shift).scatter_(1, here + self.around[:2], new_scores))
        self.ids.copy_(self.ids.take(shift).scatter_(1, here, new_ids.unsqueeze(1)))
        merging = (self.lengths - 1 > self.t).unsqueeze(1)
        torch.where(merging, scores - best, self.scores, out=self.scores)
        torch.where(merging, self.offset + best, self.offset, out=self.offset)
        torch.where(merging, new_ids.view(B, K), self.before, out=self.before)
        self.t += 1

    def tape(self, steps: int) -> tuple[Tape, Tensor]:
        """The search's record after this many steps, and the nodes' heights; the caller's to keep."""
        B, K, n = self.sizes
        roots = self.before.clone()
        roots[:, 0] = torch.where(self.lengths == 1, self.order * n + 1, roots[:, 0])
        made = B * K * steps
        ranked = rank_beams(roots, self.scores, self.offset, self.order)
        nodes = self.nodes[: self.first + made].clone()
        tape = Tape(nodes, self.links[:made].clone(), self.energies[:made].clone(), *ranked)
        return tape, self.heights[: self.first + made].clone()
