"""The gradient on a GPU with an entangled scorer, e = w·cell(l, r) + b.

The parent of a chosen pair is a node: w·∂L/∂e is one more gradient that reaches it. Of a pair that ended
unchosen nothing else is known, so all of those go through the cell at once, before the nodes go by level.
"""

import torch
import triton
from torch import Tensor

from beamtree.noise import draw_keep
from beamtree.ops import entangled_pairs, survivor_kernels
from beamtree.ops.cell_replay import NodeGradients, through_cell
from beamtree.ops.entangled_search import product_dtype_of
from beamtree.ops.fused_search import EntangledWeights, Tape
from beamtree.ops.parent_score import ParentScore
from beamtree.ops.survivors import find_survivors, pieces

ROWS_AT_ONCE = 8192  # of unchosen pairs, which bounds the activations that are held


def replay(
    grad_roots: Tensor,  # (B, K, d)
    grad_relative: Tensor,  # (B, K)
    grad_inner: Tensor,  # (B, K, n−1 or 0, d)
    relative: Tensor,  # (B, K)
    lengths: Tensor,
    tape: Tape,
    weights: EntangledWeights,
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the eight weights."""
    B, K, d = grad_roots.shape
    units, device = weights.b1.shape[0], lengths.device
    links, slots, heights, energies, log_z = tape.parts(K)
    some = find_survivors(slots, heights, relative, grad_relative, n, deterministic)
    N = some.count

    parents, gradients = pieces(torch.zeros, device, (B * n + N, K), (B * n + N, d))
    parents = parents.view(torch.int32)
    pairs, chosen, beside = pieces(torch.empty, device, (N, 2 * d), (N,), (2 * N,))
    survivor_kernels.link_kernel[(triton.cdiv(N, 16) + triton.cdiv(B * n, 16),)](
        some.order, slots, some.rows, links, tape.nodes, parents, pairs, gradients, N, B, n,
        D=d, K=K, S=0, BLOCK_M=16, BLOCK_D=min(128, triton.next_power_of_2(d)), num_warps=4,
    )  # fmt: skip
    ids, children = torch.empty(2, 2 * N, 2, dtype=torch.int64, device=device)
    names = torch.empty(3, 2 * N, dtype=torch.int64, device=device)
    if N:
        entangled_pairs.ended_pairs_kernel[(N,)](
            some.order, slots, some.rows, links, energies, log_z, some.weights,
            chosen, beside, ids, children, names, B, n, K=K, BLOCK=128, num_warps=1,
        )  # fmt: skip

    score = ParentScore(list(weights), product_dtype_of(precision))
    nodes = tape.nodes.view(-1, d)
    for start in range(0, 2 * N, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        keep = None
        if dropout > 0:
            sequence, left, right = names[:, rows]
            keep = draw_keep(seed, left, sequence, right, units, dropout, nodes.dtype)
        pulled = score.pull(nodes[ids[rows]], beside[rows], keep)
        gradients.index_add_(0, children[rows].view(-1), pulled.view(-1, d))
    gradients[B * n :].addr_(chosen, weights.scorer_w2[0])

    def activate(hidden: Tensor) -> Tensor:
        activated = torch.empty_like(hidden)
        if N:
            entangled_pairs.activate_chosen_kernel[(triton.cdiv(N, 16), triton.cdiv(units, 128))](
                some.order, slots, links, hidden, activated, seed, N, n, round(dropout * 65536),
                K=K, UNITS=units, DROPS=dropout > 0, BLOCK_M=16, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
        return activated

    by_node = NodeGradients(some, slots, lengths, relative, grad_roots, grad_inner, gradients, parents, pairs)
    nothing = gradients[:0, :0]
    grad_leaves, by_cell, to_bias = through_cell(
        by_node, weights, activate, (nothing, chosen, nothing), n=n, precision=precision
    )
    made = nodes[_node_rows(some.order[:N], slots, n, K)]
    of_scores = score.parameter_gradients()
    to_weight = (chosen @ made).unsqueeze(0)
    totals = zip([*by_cell, to_weight, to_bias], of_scores, strict=True)
    return [grad_leaves, *(a + b for a, b in totals)]


def _node_rows(order: Tensor, slots: Tensor, n: int, K: int) -> Tensor:
    """Where the survivors' vectors are in the node store."""
    T = n - 1
    return order // (T * K) * (n + T * K) + n + order % T * K + slots[order]
