"""CRvNN (Chowdhury & Caragea 2021): each token is absorbed by its right neighbour, bit by bit.

All tokens are merged softly and at once, again and again, until one is left. There is no discrete choice, so
each iteration (crvnn_step.py) is dense.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.graphs.step_graphs import StepGraphs
from beamtree.kernels.runtime.random_bits import draw_seed
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.tracing import runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.crvnn_step import COUNT, advance, retreat
from beamtree.zoo.tree_encoder import TreeEncoder, refuse_export, row

# Beyond these sizes an iteration's kernels are long enough to hide their launches.
REPLAYED_TOKENS, REPLAYED_PAIRS = 2**14, 2**22
# A graph serves all lengths up to a multiple of this; on a GPU halting is checked only every so often.
WIDTH_STEP, LOOKS_EVERY = 16, 4


class CRvNN(TreeEncoder):
    """(B, n, input_size) -> (B, d); the simplified form of the paper's tables, without auxiliary loss.

    A sequence halts once at most one of its tokens exists by more than 0.1, and after n iterations at the
    latest. The loop ends when all have halted; with `halt=False` it goes on for n iterations, as in the
    paper's speed test, which changes the cost and not the result.

    Training keeps the tokens' vectors of every iteration, O(n·n·d) numbers, and computes the rest again: the
    neighbour matrices are never kept. On a GPU a small enough iteration is one CUDA graph.

    The tree of `need_trees` has the tokens absorbed one by one, in the order of their expected absorption:
    the sum over iterations of how much a token still exists; of equals, the leftmost first.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        halt: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, input_size=input_size, dropout=dropout, device=device, dtype=dtype)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.halt = halt
        self.start = nn.Parameter(torch.randn(self.input_size, **factory))
        self.end = nn.Parameter(torch.randn(self.input_size, **factory))
        self.conv = nn.Linear(5 * d_model, d_model, **factory)
        self.scorer = nn.Linear(d_model, 1, **factory)
        self._graphs = StepGraphs()

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Any:
        refuse_export(self)
        leaves, lengths = self.read(x, key_padding_mask)
        start, end = self.leaf(torch.stack((self.start, self.end)))
        h, lifetime = self._merge(leaves, lengths, start, end)
        sentence = row(h, lengths).to(leaves.dtype)
        if not need_trees:
            return sentence
        return sentence, _absorption_trees(lifetime[:, 1 : x.shape[1] + 1], lengths)

    @runs_eagerly
    def _merge(self, leaves: Tensor, lengths: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """START, the tokens and END after all merging, (B, T, d), and how long each existed, (B, T)."""
        B, n, d = leaves.shape
        T, replay = _row_width(B, n, leaves.is_cuda)
        wide = torch.promote_types(leaves.dtype, torch.float32)
        position, last = torch.arange(T, device=leaves.device), lengths.unsqueeze(1)
        present = position <= last + 1  # (B, T)
        absorbable = ((position > 0) & (position < last)).to(wide)
        h = torch.cat((start.expand(B, 1, d), leaves, leaves.new_zeros(B, T - n - 1, d)), 1)
        h = torch.where((position == last + 1).unsqueeze(-1), end, h).masked_fill(~present.unsqueeze(-1), 0.0)
        modules = (self.conv, self.scorer, self.cell.w1, self.cell.w2, self.cell.norm)
        weights = [part.to(wide) for module in modules for part in read_part(module)]
        refuse_forward_mode(h, *weights)
        settings = _Settings(
            iterations=n,
            looks_every=_looks_every(leaves) if self.halt else 0,
            dropout=self.cell.dropout if self.cell.training else 0.0,
            graphs=self._graphs,
            replay=replay,
            differentiable=torch.is_grad_enabled(),
        )
        with without_autocast(leaves):
            merged: tuple[Tensor, Tensor] = _Merging.apply(
                h.to(wide), settings, lengths, *weights, present, absorbable
            )
        return merged


class _Settings(NamedTuple):
    iterations: int
    looks_every: int  # after how many iterations to check whether all have halted; 0 for never
    dropout: float
    graphs: StepGraphs
    replay: bool
    differentiable: bool


class _Merging(torch.autograd.Function):
    """Iterates `advance`; the backward pass walks back with `retreat`."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, settings: _Settings, lengths: Tensor, *constants: Tensor
    ) -> tuple[Tensor, Tensor]:
        exists = constants[COUNT].to(h.dtype)
        halted, iterations_left = torch.zeros_like(lengths, dtype=torch.bool), lengths.clone()
        lifetime = torch.zeros_like(exists)
        seed = draw_seed(h.device) if settings.dropout > 0.0 else lengths.new_zeros(())
        times = torch.arange(settings.iterations, device=h.device)
        states: list[Tensor] = []
        run = settings.graphs.run(advance, constants, replay=settings.replay, dropout=settings.dropout)
        with run as step:
            for t in range(settings.iterations):
                if settings.differentiable:
                    states += [h, exists, halted]
                h, exists, halted, iterations_left, lifetime = step(
                    h, exists, halted, iterations_left, lifetime, seed, times[t]
                )
                if settings.looks_every and (t + 1) % settings.looks_every == 0 and bool(halted.all()):
                    break
        if settings.differentiable:
            ctx.save_for_backward(seed, *constants, *states)
            ctx.settings = settings
        ctx.mark_non_differentiable(lifetime)
        return h, lifetime

    @staticmethod
    def backward(ctx: Any, d_h: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        seed, *saved = ctx.saved_tensors
        settings: _Settings = ctx.settings
        constants, flat = saved[: COUNT + 2], saved[COUNT + 2 :]
        states = [flat[i : i + 3] for i in range(0, len(flat), 3)]
        times = torch.arange(len(states), device=d_h.device)
        d_exists = torch.zeros_like(states[0][1])
        sums = [torch.zeros_like(weight) for weight in constants[:COUNT]]
        run = settings.graphs.run(
            retreat, [*constants, *sums], replay=settings.replay, dropout=settings.dropout
        )
        with without_autocast(d_h), run as step:
            for t in reversed(range(len(states))):
                d_h, d_exists = step(*states[t], d_h, d_exists, seed, times[t])
            d_weights = [total.clone() for total in step.constants[COUNT + 2 :]]
        return d_h, None, None, *d_weights, None, None


def _row_width(B: int, n: int, on_gpu: bool) -> tuple[int, bool]:
    """The width of START, n tokens and END, and whether an iteration is replayed at that width."""
    T = -(-(n + 2) // WIDTH_STEP) * WIDTH_STEP
    replay = on_gpu and B * T <= REPLAYED_TOKENS and B * T * T <= REPLAYED_PAIRS
    return (T, True) if replay else (n + 2, False)


def _looks_every(x: Tensor) -> int:
    """On a GPU checking means synchronising, while checking rarely means only some idle iterations."""
    if x.is_cuda:
        return 0 if torch.cuda.is_current_stream_capturing() else LOOKS_EVERY
    return 0 if x.is_meta else 1


def _absorption_trees(lifetime: Tensor, lengths: Tensor) -> BeamTrees:
    """Absorbing a token merges it with the next one living, at the position of the living ones before it."""
    B, n = lifetime.shape
    token = torch.arange(n, device=lifetime.device)
    is_last_or_padding = token >= lengths[:, None] - 1
    order = lifetime.masked_fill(is_last_or_padding, torch.inf).argsort(dim=1, stable=True)  # (B, n)
    turn = torch.empty_like(order).scatter_(1, order, token.expand(B, n))
    outlives = turn.unsqueeze(1) > turn.unsqueeze(2)  # (B, i, j): j is absorbed after i
    merges = (
        (outlives & (token < token.unsqueeze(1))).sum(2).gather(1, order).masked_fill(is_last_or_padding, -1)
    )
    return BeamTrees.from_merges(merges[:, : n - 1], lengths)
