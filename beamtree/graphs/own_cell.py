"""The recursion with a user's own cell or scorer (see parts/contract.py for what they must do). Also used for
the built-in ones when equal trees are merged.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.autograd_parts import AsItWas, AutogradCell, AutogradScore, parameters_of
from beamtree.engine.equal_trees import EqualTrees
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import (
    Options,
    Tape,
    empty_results,
    find_lineages,
    inner_nodes,
    merge_positions,
)
from beamtree.engine.replay import replay
from beamtree.engine.search import search
from beamtree.graphs.cell_graphs import CapturedCell, SearchGraph, find_graphs
from beamtree.parts.contract import mask_width, refuse_changing_results, refuse_random_layers
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.threads import threads_for
from beamtree.pytorch.tracing import runs_eagerly


@runs_eagerly
def own_cell_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: nn.Module,
    scorer: nn.Module,
    options: Options,
    merge_equal_trees: bool,
) -> tuple[Tensor, ...]:
    """Roots (B, K, d), relative scores (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,), merges."""
    refuse_random_layers(cell, "cell")
    refuse_random_layers(scorer, "scorer")
    if leaves.is_meta:
        K = options.beam_size if options.merges is None else 1
        return empty_results(leaves, lengths, K, options.need_nodes)[:5]
    randomness = None
    if options.seed is not None:
        width = mask_width(cell) if options.dropout > 0.0 else 0
        randomness = Randomness(options.seed, options.noisy, options.dropout, width)
    _fill_cache(cell, scorer)
    B, steps = leaves.shape[0], leaves.shape[1] - 1
    if B > 0:
        first = leaves[0].detach()
        pair = first[:1], first.index_select(0, (lengths[:1] - 1).clamp(min=0))  # of real tokens
        keep = [leaves.new_ones(1, mask_width(cell))] if options.dropout > 0.0 else []
        with _autocast_without_cache(leaves.device.type):
            refuse_changing_results(cell, "cell", *pair, *keep)
            refuse_changing_results(scorer, "scorer", *pair)
    graphs = equal_trees = None
    if options.merges is None and merge_equal_trees:
        K, record = options.beam_size, torch.is_grad_enabled()
        equal_trees = EqualTrees(B, steps + 1, K, leaves.device, record)
    elif options.merges is None:
        graphs = find_graphs(cell, scorer, leaves, options.beam_size, randomness, options.pins)
    if graphs is not None:
        leaves, lengths, pins = _pad(leaves, lengths, options.pins, graphs.search.shape)
        options = options._replace(pins=pins)
    cell_parameters, scorer_parameters = parameters_of(cell), parameters_of(scorer)
    refuse_forward_mode(leaves, *cell_parameters, *scorer_parameters)
    then = (AsItWas(cell), AsItWas(scorer)) if torch.is_grad_enabled() else None

    def recall() -> tuple[AutogradCell, AutogradScore]:
        assert then is not None  # there is a backward pass
        (called, standing), (called_scorer, standing_scorer) = (module.recall() for module in then)
        # The graphs read the cell's tensors where they are, so not after these have changed.
        pulls = graphs.pulls if graphs is not None and called is cell else ()
        return (
            CapturedCell(called, [standing.get(p, p) for p in cell_parameters], pulls),
            AutogradScore(called_scorer, [standing_scorer.get(p, p) for p in scorer_parameters]),
        )

    now = AutogradCell(cell, ()), AutogradScore(scorer, ())  # these compute no gradients
    graph = None if graphs is None else graphs.search
    plan = _Plan(options, randomness, equal_trees, graph, steps, now, recall)
    vectors, relative, inner, offset, lineages, links = _OwnRecursion.apply(
        leaves, lengths, plan, *cell_parameters, *scorer_parameters
    )
    merged = merge_positions(links, lineages)
    return vectors[:B], relative[:B], inner[:B, :, :steps], offset[:B], merged[:B, :, :steps]


def _fill_cache(*modules: nn.Module) -> None:
    """Read all parametrized weights once, with autograd on.

    Under `parametrize.cached()` the first read decides whether a cached weight has a graph, and the search
    would read it without one.
    """
    for module in modules:
        for part in module.modules():
            for name in getattr(part, "parametrizations", ()):
                getattr(part, name)


# Of 2.8 and 2.13 it is known.
_KEEPS_CASTS_WITHOUT_A_GRAPH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _autocast_without_cache(kind: str) -> AbstractContextManager[Any]:
    """Older releases of PyTorch keep weights that autocast has cast under `no_grad`, for use with grad."""
    if not (_KEEPS_CASTS_WITHOUT_A_GRAPH and torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False)


def _pad(
    leaves: Tensor, lengths: Tensor, pins: Tensor | None, shape: tuple[int, int, int | None]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pad the input to the sizes of a graph; extra sequences have one token, extra pins are −1."""
    B, n, P = shape
    more = B - leaves.shape[0]
    if pins is not None and P is not None:
        pins = F.pad(pins, (0, 0, 0, P - pins.shape[1], 0, more), value=-1)
    return F.pad(leaves, (0, 0, 0, n - leaves.shape[1], 0, more)), F.pad(lengths, (0, more), value=1), pins


class _Plan(NamedTuple):
    options: Options
    randomness: Randomness | None
    equal_trees: EqualTrees | None
    graph: SearchGraph | None
    steps: int  # of the search, before padding
    now: tuple[AutogradCell, AutogradScore]
    recall: Callable[[], tuple[AutogradCell, AutogradScore]]  # as they are now, in the backward pass


class _OwnRecursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, lengths: Tensor, plan: _Plan, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        n, options = leaves.shape[1], plan.options
        kind = leaves.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        cell, score = plan.now
        heights = None
        # A merge takes about as many multiplications as there are parameters.
        ctx.work = leaves.shape[0] * options.beam_size * sum(map(Tensor.numel, parameters))
        with threads_for(ctx.work, leaves), _autocast_without_cache(kind):
            if plan.graph is None:
                tape = search(
                    leaves,
                    lengths,
                    cell,
                    score,
                    beam_size=options.beam_size,
                    randomness=plan.randomness,
                    merges=options.merges,
                    pins=options.pins,
                    equal_trees=plan.equal_trees,
                    may_forbid=True,
                )
            else:
                tape, heights = plan.graph.run(
                    leaves, lengths, score, plan.steps, plan.randomness, options.pins
                )
        lineages = find_lineages(tape.links, tape.roots, lengths, n)
        ctx.plan, ctx.n = plan, n
        ctx.save_for_backward(lengths, lineages, heights, *tape, *parameters)
        ctx.mark_non_differentiable(tape.offset, lineages, tape.links)
        inner = inner_nodes(tape.nodes, lineages, options.need_nodes)
        return tape.nodes[tape.roots], tape.relative, inner, tape.offset, lineages, tape.links

    @staticmethod
    def backward(
        ctx: Any, grad_roots: Tensor, grad_scores: Tensor, grad_inner: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        lengths, lineages, heights, *saved = ctx.saved_tensors
        tape = Tape(*saved[: len(Tape._fields)])
        kind, dtype, enabled = ctx.autocast
        with threads_for(ctx.work, grad_roots), torch.autocast(kind, dtype, enabled, cache_enabled=False):
            gradients = replay(
                tape,
                lengths,
                grad_roots,
                grad_scores,
                grad_inner,
                lineages,
                *ctx.plan.recall(),
                n=ctx.n,
                randomness=ctx.plan.randomness,
                equal_trees=ctx.plan.equal_trees,
                heights=heights,
            )
        return gradients.leaves, None, None, *gradients.cell, *gradients.scorer
