"""The recursion with the built-in cell and scorer as two registered operators, `beamtree::search` and
`beamtree::replay`: tensors in, tensors out, so that torch.compile and checkpointing treat each as one.
"""

from typing import Any

import torch
from torch import Tensor

from beamtree.engine.gated_cell import GatedCell
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import Options, Tape, empty_results, find_lineages, inner_nodes, merge_positions
from beamtree.engine.replay import replay
from beamtree.engine.scores import ParentScore, SlicedScore, weight_gradients
from beamtree.engine.search import search
from beamtree.kernels.weights import CellWeights, EntangledScorerWeights, SlicedScorerWeights, Weights
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch.derivatives import NO_SECOND_DERIVATIVE, refuse_forward_mode
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.precision import product_dtype
from beamtree.pytorch.registry import register


def registered_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: GatedRecursiveCell,
    scorer: SlicedScorer | EntangledScorer,
    options: Options,
) -> tuple[Tensor, ...]:
    """Roots (B, K, d), relative scores (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,), merges."""
    weights = weights_of(cell, scorer)
    refuse_forward_mode(leaves, *weights.flat())
    products = product_dtype(leaves)
    if leaves.is_cuda and options.pins is None:
        from beamtree.kernels.fused_recursion import fused_recursion, supports
        from beamtree.kernels.given import given_search

        beam_size, seed, noisy, dropout, merges, _, need_nodes = options
        has_kernels = supports(leaves, weights.flat(), beam_size)
        if has_kernels and merges is None:
            return fused_recursion(
                leaves, lengths, weights, beam_size, seed, noisy, dropout, products, need_nodes
            )
        if has_kernels and merges is not None and isinstance(scorer, SlicedScorer):
            return given_search.follow_merges(
                leaves, lengths, weights, seed, dropout, merges, products, need_nodes
            )
    vectors, relative, nodes, offset, lineages, links, *_ = torch.ops.beamtree.search(
        leaves, lengths, weights.flat(), *options, products
    )
    return vectors, relative, nodes, offset, merge_positions(links, lineages)


def search_parts(
    cell: GatedRecursiveCell, scorer: SlicedScorer | EntangledScorer, leaves: Tensor
) -> tuple[GatedCell, SlicedScore | ParentScore]:
    """What `search` calls to compose and to score nodes, for those who look on while it runs."""
    return _parts(weights_of(cell, scorer), product_dtype(leaves))


def weights_of(cell: GatedRecursiveCell, scorer: SlicedScorer | EntangledScorer) -> Weights[Any]:
    """By name, as a parametrization changes the order of parameters."""
    of_cell = CellWeights(*cell.weights())
    if isinstance(scorer, EntangledScorer):
        return Weights(of_cell, EntangledScorerWeights(*read_part(scorer)))
    return Weights(of_cell, SlicedScorerWeights(*read_part(scorer.hidden), *read_part(scorer.out)))


def _search(
    leaves: Tensor,
    lengths: Tensor,
    weights: list[Tensor],
    beam_size: int,
    seed: Tensor | None,
    noisy: bool,
    dropout: float,
    merges: Tensor | None,
    pins: Tensor | None,
    need_nodes: bool,
    product_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    named = Weights.of(weights)
    cell, score = _parts(named, product_dtype)
    randomness = _randomness(seed, noisy, dropout, named)
    with torch.autocast(leaves.device.type, enabled=False):
        tape = search(
            leaves, lengths, cell, score, beam_size=beam_size, randomness=randomness, merges=merges, pins=pins
        )
        lineages = find_lineages(tape.links, tape.roots, lengths, leaves.shape[1])
        vectors, inner = tape.nodes[tape.roots], inner_nodes(tape.nodes, lineages, need_nodes)
    kept = tape.links, tape.nodes, tape.energies, tape.roots
    return vectors, tape.relative, inner, tape.offset, lineages, *kept


def _fake_search(
    leaves: Tensor, lengths: Tensor, weights: list[Tensor], *asked: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = Options(*asked[:-1])
    B, n, d = leaves.shape
    K = options.beam_size if options.merges is None else 1
    results = empty_results(leaves, lengths, K, options.need_nodes)
    made, wide = results[-1].shape[0], results[1].dtype
    return (
        *results,
        leaves.new_empty(1 + B * n + made, d),
        leaves.new_empty(made, 4, dtype=wide),
        lengths.new_empty(B, K),
    )


def _replay(
    grad_roots: Tensor,
    grad_scores: Tensor,
    grad_inner: Tensor,
    lineages: Tensor,
    lengths: Tensor,
    tape: list[Tensor],
    weights: list[Tensor],
    n: int,
    seed: Tensor | None,
    dropout: float,
    product_dtype: torch.dtype,
) -> list[Tensor]:
    named = Weights.of(weights)
    cell, score = _parts(named, product_dtype)
    randomness = _randomness(seed, False, dropout, named)
    with torch.autocast(grad_roots.device.type, enabled=False):
        gradients = replay(
            Tape(*tape),
            lengths,
            grad_roots,
            grad_scores,
            cell,
            score,
            n=n,
            randomness=randomness,
            inner=(lineages, grad_inner),
        )
    return [gradients.leaves, *weight_gradients(gradients.cell, score)]


def _fake_replay(
    grad_roots: Tensor,
    grad_scores: Tensor,
    grad_inner: Tensor,
    lineages: Tensor,
    lengths: Tensor,
    tape: list[Tensor],
    weights: list[Tensor],
    n: int,
    *drawn: Any,
) -> list[Tensor]:
    B, _, d = grad_roots.shape
    return [grad_roots.new_empty(B, n, d), *(torch.empty_like(w) for w in weights)]


def _parts(weights: Weights[Any], product_dtype: torch.dtype) -> tuple[GatedCell, SlicedScore | ParentScore]:
    cell = GatedCell(weights.cell, product_dtype)
    if weights.entangled:
        return cell, ParentScore(weights, product_dtype)
    return cell, SlicedScore(weights.scorer)


def _randomness(seed: Tensor | None, noisy: bool, dropout: float, weights: Weights[Any]) -> Randomness | None:
    if seed is None:
        return None
    return Randomness(seed, noisy, dropout, hidden_size=weights.cell.b1.shape[0], per_pair=weights.entangled)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    leaves, lengths, weights, *asked, product_dtype = inputs
    options = Options(*asked)
    _, relative, _, offset, lineages, links, nodes, energies, roots = output
    ctx.mark_non_differentiable(offset, lineages, links, nodes, energies, roots)
    ctx.save_for_backward(
        lengths, options.seed, lineages, *weights, *Tape(nodes, links, energies, roots, relative, offset)
    )
    ctx.n, ctx.weights = leaves.shape[1], len(weights)
    ctx.dropout, ctx.product_dtype = options.dropout, product_dtype


def _backward(
    ctx: Any, grad_roots: Tensor, grad_scores: Tensor, grad_inner: Tensor, *_: Tensor
) -> tuple[Any, ...]:
    lengths, seed, lineages, *saved = ctx.saved_tensors
    weights, tape = saved[: ctx.weights], saved[ctx.weights :]
    grad_leaves, *grad_weights = torch.ops.beamtree.replay(
        grad_roots,
        grad_scores,
        grad_inner,
        lineages,
        lengths,
        tape,
        weights,
        ctx.n,
        seed,
        ctx.dropout,
        ctx.product_dtype,
    )
    return grad_leaves, None, grad_weights, *[None] * 8


def _refuse_second(ctx: Any, *grads: Any) -> None:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


register("search", _search, _fake_search, _backward, _setup_context)
register("replay", _replay, _fake_replay, _refuse_second)
