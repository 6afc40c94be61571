"""The gradient on a GPU with an entangled scorer, e = w·cell(l, r) + b.

The parent of a chosen pair is a node: w·∂L/∂e is one more gradient that reaches it. Of a pair that ended
unchosen nothing else is known, so all of those go through the cell at once, before the nodes go by level.
"""

import torch
import triton
from torch import Tensor

from beamtree.kernels.entangled import entangled_cell, entangled_pairs
from beamtree.kernels.replay import survivor_kernels
from beamtree.kernels.replay.cell_replay import NodeGradients, goes_by_library, through_cell
from beamtree.kernels.replay.survivors import find_survivors, pieces
from beamtree.kernels.search.fused_search import Tape
from beamtree.kernels.weights import EntangledScorerWeights, Weights
from beamtree.pytorch.launch import launch


def replay(
    grad_roots: Tensor,  # (B, K, d)
    grad_relative: Tensor,  # (B, K)
    grad_inner: Tensor,  # (B, K, n−1 or 0, d)
    relative: Tensor,  # (B, K)
    lengths: Tensor,
    tape: Tape,
    weights: Weights[EntangledScorerWeights],
    seed: Tensor,
    *,
    n: int,
    dropout: float,
    precision: str,
    deterministic: bool,
) -> list[Tensor]:
    """Gradients of the leaves (B, n, d), then of the eight weights."""
    B, K, d = grad_roots.shape
    device = lengths.device
    links, slots, heights, energies, log_z = tape.parts(K)
    some = find_survivors(
        slots, heights, relative, grad_relative, n, deterministic, need_bounds=goes_by_library(d)
    )
    N = some.count

    parents, gradients = pieces(torch.zeros, device, (B * n + N, K), (B * n + N, d))
    parents = parents.view(torch.int32)
    pairs, chosen, beside = pieces(torch.empty, device, (N, 2 * d), (N,), (2 * N,))
    launch(survivor_kernels.link_kernel, (triton.cdiv(N, 16) + triton.cdiv(B * n, 16),),
        some.order, slots, some.rows, links, tape.nodes, parents, pairs, gradients, N, B, n,
        D=d, K=K, S=0, BLOCK_M=16, BLOCK_D=min(128, triton.next_power_of_2(d)), num_warps=4,
    )  # fmt: skip
    chosen_names = torch.empty(N, 3, dtype=torch.int64, device=device)
    beside_names = torch.empty(2 * N, 3, dtype=torch.int64, device=device)
    ids, children = torch.empty(2, 2 * N, 2, dtype=torch.int64, device=device)
    if N:
        launch(entangled_pairs.ended_pairs_kernel, (N,),
            some.order, slots, some.rows, links, energies, log_z, some.weights,
            chosen, chosen_names, beside, beside_names, ids, children, B, n, K=K, BLOCK=128, num_warps=1,
        )  # fmt: skip

    nodes = tape.nodes.view(-1, d)
    sums: list[list[Tensor]] = []
    for start in range(0, 2 * N, entangled_cell.ROWS_AT_ONCE):
        rows = slice(start, start + entangled_cell.ROWS_AT_ONCE)
        vectors = nodes[ids[rows]].flatten(1)  # (m, 2·d)
        made = entangled_cell.make(vectors, beside_names[rows], weights, seed, dropout, precision)
        pulled = entangled_cell.pull(made, beside[rows], weights, precision)
        gradients.index_add_(0, children[rows].view(-1), pulled.children.view(-1, d))
        sums.append(pulled.weights)
    gradients[B * n :].addr_(chosen, weights.scorer.w2[0])

    by_node = NodeGradients(some, slots, lengths, relative, grad_roots, grad_inner, gradients, parents, pairs)
    nothing = gradients[:0, :0]
    grad_leaves, by_cell, to_bias = through_cell(
        by_node,
        weights.cell,
        lambda hidden: entangled_cell.activate(hidden, chosen_names, seed, dropout),
        (nothing, chosen, nothing),
        n=n,
        precision=precision,
    )
    to_weight = chosen @ nodes[_node_rows(some.order[:N], slots, n, K)]
    sums.append([*by_cell, to_weight.unsqueeze(0), to_bias])
    return [grad_leaves, *(sum(parts[1:], parts[0]) for parts in zip(*sums, strict=True))]


def _node_rows(order: Tensor, slots: Tensor, n: int, K: int) -> Tensor:
    """Where the survivors' vectors are in the node store."""
    T = n - 1
    return order // (T * K) * (n + T * K) + n + order % T * K + slots[order]
