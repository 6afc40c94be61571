"""One iteration of CRvNN over T tokens, START and END included:

    μ = max(0, s_1, s_2, …);   α_i = exp(s_i − μ) A_i,  ν = exp(−μ)
    π_i = A_i α_i / (α_i + ν + (Lα)_i + (Rα)_i + ε)
    λ = Lπ;   h_i ← λ_i cell((Lh)_i, h_i) + (1−λ_i) h_i;   e_i ← e_i (1−π_i)

e_i is how much token i still exists, A_i is 1 if it can be absorbed, and π_i is the fraction of it that its
right neighbour absorbs now. Row i of L and of R weights the tokens that are its left and right neighbours, as
tokens may exist in part. If ε were zero, π would not depend on μ; since it is not, gradient also flows
through μ to the largest score.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.randomness import draw_keep
from beamtree.parts.cell import gate
from beamtree.pytorch.direct_reading import EPS
from beamtree.pytorch.launch import has_kernels
from beamtree.pytorch.tracing import is_compiling

if TYPE_CHECKING:
    from beamtree.kernels.zoo.soft_merge_kernels import SoftMerge

STILL_EXISTS = 0.1  # a token that exists by less does not count
WIDEST = 512  # the most tokens T that the kernels take, as one program holds a whole row of neighbours


class CRvNNWeights(NamedTuple):
    """The weights that an iteration uses."""

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
    """Return L and R, (B, T, T), which weight the nearest tokens to the left and right of each token.

    Each row takes tokens, the nearest first, until their existence sums to 1. With b the existence strictly
    between j and i, j < i: L_ij = min(1, b + e_j) − min(1, b), and R_ji = min(1, b + e_i) − min(1, b). Sums
    are in double precision, because small differences between long sums matter.
    """
    T = exists.shape[1]
    # A matrix product, because `cumsum` has no deterministic form on a GPU.
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
    """Return h (B, T, d) and existence (B, T) after one iteration of all sequences."""
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
    """Return the state after one iteration; halted sequences do not change.

    The constants are the weights and the masks `present` and `absorbable` (B, T). The state of a sequence is
    its tokens h, how much each of them exists, whether the sequence has halted, how many iterations it has
    left, and how long each token has existed.
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
    """Return the gradients of h and existence before `advance` from those after it; recomputes the iteration.

    The constants are those of `advance`, followed by the sums of the weights' gradients, which are added to.
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
