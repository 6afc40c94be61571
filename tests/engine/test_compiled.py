"""The search in C leaves the record of the search in PyTorch; test_recursion.py compares both with the
published algorithm, gradients included."""

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from beamtree import BeamTreeEncoder
from beamtree.engine import compiled
from beamtree.engine.compiled import compiled_search, runs_in_c, why_not_compiled
from beamtree.engine.operators import search_parts, weights_of
from beamtree.engine.randomness import Randomness
from beamtree.engine.record import Tape
from beamtree.engine.search import search
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.parts.scorer import EntangledScorer, SlicedScorer
from beamtree.pytorch import threads

needs_c = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no search in C: {why_not_compiled()}")
pytestmark = needs_c

LENGTHS = [[1], [2], [3], [1, 1], [7, 12, 3, 1, 5, 2, 33, 12, 9, 33, 4]]
SEED = torch.tensor(2**61 + 12345)


def make_parts(
    d: int, scale: float, dtype: torch.dtype, **options: Any
) -> tuple[GatedRecursiveCell, SlicedScorer]:
    torch.manual_seed(0)
    cell = GatedRecursiveCell(d, hidden_size=options.pop("cell_hidden", None), dtype=dtype)
    scorer = SlicedScorer(d, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in (*cell.parameters(), *scorer.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
        scorer.out.weight *= scale
    return cell, scorer


def make_leaves(lengths: list[int], d: int, dtype: torch.dtype, kinds: int | None = None) -> Tensor:
    """Random tokens, or draws from so many kinds of them, which tie."""
    shape = len(lengths), max(lengths)
    if kinds is None:
        return torch.randn(*shape, d, dtype=dtype)
    return torch.randn(kinds, d, dtype=dtype)[torch.randint(kinds, shape)]


def run_both(
    leaves: Tensor,
    lengths: list[int],
    cell: GatedRecursiveCell,
    scorer: SlicedScorer,
    K: int = 5,
    noisy: bool = False,
    dropout: float = 0.0,
) -> tuple[Tape, Tape]:
    randomness = None
    if noisy or dropout > 0.0:
        randomness = Randomness(SEED, noisy, dropout, cell.hidden_size)
    at = torch.tensor(lengths)
    weights = weights_of(cell, scorer)
    assert runs_in_c(leaves, at, weights, leaves.dtype)
    in_c = compiled_search(leaves, at, weights, beam_size=K, randomness=randomness)
    parts = search_parts(cell, scorer, leaves)
    return in_c, search(leaves, at, *parts, beam_size=K, randomness=randomness)


def existing(tape: Tape) -> Tensor:
    """Which rows of `tape.nodes` hold a node: finished sequences leave their numbers unused."""
    made = tape.links.any(1)
    return torch.cat((made.new_ones(len(tape.nodes) - len(made)), made))


def assert_same_record(mine: Tape, theirs: Tape, lengths: list[int], tolerance: float) -> None:
    known = existing(theirs)
    merges = theirs.roots.shape[1] * sum(length - 1 for length in lengths)
    assert known.sum() == 1 + len(lengths) * max(lengths) + merges
    assert torch.equal(mine.links, theirs.links)
    assert torch.equal(mine.roots, theirs.roots)
    for one, other in (
        (mine.nodes[known], theirs.nodes[known]),
        (mine.ended, theirs.ended),
        (mine.relative, theirs.relative),
        (mine.offset, theirs.offset),
    ):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0], ids=["soft", "sharp", "sharpest"])
@pytest.mark.parametrize(("noisy", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.3), (True, 0.1)])
@pytest.mark.parametrize("kinds", [None, 1, 3], ids=["all differ", "one token", "three tokens"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_both_leave_the_same_record(
    lengths: list[int], kinds: int | None, noisy: bool, dropout: float, scale: float
) -> None:
    parts = make_parts(10, scale, torch.float64, slice_size=7)
    leaves = make_leaves(lengths, 10, torch.float64, kinds)
    if noisy and kinds is not None:
        lengths = [min(length, 2) for length in lengths]  # among equal noisy scores any may be taken
    both = run_both(leaves[:, : max(lengths)], lengths, *parts, noisy=noisy, dropout=dropout)
    assert_same_record(*both, lengths, 1e-9)


@pytest.mark.parametrize("K", [1, 2, 3, 8, 40, 120])
def test_both_leave_the_same_record_with_any_number_of_beams(K: int) -> None:
    lengths = [9, 4, 1, 13, 2]
    parts = make_parts(10, 1.0, torch.float64, slice_size=7)
    both = run_both(make_leaves(lengths, 10, torch.float64), lengths, *parts, K=K)
    assert_same_record(*both, lengths, 1e-9)


@pytest.mark.parametrize(
    ("d", "options"),
    [
        (1, {"slice_size": 1, "hidden_size": 1, "cell_hidden": 1}),
        (7, {"slice_size": None}),
        (64, {"slice_size": 64, "hidden_size": 200}),
        (65, {"slice_size": 33, "hidden_size": 3, "cell_hidden": 130}),
    ],
)
def test_both_leave_the_same_record_with_any_sizes(d: int, options: dict[str, Any]) -> None:
    lengths = [9, 14, 1, 6]
    parts = make_parts(d, 1.0, torch.float64, **options)
    both = run_both(make_leaves(lengths, d, torch.float64), lengths, *parts, dropout=0.2)
    assert_same_record(*both, lengths, 1e-9)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_in_single_precision_c_is_as_accurate_as_pytorch(dropout: float) -> None:
    lengths = [30, 17, 30, 8]
    parts = make_parts(128, 1.0, torch.float32)
    exact_parts = tuple(copy.deepcopy(part).double() for part in parts)
    leaves = make_leaves(lengths, 128, torch.float32)
    in_c, in_pytorch = run_both(leaves, lengths, *parts, dropout=dropout)
    exact, _ = run_both(leaves.double(), lengths, *exact_parts, dropout=dropout)
    assert torch.equal(in_c.links, exact.links)
    assert torch.equal(in_pytorch.links, exact.links)
    known = existing(exact)

    def error(tape: Tape) -> float:
        return float((tape.nodes.double() - exact.nodes)[known].abs().mean())

    assert error(in_c) < 1.5 * error(in_pytorch)


def test_extreme_activations_stay_what_they_are_in_single_precision() -> None:
    """Where exp and erf run out of float32's range: saturated gates, GELU of large numbers."""
    cell, scorer = make_parts(16, 1.0, torch.float32)
    with torch.no_grad():
        for weight in (cell.w1.weight, cell.w2.weight, scorer.hidden.weight):
            weight *= 300.0
    leaves = make_leaves([12, 5], 16, torch.float32)
    in_c, in_pytorch = run_both(leaves, [12, 5], cell, scorer)
    assert in_c.nodes[existing(in_c)].isfinite().all()
    first = slice(1 + 24, 1 + 24 + 10)  # later ones may follow other trees: such scores leave float32's reach
    torch.testing.assert_close(in_c.nodes[first], in_pytorch.nodes[first], rtol=1e-3, atol=1e-3)


def test_weights_that_are_not_finite_give_roots_that_are_not() -> None:
    cell, scorer = make_parts(8, 1.0, torch.float64)
    leaves, lengths = make_leaves([9, 4], 8, torch.float64), [9, 4]
    for parameter in (cell.w1.weight, scorer.out.weight):
        broken = copy.deepcopy(cell), copy.deepcopy(scorer)
        place = broken[0].w1.weight if parameter is cell.w1.weight else broken[1].out.weight
        with torch.no_grad():
            place[0, 0] = torch.nan
        in_c, in_pytorch = run_both(leaves, lengths, *broken)
        for tape in (in_c, in_pytorch):
            weights = tape.relative.softmax(1).unsqueeze(-1)
            assert (weights * tape.nodes[tape.roots]).sum(1).isnan().any()


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lets small work count as worth a thread; the threads that took part."""
    before, names, library = torch.get_num_threads(), [], compiled._library

    class Noting:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def advance(self, *arguments: Any) -> None:
            names.append(threading.current_thread().name)
            self.inner.advance(*arguments)

    monkeypatch.setattr(threads, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(compiled, "_library", lambda dtype: Noting(library(dtype)))
    torch.set_num_threads(3)
    yield names
    torch.set_num_threads(before)


def test_threads_change_nothing(three_threads: list[str]) -> None:
    lengths = [7, 12, 3, 1, 5, 2, 20, 12, 9, 20, 4] * 8
    parts = make_parts(10, 10.0, torch.float32)
    leaves = make_leaves(lengths, 10, torch.float32, kinds=4)
    torch.set_num_threads(1)
    one, _ = run_both(leaves, lengths, *parts, dropout=0.1)
    assert set(three_threads) == {threading.current_thread().name}
    torch.set_num_threads(3)
    three, _ = run_both(leaves, lengths, *parts, dropout=0.1)
    known = existing(one)
    for mine, theirs in zip(three, one._replace(nodes=one.nodes[known]), strict=True):
        assert torch.equal(mine[known] if mine is three.nodes else mine, theirs)


def test_one_sequence_runs_on_the_callers_thread(three_threads: list[str]) -> None:
    parts = make_parts(10, 1.0, torch.float64)
    run_both(make_leaves([30], 10, torch.float64), [30], *parts)
    assert three_threads == [threading.current_thread().name]


def test_what_c_does_not_cover_is_left_to_pytorch() -> None:
    cell, scorer = make_parts(8, 1.0, torch.float32)
    leaves, lengths = make_leaves([5, 3], 8, torch.float32), torch.tensor([5, 3])
    weights = weights_of(cell, scorer)

    def covers(leaves: Tensor = leaves, lengths: Tensor = lengths, **other: Any) -> bool:
        return runs_in_c(leaves, lengths, other.get("weights", weights), other.get("products", leaves.dtype))

    assert covers()
    assert not covers(products=torch.bfloat16)  # autocast
    assert not covers(leaves.bfloat16())
    assert not covers(leaves.double())
    assert not covers(leaves.to("meta"))
    assert not covers(leaves[:0], lengths[:0])
    assert not covers(weights=weights_of(cell, EntangledScorer(8)))
    # Nothing that does not fit reaches C, which would read beside it.
    assert not covers(leaves[..., :6])
    assert not covers(weights=weights_of(GatedRecursiveCell(9), scorer))
    assert not covers(weights=weights_of(cell, SlicedScorer(9)))
    for wrong in ([5], [5, 3, 1], [5, 0], [6, 3], [-1, 3]):
        assert not covers(lengths=torch.tensor(wrong))
    assert not covers(lengths=lengths.int())


def test_the_encoder_searches_in_c_unless_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, share = [], compiled.share
    monkeypatch.setattr(compiled, "share", lambda *of: (calls.append(of[0]), share(*of)))
    torch.manual_seed(0)
    encoder, x = BeamTreeEncoder(16).eval(), torch.randn(2, 9, 16)
    in_c = encoder(x)
    assert calls == [2]
    monkeypatch.setenv("BEAMTREE_COMPILE", "0")
    torch.testing.assert_close(encoder(x), in_c, rtol=0, atol=1e-5)
    assert len(calls) == 1
    monkeypatch.delenv("BEAMTREE_COMPILE")
    encoder(x, pinned_spans=[[(0, 2)], []])
    encoder(x, merges=torch.zeros(2, 8, dtype=torch.int64))
    with torch.autocast("cpu", torch.bfloat16):
        encoder(x)
    assert len(calls) == 1
