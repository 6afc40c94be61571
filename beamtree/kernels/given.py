"""Given trees on a GPU: composed level by level, or followed in place of a search.

Three registered operators. `beamtree::compose` and its gradient `beamtree::decompose` each go through all
levels in one cooperative launch, and the host never waits for the device. `beamtree::fused_follow` also
computes the tree's log-probability, and leaves the tape of a search with one beam, so that its gradient is
`beamtree::fused_replay`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.kernels.fused_recursion import (
    SEEN,
    TAGS,
    FusedTape,
    Outputs,
    differentiate_tape,
    remember_tape,
    tape_shapes,
)
from beamtree.kernels.runtime.products import HALF, float32_precision, product
from beamtree.parts.weights import CellWeights, Weights
from beamtree.pytorch.derivatives import refuse_second_derivative
from beamtree.pytorch.launch import aligned, blocks, launch, power_of_two
from beamtree.pytorch.precision import without_autocast
from beamtree.pytorch.registry import register
from beamtree.trees.structure import Levels

# The precision of float32 products, even if PyTorch's setting is `high`: for "tf32" Triton truncates numbers
# where the library rounds them, which makes gradients up to eight times less exact than the plain path's.
EXACT = "tf32x3"
WIDE = 256  # for a larger d a level's products are large enough for larger tiles


class ComposeCall(NamedTuple):
    """The arguments of `beamtree::compose`."""

    leaves: Tensor  # (B, n, d)
    children: Tensor  # (N, 2) node rows, lowest merges first, −1 where there is no merge
    starts: Tensor  # (levels + 1,) int32: the first merge of each level, and the end of the last
    height: Tensor  # () int32: how many levels have merges
    keep: Tensor | None  # (N, hidden) dropout masks
    product_dtype: torch.dtype  # half under autocast
    weights: list[Tensor]  # of the cell


def compose_levels(call: ComposeCall) -> Tensor:
    """All nodes, (B·n + N, d): leaves first, then those of the merges. Rows without a merge are undefined."""
    nodes: Tensor = torch.ops.beamtree.compose(*call)
    return nodes


class DecomposeCall(NamedTuple):
    """The arguments of `beamtree::decompose`."""

    grad: Tensor  # (B·n + N, d)
    nodes: Tensor  # (B·n + N, d)
    children: Tensor
    starts: Tensor
    height: Tensor
    keep: Tensor | None
    B: int
    product_dtype: torch.dtype
    weights: list[Tensor]


def _compose(call: ComposeCall) -> Tensor:
    from beamtree.kernels import given_kernels
    from beamtree.kernels.replay.cell_replay import by_levels

    leaves, children, starts, height, keep, product_dtype, weights = call
    B, n, d = leaves.shape
    N, units = children.shape[0], weights[0].shape[0]
    nodes = leaves.new_empty(B * n + N, d)
    nodes[: B * n] = leaves.reshape(-1, d)
    if N == 0:
        return nodes
    hidden = leaves.new_empty(N, units)
    w1, b1, w2, b2, gamma, beta = (w.contiguous() for w in weights)
    tensors = (nodes, children, hidden if keep is None else keep, w1, b1, w2, b2, gamma, beta, hidden)
    counter = torch.zeros(1, dtype=torch.int32, device=leaves.device)  # counts arrivals at the barrier
    options = _tiles(d, units, product_dtype) | {"DROPS": keep is not None}
    with torch.cuda.device_of(leaves):
        arguments = (*tensors, starts, height, counter, B * n)
        by_levels(given_kernels.ascend_kernel, arguments, height, options, up=True)
    return nodes


def _decompose(call: DecomposeCall) -> list[Tensor]:
    """Gradients of the leaves and of the cell's six parameters."""
    from beamtree.kernels import given_kernels
    from beamtree.kernels.replay import level_kernels
    from beamtree.kernels.replay.cell_replay import Descent, by_levels, through_cell

    grad, nodes, children, starts, height, keep, B, product_dtype, weights = call
    rows, d = nodes.shape
    N, units = children.shape[0], weights[0].shape[0]
    first_row = rows - N
    cell = CellWeights(*(aligned(w) for w in weights))
    options = {"D": d, "K": 1} | _tiles(d, units, product_dtype)
    parents = torch.zeros(rows, 1, dtype=torch.int32, device=nodes.device)
    pairs = nodes.new_empty(N, 2 * d)
    gradients = aligned(grad)

    def activate(hidden: Tensor) -> Tensor:
        activated = torch.empty_like(hidden)
        if N:
            launch(given_kernels.activate_merges_kernel, (blocks(N, 16), blocks(units, 128)),
                children, activated if keep is None else keep, hidden, activated, N,
                UNITS=units, DROPS=keep is not None, BLOCK_M=16, BLOCK_N=128, num_warps=4,
            )  # fmt: skip
        return activated

    def descend(state: Descent, table: Tensor) -> None:
        for buffer in (state.totals, state.sums):
            buffer.zero_()  # rows without a merge are not written, but summed
        by_levels(level_kernels.descend_kernel, (table,), height, options)

    with torch.cuda.device_of(nodes), without_autocast(nodes):
        if N:
            launch(given_kernels.gather_kernel, (blocks(N, 16),),
                nodes, children, parents, pairs, N,
                D=d, BLOCK_M=16, BLOCK_D=min(128, power_of_two(d)), num_warps=4,
            )  # fmt: skip
        grad_leaves, by_cell = through_cell(
            pairs, gradients, parents, cell, activate, descend, (starts, height),
            B=B, n=first_row // B, precision=options["PRECISION"],
        )  # fmt: skip
    # An operator's outputs must not share memory.
    return [grad_leaves, *(g.clone() for g in by_cell)]


def _tiles(d: int, units: int, product_dtype: torch.dtype) -> dict[str, Any]:
    names = {dtype: name for name, dtype in HALF.items()}
    block = power_of_two(max(16, d))
    return {
        "D": d, "UNITS": units, "ALL_D": block, "ROWS": 4,
        "BLOCK_M": 16 if d <= WIDE else 64, "BLOCK_N": 32 if d <= WIDE else 64,
        "BLOCK_K": min(block, 128 if d <= WIDE else 64),
        "PRECISION": names.get(product_dtype, EXACT),
        "num_warps": 4 if d <= WIDE else 8, "num_stages": 1,
    }  # fmt: skip


def _compose_shapes(call: ComposeCall) -> Tensor:
    B, n, d = call.leaves.shape
    return call.leaves.new_empty(B * n + call.children.shape[0], d)


def _decompose_shapes(call: DecomposeCall) -> list[Tensor]:
    rows, d = call.nodes.shape
    leaves = call.nodes.new_empty(call.B, (rows - call.children.shape[0]) // call.B, d)
    return [leaves, *(torch.empty_like(w) for w in call.weights)]


def _remember(ctx: Any, call: ComposeCall, nodes: Tensor) -> None:
    ctx.save_for_backward(nodes, *call[1:5], *call.weights)
    ctx.options = (call.leaves.shape[0], call.product_dtype)


def _differentiate(ctx: Any, grad: Tensor) -> dict[str, Any]:
    nodes, children, starts, height, keep, *weights = ctx.saved_tensors
    B, product_dtype = ctx.options
    call = DecomposeCall(grad, nodes, children, starts, height, keep, B, product_dtype, weights)
    to_leaves, *to_weights = torch.ops.beamtree.decompose(*call)
    return {"leaves": to_leaves, "weights": to_weights}


register("compose", _compose, _compose_shapes, _differentiate, _remember, TAGS)
register("decompose", _decompose, _decompose_shapes, refuse_second_derivative, tags=TAGS)


WIDEST = 1024  # places of a list that a program moves at a time


class FollowCall(NamedTuple):
    """The arguments of `beamtree::fused_follow`."""

    leaves: Tensor  # (B, n, d)
    lengths: Tensor  # (B,)
    seed: Tensor  # read only with dropout; else any tensor
    merges: Tensor  # (B, n−1)
    dropout: float
    product_dtype: torch.dtype
    need_nodes: bool
    weights: list[Tensor]  # of the cell and a sliced scorer


def follow_merges(call: FollowCall) -> tuple[Tensor, ...]:
    """As `fused_recursion` with one beam: roots, relative scores, inner nodes, offset, merges."""
    return torch.ops.beamtree.fused_follow(*call)[:SEEN]


def _follow(call: FollowCall) -> Outputs:
    from beamtree.kernels.given_kernels import trace_kernel
    from beamtree.kernels.runtime.random_kernels import draw_keep
    from beamtree.kernels.search.fused_search import inner_nodes

    leaves, lengths, seed, merges, dropout, product_dtype, need_nodes, weights = call
    B, n, d = leaves.shape
    steps, device = n - 1, leaves.device
    cell, scorer = Weights.of(weights)
    scorer_w1, scorer_b1, scorer_w2, scorer_b2 = (w.contiguous() for w in scorer)
    H, s = scorer_w1.shape[0], scorer_w1.shape[1] // 2
    with torch.cuda.device_of(leaves), without_autocast(leaves):
        levels = Levels.of(merges)
        step, sequence = levels.order % max(steps, 1), levels.order // max(steps, 1)
        keep = None
        if dropout > 0.0:
            units = cell.b1.shape[0]
            keep = draw_keep(seed, step, sequence, torch.zeros_like(step), units, dropout)
        nodes = compose_levels(ComposeCall(leaves, *levels[:3], keep, product_dtype, list(cell)))
        by_id = torch.cat((torch.arange(B * n, device=device).view(B, n), levels.made.clamp(min=0)), 1)
        made = B * steps
        tape = FusedTape.of(nodes[by_id], 1, leaves.new_zeros)
        links, slots, heights, energies, log_z = tape.parts(1)
        slots.fill_(-1)
        offset = torch.zeros(B, dtype=torch.float64, device=device)
        if made:
            heights.view(B, steps).copy_(levels.heights)
            by_role = torch.cat((scorer_w1[:, :s], scorer_w1[:, s:]))  # (2·H, s)
            projections = product(tape.nodes.view(-1, d)[:, :s], by_role.t(), float32_precision())
            live = torch.empty(B, n, dtype=torch.int32, device=device)
            scores = torch.empty(B, n, device=device)
            launch(trace_kernel, (B,),
                merges.contiguous(), lengths.contiguous(), projections, scorer_b1, scorer_w2, scorer_b2,
                live, scores, links, slots, energies, log_z, offset, n,
                H=H, UNITS=power_of_two(H), BLOCK=min(WIDEST, power_of_two(n)),
                ROWS=max(1, min(16, 4096 // power_of_two(H))), num_warps=4,
            )  # fmt: skip
        inner = inner_nodes(tape, 1, need_nodes)
        roots = nodes.index_select(0, levels.roots).unsqueeze(1)
    return roots, leaves.new_zeros(B, 1), inner, offset, merges.unsqueeze(1).clone(), *tape


def _shapes(call: FollowCall) -> Outputs:
    return tape_shapes(call.leaves, call.lengths, 1, call.need_nodes)


register("fused_follow", _follow, _shapes, differentiate_tape, remember_tape, TAGS)
