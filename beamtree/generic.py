"""The recursion with a user's own cell and scorer, on a GPU as CUDA graphs where it can be.

A cell is called `cell(left, right, keep)` on rows (…, d), a scorer `scorer(left, right)`. Both must be
row-wise and deterministic given their arguments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm

from beamtree.autograd_cell import AutogradCell, AutogradScore, as_it_was, parameters_of, tensors_of
from beamtree.cell_graphs import CapturedCell, Graphs, find_graphs
from beamtree.equal_trees import EqualTrees
from beamtree.lineage import find_lineages, inner_nodes, merge_positions
from beamtree.noise import Randomness
from beamtree.ops.forward_mode import refuse_forward_mode
from beamtree.replay import replay
from beamtree.search import Tape, search
from beamtree.tracing import untraced

NO_SECOND_DERIVATIVE = (
    "beamtree: tree recursion has no second derivative; call backward or autograd.grad without "
    "create_graph=True"
)
_CHANGING = (  # layers and hooks
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
    nn.utils.parametrizations._SpectralNorm,
    SpectralNorm,
)


class Options(NamedTuple):
    """What is asked of a recursion, in the order of the arguments of `beamtree::search`."""

    beam_size: int
    seed: Tensor | None  # of the noise and the masks; None where nothing is drawn
    noisy: bool  # Gumbel noise on both selections
    dropout: float
    merges: Tensor | None  # (B, n−1): follow this tree instead of searching
    pins: Tensor | None  # (B, P, 2): spans that every tree contains
    need_nodes: bool


def refuse_random_layers(module: nn.Module, role: str) -> None:
    """The engine recomputes nodes, so a layer that draws or counts in training would give wrong gradients."""
    for name, layer in module.named_modules():
        if not layer.training or getattr(layer, "p", 1.0) == 0.0:
            continue
        for part in (layer, *layer._forward_pre_hooks.values()):
            if isinstance(part, _CHANGING):
                raise ValueError(
                    f"{role} contains {type(part).__name__} ({name or 'itself'}) in training mode, but must "
                    "be a function of its arguments: drop out by its `keep`, or put the layer in eval mode"
                )


@untraced
def generic_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: nn.Module,
    scorer: nn.Module,
    options: Options,
    merge_equal_trees: bool = False,
) -> tuple[Tensor, ...]:
    """Roots (B, K, d), relative scores (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,), merges."""
    refuse_random_layers(cell, "cell")
    refuse_random_layers(scorer, "scorer")
    if leaves.is_meta:
        K = options.beam_size if options.merges is None else 1
        return empty_results(leaves, lengths, K, options.need_nodes)[:5]
    randomness = None
    if options.seed is not None:
        width = int(getattr(cell, "hidden_size", 0))
        if options.dropout > 0.0 and width < 1:
            raise ValueError("cell has a rate `dropout` but no `hidden_size`, the width of the masks it gets")
        randomness = Randomness(options.seed, options.noisy, options.dropout, width)
    B, steps = leaves.shape[0], leaves.shape[1] - 1
    graphs = equal_trees = None
    if options.merges is None and merge_equal_trees:
        K, record = options.beam_size, torch.is_grad_enabled()
        equal_trees = EqualTrees(B, steps + 1, K, leaves.device, record)
    elif options.merges is None:
        graphs = find_graphs(cell, scorer, leaves, options.beam_size, randomness, options.pins)
    if graphs is not None:
        leaves, lengths, pins = _pad(leaves, lengths, options.pins, graphs.search.shape)
        options = options._replace(pins=pins)
    _fill_cache(cell, scorer)
    cell_parameters, scorer_parameters = parameters_of(cell), parameters_of(scorer)
    refuse_forward_mode(leaves, *cell_parameters, *scorer_parameters)
    cell_tensors, scorer_tensors = tensors_of(cell), tensors_of(scorer)

    def parts() -> tuple[AutogradCell, AutogradScore]:
        pulls = () if graphs is None else graphs.pulls
        return (
            CapturedCell(as_it_was(cell, cell_tensors), cell_parameters, pulls),
            AutogradScore(as_it_was(scorer, scorer_tensors), scorer_parameters),
        )

    plan = _Plan(options, randomness, equal_trees, graphs, steps, parts)
    vectors, relative, inner, offset, lineages, links = _Recursion.apply(
        leaves, lengths, plan, *cell_parameters, *scorer_parameters
    )
    merged = merge_positions(links, lineages)
    return vectors[:B], relative[:B], inner[:B, :, :steps], offset[:B], merged[:B, :, :steps]


def _fill_cache(*modules: nn.Module) -> None:
    """With `parametrize.cached()` who reads a weight first decides whether it has a graph: not the search."""
    for module in modules:
        for part in module.modules():
            for name in getattr(part, "parametrizations", ()):
                getattr(part, name)


def _pad(
    leaves: Tensor, lengths: Tensor, pins: Tensor | None, shape: tuple[int, int, int | None]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The input in a graph's sizes; a sequence too many has one token, a pin too many is none."""
    B, n, P = shape
    more = B - leaves.shape[0]
    if pins is not None and P is not None:
        pins = F.pad(pins, (0, 0, 0, P - pins.shape[1], 0, more), value=-1)
    return F.pad(leaves, (0, 0, 0, n - leaves.shape[1], 0, more)), F.pad(lengths, (0, more), value=1), pins


def empty_results(
    leaves: Tensor, lengths: Tensor, K: int, need_nodes: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What a recursion returns, shapes and types only."""
    B, n, d = leaves.shape
    return (
        leaves.new_empty(B, K, d),
        leaves.new_empty(B, K, dtype=torch.promote_types(leaves.dtype, torch.float32)),
        leaves.new_empty(B, K, n - 1 if need_nodes else 0, d),
        leaves.new_empty(B, dtype=torch.float64),
        lengths.new_empty(B, K, n - 1),
        lengths.new_empty(B * K * (n - 1), 6),
    )


class _Plan(NamedTuple):
    options: Options
    randomness: Randomness | None
    equal_trees: EqualTrees | None
    graphs: Graphs | None
    steps: int  # of the search, before padding
    parts: Callable[[], tuple[AutogradCell, AutogradScore]]


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaves: Tensor, lengths: Tensor, plan: _Plan, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        n, options = leaves.shape[1], plan.options
        kind = leaves.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        cell, score = plan.parts()
        heights = None
        if plan.graphs is None:
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
            tape, heights = plan.graphs.search.run(
                leaves, lengths, score, plan.steps, plan.randomness, options.pins
            )
        history = find_lineages(tape.links, tape.roots, lengths, n)
        ctx.plan, ctx.n = plan, n
        ctx.save_for_backward(lengths, history, heights, *tape, *parameters)
        ctx.mark_non_differentiable(tape.offset, history, tape.links)
        inner = inner_nodes(tape.nodes, history, options.need_nodes)
        return tape.nodes[tape.roots], tape.relative, inner, tape.offset, history, tape.links

    @staticmethod
    def backward(
        ctx: Any, grad_roots: Tensor, grad_scores: Tensor, grad_inner: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        lengths, history, heights, *saved = ctx.saved_tensors
        tape = Tape(*saved[: len(Tape._fields)])
        kind, dtype, enabled = ctx.autocast
        with torch.autocast(kind, dtype, enabled):
            gradients = replay(
                tape,
                lengths,
                grad_roots,
                grad_scores,
                *ctx.plan.parts(),
                n=ctx.n,
                randomness=ctx.plan.randomness,
                inner=(history, grad_inner),
                equal_trees=ctx.plan.equal_trees,
                heights=heights,
            )
        return gradients.leaves, None, None, *gradients.cell, *gradients.scorer


def refuse_double_backward() -> None:
    """In a backward pass: refuse to record it for a second derivative."""
    if torch.is_grad_enabled():
        raise RuntimeError(NO_SECOND_DERIVATIVE)
