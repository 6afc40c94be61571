"""The cell on many pairs at once, and its gradient from their scores e = w·cell(l, r) + b alone."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from beamtree.kernels.entangled import entangled_pairs
from beamtree.kernels.replay import level_kernels
from beamtree.kernels.replay.survivors import pieces
from beamtree.kernels.runtime.products import product
from beamtree.kernels.weights import EntangledScorerWeights, Weights
from beamtree.pytorch.launch import launch

ROWS_AT_ONCE = 16384  # bounds the activations that are held


class Made(NamedTuple):
    """Parents and what their derivative needs."""

    pairs: Tensor  # (m, 2·d)
    hidden: Tensor  # (m, hidden): ∂u/∂h, becomes ∂L/∂h
    activated: Tensor  # (m, hidden): u
    gates: Tensor  # (m, 4·d): ∂p/∂gates, becomes ∂L/∂gates
    opened: Tensor  # (m, 2·d): σ(a), σ(b), becomes the children's gradient
    normed: Tensor  # (m, d): the parent before the layer norm's scale and shift
    scales: Tensor  # (m,)


def activate(hidden: Tensor, names: Tensor, seed: Tensor, dropout: float) -> Tensor:
    """u = keep·GELU(h) of pairs with these names (m, 3); h becomes ∂u/∂h."""
    m, units = hidden.shape
    activated = torch.empty_like(hidden)
    if m:
        launch(entangled_pairs.activate_pairs_kernel, (triton.cdiv(m, 16), triton.cdiv(units, 128)),
            hidden, activated, names, seed, m, round(dropout * 65536),
            UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
        )  # fmt: skip
    return activated


def make(
    pairs: Tensor,
    names: Tensor,
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    dropout: float,
    precision: str,
) -> Made:
    """The parents of pairs (m, 2·d), m > 0."""
    m, d = len(pairs), weights.cell.gamma.shape[0]
    hidden = product(pairs, weights.cell.w1.t(), precision, bias=weights.cell.b1)
    activated = activate(hidden, names, seed, dropout)
    gates = product(activated, weights.cell.w2.t(), precision, bias=weights.cell.b2)
    opened, normed, scales = pieces(torch.empty, pairs.device, (m, 2 * d), (m, d), (m,))
    launch(level_kernels.open_gates_kernel, (triton.cdiv(m, _row_block(d)),),
        gates, pairs, opened, normed, scales, m,
        D=d, BLOCK_M=_row_block(d), ALL_D=triton.next_power_of_2(d), num_warps=4,
    )  # fmt: skip
    return Made(pairs, hidden, activated, gates, opened, normed, scales)


class Pulled(NamedTuple):
    children: Tensor  # (m, 2, d)
    weights: list[Tensor]  # of the cell's six, then of the scorer's two


def pull(made: Made, grads: Tensor, weights: Weights[EntangledScorerWeights], precision: str) -> Pulled:
    """Gradients of scores (m,) → gradients of the pairs and of the weights; `made` is used up."""
    pairs, hidden, activated, gates, _, normed, _ = made
    children = pull_to_children(made, grads, weights, precision)
    along, total = grads @ normed, grads.sum(0, keepdim=True)
    w = weights.scorer.w2[0]
    to_weights = [
        product(hidden.t(), pairs, precision),
        hidden.sum(0),
        product(gates.t(), activated, precision),
        gates.sum(0),
        w * along,
        w * total,
        torch.addcmul(weights.cell.beta * total, weights.cell.gamma, along).unsqueeze(0),
        total,
    ]
    return Pulled(children, to_weights)


def pull_to_children(
    made: Made, grads: Tensor, weights: Weights[EntangledScorerWeights], precision: str
) -> Tensor:
    """The gradients of the pairs alone, (m, 2, d)."""
    _, hidden, _, gates, opened, normed, scales = made
    m, d = normed.shape
    launch(entangled_pairs.pull_scores_kernel, (triton.cdiv(m, _row_block(d)),),
        grads, normed, scales, weights.cell.gamma, weights.scorer.w2, gates, opened, m,
        D=d, BLOCK_M=_row_block(d), ALL_D=triton.next_power_of_2(d), num_warps=4,
    )  # fmt: skip
    hidden *= product(gates, weights.cell.w2, precision)
    opened += product(hidden, weights.cell.w1, precision)
    return opened.view(m, 2, d)


def _row_block(d: int) -> int:
    return max(1, 2048 // triton.next_power_of_2(d))
