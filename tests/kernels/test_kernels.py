"""The Triton kernels do what the published algorithm does; both sides draw the same random numbers.

Without a GPU they run in Triton's interpreter, on small shapes, and with one launch for each phase of a level
where a GPU has one for all.
"""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, Case, assert_gradients_agree, make_case, plain_search, run
from torch import Tensor

from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.engine.operators import by_kernels
from beamtree.engine.record import Options
from beamtree.kernels import fused_recursion as fused
from beamtree.kernels.replay import beam_replay, cell_replay, replay_plan
from beamtree.kernels.runtime import address_kernels as table
from beamtree.kernels.runtime import math_kernels
from beamtree.kernels.search import finish_kernels, fused_search, plan
from beamtree.parts.weights import Weights

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's log(0)
    pytest.mark.usefixtures("few_programs"),
]


def compare(
    case: Case, K: int, *, noisy: bool, dropout: float, atol: float = 2e-5, rtol: float = 1e-4
) -> None:
    """Trees, scores, roots and all gradients against the naive algorithm."""
    roots, relative, _, offset, merges = run(case, K, noisy=noisy, dropout=dropout)
    expected_roots, expected_scores, expected_merges = naive_beam_tree_recursion(
        case.leaves,
        case.lengths,
        case.cell,
        case.scorer,
        beam_size=K,
        seed=case.seed,
        noisy=noisy,
        dropout=dropout,
    )
    beams = expected_scores.shape[1]
    alive = expected_scores > -torch.inf
    assert torch.equal(relative[:, :beams] > -torch.inf, alive)
    assert (relative[:, beams:] == -torch.inf).all()
    assert torch.equal(merges[:, :beams][alive], expected_merges[alive])
    assert (merges[relative == -torch.inf] == -1).all()
    assert (roots[relative == -torch.inf] == 0).all()
    assert (relative[:, 0] == 0).all()
    scores = relative + offset.unsqueeze(1)
    torch.testing.assert_close(scores[:, :beams][alive].float(), expected_scores[alive], atol=atol, rtol=rtol)
    torch.testing.assert_close(roots[:, :beams][alive], expected_roots[alive], atol=atol, rtol=rtol)

    to_roots, to_scores = torch.randn_like(roots), torch.randn_like(relative)
    mine = (roots * to_roots).sum() + relative[relative > -torch.inf] @ to_scores[relative > -torch.inf]
    theirs = (expected_roots * to_roots[:, :beams])[alive].sum() + expected_scores[alive] @ to_scores[
        :, :beams
    ][alive]
    assert_gradients_agree(case, mine, theirs, rtol)


def test_training_with_noise_and_dropout_agrees_with_the_naive_algorithm() -> None:
    compare(make_case([6, 4, 1, 2], units=72), 3, noisy=True, dropout=0.2)


def test_evaluation_agrees_with_the_naive_algorithm() -> None:
    compare(make_case([5, 3], 20, s=20), 2, noisy=False, dropout=0.0)


@pytest.mark.parametrize(("lengths", "K"), [([5, 3, 1], 3), ([1], 2)])
def test_inner_nodes_and_their_gradients_are_the_plain_engines(lengths: list[int], K: int) -> None:
    case = make_case(lengths)
    found = run(case, K, noisy=True, dropout=0.2, need_nodes=True)
    expected = plain_search(case, K, noisy=True, dropout=0.2)
    torch.testing.assert_close(found[2], expected[2], atol=2e-5, rtol=1e-4)
    cotangents = [torch.randn_like(x) for x in found[:3]]
    cotangents[1].masked_fill_(found[1] == -torch.inf, 0.0)
    inputs = [case.leaves, *case.weights]
    got = torch.autograd.grad(found[:3], inputs, cotangents)
    for mine, theirs in zip(got, torch.autograd.grad(expected[:3], inputs, cotangents), strict=True):
        assert (mine - theirs).norm() <= 1e-4 * theirs.norm() + 1e-5


def test_without_a_gradient_the_results_are_the_same() -> None:
    case = make_case([3, 1])
    found = run(case, 2, noisy=True, dropout=0.2, need_nodes=True)
    with torch.no_grad():
        again = run(case, 2, noisy=True, dropout=0.2, need_nodes=True)
    for one, other in zip(found, again, strict=True):
        assert torch.equal(one, other)


def test_repeated_tokens_tie_as_on_the_cpu() -> None:
    case = make_case([6, 5])
    with torch.no_grad():
        case.leaves.copy_(torch.randn(2, 16, device=DEVICE)[torch.randint(2, (2, 6))])
    found = run(case, 3, noisy=False, dropout=0.0)
    expected = plain_search(case, 3, noisy=False, dropout=0.0)
    assert torch.equal(found[4], expected[4])
    torch.testing.assert_close(found[1], expected[1], atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(DEVICE == "cuda", reason="a compiled kernel's constants do not change")
def test_long_lineages_are_read_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.language import constexpr

    for module in (finish_kernels, fused_search):
        monkeypatch.setattr(module, "STRETCH", constexpr(2))
    compare(make_case([5, 4]), 2, noisy=False, dropout=0.0)


BOTH = pytest.mark.parametrize("entangled", [False, True], ids=["sliced", "entangled"])


def test_one_beam_is_greedy() -> None:
    compare(make_case([4]), 1, noisy=False, dropout=0.0)


@BOTH
def test_one_beam_gives_the_scorer_a_zero_gradient(entangled: bool) -> None:
    case = make_case([4], entangled=entangled)
    roots, *_ = run(case, 1, noisy=False, dropout=0.0)
    grads = torch.autograd.grad(roots.square().sum(), case.weights[6:])
    assert all((g == 0).all() for g in grads)


@pytest.mark.parametrize("length", [1, 2])
def test_the_shortest_sequences_need_no_choice(length: int) -> None:
    compare(make_case([length]), 3, noisy=True, dropout=0.1)


def test_a_list_in_chunks_gives_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SHORT_CHUNK", 2)
    monkeypatch.setattr(plan, "CHUNK", 4)
    monkeypatch.setattr(plan, "LONG_CHUNK", 4)
    compare(make_case([7]), 2, noisy=True, dropout=0.1)


def test_a_wide_scorer_has_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.SearchPlan, "narrow", False)
    compare(make_case([4, 3], s=None, hidden=None), 2, noisy=True, dropout=0.1)


def test_the_librarys_products_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_replay, "WIDEST_FUSED", 8)
    compare(make_case([5, 4]), 2, noisy=True, dropout=0.1)


def test_the_graphs_of_a_gradient_hold_all_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU what a graph would replay is run, with the heights that only the interpreter asks for."""
    heights: list[Tensor] = []
    find, descend = beam_replay.find_survivors, replay_plan.ReplayPlan.descend

    def finding(*arguments: Any, **options: Any) -> Any:
        some = find(*arguments, **options)
        heights.append(some.height)
        return some

    def graphs_for(plan: replay_plan.ReplayPlan, device: torch.device) -> SimpleNamespace:
        empty = torch.zeros(table.SIZE, dtype=torch.int64, device=device)
        parts = {name: partial(part, empty) for name, part in plan.parts().items()}
        for part in parts.values():
            part()
        assert not empty.any()
        return SimpleNamespace(lock=nullcontext(), table=empty, parts=parts)

    def descending(plan: replay_plan.ReplayPlan, slots: Tensor, height: Tensor) -> None:
        descend(plan, slots, heights[-1] if slots.any() else height)

    monkeypatch.setattr(beam_replay, "find_survivors", finding)
    monkeypatch.setattr(beam_replay, "graphs_for", graphs_for)
    monkeypatch.setattr(beam_replay, "replays_graphs", lambda x: True)
    monkeypatch.setattr(replay_plan.ReplayPlan, "descend", descending)
    compare(make_case([5, 3, 1]), 2, noisy=True, dropout=0.1)
    monkeypatch.setattr(beam_replay, "are_few", lambda N, d, units: False)
    compare(make_case([4, 3]), 2, noisy=True, dropout=0.1)
    assert heights


@pytest.mark.parametrize("wide", [False, True])
def test_levels_in_large_tiles_give_the_same_gradient(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_replay, "has_large_levels", lambda some, units: True)
    compare(make_case([4, 3], 130 if wide else 16), 2, noisy=True, dropout=0.1)


def test_weights_get_the_same_gradient_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[tuple[int, int]] = []
    outputs = cell_replay.CellStages.outputs

    def noting(
        stages: cell_replay.CellStages, addresses: dict[str, int], *arguments: Any, **options: Any
    ) -> Any:
        flat = outputs(stages, addresses, *arguments, **options)
        splits.append((addresses["scorer_splits"], addresses["cell_splits"]))
        return flat

    monkeypatch.setattr(math_kernels, "LEAST", 8)
    monkeypatch.setattr(math_kernels, "BLOCK_R", 16)
    monkeypatch.setattr(cell_replay, "BLOCK_R", 16)
    monkeypatch.setattr(cell_replay.CellStages, "outputs", noting)
    compare(make_case([9, 9], units=4), 3, noisy=True, dropout=0.1)
    assert all(of_scorer > 1 and of_cell > 1 for of_scorer, of_cell in splits)


def test_a_deterministic_gradient_is_the_same_gradient() -> None:
    case = make_case([5, 3])
    torch.use_deterministic_algorithms(True)
    try:
        compare(case, 2, noisy=True, dropout=0.1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_equal_scores_go_to_the_lower_beam_and_position() -> None:
    case = make_case([5])
    with torch.no_grad():
        case.scorer.out.weight.zero_()
    *_, merges = run(case, 3, noisy=False, dropout=0.0)
    *_, expected = naive_beam_tree_recursion(case.leaves, case.lengths, case.cell, case.scorer, beam_size=3)
    assert torch.equal(merges, expected)


@BOTH
def test_nan_in_a_sequence_stays_there(entangled: bool) -> None:
    case = make_case([4, 3], entangled=entangled)
    clean, *_ = run(case, 2, noisy=False, dropout=0.0)
    with torch.no_grad():
        case.leaves[0, 1] = torch.nan
    roots, relative, *_ = run(case, 2, noisy=False, dropout=0.0)
    assert torch.equal(roots[1], clean[1])
    assert relative[0].softmax(0).isnan().any() or roots[0].isnan().any()
    (grad,) = torch.autograd.grad(roots[1].sum() + relative[1].softmax(0)[0], case.leaves)
    assert grad[1].isfinite().all()


@pytest.mark.parametrize("broken", [False, True])
def test_gradients_read_nothing_that_no_step_made(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([6, 3, 1, 5])
    if broken:
        with torch.no_grad():
            case.leaves[3, 2] = torch.nan

    def gradients() -> tuple[Tensor, ...]:
        roots, relative, *_ = run(case, 3, noisy=True, dropout=0.2)
        mean = (relative.softmax(1).unsqueeze(-1) * roots).sum(1)
        return torch.autograd.grad(mean[:3].square().sum() + mean[3].sum(), [case.leaves, *case.weights])

    expected, tape_of = gradients(), fused.FusedTape.of

    def filled(*given: Any) -> fused.FusedTape:
        tape = tape_of(*given)
        for x in tape:
            x.fill_(torch.nan if x.is_floating_point() else 2**30)
        return tape

    monkeypatch.setattr(fused.FusedTape, "of", filled)
    torch.testing.assert_close(gradients(), expected, atol=1e-5, rtol=1e-4, equal_nan=True)


def test_an_empty_table_is_a_step_that_does_nothing() -> None:
    empty = torch.zeros(table.SIZE, dtype=torch.int64, device=DEVICE)
    for rows, s, hidden in ((1, 8, 12), (40, 8, 12), (2, 0, 0)):  # sliced, and entangled
        steps = plan.SearchPlan(rows, 2, 16, s, hidden, 64, 1, 128, True, True, "tf32x3", False)
        for part in (steps.begin, steps.finish):
            part(empty)
        steps.step(empty, 0)
    assert not empty.any()


def test_graphs_make_all_steps_and_at_most_three_in_vain() -> None:
    for steps in range(200):
        made = fused_search.sizes(steps)
        assert 0 <= sum(made) - steps <= 3
        assert len(made) <= steps // 32 + 5


def test_a_second_derivative_is_refused() -> None:
    case = make_case([3])
    roots, *_ = run(case, 2, noisy=False, dropout=0.0)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(roots.sum(), case.leaves, create_graph=True)


def test_the_operators_agree_with_their_descriptions() -> None:
    case = make_case([3, 2])
    arguments = (case.leaves, case.lengths, case.seed, 2, True, 0.1, torch.float32, True, case.weights)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    if DEVICE == "cuda":
        tests = (*tests, "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.beamtree.fused_search, arguments, test_utils=tests)
    roots, relative, inner, _, _, *tape = torch.ops.beamtree.fused_search(*arguments)
    inputs = [case.leaves, *case.weights]
    grads = torch.autograd.grad(roots.sum() + relative[:, 0].sum() + inner.square().sum(), inputs)
    again = run(case, 2, noisy=True, dropout=0.1, need_nodes=True)
    expected = torch.autograd.grad(again[0].sum() + again[1][:, 0].sum() + again[2].square().sum(), inputs)
    torch.testing.assert_close(grads, expected, atol=1e-6, rtol=1e-5)
    detached = [x.detach() for x in (roots, relative, inner, relative, case.lengths, case.seed)]
    arguments = (
        *detached,
        case.leaves.shape[1],
        0.1,
        torch.float32,
        [x.detach() for x in tape],
        [w.detach() for w in case.weights],
    )
    torch.library.opcheck(
        torch.ops.beamtree.fused_replay, arguments, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize(
    ("leaves", "beam_size"),
    [
        (torch.zeros(2, 3, 32), 5),
        (torch.zeros(2, 3, 32, dtype=torch.float64), 5),
        (torch.zeros(2, 3, 32), 33),
        (torch.zeros(2, 3, 8), 5),
        (torch.zeros(0, 3, 32), 5),
    ],
)
def test_what_the_kernels_do_not_cover_is_left_to_the_plain_engine(leaves: Tensor, beam_size: int) -> None:
    case = make_case([3])
    covered = leaves.to(DEVICE)
    wanted = (
        DEVICE == "cuda" and beam_size == 5 and leaves.dtype == torch.float32 and leaves.shape[::2] == (2, 32)
    )
    assert fused.supports(covered, case.weights, beam_size) == wanted


@pytest.mark.parametrize("entangled", [False, True], ids=["sliced", "entangled"])
def test_the_recursion_hands_its_options_to_the_kernels_where_there_are_any(
    entangled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "supports", lambda leaves, weights, beam_size: beam_size < 3)
    case = make_case([3, 2], entangled=entangled)

    def found(**changes: Any) -> tuple[Tensor, ...] | None:
        options = Options(2, case.seed, True, 0.3, None, None, need_nodes=True)._replace(**changes)
        weights = Weights.of(case.weights)
        return by_kernels(case.leaves, case.lengths, weights, options, torch.float32)

    for noisy, dropout, seed in ((True, 0.3, case.seed), (False, 0.0, None)):
        expected = run(case, 2, noisy=noisy, dropout=dropout, need_nodes=True)
        searched = found(noisy=noisy, dropout=dropout, seed=seed)
        assert all(torch.equal(mine, other) for mine, other in zip(searched, expected, strict=True))
        followed = found(merges=searched[4][:, -1], noisy=noisy, dropout=dropout, seed=seed)
        if entangled:
            assert followed is None
        else:
            assert torch.equal(followed[4][:, 0], searched[4][:, -1])
            assert (followed[0].shape[1], followed[2].shape) == (1, (2, 1, 2, 16))
    assert found(beam_size=3) is None
    assert found(pins=torch.zeros(2, 1, 2, dtype=torch.int64)) is None
