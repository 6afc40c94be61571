"""BT-GRC's kernels against the plain engine and the published algorithm; without a GPU in the interpreter."""

from functools import partial

import pytest
import torch
from kernel_cases import Case, assert_gradients_agree, make_case, plain_search, run
from small_encoders import ThroughTheCell

from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.kernels import entangled_kernels
from beamtree.kernels.search import plan

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's log(0)
    pytest.mark.usefixtures("few_programs"),
]


make = partial(make_case, entangled=True)


def compare(
    case: Case, K: int, *, noisy: bool, dropout: float, need_nodes: bool = False, rtol: float = 1e-4
) -> None:
    """Trees, scores, roots, inner nodes and all gradients."""
    got = run(case, K, noisy=noisy, dropout=dropout, need_nodes=need_nodes)
    expected = plain_search(case, K, noisy=noisy, dropout=dropout, need_nodes=need_nodes)
    alive = expected[1] > -torch.inf
    assert torch.equal(got[1] > -torch.inf, alive)
    assert torch.equal(got[4], expected[4])
    for part in (0, 2):
        torch.testing.assert_close(got[part], expected[part], atol=2e-5, rtol=rtol)
    scores, expected_scores = ((x[1] + x[3].unsqueeze(1))[alive] for x in (got, expected))
    torch.testing.assert_close(scores, expected_scores, atol=2e-5, rtol=rtol)

    to_roots, to_scores, to_inner = (torch.randn_like(x) for x in got[:3])
    mine, theirs = (
        (x[0] * to_roots).sum() + x[1][alive] @ to_scores[alive] + (x[2] * to_inner).sum()
        for x in (got, expected)
    )
    assert_gradients_agree(case, mine, theirs, rtol)


def test_training_with_noise_and_dropout_agrees_with_the_plain_engine() -> None:
    compare(make([4, 1, 2], 20, units=20), 3, noisy=True, dropout=0.2)


def test_inner_nodes_and_their_gradients_agree_with_the_plain_engine() -> None:
    compare(make([3, 2]), 2, noisy=True, dropout=0.2, need_nodes=True)


@pytest.mark.parametrize("noisy", [False, True])
def test_without_dropout_it_is_the_published_algorithm(noisy: bool) -> None:
    case = make([4, 3])
    roots, relative, _, offset, merges = run(case, 2, noisy=noisy, dropout=0.0)
    scorer = ThroughTheCell(case.cell, case.scorer)
    expected_roots, scores, expected_merges = naive_beam_tree_recursion(
        case.leaves, case.lengths, case.cell, scorer, beam_size=2, seed=case.seed, noisy=noisy
    )
    assert torch.equal(merges, expected_merges)
    torch.testing.assert_close((relative + offset.unsqueeze(1)).float(), scores, atol=2e-5, rtol=1e-4)
    mine = (relative.softmax(1).unsqueeze(-1) * roots).sum(1)
    theirs = (scores.softmax(1).unsqueeze(-1) * expected_roots).sum(1)
    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)
    cotangent = torch.randn_like(mine)
    assert_gradients_agree(case, (mine * cotangent).sum(), (theirs * cotangent).sum(), 1e-4)


@pytest.mark.parametrize("length", [1, 2])
def test_the_shortest_sequences_need_no_choice(length: int) -> None:
    compare(make([length]), 3, noisy=True, dropout=0.1)


def test_large_logits_agree_with_the_plain_engine() -> None:
    compare(make([4], scale=300.0), 2, noisy=False, dropout=0.1)


def test_rows_a_few_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entangled_kernels, "ROWS_AT_ONCE", 3)
    compare(make([4]), 2, noisy=False, dropout=0.2)


def test_a_list_in_chunks_gives_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SHORT_CHUNK", 2)
    monkeypatch.setattr(plan, "CHUNK", 4)
    compare(make([6]), 2, noisy=True, dropout=0.1)


def test_deepest_trees_agree_with_the_plain_engine() -> None:
    case = make([5])
    with torch.no_grad():  # the score grows with how much of the first leaf is in a node
        case.leaves[:, :, 0] = 0
        case.leaves[:, 0, 0] = 30
        case.scorer.weight.zero_()
        case.scorer.weight[0, 0] = 10
        case.cell.norm.weight.fill_(1)
        case.cell.w2.bias.zero_()
    *_, merges = run(case, 2, noisy=False, dropout=0.0)
    assert (merges[:, 0][merges[:, 0] >= 0] == 0).all()
    compare(case, 2, noisy=False, dropout=0.0)


def test_equal_scores_go_to_the_lower_beam_and_position() -> None:
    case = make([5])
    with torch.no_grad():
        case.leaves[:] = case.leaves[:, :1]
    *_, merges = run(case, 3, noisy=False, dropout=0.0)
    *_, expected = plain_search(case, 3, noisy=False, dropout=0.0, need_nodes=False)
    assert torch.equal(merges, expected)


def test_the_operators_agree_with_their_descriptions() -> None:
    case = make([2, 1])
    arguments = (case.leaves, case.lengths, case.seed, 2, True, 0.1, torch.float32, False, case.weights)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.beamtree.fused_search, arguments, test_utils=tests)
