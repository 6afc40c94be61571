"""The recursion with a user's own cell and scorer, which autograd differentiates, many rows at once.

A cell is called `cell(left, right, keep)` on rows (…, d), a scorer `scorer(left, right)`. Both must be
row-wise and deterministic given their arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from beamtree.engine.equal_trees import EqualTrees
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import (
    ROWS_AT_ONCE,
    Options,
    Tape,
    empty_results,
    find_lineages,
    inner_nodes,
    merge_positions,
)
from beamtree.engine.replay import replay
from beamtree.engine.search import search
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.tracing import untraced

_CHANGING = (  # layers and hooks
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._BatchNorm,
    nn.RReLU,
    nn.utils.parametrizations._SpectralNorm,
    SpectralNorm,
)


def parameters_of(module: nn.Module) -> list[Tensor]:
    """Its parameters, those that `nn.DataParallel` lends to a replica included."""
    lent = (getattr(part, "_former_parameters", {}).values() for part in module.modules())
    return list(dict.fromkeys((*module.parameters(), *(tensor for some in lent for tensor in some))))


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def as_it_was(module: nn.Module, tensors: dict[str, Tensor]) -> Callable[..., Tensor]:
    """The module with these tensors, though others may stand in it by now: when `functional_call` returns, it
    takes back what it has lent, and the backward pass comes later."""
    now = tensors_of(module)
    if all(now.get(name) is tensor for name, tensor in tensors.items()):
        return module
    return lambda *rows: functional_call(module, tensors, rows)


class AutogradCell:
    def __init__(self, cell: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.cell, self.parameters = cell, parameters

    def __call__(self, children: Tensor, keep: Tensor | None) -> Tensor:
        left, right = children.unbind(1)
        parents = self.cell(left, right) if keep is None else self.cell(left, right, keep)
        return _of_shape(parents, left.shape, "cell", "a parent")

    def recall(self, children: Tensor, keep: Tensor | None) -> None:
        self.children, self.keep = children, keep

    def pull(self, rows: slice, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            children = self.children[rows].detach().requires_grad_()
            parents = self(children, None if self.keep is None else self.keep[rows])
            if not parents.requires_grad:
                return torch.zeros_like(children)
            grad = grad.to(parents.dtype)
            return torch.autograd.grad(parents, children, grad, materialize_grads=True)[0]

    def parameter_gradients(self, grad: Tensor) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in self.parameters]
        for start in range(0, grad.shape[0], ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            with torch.enable_grad():
                parents = self(self.children[rows], None if self.keep is None else self.keep[rows])
            _add_gradients(total, parents, self.parameters, grad[rows])
        return total


class AutogradScore:
    def __init__(self, scorer: Callable[..., Tensor], parameters: Sequence[Tensor]) -> None:
        self.scorer, self.parameters = scorer, parameters
        self.gradients = [torch.zeros_like(p) for p in parameters]

    def __call__(self, pairs: Tensor) -> Tensor:
        return _of_shape(self.scorer(*pairs.unbind(1)), pairs.shape[:1], "scorer", "a number")

    def pull(self, pairs: Tensor, grad: Tensor) -> Tensor:
        with torch.enable_grad():
            pairs = pairs.detach().requires_grad_()
            scores = self(pairs)
        return _add_gradients(self.gradients, scores, self.parameters, grad, pairs)

    def parameter_gradients(self) -> list[Tensor]:
        return self.gradients


def _of_shape(found: object, wanted: torch.Size, role: str, what: str) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != wanted:
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{role} must return {what} for each row, shape {tuple(wanted)} here, got {came}")
    return found


def _add_gradients(
    total: list[Tensor],
    outputs: Tensor,
    parameters: Sequence[Tensor],
    grad: Tensor,
    rows: Tensor | None = None,
) -> Tensor:
    """Add the parameters' gradients to `total`; return that of `rows`."""
    trained = [(t, p) for t, p in zip(total, parameters, strict=True) if p.requires_grad]
    inputs = [p for _, p in trained] + ([rows] if rows is not None else [])
    if outputs.requires_grad:
        _refuse_other_tensors(outputs, inputs)
    if not outputs.requires_grad or not inputs:
        return torch.zeros_like(rows) if rows is not None else grad
    # What lies below a cached weight serves the next rows too.
    again = bool(parametrize._cache_enabled)
    gradients = torch.autograd.grad(outputs, inputs, grad.to(outputs.dtype), again, allow_unused=True)
    for (t, _), g in zip(trained, gradients, strict=False):
        if g is not None:
            t += g
    last = gradients[-1]
    return last if rows is not None and last is not None else torch.zeros_like(grad if rows is None else rows)


def _refuse_other_tensors(outputs: Tensor, inputs: Sequence[Tensor]) -> None:
    """Gradient goes to parameters only: a tensor from elsewhere would be left without a word."""
    seen = {get_gradient_edge(tensor).node for tensor in inputs}
    nodes = [outputs.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        other = getattr(node, "variable", None)
        if other is not None:
            raise ValueError(
                f"a cell or scorer reads a tensor of shape {tuple(other.shape)} that requires gradient and "
                "is none of its parameters: make it one, or detach it"
            )
        nodes += [below for below, _ in node.next_functions]


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


class RecursionGraphs(Protocol):
    """CUDA graphs that one recursion replays in place of Python: what graphs/own_cell.py hands in."""

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


@untraced
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


class _Plan(NamedTuple):
    options: Options
    randomness: Randomness | None
    equal_trees: EqualTrees | None
    graphs: RecursionGraphs | None
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
            tape, heights = plan.graphs.run(leaves, lengths, score, plan.steps, plan.randomness, options.pins)
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
