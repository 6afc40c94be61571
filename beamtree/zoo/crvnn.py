"""CRvNN (Chowdhury & Caragea 2021): each token is absorbed by its right neighbour, bit by bit.

All tokens are merged softly and at once, again and again, until one is left. There is no discrete choice, so
each iteration is dense. Over a row of T tokens, START and END included, it is

    μ = max(0, s_1, s_2, …);   α_i = exp(s_i − μ) A_i,  ν = exp(−μ)
    π_i = A_i α_i / (α_i + ν + (Lα)_i + (Rα)_i + ε)
    λ = Lπ;   h_i ← λ_i cell((Lh)_i, h_i) + (1−λ_i) h_i;   e_i ← e_i (1−π_i)

e_i is how much token i still exists, π_i how surely its right neighbour absorbs it now; row i of L and R says
who its neighbours are, given that tokens may exist in part. Were ε zero, π would not depend on μ; as it is,
μ passes gradient on to the largest score.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.graphs.step_graphs import StepGraphs
from beamtree.kernels.runtime.random_bits import draw_keep, draw_seed
from beamtree.parts.cell import gate
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.tracing import is_compiling, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.tree_encoder import TreeEncoder, refuse_export, row

if TYPE_CHECKING:
    from beamtree.kernels.zoo.soft_merge_kernels import SoftMerge

# Beyond these sizes an iteration's kernels are long enough to hide their launches.
REPLAYED_TOKENS, REPLAYED_PAIRS = 2**14, 2**22
# A graph serves all lengths up to a multiple of this; on a GPU halting is checked only every so often.
WIDTH_STEP, LOOKS_EVERY = 16, 4
EPS = 1e-5  # of the layer norm
STILL_EXISTS = 0.1
WIDEST = 512  # tokens of a row of neighbours, which a program of our kernels has all at once


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


class CRvNNWeights(NamedTuple):
    conv_weight: Tensor
    conv_bias: Tensor
    scorer_weight: Tensor
    scorer_bias: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


COUNT = len(CRvNNWeights._fields)


def neighbours(exists: Tensor) -> tuple[Tensor, Tensor]:
    """L and R, (B, T, T): the nearest existence on either side of each token, one in all where there is one.

    With b the existence strictly between j and i, j < i: L_ij = min(1, b + e_j) − min(1, b), and
    R_ji = min(1, b + e_i) − min(1, b). Sums are in double precision: small differences of long ones count.
    """
    T = exists.shape[1]
    # A product, because a GPU's `cumsum` has no deterministic form.
    upto = exists.double() @ torch.ones(T, T, dtype=torch.float64, device=exists.device).triu()
    between = ((upto - exists).unsqueeze(2) - upto.unsqueeze(1)).to(exists.dtype)  # (B, i, j)
    taken = between.clamp(max=1)
    left = ((between + exists.unsqueeze(1)).clamp(max=1) - taken).tril(-1)
    right = ((between + exists.unsqueeze(2)).clamp(max=1) - taken).tril(-1).transpose(1, 2)
    return left, right


def merge_softly(
    weights: Sequence[Tensor],
    h: Tensor,
    exists: Tensor,
    present: Tensor,
    absorbable: Tensor,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """h (B, T, d) and existence (B, T) after one iteration, for all sequences."""
    w = CRvNNWeights(*weights)
    d = h.shape[-1]
    left_of, right_of = neighbours(exists)
    left, right = left_of @ h, right_of @ h
    window = torch.cat((left_of @ left, left, h, right, right_of @ right), -1)
    scores = F.linear(F.gelu(F.linear(window, w.conv_weight, w.conv_bias)), w.scorer_weight, w.scorer_bias)
    scores = scores.squeeze(-1).masked_fill(~present, 0.0)  # (B, T)
    top = scores.amax(1, keepdim=True).relu()
    alpha = (scores - top).exp() * absorbable
    rivals = (left_of @ alpha.unsqueeze(-1) + right_of @ alpha.unsqueeze(-1)).squeeze(-1)
    absorbed = absorbable * alpha / (alpha + (-top).exp() + rivals + 4e-8)
    grows = left_of @ absorbed.unsqueeze(-1) * present.unsqueeze(-1)  # (B, T, 1)

    hidden = F.gelu(F.linear(torch.cat((left, h), -1), w.w1, w.b1))
    gates = F.linear(hidden if keep is None else hidden * keep, w.w2, w.b2)
    parent = F.layer_norm(gate(gates, left, h), (d,), w.norm_weight, w.norm_bias, EPS)
    return torch.lerp(h, parent, grows.expand_as(h)), exists * (1 - absorbed)


def advance(
    constants: Sequence[Tensor],
    h: Tensor,
    exists: Tensor,
    halted: Tensor,
    iterations_left: Tensor,
    lifetime: Tensor,
    seed: Tensor,
    time: Tensor,
    *,
    dropout: float,
) -> tuple[Tensor, ...]:
    """The state after one iteration; halted sequences stay as they are.

    The constants are the weights, who is there and who can be absorbed. The state, of every sequence: its
    tokens, how much each exists, whether it has halted, how many iterations it has left, how long each token
    has existed.
    """
    *weights, present, absorbable = constants
    if _has_kernels(h):
        with torch.cuda.device_of(h):
            merge = _by_kernels(constants, h, exists, seed, time, dropout, slopes=False)
            grows, *after = merge.absorb(halted, iterations_left, lifetime, STILL_EXISTS)
            return merge.grow(grows, halted), *after
    keep = _draw_keep(seed, time, h, dropout)
    h_after, exists_after = merge_softly(weights, h, exists, present, absorbable, keep)
    frozen = halted.unsqueeze(1)
    h_after = torch.where(frozen.unsqueeze(2), h, h_after)
    exists_after = torch.where(frozen, exists, exists_after)
    lifetime = lifetime + exists_after.masked_fill(frozen, 0.0)
    iterations_left = iterations_left - 1
    tokens = (exists_after > STILL_EXISTS).sum(1) - 2
    return h_after, exists_after, halted | (tokens <= 1) | (iterations_left <= 0), iterations_left, lifetime


def retreat(
    constants: Sequence[Tensor],
    h: Tensor,
    exists: Tensor,
    halted: Tensor,
    d_h: Tensor,
    d_exists: Tensor,
    seed: Tensor,
    time: Tensor,
    *,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of h and existence before `advance`, from those after it; the iteration is computed again.

    The constants are those of `advance` and then the sums of the weights' gradients, which this adds to.
    """
    *weights, present, absorbable = constants[: COUNT + 2]
    if _has_kernels(h):
        with torch.cuda.device_of(h):
            merge = _by_kernels(constants, h, exists, seed, time, dropout, slopes=True)
            sums = CRvNNWeights(*constants[COUNT + 2 :])
            return merge.differentiate(halted, d_h.contiguous(), d_exists.contiguous(), sums)
    keep = _draw_keep(seed, time, h, dropout)
    frozen = halted.unsqueeze(1)
    with torch.enable_grad():
        sources = [tensor.detach().requires_grad_() for tensor in (h, exists, *weights)]
        after = merge_softly(sources[2:], sources[0], sources[1], present, absorbable, keep)
        active = (d_h.masked_fill(frozen.unsqueeze(2), 0.0), d_exists.masked_fill(frozen, 0.0))
        gradients = torch.autograd.grad(after, sources, active)
    torch._foreach_add_(list(constants[COUNT + 2 :]), list(gradients[2:]))
    return torch.where(frozen.unsqueeze(2), d_h, gradients[0]), torch.where(frozen, d_exists, gradients[1])


def _has_kernels(h: Tensor) -> bool:
    fits = h.dtype == torch.float32 and h.shape[1] <= WIDEST
    return fits and not is_compiling() and has_kernels(h.device)


def _by_kernels(
    constants: Sequence[Tensor],
    h: Tensor,
    exists: Tensor,
    seed: Tensor,
    time: Tensor,
    dropout: float,
    *,
    slopes: bool,
) -> "SoftMerge":
    from beamtree.kernels.zoo.soft_merge_kernels import SoftMerge

    *weights, present, absorbable = (tensor.contiguous() for tensor in constants[: COUNT + 2])
    merged = CRvNNWeights(*weights), h.contiguous(), exists, present, absorbable, seed, time
    return SoftMerge(*merged, slopes=slopes, dropout=dropout, eps=EPS)


def _draw_keep(seed: Tensor, time: Tensor, h: Tensor, dropout: float) -> Tensor | None:
    if dropout == 0.0:
        return None
    B, T, d = h.shape
    sequence = torch.arange(B, device=h.device).unsqueeze(1)
    return draw_keep(seed, time, sequence, torch.arange(T, device=h.device), 4 * d, dropout, h.dtype)
