"""The recursion with a user's own cell and scorer, on a GPU as CUDA graphs where it can be.

A cell is called `cell(left, right, keep)` on rows (…, d), a scorer `scorer(left, right)`. Both must be
row-wise and deterministic given their arguments.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.autograd_cell import AutogradCell, AutogradScore
from beamtree.cell_graphs import CapturedCell, Graphs, find_graphs
from beamtree.equal_trees import EqualTrees
from beamtree.lineage import find_lineages, inner_nodes, merge_positions
from beamtree.noise import Randomness
from beamtree.replay import replay
from beamtree.search import Tape, search

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
    given = leaves.shape[:2]
    graphs = None
    if merges is None and not merge_equal_trees:
        graphs = find_graphs(cell, scorer, leaves, beam_size, randomness, pins)
    if graphs is not None:
        leaves, lengths, pins = _pad(leaves, lengths, pins, graphs.search.shape)
    cell_parameters, scorer_parameters = list(cell.parameters()), list(scorer.parameters())

    def parts() -> tuple[AutogradCell, AutogradScore]:
        pulls = () if graphs is None else graphs.pulls
        return CapturedCell(cell, cell_parameters, pulls), AutogradScore(scorer, scorer_parameters)

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
    steps = given[1] - 1
    vectors, relative, inner, offset, lineages, links = _Recursion.apply(
        leaves, lengths, parts, options, need_nodes, graphs, steps, *cell_parameters, *scorer_parameters
    )
    B = given[0]
    merged = merge_positions(links, lineages)
    return vectors[:B], relative[:B], inner[:B, :, :steps], offset[:B], merged[:B, :, :steps]


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


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        lengths: Tensor,
        parts: Callable[[], tuple[AutogradCell, AutogradScore]],
        options: dict[str, Any],
        need_nodes: bool,
        graphs: Graphs | None,
        steps: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        n = leaves.shape[1]
        kind = leaves.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        cell, score = parts()
        heights = None
        if graphs is None:
            tape = search(leaves, lengths, cell, score, **options)
        else:
            draws = options["randomness"], options["pins"]
            tape, heights = graphs.search.run(leaves, lengths, score, steps, *draws)
        history = find_lineages(tape.links, tape.roots, lengths, n)
        ctx.parts, ctx.n = parts, n
        ctx.randomness, ctx.equal_trees = options["randomness"], options["equal_trees"]
        ctx.save_for_backward(lengths, history, heights, *tape, *parameters)
        ctx.mark_non_differentiable(tape.offset, history, tape.links)
        inner = inner_nodes(tape.nodes, history, need_nodes)
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
                *ctx.parts(),
                n=ctx.n,
                randomness=ctx.randomness,
                inner=(history, grad_inner),
                equal_trees=ctx.equal_trees,
                heights=heights,
            )
        return gradients.leaves, *[None] * 6, *gradients.cell, *gradients.scorer


def refuse_double_backward() -> None:
    """In a backward pass: refuse to record it for a second derivative."""
    if torch.is_grad_enabled():
        raise RuntimeError(NO_SECOND_DERIVATIVE)
