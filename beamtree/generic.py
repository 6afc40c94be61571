"""A user's own cell and scorer in the engine: autograd differentiates them, a batch of rows at a time.

A cell is called `cell(left, right, keep)` on rows (…, d), a scorer `scorer(left, right)`. Both must be
row-wise and deterministic given their arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from beamtree.equal_trees import EqualTrees
from beamtree.lineage import find_lineages, inner_nodes, merge_positions
from beamtree.noise import Randomness
from beamtree.replay import replay
from beamtree.search import ROWS_AT_ONCE, Tape, search

NO_SECOND_DERIVATIVE = (
    "beamtree: tree recursion has no second derivative; call backward or autograd.grad without "
    "create_graph=True"
)
_RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)


def refuse_random_layers(module: nn.Module, role: str) -> None:
    """The engine recomputes nodes, so a layer that draws or counts in training would give wrong gradients."""
    for name, layer in module.named_modules():
        if isinstance(layer, _RANDOM_LAYERS) and layer.training and getattr(layer, "p", 1.0) != 0.0:
            raise ValueError(
                f"{role} contains {type(layer).__name__} ({name or 'itself'}) in training mode, but must be "
                "a function of its arguments: drop out by its `keep` argument, or put the layer in eval mode"
            )


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
            return torch.autograd.grad(parents, children, grad.to(parents.dtype))[0]

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


def _of_shape(found: Tensor, wanted: torch.Size, role: str, what: str) -> Tensor:
    if found.shape != wanted:
        raise ValueError(
            f"{role} must return {what} for each row, shape {tuple(wanted)} here, got {tuple(found.shape)}"
        )
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
    if not outputs.requires_grad or not inputs:
        return torch.zeros_like(rows) if rows is not None else grad
    gradients = torch.autograd.grad(outputs, inputs, grad.to(outputs.dtype), allow_unused=True)
    for (t, _), g in zip(trained, gradients, strict=False):
        if g is not None:
            t += g
    last = gradients[-1]
    return last if rows is not None and last is not None else torch.zeros_like(grad if rows is None else rows)


def generic_recursion(
    leaves: Tensor,
    lengths: Tensor,
    cell: nn.Module,
    scorer: nn.Module,
    beam_size: int,
    seed: Tensor | None,
    noisy: bool,
    dropout: float,
    merges: Tensor | None,
    pins: Tensor | None,
    need_nodes: bool,
    merge_equal_trees: bool = False,
) -> tuple[Tensor, ...]:
    """Roots (B, K, d), relative scores (B, K), inner nodes (B, K, n−1 or 0, d), offset (B,), merges."""
    # A compiler leaves this as it is; its decorator is slow to import, so it is asked for only then.
    run = torch.compiler.disable(_recurse) if torch.compiler.is_compiling() else _recurse
    options = (beam_size, seed, noisy, dropout, merges, pins, need_nodes, merge_equal_trees)
    return run(leaves, lengths, cell, scorer, *options)


def _recurse(
    leaves: Tensor,
    lengths: Tensor,
    cell: nn.Module,
    scorer: nn.Module,
    beam_size: int,
    seed: Tensor | None,
    noisy: bool,
    dropout: float,
    merges: Tensor | None,
    pins: Tensor | None,
    need_nodes: bool,
    merge_equal_trees: bool,
) -> tuple[Tensor, ...]:
    refuse_random_layers(cell, "cell")
    refuse_random_layers(scorer, "scorer")
    if leaves.is_meta:
        return empty_results(leaves, lengths, beam_size if merges is None else 1, need_nodes)[:5]
    randomness = None
    if seed is not None:
        randomness = Randomness(seed, noisy, dropout, int(getattr(cell, "hidden_size", 0)))
    cell_parameters, scorer_parameters = list(cell.parameters()), list(scorer.parameters())

    def parts() -> tuple[AutogradCell, AutogradScore]:
        return AutogradCell(cell, cell_parameters), AutogradScore(scorer, scorer_parameters)

    equal_trees = None
    if merge_equal_trees and merges is None:
        B, n, _ = leaves.shape
        equal_trees = EqualTrees(B, n, beam_size, leaves.device, record=torch.is_grad_enabled())
    options = {
        "beam_size": beam_size,
        "randomness": randomness,
        "merges": merges,
        "pins": pins,
        "equal_trees": equal_trees,
    }
    *found, lineages, links = _Recursion.apply(
        leaves, lengths, parts, options, need_nodes, *cell_parameters, *scorer_parameters
    )
    return *found, merge_positions(links, lineages)


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


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        lengths: Tensor,
        parts: Callable[[], tuple[AutogradCell, AutogradScore]],
        options: dict[str, Any],
        need_nodes: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        n = leaves.shape[1]
        kind = leaves.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        tape = search(leaves, lengths, *parts(), **options)
        history = find_lineages(tape.links, tape.roots, lengths, n)
        ctx.parts, ctx.n = parts, n
        ctx.randomness, ctx.equal_trees = options["randomness"], options["equal_trees"]
        ctx.save_for_backward(lengths, history, *tape, *parameters)
        ctx.mark_non_differentiable(tape.offset, history, tape.links)
        inner = inner_nodes(tape.nodes, history, need_nodes)
        return tape.nodes[tape.roots], tape.relative, inner, tape.offset, history, tape.links

    @staticmethod
    def backward(
        ctx: Any, grad_roots: Tensor, grad_scores: Tensor, grad_inner: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        lengths, history, *saved = ctx.saved_tensors
        tape = Tape(*saved[: len(Tape._fields)])
        kind, dtype, enabled = ctx.autocast
        with torch.autocast(kind, dtype, enabled):
            gradients = replay(
                tape,
                lengths,
                grad_roots,
                grad_scores,
                *ctx.parts(),
                n=ctx.n,
                randomness=ctx.randomness,
                inner=(history, grad_inner),
                equal_trees=ctx.equal_trees,
            )
        return gradients.leaves, *[None] * 4, *gradients.cell, *gradients.scorer


def refuse_double_backward() -> None:
    """In a backward pass: refuse to record it for a second derivative."""
    if torch.is_grad_enabled():
        raise RuntimeError(NO_SECOND_DERIVATIVE)
