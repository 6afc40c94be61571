"""One time step of Ordered Memory and its derivative, slots first: memories are (S, B, d).

    p = the attention of x̃ over the slots;  cp_j = Σ_{i≤j} p_i;  rcp_j = Σ_{i≥j} p_i
    M_j ← M_j (1−rcp_j) + M̂_j rcp_j
    v_j = x̃ (1−cp_j) + cell(v_{j−1}, M_j) cp_j,  v_0 = x̃;   M̂_j ← v_j

Only the chain over v must go slot by slot. Its values are the next state and so are kept: the derivative has
the activations of all cells from two products, and walks back over the slots with gradients alone.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.kernels.runtime.random_bits import draw_keep
from beamtree.pytorch.registry import has_kernels
from beamtree.pytorch.tracing import is_compiling

if TYPE_CHECKING:
    from beamtree.kernels.zoo.slot_attention import Attention
    from beamtree.kernels.zoo.slots import Slots

EPS = 1e-5  # of the layer norms
WIDEST = 512  # features of a row, which a program of our kernels has all at once
UNREACHED = 1e-5  # a slot that less of the previous attention leads to is closed


class Weights(NamedTuple):
    key_weight: Tensor
    key_bias: Tensor
    key_norm_weight: Tensor
    key_norm_bias: Tensor
    beta_weight: Tensor
    beta_bias: Tensor
    w1_left: Tensor  # (4d, d): what the cell's first product does to v
    w1_right: Tensor  # (4d, d): and to M
    b1: Tensor
    w2: Tensor
    b2: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


ATTENTION = 6  # the first weights serve the attention, the others the cell


class Masks(NamedTuple):
    """Dropout masks of one time step, scaled to mean one: (S, B, d), but `hidden` (S, B, 4d)."""

    key: Tensor | None = None
    score: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    hidden: Tensor | None = None

    @classmethod
    def of(cls, attention: Tensor | None, cell: Tensor | None, d: int) -> "Masks":
        masks = cls()
        if attention is not None:
            masks = masks._replace(key=attention[..., :d], score=attention[..., d:])
        if cell is not None:
            masks = masks._replace(left=cell[..., :d], right=cell[..., d : 2 * d], hidden=cell[..., 2 * d :])
        return masks


def draw_masks(
    seed: Tensor, time: Tensor, like: Tensor, *, dropout: float, memory_dropout: float
) -> tuple[Tensor | None, Tensor | None]:
    """Those of the attention, (S, B, 2d), and of the cell, (S, B, 6d), where anything is dropped."""
    S, B, d = like.shape
    sequence = torch.arange(B, device=like.device)
    slot = torch.arange(2 * S, device=like.device).unsqueeze(1)
    attention, cell = None, None
    if memory_dropout:
        # Slots beyond S, so that these bits are not the cell's.
        attention = draw_keep(seed, time, sequence, slot[S:], 2 * d, memory_dropout, like.dtype)
    if dropout:
        cell = draw_keep(seed, time, sequence, slot[:S], 6 * d, dropout, like.dtype)
    return attention, cell


def attend(
    weights: Sequence[Tensor],
    query: Tensor,
    memory: Tensor,
    candidates: Tensor,
    p_before: Tensor,
    masks: Masks,
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention p (S, B), its running sum, and the memory with the candidates below it written in."""
    key_weight, key_bias, norm_weight, norm_bias, beta_weight, beta_bias = weights
    d = query.shape[-1]
    keys = F.linear(_drop(candidates, masks.key), key_weight, key_bias)  # (S, B, d)
    keys = F.layer_norm(keys, (d,), norm_weight, norm_bias, EPS)
    hidden = _drop(F.gelu(query + keys), masks.score)
    beta = F.linear(hidden, beta_weight, beta_bias).squeeze(-1) / math.sqrt(d)  # (S, B)
    reach = sum_over_slots(p_before)[1:].to(p_before.dtype)
    reach = F.pad(reach.masked_fill(reach < UNREACHED, 0.0), (0, 0, 0, 1), value=1.0)
    mass = (beta - beta.amax(0).detach()).exp() * reach
    p = mass / mass.sum(0).clamp(min=1e-12)
    cp = sum_over_slots(p)
    rcp = (cp[-1] - cp + p).to(p.dtype)
    return p, cp.to(p.dtype), torch.lerp(memory, candidates, rcp.unsqueeze(-1).expand_as(memory))


def advance(
    constants: Sequence[Tensor],
    x: Tensor,
    query: Tensor,
    memory: Tensor,
    candidates: Tensor,
    p: Tensor,
    seed: Tensor,
    time: Tensor,
    *,
    dropout: float,
    memory_dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(memory, candidates, p) after reading one more token x (B, d)."""
    w = Weights(*constants)
    d = x.shape[-1]
    keeps = draw_masks(seed, time, memory, dropout=dropout, memory_dropout=memory_dropout)
    if _has_kernels(x):
        with torch.cuda.device_of(x):
            attention, cells = _by_kernels(w, x, query, memory, candidates, p, keeps)
            return attention.written, cells.compose(), attention.p
    masks = Masks.of(*keeps, d)
    p, cp, memory = attend([*w][:ATTENTION], query, memory, candidates, p, masks)
    first, share = _first_open_slot(cp), cp.unsqueeze(-1)
    from_memory = F.linear(_drop(memory, masks.right), w.w1_right, w.b1)  # (S, B, 4d)
    slots = [x] * first
    v = x
    for j in range(first, len(cp)):
        hidden = F.gelu(torch.addmm(from_memory[j], _drop(v, _at(masks.left, j)), w.w1_left.t()))
        gates = torch.addmm(w.b2, _drop(hidden, _at(masks.hidden, j)), w.w2.t())  # (B, 4d)
        to_left, to_right, to_content = gates[:, : 3 * d].sigmoid().chunk(3, -1)
        total = torch.addcmul(to_left * v, to_right, memory[j]).addcmul_(to_content, gates[:, 3 * d :])
        composed = F.layer_norm(total, (d,), w.norm_weight, w.norm_bias, EPS)
        v = torch.lerp(x, composed, share[j].expand_as(x))
        slots.append(v)
    return memory, torch.stack(slots), p


def retreat(
    constants: Sequence[Tensor],
    x: Tensor,
    query: Tensor,
    memory: Tensor,
    candidates: Tensor,
    p: Tensor,
    candidates_after: Tensor,
    d_memory: Tensor,
    d_candidates: Tensor,
    d_p: Tensor,
    seed: Tensor,
    time: Tensor,
    *,
    dropout: float,
    memory_dropout: float,
) -> tuple[Tensor, ...]:
    """Gradients of x, query, memory, candidates and p before `advance`, from those after it.

    The constants are the weights and then the sums of their gradients, which this adds to.
    """
    w, sums = Weights(*constants[: len(Weights._fields)]), Weights(*constants[len(Weights._fields) :])
    keeps = draw_masks(seed, time, memory, dropout=dropout, memory_dropout=memory_dropout)
    if _has_kernels(x):
        with torch.cuda.device_of(x):
            after = (candidates_after, d_candidates, d_memory, d_p)
            candidates_after, d_candidates, d_memory, d_p = (tensor.contiguous() for tensor in after)
            written, chain = _by_kernels(w, x, query, memory, candidates, p, keeps)
            d_x, d_cp, *into_memory = chain.differentiate(candidates_after, d_candidates, sums)
            d_written = (d_memory, *into_memory)
            return d_x, *written.differentiate(d_p, d_cp, d_written, keeps[1], sums[:ATTENTION])
    masks = Masks.of(*keeps, x.shape[-1])
    with torch.enable_grad():
        attended = [t.detach().requires_grad_() for t in (query, memory, candidates, p, *w[:ATTENTION])]
        query, memory, candidates, p, *attention = attended
        p_after, cp, memory_after = attend(attention, query, memory, candidates, p, masks)
    first = _first_open_slot(cp)
    open_masks = Masks(*(None if mask is None else mask[first:] for mask in masks))
    left = torch.cat((x.unsqueeze(0), candidates_after[first:-1]))  # (m, B, d), m open slots
    cells = _Cells(w, left, memory_after.detach()[first:], cp.detach()[first:].unsqueeze(-1), open_masks)
    d_x, d_cp, d_right = cells.differentiate(x, d_candidates[first:], sums)
    d_x += d_candidates[:first].sum(0)
    d_memory = d_memory.clone()
    d_memory[first:] += d_right
    d_attended = torch.autograd.grad(
        (p_after, cp, memory_after),
        attended,
        (d_p, F.pad(d_cp, (0, 0, first, 0)), d_memory),
        materialize_grads=True,
    )
    torch._foreach_add_(list(sums[:ATTENTION]), list(d_attended[4:]))
    return d_x, *d_attended[:4]


def _has_kernels(x: Tensor) -> bool:
    traced = is_compiling()
    return not traced and x.dtype == torch.float32 and x.shape[-1] <= WIDEST and has_kernels(x.device)


def _by_kernels(
    w: Weights,
    x: Tensor,
    query: Tensor,
    memory: Tensor,
    candidates: Tensor,
    p: Tensor,
    keeps: tuple[Tensor | None, Tensor | None],
) -> tuple["Attention", "Slots"]:
    from beamtree.kernels.zoo.slot_attention import Attention
    from beamtree.kernels.zoo.slots import Slots

    query, memory, candidates, p = (tensor.contiguous() for tensor in (query, memory, candidates, p))
    attention = Attention(w[:ATTENTION], query, memory, candidates, p, keeps[0], eps=EPS, unreached=UNREACHED)
    return attention, Slots(w, x.contiguous(), attention.written, attention.cp, keeps[1], EPS)


class _Cells:
    """The cell in all m open slots at once, and its derivative slot by slot."""

    def __init__(self, w: Weights, left: Tensor, right: Tensor, share: Tensor, masks: Masks) -> None:
        self.w, self.masks, self.share, d = w, masks, share, left.shape[-1]
        self.left, self.right = _drop(left, masks.left), _drop(right, masks.right)
        before = F.linear(self.left, w.w1_left) + F.linear(self.right, w.w1_right, w.b1)  # (m, B, 4d)
        self.hidden = _drop(F.gelu(before), masks.hidden)
        keep = torch.ones_like(before) if masks.hidden is None else masks.hidden
        self.hidden_slope = torch.ops.aten.gelu_backward(keep, before)
        gates = F.linear(self.hidden, w.w2, w.b2)
        opened, content = gates[..., : 3 * d].sigmoid(), gates[..., 3 * d :]
        to_left, to_right, to_content = opened.chunk(3, -1)
        self.total = to_left * left + to_right * right + to_content * content
        self.out, self.mean, self.rstd = torch.native_layer_norm(
            self.total, (d,), w.norm_weight, w.norm_bias, EPS
        )
        # An output counts by its slot's share; the norm's derivative is linear, so the share may follow it.
        sources = torch.cat((left, right, content), -1)
        self.gate_slope = torch.cat((sources * opened * (1 - opened), to_content), -1) * share  # (m, B, 4d)
        self.to_left, self.to_right = to_left * share, to_right * share

    def differentiate(self, x: Tensor, d_slots: Tensor, sums: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of x (B, d), of cp (m, B) and of the memory read (m, B, d); adds those of the weights."""
        w, (m, B, d) = self.w, d_slots.shape
        d_outs, d_totals, d_befores = [], [], []
        d_out = d_slots[-1]
        for j in reversed(range(m)):
            d_total = _norm_backward(
                d_out, self.total[j], self.mean[j], self.rstd[j], w, (True, False, False)
            )[0]
            d_gates = (d_total.unsqueeze(1) * self.gate_slope[j].view(B, 4, d)).view(B, 4 * d)
            d_before = (d_gates @ w.w2) * self.hidden_slope[j]
            d_outs.append(d_out)
            d_totals.append(d_total)
            d_befores.append(d_before)
            into_left = d_slots[j - 1] if j else torch.zeros_like(x)
            into_left = torch.addcmul(into_left, d_total, self.to_left[j])
            if self.masks.left is None:
                d_out = torch.addmm(into_left, d_before, w.w1_left)
            else:
                d_out = torch.addcmul(into_left, d_before @ w.w1_left, self.masks.left[j])
        outs, totals, befores = (torch.stack(parts[::-1]) for parts in (d_outs, d_totals, d_befores))
        self._add_weight_gradients(outs, totals, befores, sums)
        d_x = d_out + (outs * (1 - self.share)).sum(0)
        d_cp = (outs * (self.out - x)).sum(-1)
        d_right = totals * self.to_right + _drop(befores @ w.w1_right, self.masks.right)
        return d_x, d_cp, d_right

    def _add_weight_gradients(self, outs: Tensor, totals: Tensor, befores: Tensor, sums: Weights) -> None:
        gates = (totals.unsqueeze(-2) * self.gate_slope.unflatten(-1, (4, -1))).flatten(-2)
        for gradient, source, weight, bias in (
            (gates, self.hidden, sums.w2, sums.b2),
            (befores, self.left, sums.w1_left, None),
            (befores, self.right, sums.w1_right, sums.b1),
        ):
            weight.addmm_(gradient.flatten(0, 1).t(), source.flatten(0, 1))
            if bias is not None:
                bias += gradient.sum((0, 1))
        _, norm_weight, norm_bias = _norm_backward(
            outs * self.share, self.total, self.mean, self.rstd, self.w, (False, True, True)
        )
        torch._foreach_add_([sums.norm_weight, sums.norm_bias], [norm_weight, norm_bias])


def _norm_backward(
    d_out: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Weights, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        d_out, x, x.shape[-1:], mean, rstd, w.norm_weight, w.norm_bias, wanted
    )
    return gradients


def _first_open_slot(cp: Tensor) -> int:
    """Slots before it are closed in the whole batch and hold x, exactly; a GPU need not wait to know."""
    if type(cp) is not Tensor or cp.device.type != "cpu" or is_compiling():
        return 0
    return min(int((cp == 0).all(1).sum()), len(cp) - 1)


def sum_over_slots(p: Tensor) -> Tensor:
    """Over the slots, in double precision, by a product: a GPU's `cumsum` has no deterministic form."""
    S = len(p)
    return torch.ones(S, S, dtype=torch.float64, device=p.device).tril() @ p.double()


def _drop(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x * keep


def _at(masks: Tensor | None, j: int) -> Tensor | None:
    return None if masks is None else masks[j]
