"""The recursion with the built-in cell and scorer: kernels where they cover the case, otherwise two
registered operators, `beamtree::search` (in C or PyTorch) and `beamtree::replay`. These take and return
tensors, so torch.compile and checkpointing treat each as a unit.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.engine.built_in_parts import EntangledScore, GatedCell, SlicedScore, weight_gradients
from beamtree.engine.compiled import compiled_search, runs_in_c
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import Options, Tape, empty_results, find_lineages, inner_nodes, merge_positions
from beamtree.engine.replay import replay
from beamtree.engine.search import search
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.parts.weights import CellWeights, EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.pytorch.derivatives import refuse_forward_mode, refuse_second_derivative
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import product_dtype
from beamtree.pytorch.registry import register
from beamtree.pytorch.threads import threads_for


def built_in_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: GatedRecursiveCell,
    scorer: SlicedScorer | EntangledScorer,
    options: Options,
) -> tuple[Tensor, ...]:
    """Roots (B, K, d), relative scores (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,), merges."""
    weights, products = weights_of(cell, scorer), product_dtype(leaves)
    refuse_forward_mode(leaves, *weights.flat())
    found = by_kernels(leaves, lengths, weights, options, products) if leaves.is_cuda else None
    if found is not None:
        return found
    call = SearchCall(leaves, lengths, weights.flat(), *options, products)
    vectors, relative, inner, offset, lineages, links, *_ = torch.ops.beamtree.search(*call)
    return vectors, relative, inner, offset, merge_positions(links, lineages)


def by_kernels(
    leaves: Tensor, lengths: Tensor, weights: Weights[Any], options: Options, product_dtype: torch.dtype
) -> tuple[Tensor, ...] | None:
    """As `built_in_recursion`; None if there are no kernels for the case."""
    from beamtree.kernels.fused_recursion import FusedSearchCall, fused_recursion, supports
    from beamtree.kernels.given import FollowCall, follow_merges

    K, seed, noisy, dropout, merges, pins, need_nodes = options
    parameters = weights.flat()
    if pins is not None or not supports(leaves, parameters, K):
        return None
    if seed is None:
        seed = lengths  # a placeholder that nobody reads; making a tensor for it would cost a launch
    last = dropout, product_dtype, need_nodes, parameters
    if merges is None:
        return fused_recursion(FusedSearchCall(leaves, lengths, seed, K, noisy, *last))
    if weights.entangled:
        return None
    return follow_merges(FollowCall(leaves, lengths, seed, merges, *last))


def search_parts(
    cell: GatedRecursiveCell, scorer: SlicedScorer | EntangledScorer, leaves: Tensor
) -> tuple[GatedCell, SlicedScore | EntangledScore]:
    """The functions by which `search` composes and scores nodes, for the explorer, which watches a search."""
    return _parts(weights_of(cell, scorer), product_dtype(leaves))


def weights_of(cell: GatedRecursiveCell, scorer: SlicedScorer | EntangledScorer) -> Weights[Any]:
    """The weights, collected by name because a parametrization changes the order of parameters."""
    of_cell = CellWeights(*cell.weights())
    if isinstance(scorer, EntangledScorer):
        return Weights(of_cell, EntangledScorerWeights(*read_part(scorer)))
    return Weights(of_cell, SlicedScorerWeights(*read_part(scorer.hidden), *read_part(scorer.out)))


class SearchCall(NamedTuple):
    """The arguments of `beamtree::search`; from beam_size to need_nodes they are the fields of `Options`."""

    leaves: Tensor
    lengths: Tensor
    weights: list[Tensor]
    beam_size: int
    seed: Tensor | None
    noisy: bool
    dropout: float
    merges: Tensor | None
    pins: Tensor | None
    need_nodes: bool
    product_dtype: torch.dtype


class ReplayCall(NamedTuple):
    """The arguments of `beamtree::replay`."""

    grad_roots: Tensor
    grad_scores: Tensor
    grad_inner: Tensor
    lineages: Tensor
    lengths: Tensor
    tape: list[Tensor]
    weights: list[Tensor]
    n: int
    seed: Tensor | None
    dropout: float
    product_dtype: torch.dtype


# Vectors, relative scores, inner nodes, offset and lineages, which callers see, with the tape's links for the
# merges; then what only the backward pass reads: nodes, ended and roots of the tape.
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _search(call: SearchCall) -> Outputs:
    leaves, lengths = call.leaves, call.lengths
    weights = Weights.of(call.weights)
    randomness = _randomness(call.seed, call.noisy, call.dropout, weights)
    is_free = call.merges is None and call.pins is None
    with torch.autocast(leaves.device.type, enabled=False):
        # In training too: the C leaves the same tape, so the backward pass is the same.
        if is_free and runs_in_c(leaves, lengths, weights, call.product_dtype):
            tape = compiled_search(leaves, lengths, weights, beam_size=call.beam_size, randomness=randomness)
        else:
            with threads_for(_work_of_a_step(leaves.shape[0] * call.beam_size, weights), leaves):
                tape = search(
                    leaves,
                    lengths,
                    *_parts(weights, call.product_dtype),
                    beam_size=call.beam_size,
                    randomness=randomness,
                    merges=call.merges,
                    pins=call.pins,
                )
        lineages = find_lineages(tape.links, tape.roots, lengths, leaves.shape[1])
        vectors, inner = tape.nodes[tape.roots], inner_nodes(tape.nodes, lineages, call.need_nodes)
    on_tape = tape.links, tape.nodes, tape.ended, tape.roots
    return vectors, tape.relative, inner, tape.offset, lineages, *on_tape


def _search_shapes(call: SearchCall) -> Outputs:
    leaves, lengths = call.leaves, call.lengths
    B, n, d = leaves.shape
    K = call.beam_size if call.merges is None else 1
    results = empty_results(leaves, lengths, K, call.need_nodes)
    capacity, wide = results[-1].shape[0], results[1].dtype
    return (
        *results,
        leaves.new_empty(1 + B * n + capacity, d),
        leaves.new_empty(capacity, 4, dtype=wide),
        lengths.new_empty(B, K),
    )


def _remember(ctx: Any, call: SearchCall, output: Outputs) -> None:
    """The operator's `setup_context`: save for the backward pass what `_differentiate` needs."""
    _, relative, _, offset, lineages, links, nodes, ended, roots = output
    ctx.mark_non_differentiable(offset, lineages, links, nodes, ended, roots)
    tape = Tape(nodes, links, ended, roots, relative, offset)
    ctx.save_for_backward(call.lengths, call.seed, lineages, *tape, *call.weights)
    ctx.n, ctx.dropout, ctx.product_dtype = call.leaves.shape[1], call.dropout, call.product_dtype


def _differentiate(
    ctx: Any, grad_roots: Tensor, grad_scores: Tensor, grad_inner: Tensor, *_: Tensor
) -> dict[str, Any]:
    """The operator's `backward`."""
    lengths, seed, lineages, *saved = ctx.saved_tensors
    tape, weights = saved[: len(Tape._fields)], saved[len(Tape._fields) :]
    gradients = (grad_roots, grad_scores, grad_inner)
    call = ReplayCall(
        *gradients, lineages, lengths, tape, weights, ctx.n, seed, ctx.dropout, ctx.product_dtype
    )
    grad_leaves, *grad_weights = torch.ops.beamtree.replay(*call)
    return {"leaves": grad_leaves, "weights": grad_weights}


def _replay(call: ReplayCall) -> list[Tensor]:
    weights = Weights.of(call.weights)
    cell, score = _parts(weights, call.product_dtype)
    work = _work_of_a_step(call.lineages.shape[0] * call.lineages.shape[1], weights)
    with threads_for(work, call.grad_roots), torch.autocast(call.grad_roots.device.type, enabled=False):
        gradients = replay(
            Tape(*call.tape),
            call.lengths,
            call.grad_roots,
            call.grad_scores,
            call.grad_inner,
            call.lineages,
            cell,
            score,
            n=call.n,
            # Noise moved only the choice, which is on the tape; masks are drawn again.
            randomness=_randomness(call.seed, noisy=False, dropout=call.dropout, weights=weights),
        )
    return [gradients.leaves, *weight_gradients(gradients.cell, gradients.scorer, weights.entangled)]


def _replay_shapes(call: ReplayCall) -> list[Tensor]:
    B, _, d = call.grad_roots.shape
    return [call.grad_roots.new_empty(B, call.n, d), *(torch.empty_like(w) for w in call.weights)]


def _work_of_a_step(beams: int, weights: Weights[Any]) -> int:
    """The number of multiplications in one merge of every beam."""
    return beams * (weights.cell.w1.numel() + weights.cell.w2.numel())


def _parts(
    weights: Weights[Any], product_dtype: torch.dtype
) -> tuple[GatedCell, SlicedScore | EntangledScore]:
    cell = GatedCell(weights.cell, product_dtype)
    if weights.entangled:
        return cell, EntangledScore(weights, product_dtype)
    return cell, SlicedScore(weights.scorer)


def _randomness(seed: Tensor | None, noisy: bool, dropout: float, weights: Weights[Any]) -> Randomness | None:
    if seed is None:
        return None
    masks_pairs = weights.entangled and dropout > 0.0
    return Randomness(seed, noisy, dropout, hidden_size=weights.cell.b1.shape[0], masks_pairs=masks_pairs)


# The operators take the fields of a call one by one; `register` packs them.
register("search", _search, _search_shapes, _differentiate, _remember)
register("replay", _replay, _replay_shapes, refuse_second_derivative)
