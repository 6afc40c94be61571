"""What a caller may fix about trees is accepted where it is right and refused by name where it is not."""

import random
from typing import Any

import pytest
import torch
from given_trees import draw_merges
from hypothesis import given
from hypothesis import strategies as st

from beamtree import BeamTreeEncoder, create_encoder
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.constraints import check_merges, check_pins

LENGTHS = torch.tensor([4, 1, 3, 2])
MERGES = torch.tensor([[2, 0, 0], [-1, -1, -1], [1, 0, -1], [0, -1, -1]])


def test_right_merges_of_mixed_lengths_pass() -> None:
    check_merges(MERGES, LENGTHS)
    check_merges(MERGES, LENGTHS, n=4)
    check_merges(torch.zeros(2, 0, dtype=torch.int64), torch.tensor([1, 1]), n=1)
    check_merges(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


@given(st.integers(0, 3), st.integers(0, 2), st.integers(-3, 5))
def test_one_changed_merge_passes_only_if_it_is_still_a_tree(b: int, step: int, value: int) -> None:
    merges = MERGES.clone()
    merges[b, step] = value
    left = int(LENGTHS[b]) - step  # nodes alive
    if (0 <= value <= left - 2) if left >= 2 else value == -1:
        check_merges(merges, LENGTHS)
    else:
        with pytest.raises(ValueError, match=rf"merges of sequence {b} at step {step} must .*, got {value}$"):
            check_merges(merges, LENGTHS)


@pytest.mark.parametrize(
    ("merges", "options", "message"),
    [
        (MERGES.tolist(), {}, r"merges must be an int64 tensor of shape \(B, n-1\), got list"),
        (MERGES.int(), {}, "got torch.int32"),
        (MERGES[0], {}, r"shape \(B, n-1\) with B = 4, got \(3,\)"),
        (MERGES[:2], {}, r"with B = 4, got \(2, 3\)"),
        (MERGES, {"n": 5}, r"with B = 4, n = 5, got \(4, 3\)"),
        (MERGES[:, :2], {}, "merges has 2 steps, which fit 1 to 3 tokens; sequence 0 has 4"),
        (MERGES.to("meta"), {}, "merges is on meta, the input is on cpu: move one of them"),
        (
            MERGES - (MERGES == 2).long() * 3,
            {},
            r"step 0 must be a position from 0 to 2 \(4 nodes are left\)",
        ),
        (
            torch.tensor([[2, 0, 0], [-1, -1, -1], [1, 0, 0], [0, -1, -1]]),
            {},
            r"sequence 2 at step 2 must be -1 \(its 3 tokens are one tree after 2 merges\), got 0",
        ),
    ],
)
def test_wrong_merges_are_refused_by_name(merges: Any, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_merges(merges, LENGTHS, **options)


def test_pins_in_lists_are_padded_and_keep_their_order() -> None:
    pins = check_pins([[(2, 4), (0, 4)], [], [(0, 2)], [(1, 2)]], LENGTHS)
    none = [-1, -1]
    assert pins.dtype == torch.int64
    assert pins.tolist() == [[[2, 4], [0, 4]], [none, none], [[0, 2], none], [[1, 2], none]]
    assert torch.equal(check_pins(pins, LENGTHS), pins)
    assert check_pins([[], [], [], []], LENGTHS).shape == (4, 0, 2)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ([[(0, 2)]], "one list of spans for each of 4 sequences, got 1"),
        (5, "one list of spans for each of 4 sequences, got 5"),
        ([[], None, [], []], "sequence 1 must be a list of spans, got None"),
        ([[], [], [(0, 2**70)], []], "sequence 2 goes beyond any sequence"),
        ([[("a" * 500, 1)], [], [], []], r"pairs \(start, end\) of int, got .{,90}$"),
        ([[], [], [(0, 2, 3)], []], r"sequence 2 must be pairs \(start, end\) of int, got \(0, 2, 3\)"),
        ([[3], [], [], []], "sequence 0 must be pairs .*, got 3"),
        ([[(0, 2.0)], [], [], []], r"of int, got \(0, 2.0\)"),
        ([[], [], [(0, 4)], []], r"sequence 2: \(0, 4\) must satisfy 0 <= start < end <= 3"),
        ([[(2, 2)], [], [], []], r"sequence 0: \(2, 2\) must satisfy"),
        ([[(-1, 2)], [], [], []], r"sequence 0: \(-1, 2\) must satisfy"),
        (
            [[(1, 4), (2, 3), (0, 2)], [], [], []],
            r"sequence 0: \(0, 2\) and \(1, 4\) cross; no tree contains both",
        ),
        (torch.zeros(4, 1, 2), "must be int64, got torch.float32"),
        (torch.zeros(3, 1, 2).long(), r"shape \(B, P, 2\) with B = 4, got \(3, 1, 2\)"),
        (torch.zeros(4, 2).long(), r"got \(4, 2\)"),
        (torch.zeros(4, 1, 2, device="meta").long(), "is on meta, the input is on cpu"),
    ],
)
def test_wrong_pins_are_refused_by_name(pins: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"pinned_spans .*{message}"):
        check_pins(pins, LENGTHS)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda s: s[0] < s[1]), max_size=5))
def test_pins_are_refused_exactly_if_two_of_them_cross(spans: list[tuple[int, int]]) -> None:
    tokens = [set(range(*span)) for span in spans]
    crossing = any(one & other and one - other and other - one for one in tokens for other in tokens)
    if crossing:
        with pytest.raises(ValueError, match="cross"):
            check_pins([spans], torch.tensor([8]))
    else:
        assert check_pins([spans], torch.tensor([8])).shape == (1, len(spans), 2)


def test_values_are_left_alone_where_looking_would_synchronise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beamtree.trees.constraints.looks_at_values", lambda x: False)
    check_merges(MERGES + 9, LENGTHS)
    assert check_pins([[(3, 9), (0, 4)], [], [], []], LENGTHS)[0].tolist() == [[3, 9], [0, 4]]


def test_the_spans_of_a_tree_never_cross() -> None:
    rng = random.Random(3)
    trees = BeamTrees.from_merges([draw_merges(30, rng) for _ in range(3)])
    assert torch.equal(check_pins(trees.spans[:, 0], trees.lengths), trees.spans[:, 0])


def test_where_new_tensors_go_by_default_does_not_matter() -> None:
    x = torch.randn(2, 4, 6)
    encoder, memory = BeamTreeEncoder(6).eval(), create_encoder("om", 6).eval()
    pinned, trees = encoder(x, pinned_spans=[[(1, 3)], []]), memory(x, need_trees=True)[1]
    with torch.device("meta"):
        torch.testing.assert_close(encoder(x, pinned_spans=[[(1, 3)], []]), pinned)
        assert torch.equal(memory(x, need_trees=True)[1].merges, trees.merges)
