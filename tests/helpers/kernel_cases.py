"""Where kernels are tested, on a GPU or in the interpreter that conftest.py chooses, and on what."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from beamtree.engine.record import merge_positions
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case(NamedTuple):
    leaves: Tensor
    lengths: Tensor
    cell: GatedRecursiveCell
    scorer: nn.Module
    seed: Tensor

    @property
    def weights(self) -> list[Tensor]:
        return [*self.cell.parameters(), *self.scorer.parameters()]


def make_case(
    lengths: list[int],
    d: int = 16,
    *,
    entangled: bool = False,
    s: int | None = 8,
    hidden: int | None = 12,
    units: int = 16,
    scale: float = 8.0,  # of the scores, so that choices are well apart
    seed: int = 0,
) -> Case:
    torch.manual_seed(seed)
    cell = GatedRecursiveCell(d, hidden_size=units, device=DEVICE)
    scorer: EntangledScorer | SlicedScorer
    if entangled:
        scorer = EntangledScorer(d, device=DEVICE)
    else:
        scorer = SlicedScorer(d, slice_size=s, hidden_size=hidden, device=DEVICE)
    with torch.no_grad():
        (scorer if isinstance(scorer, EntangledScorer) else scorer.out).weight *= scale
    nn.init.uniform_(cell.norm.weight, 0.5, 1.5)
    nn.init.uniform_(cell.norm.bias, -0.5, 0.5)
    leaves = torch.randn(len(lengths), max(lengths), d, device=DEVICE).requires_grad_()
    return Case(
        leaves, torch.tensor(lengths, device=DEVICE), cell, scorer, torch.tensor(2**61 + seed, device=DEVICE)
    )


def run(case: Case, K: int, *, noisy: bool, dropout: float, need_nodes: bool = False) -> tuple[Tensor, ...]:
    """Roots, relative scores, inner nodes, offset and merges."""
    from beamtree.kernels import fused_recursion as fused

    options = (K, noisy, dropout, torch.float32, need_nodes)
    call = fused.FusedSearchCall(case.leaves, case.lengths, case.seed, *options, case.weights)
    return fused.fused_recursion(call)


def plain_search(
    case: Case, K: int, *, noisy: bool, dropout: float, need_nodes: bool = True
) -> tuple[Tensor, ...]:
    """The same by the plain engine, which tests/engine holds to the published algorithm and to autograd."""
    options = (K, case.seed, noisy, dropout, None, None, need_nodes, torch.float32)
    *found, history, links = torch.ops.beamtree.search(case.leaves, case.lengths, case.weights, *options)[:6]
    return *found, merge_positions(links, history)


def assert_gradients_agree(case: Case, mine: Tensor, theirs: Tensor, rtol: float) -> None:
    inputs = [case.leaves, *case.weights]
    got = torch.autograd.grad(mine, inputs)
    expected = torch.autograd.grad(theirs, inputs, allow_unused=True, materialize_grads=True)
    for a, b in zip(got[:-1], expected[:-1], strict=True):
        assert (a - b).norm() <= rtol * b.norm() + 1e-6
    torch.testing.assert_close(got[-1], torch.zeros_like(got[-1]), atol=1e-3, rtol=0)  # a shift of all scores
