"""The recursion with a user's own cell or scorer (parts/contract.py says what is asked of them); with the
built-in ones too where equal trees are merged.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.autograd_parts import AutogradCell, AutogradScore, as_it_was, parameters_of, tensors_of
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
from beamtree.parts.contract import mask_width, refuse_random_layers, refuse_random_numbers
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.threads import threads_for
from beamtree.pytorch.tracing import runs_eagerly


class RecursionGraphs(Protocol):
    """CUDA graphs that one recursion replays in place of Python: what graphs/cell_graphs.py hands in."""

    @property
    def shape(self) -> tuple[int, int, int | None]:
        """Sequences, tokens and pinned spans that they have room for: the input is padded to it."""

    def cell(self, cell: Callable[..., Tensor], parameters: Sequence[Tensor]) -> AutogradCell:
        """The cell, whose small levels are pulled by graphs."""

    def run(
        self,
        leaves: Tensor,
        lengths: Tensor,
        score: AutogradScore,
        steps: int,
        randomness: Randomness | None,
        pins: Tensor | None,
    ) -> tuple[Tape, Tensor]:
        """The record of a search of this many steps, and the heights of its nodes."""


FindGraphs = Callable[
    [nn.Module, nn.Module, Tensor, int, Randomness | None, Tensor | None], RecursionGraphs | None
]  # cell, scorer, leaves, beam size, randomness, pins


@runs_eagerly
def own_cell_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: nn.Module,
    scorer: nn.Module,
    options: Options,
    merge_equal_trees: bool,
    find_graphs: FindGraphs,
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
    B, steps = leaves.shape[0], leaves.shape[1] - 1
    if B > 0:
        row = leaves[:1, 0].detach()
        keep = [row.new_ones(1, mask_width(cell))] if options.dropout > 0.0 else []
        refuse_random_numbers(cell, "cell", row, row, *keep)
        refuse_random_numbers(scorer, "scorer", row, row)
    graphs = equal_trees = None
    if options.merges is None and merge_equal_trees:
        K, record = options.beam_size, torch.is_grad_enabled()
        equal_trees = EqualTrees(B, steps + 1, K, leaves.device, record)
    elif options.merges is None:
        graphs = find_graphs(cell, scorer, leaves, options.beam_size, randomness, options.pins)
    if graphs is not None:
        leaves, lengths, pins = _pad(leaves, lengths, options.pins, graphs.shape)
        options = options._replace(pins=pins)
    _fill_cache(cell, scorer)
    cell_parameters, scorer_parameters = parameters_of(cell), parameters_of(scorer)
    refuse_forward_mode(leaves, *cell_parameters, *scorer_parameters)
    cell_tensors, scorer_tensors = tensors_of(cell), tensors_of(scorer)

    def parts() -> tuple[AutogradCell, AutogradScore]:
        make_cell = AutogradCell if graphs is None else graphs.cell
        return (
            make_cell(as_it_was(cell, cell_tensors), cell_parameters),
            AutogradScore(as_it_was(scorer, scorer_tensors), scorer_parameters),
        )

    plan = _Plan(options, randomness, equal_trees, graphs, steps, parts)
    vectors, relative, inner, offset, lineages, links = _OwnRecursion.apply(
        leaves, lengths, plan, *cell_parameters, *scorer_parameters
    )
    merged = merge_positions(links, lineages)
    return vectors[:B], relative[:B], inner[:B, :, :steps], offset[:B], merged[:B, :, :steps]


def _fill_cache(*modules: nn.Module) -> None:
    """Under `parametrize.cached()` the first read tells if a weight has a graph; the search has none."""
    for module in modules:
        for part in module.modules():
            for name in getattr(part, "parametrizations", ()):
                getattr(part, name)


def _pad(
    leaves: Tensor, lengths: Tensor, pins: Tensor | None, shape: tuple[int, int, int | None]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The input in a graph's sizes; further sequences have one token, further pins are −1."""
    B, n, P = shape
    more = B - leaves.shape[0]
    if pins is not None and P is not None:
        pins = F.pad(pins, (0, 0, 0, P - pins.shape[1], 0, more), value=-1)
    return F.pad(leaves, (0, 0, 0, n - leaves.shape[1], 0, more)), F.pad(lengths, (0, more), value=1), pins


class _Plan(NamedTuple):
    options: Options
    randomness: Randomness | None
    equal_trees: EqualTrees | None
    graphs: RecursionGraphs | None
    steps: int  # of the search, before padding
    parts: Callable[[], tuple[AutogradCell, AutogradScore]]


class _OwnRecursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, lengths: Tensor, plan: _Plan, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        n, options = leaves.shape[1], plan.options
        kind = leaves.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        cell, score = plan.parts()
        heights = None
        # About as many multiplications a merge as there are parameters.
        ctx.work = leaves.shape[0] * options.beam_size * sum(map(Tensor.numel, parameters))
        if plan.graphs is None:
            with threads_for(ctx.work, leaves):
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
                )
        else:
            tape, heights = plan.graphs.run(leaves, lengths, score, plan.steps, plan.randomness, options.pins)
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
        with threads_for(ctx.work, grad_roots), torch.autocast(kind, dtype, enabled):
            gradients = replay(
                tape,
                lengths,
                grad_roots,
                grad_scores,
                *ctx.plan.parts(),
                n=ctx.n,
                randomness=ctx.plan.randomness,
                inner=(lineages, grad_inner),
                equal_trees=ctx.plan.equal_trees,
                heights=heights,
            )
        return gradients.leaves, None, None, *gradients.cell, *gradients.scorer
