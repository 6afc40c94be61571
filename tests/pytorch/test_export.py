"""An exported encoder is a plain graph that gives the eager outputs at any batch size and length."""

import io
from collections.abc import Iterator

import pytest
import torch
from exported import in_plain_loops, plain_loop
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from beamtree import BeamTreeEncoder
from beamtree.engine import export as exporting
from beamtree.pytorch import tracing as traced_loop

D = 6
SIZES = {"x": {0: Dim("batch", min=1), 1: Dim("length", min=2)}}
SIZES_WITH_MASK = {**SIZES, "key_padding_mask": SIZES["x"]}


def encoder(**options: object) -> BeamTreeEncoder:
    torch.manual_seed(0)
    return BeamTreeEncoder(D, dtype=torch.float64, **options).eval()


def batch(B: int, n: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(B * 100 + n)
    lengths = torch.randint(1, n + 1, (B, 1))
    return torch.randn(B, n, D, dtype=torch.float64), torch.arange(n) >= lengths


def operators(graph_module: nn.Module) -> Iterator[str]:
    """Names of all operators, those inside loops included."""
    for module in graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if node.op == "call_function":
                yield str(node.target)


def assert_agrees(program: ExportedProgram, eager: nn.Module, B: int, n: int) -> None:
    x, is_padding = batch(B, n)
    found = program.module()(x, key_padding_mask=is_padding)
    torch.testing.assert_close(found, eager(x, key_padding_mask=is_padding), rtol=0, atol=1e-10)


@pytest.mark.parametrize("beam_size", [1, 3, 5])
@pytest.mark.parametrize(
    "lengths", [[1], [2], [3], [2, 1], [7, 4, 1, 2, 3, 6], [12, 12, 5]], ids=str
)  # n ≥ 2 is wanted, so one token comes with padding
def test_the_loop_finds_what_the_search_finds(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], beam_size: int
) -> None:
    monkeypatch.setattr(traced_loop, "while_loop", plain_loop)
    model = encoder(beam_size=beam_size)
    n = max(2, *lengths)
    x = torch.randn(len(lengths), n, D, dtype=torch.float64)
    is_padding = torch.arange(n) >= torch.tensor(lengths)[:, None]
    parts = (model.leaf(x), torch.tensor(lengths), model.cell, model.scorer)
    found = exporting.search_in_a_loop(*parts, beam_size=beam_size)
    torch.testing.assert_close(found.root(), model(x, key_padding_mask=is_padding), rtol=0, atol=1e-10)


@pytest.mark.parametrize("beam_size", [1, 3, 5])
def test_the_loop_remembers_all_nodes_and_merges(monkeypatch: pytest.MonkeyPatch, beam_size: int) -> None:
    model = encoder(beam_size=beam_size)
    x, is_padding = batch(7, 8)
    wanted = model.forest(x, is_padding)
    in_plain_loops(monkeypatch)
    found = model.forest(x, is_padding)
    assert torch.equal(found.trees.merges, wanted.trees.merges)
    for name in ("spans", "heights", "children"):
        assert torch.equal(getattr(found.trees, name), getattr(wanted.trees, name))
    torch.testing.assert_close(found.trees.log_scores, wanted.trees.log_scores, rtol=0, atol=1e-10)
    torch.testing.assert_close(found[:3], wanted[:3], rtol=0, atol=1e-10)


def test_the_loop_breaks_ties_as_the_search_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_loop, "while_loop", plain_loop)
    model = encoder()
    x = torch.randn(2, D, dtype=torch.float64)[torch.randint(0, 2, (8, 9))]
    parts = (model.leaf(x), torch.full((8,), 9), model.cell, model.scorer)
    found = exporting.search_in_a_loop(*parts, beam_size=5)
    torch.testing.assert_close(found.root(), model(x), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_an_exported_encoder_agrees_at_other_batch_sizes_and_lengths() -> None:
    model = encoder()
    x, is_padding = batch(3, 5)
    program = export(model, (x,), {"key_padding_mask": is_padding}, dynamic_shapes=SIZES_WITH_MASK)
    for B, n in [(3, 5), (1, 2), (2, 2), (1, 7), (5, 3), (4, 19)]:
        assert_agrees(program, model, B, n)
    names = set(operators(program.graph_module))
    assert "while_loop" in names
    assert not any("beamtree" in name or "autocast" in name for name in names)

    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    assert_agrees(torch.export.load(saved), model, 2, 6)


@pytest.mark.slow
def test_an_encoder_without_mask_and_with_a_users_cell_exports() -> None:
    class Mean(nn.Module):
        def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
            return (left + right) / 2

    model = encoder(cell=Mean())
    x, _ = batch(3, 5)
    export(model, (x,))  # of one size, which must not stick to the next
    program = export(model, (x,), dynamic_shapes=SIZES)
    x, _ = batch(2, 9)
    torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=1e-10)


def test_only_inference_can_be_exported() -> None:
    x, _ = batch(3, 5)
    with pytest.raises(RuntimeError, match=r"call eval\(\) on the encoder first"):
        export(encoder().train(), (x,), dynamic_shapes=SIZES)


@pytest.mark.parametrize(
    "option", [{"need_trees": True}, {"merges": torch.zeros(3, 4).long()}, {"pinned_spans": [[], [], []]}]
)
def test_what_cannot_be_exported_is_refused_by_name(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="need_trees, merges and pinned_spans cannot be exported"):
        export(encoder(), (batch(3, 5)[0],), option)
