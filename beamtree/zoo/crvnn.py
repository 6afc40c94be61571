"""CRvNN (Chowdhury & Caragea 2021), in which each token is gradually absorbed by its right neighbour.

Each iteration merges all tokens softly and at the same time, until one token is left. There are no discrete
choices, so an iteration (crvnn_step.py) is a dense computation.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.engine.randomness import draw_seed
from beamtree.graphs.step_graphs import StepGraphs
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.tracing import runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.crvnn_step import COUNT, advance, retreat
from beamtree.zoo.tree_encoder import TreeEncoder, refuse_export, row

# Beyond these sizes an iteration's kernels run long enough to hide their launches, and need no CUDA graph.
REPLAYED_TOKENS, REPLAYED_PAIRS = 2**14, 2**22
# A CUDA graph serves all lengths up to a multiple of WIDTH_STEP.
# On a GPU halting is checked only every LOOKS_EVERY iterations.
WIDTH_STEP, LOOKS_EVERY = 16, 4


class CRvNN(TreeEncoder):
    """CRvNN, (B, n, input_size) -> (B, d_model), in the paper's simplified form without auxiliary loss.

    A sequence halts when at most one of its tokens exists by more than 0.1, and after n iterations at the
    latest. The loop ends when all sequences have halted.

    Training keeps the token vectors of every iteration, O(n·n·d) numbers, and recomputes the rest; the
    neighbour matrices are never kept. On a GPU an iteration is one CUDA graph if it is small enough.

    With `need_trees` the tree absorbs tokens one by one, in the order of their expected absorption: the sum
    over iterations of how much a token still exists; ties go from left to right.

    Args:
        d_model: width of a node.
        input_size: width of the tokens, `d_model` if not given.
        halt: False always runs n iterations, as in the paper's speed test; this changes the cost, not the
            result.
        dropout: dropout rate on the cell's hidden layer.
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
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the trees.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
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
        """Return START, tokens and END after all iterations, (B, T, d), and how long each existed, (B, T)."""
        B, n, d = leaves.shape
        T, replay = _row_width(B, n, leaves.is_cuda)
        wide = torch.promote_types(leaves.dtype, torch.float32)
        position, last = torch.arange(T, device=leaves.device), lengths.unsqueeze(1)
        present = position <= last + 1  # (B, T)
        absorbable = ((position > 0) & (position < last)).to(wide)
        h = torch.cat((start.expand(B, 1, d), leaves, leaves.new_zeros(B, T - n - 1, d)), 1)
        h = torch.where((position == last + 1).unsqueeze(-1), end, h).masked_fill(~present.unsqueeze(-1), 0.0)
        parts = (*read_part(self.conv), *read_part(self.scorer), *self.cell.weights())
        weights = [part.to(wide) for part in parts]
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
    """Iterates `advance`; the backward pass iterates `retreat` in reverse."""

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
    """Return T, for n tokens, START, END and any padding, and whether an iteration is replayed as a graph."""
    T = -(-(n + 2) // WIDTH_STEP) * WIDTH_STEP
    replay = on_gpu and B * T <= REPLAYED_TOKENS and B * T * T <= REPLAYED_PAIRS
    return (T, True) if replay else (n + 2, False)


def _looks_every(x: Tensor) -> int:
    """Return after how many iterations to check whether all sequences have halted; 0 for never.

    On a GPU a check synchronises, while checking rarely costs only a few idle iterations.
    """
    if x.is_cuda:
        return 0 if torch.cuda.is_current_stream_capturing() else LOOKS_EVERY
    return 0 if x.is_meta else 1


def _absorption_trees(lifetime: Tensor, lengths: Tensor) -> BeamTrees:
    """Make trees from the order of absorption.

    Absorbing a token merges it with the next live token, at a position equal to the number of live tokens
    before it.
    """
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
