"""The gated recursive cell: its formula by hand, and its written-out derivative against autograd."""

import math

import pytest
import torch
from torch import Tensor

from beamtree import GatedRecursiveCell
from beamtree.engine.built_in_parts import GatedCell
from beamtree.parts.weights import CellWeights

D = 5


def cell(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> GatedRecursiveCell:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(D, dropout=dropout, dtype=dtype)
    with torch.no_grad():
        cell.norm.weight.uniform_(0.5, 2)
        cell.norm.bias.uniform_(-1, 1)
    return cell


def children(*shape: int) -> tuple[Tensor, Tensor]:
    left, right = torch.randn(2, *shape, D, dtype=torch.float64)
    return left, right


def normalise(row: list[float], weight: list[float], bias: list[float]) -> list[float]:
    mean = sum(row) / len(row)
    variance = sum((value - mean) ** 2 for value in row) / len(row)
    return [
        (v - mean) / math.sqrt(variance + 1e-5) * w + b for v, w, b in zip(row, weight, bias, strict=True)
    ]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("masked", [False, True])
def test_the_parent_is_the_formula_number_by_number(masked: bool) -> None:
    model = cell()
    left, right = children()
    keep = torch.randint(0, 2, (4 * D,)).double() * 2 if masked else None
    pair = [*left.tolist(), *right.tolist()]
    hidden = []
    for row, bias in zip(model.w1.weight.tolist(), model.w1.bias.tolist(), strict=True):
        h = sum(w * x for w, x in zip(row, pair, strict=True)) + bias
        hidden.append(0.5 * h * (1 + math.erf(h / math.sqrt(2))))
    if keep is not None:
        hidden = [h * k for h, k in zip(hidden, keep.tolist(), strict=True)]
    gates = [
        sum(w * u for w, u in zip(row, hidden, strict=True)) + bias
        for row, bias in zip(model.w2.weight.tolist(), model.w2.bias.tolist(), strict=True)
    ]
    to_left, to_right, to_content, content = (gates[i * D : (i + 1) * D] for i in range(4))
    mixed = [
        sigmoid(to_left[i]) * pair[i]
        + sigmoid(to_right[i]) * pair[D + i]
        + sigmoid(to_content[i]) * content[i]
        for i in range(D)
    ]
    expected = normalise(mixed, model.norm.weight.tolist(), model.norm.bias.tolist())
    assert model(left, right, keep).tolist() == pytest.approx(expected, abs=1e-12)


def test_rows_are_composed_independently_of_each_other() -> None:
    model = cell()
    left, right = children(3, 4)
    parents = model(left, right)
    assert parents.shape == (3, 4, D)
    for i in range(3):
        for j in range(4):
            torch.testing.assert_close(parents[i, j], model(left[i, j], right[i, j]), rtol=0, atol=1e-13)


def test_a_mask_is_drawn_in_training_only() -> None:
    model = cell(dropout=0.25)
    keep = model.draw_keep(300, 7)
    assert keep.shape == (300, 7, 4 * D)
    assert keep.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(keep.mean()) == pytest.approx(1, abs=5 * math.sqrt(1 / 3 / keep.numel()))
    assert model.eval().draw_keep(3) is None
    assert cell().draw_keep(3) is None
    model.train()
    drawn = [model.draw_keep(9, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*drawn)


def test_half_precision_rounds_the_parents_but_not_the_norm() -> None:
    left, right = (x.bfloat16() for x in children(50))
    rounded = cell().bfloat16()
    parents = rounded(left, right)
    assert parents.dtype == torch.bfloat16
    exact = rounded.double()(left.double(), right.double())
    torch.testing.assert_close(parents.double(), exact, rtol=0, atol=0.03)


def test_its_description_names_its_settings() -> None:
    assert "d_model=5, hidden_size=20, dropout=0.1" in repr(GatedRecursiveCell(5, dropout=0.1))
    assert GatedRecursiveCell(5, hidden_size=7).w1.weight.shape == (7, 10)
    with pytest.raises(ValueError, match="d_model must be at least 1, got 0"):
        GatedRecursiveCell(0)


@pytest.mark.parametrize("masked", [False, True])
def test_the_written_out_derivative_is_autograds(masked: bool) -> None:
    model = cell()
    rows = 9
    pair = torch.randn(rows, 2, D, dtype=torch.float64, requires_grad=True)
    keep = torch.randint(0, 2, (rows, 4 * D)).double() * 2 if masked else None
    grad = torch.randn(rows, D, dtype=torch.float64)
    parents = model(pair[:, 0], pair[:, 1], keep)
    expected = torch.autograd.grad(parents, [pair, *model.parameters()], grad)

    function = GatedCell(CellWeights(*(p.detach() for p in model.parameters())), torch.float64)
    torch.testing.assert_close(function(pair.detach(), keep), parents.detach(), rtol=0, atol=1e-13)
    function.recompute(pair.detach(), keep)
    torch.testing.assert_close(function.recomputed(), parents.detach(), rtol=0, atol=1e-13)
    levels = [slice(4, 9), slice(0, 1), slice(1, 4)]  # a level at a time, in any order
    found = torch.cat([function.pull(rows, grad[rows]) for rows in levels])
    order = [row for level in levels for row in range(level.start, level.stop)]
    torch.testing.assert_close(found, expected[0][order], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(function.parameter_gradients(grad), expected[1:], rtol=1e-10, atol=1e-12)


def test_with_rounded_products_the_function_is_the_cell_under_autocast() -> None:
    model = cell(dtype=torch.float32)
    pair = torch.randn(20, 2, D)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(pair[:, 0], pair[:, 1])
    function = GatedCell(CellWeights(*(p.detach() for p in model.parameters())), torch.bfloat16)
    found = function(pair, None)
    assert found.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-5)
