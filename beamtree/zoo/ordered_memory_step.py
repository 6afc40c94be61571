"""One time step of Ordered Memory and its derivative; memories are (S, B, d), slots first.

    p = the attention of x̃ over the slots;  cp_j = Σ_{i≤j} p_i;  rcp_j = Σ_{i≥j} p_i
    M_j ← M_j (1−rcp_j) + M̂_j rcp_j
    v_j = x̃ (1−cp_j) + cell(v_{j−1}, M_j) cp_j,  v_0 = x̃;   M̂_j ← v_j

Only the chain over v must be computed slot by slot. Its values are part of the next state and are kept. The
derivative therefore recomputes the activations of all slots in two matrix products, and only the gradients go
back slot by slot.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.engine.built_in_parts import GatedCell
from beamtree.engine.randomness import draw_keep
from beamtree.parts.weights import CellWeights
from beamtree.pytorch.direct_reading import EPS
from beamtree.pytorch.launch import has_kernels
from beamtree.pytorch.tracing import is_compiling

if TYPE_CHECKING:
    from beamtree.kernels.zoo.attention_kernels import Attention
    from beamtree.kernels.zoo.slot_kernels import Slots

WIDEST = 512  # the most features that the kernels take, as one program holds a whole row
UNREACHED = 1e-5  # a slot that less than this of the previous step's attention reaches is closed


class MemoryWeights(NamedTuple):
    """The weights that a time step uses: first the attention's, then the cell's."""

    key_weight: Tensor
    key_bias: Tensor
    key_norm_weight: Tensor
    key_norm_bias: Tensor
    beta_weight: Tensor
    beta_bias: Tensor
    w1_left: Tensor  # (4d, d): the half of the cell's first matrix that is multiplied by v
    w1_right: Tensor  # (4d, d): and the half that is multiplied by M
    b1: Tensor
    w2: Tensor
    b2: Tensor
    norm_weight: Tensor
    norm_bias: Tensor


COUNT = len(MemoryWeights._fields)
ATTENTION = 6  # the number of weights that belong to the attention; they come first


class Masks(NamedTuple):
    """Dropout masks of one time step, scaled to mean 1: (S, B, d), except `hidden`, (S, B, 4d)."""

    key: Tensor | None = None
    score: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    hidden: Tensor | None = None

    @classmethod
    def of(cls, attention: Tensor | None, cell: Tensor | None, d: int) -> "Masks":
        """Split the masks that `draw_masks` returns."""
        masks = cls()
        if attention is not None:
            masks = masks._replace(key=attention[..., :d], score=attention[..., d:])
        if cell is not None:
            masks = masks._replace(left=cell[..., :d], right=cell[..., d : 2 * d], hidden=cell[..., 2 * d :])
        return masks


def draw_masks(
    seed: Tensor, time: Tensor, like: Tensor, *, dropout: float, memory_dropout: float
) -> tuple[Tensor | None, Tensor | None]:
    """Draw the masks of the attention, (S, B, 2d), and of the cell, (S, B, 6d); None if its rate is 0."""
    S, B, d = like.shape
    sequence = torch.arange(B, device=like.device)
    slot = torch.arange(2 * S, device=like.device).unsqueeze(1)
    attention, cell = None, None
    if memory_dropout:
        # Slot numbers from S on, so that the random bits differ from the cell's.
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
    """Return the attention p (S, B), its running sum cp, and the memory after writing.

    Candidates are written to the slots below the attention.
    """
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
    """Return (memory, candidates, p) after reading one more token x (B, d)."""
    w = MemoryWeights(*constants)
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
    """Return the gradients of x, query, memory, candidates and p before `advance`, from those after it.

    The constants are the weights, followed by the sums of their gradients, which are added to.
    """
    w, sums = MemoryWeights(*constants[:COUNT]), MemoryWeights(*constants[COUNT:])
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
    right, open_cp = memory_after.detach()[first:], cp.detach()[first:]
    d_x, d_cp, d_right = _differentiate_slots(
        w, sums, x, left, right, open_cp, open_masks, d_candidates[first:]
    )
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
    fits = x.dtype == torch.float32 and x.shape[-1] <= WIDEST
    return fits and not is_compiling() and has_kernels(x.device)


def _by_kernels(
    w: MemoryWeights,
    x: Tensor,
    query: Tensor,
    memory: Tensor,
    candidates: Tensor,
    p: Tensor,
    keeps: tuple[Tensor | None, Tensor | None],
) -> tuple["Attention", "Slots"]:
    from beamtree.kernels.zoo.attention_kernels import Attention
    from beamtree.kernels.zoo.slot_kernels import Slots

    query, memory, candidates, p = (tensor.contiguous() for tensor in (query, memory, candidates, p))
    attention = Attention(w[:ATTENTION], query, memory, candidates, p, keeps[0], eps=EPS, unreached=UNREACHED)
    return attention, Slots(w, x.contiguous(), attention.written, attention.cp, keeps[1], EPS)


def _differentiate_slots(
    w: MemoryWeights,
    sums: MemoryWeights,
    x: Tensor,  # (B, d)
    left: Tensor,  # (m, B, d): x, then the results v of all open slots except the last
    right: Tensor,  # (m, B, d): the memory
    cp: Tensor,  # (m, B)
    masks: Masks,
    d_slots: Tensor,  # (m, B, d)
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, cp (m, B) and the memory (m, B, d) through m open slots.

    Adds those of the cell's weights to `sums`. Activations are recomputed for all slots at once, gradients
    slot by slot.
    """
    m, B, d = left.shape
    w1 = torch.cat((w.w1_left, w.w1_right), 1)
    cell = GatedCell(CellWeights(w1, w.b1, w.w2, w.b2, w.norm_weight, w.norm_bias), x.dtype, EPS)
    keep_read = None
    if masks.left is not None and masks.right is not None:
        keep_read = torch.cat((masks.left, masks.right), -1).flatten(0, 1)
    keep = None if masks.hidden is None else masks.hidden.flatten(0, 1)
    cell.recompute(torch.stack((left, right), 2).flatten(0, 1), keep, keep_read)

    share, d_out = cp.unsqueeze(-1), d_slots[-1]
    d_outs, d_rights = [], []
    for j in reversed(range(m)):
        into_left, into_right = cell.pull(slice(j * B, (j + 1) * B), d_out * share[j]).unbind(1)
        d_outs.append(d_out)
        d_rights.append(into_right)
        d_out = d_slots[j - 1] + into_left if j else into_left
    outs = torch.stack(d_outs[::-1])
    d_w1, *others = cell.parameter_gradients((outs * share).flatten(0, 1))
    torch._foreach_add_(list(sums[ATTENTION:]), [*d_w1.chunk(2, 1), *others])
    d_x = d_out + (outs * (1 - share)).sum(0)
    d_cp = (outs * (cell.recomputed().view(m, B, d) - x)).sum(-1)
    return d_x, d_cp, torch.stack(d_rights[::-1])


def _first_open_slot(cp: Tensor) -> int:
    """Return the first slot that is open in some sequence of the batch; closed slots hold exactly x.

    On a GPU it is 0, as finding out would synchronise.
    """
    if type(cp) is not Tensor or cp.device.type != "cpu":
        return 0
    return min(int((cp == 0).all(1).sum()), len(cp) - 1)


def sum_over_slots(p: Tensor) -> Tensor:
    """Return the running sum over the slots, in float64.

    It is a matrix product, because `cumsum` has no deterministic form on a GPU.
    """
    S = len(p)
    return torch.ones(S, S, dtype=torch.float64, device=p.device).tril() @ p.double()


def _drop(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x * keep


def _at(masks: Tensor | None, j: int) -> Tensor | None:
    return None if masks is None else masks[j]
