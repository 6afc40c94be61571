"""Trees in box characters: what they look like, and that they keep to the width."""

import random

import pytest
from given_trees import draw_merges
from hypothesis import given
from hypothesis import strategies as st

from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import merges_from_brackets
from beamtree.trees.drawing import SIDEWAYS, UPRIGHT, clip_label, count_columns

TOKENS, LISTOPS = merges_from_brackets("(((([MAX 2) 9) ((([MIN 4) 7) ])) (0 ]))")


def test_a_tree_that_fits_stands_upright_over_its_tokens() -> None:
    assert BeamTrees.from_merges([LISTOPS]).draw(TOKENS, width=40).splitlines() == [
        "             ┌──────┴───────┐",
        "      ┌──────┴───────┐      │",
        "      │           ┌──┴──┐   │",
        "   ┌──┴──┐     ┌──┴──┐  │   │",
        " ┌─┴──┐  │   ┌─┴──┐  │  │  ┌┴─┐",
        "[MAX  2  9  [MIN  4  7  ]  0  ]",
    ]


def test_a_wider_tree_lies_on_its_side_with_one_token_a_line() -> None:
    assert BeamTrees.from_merges([LISTOPS]).draw(TOKENS, width=24).splitlines() == [
        "         ┌──┬─── [MAX",
        "   ┌─────┤  └─── 2",
        "   │     └────── 9",
        "┌──┤     ┌──┬─── [MIN",
        "│  │  ┌──┤  └─── 4",
        "┤  └──┤  └────── 7",
        "│     └───────── ]",
        "└───────────┬─── 0",
        "            └─── ]",
    ]


def test_levels_that_do_not_fit_share_columns_and_a_line_says_so() -> None:
    lines = BeamTrees.from_merges([[0] * 39]).draw(width=18).splitlines()
    assert " ".join(lines[40:]) == "(39 levels in 14 columns: nodes in one column are drawn as one)"
    assert [line.rsplit(" ", 1)[-1] for line in lines[:40]] == [str(i) for i in range(40)]
    assert max(map(len, lines)) <= 18


def test_one_token_is_its_own_drawing_and_two_share_a_bracket() -> None:
    assert BeamTrees.from_merges([[]]).draw(["a"]) == "a"
    assert BeamTrees.from_merges([[0]]).draw(["a", "b"], width=80) == "┌┴─┐\na  b"


@given(st.integers(2, 60), st.integers(18, 120), st.randoms(use_true_random=False))
def test_no_line_is_wider_than_asked_and_tokens_come_in_order(n: int, width: int, rng: random.Random) -> None:
    tokens = ["漢" * rng.randint(1, 9) + str(i) for i in range(n)]
    drawing = BeamTrees.from_merges([draw_merges(n, rng)]).draw(tokens, width=width)
    assert max(map(count_columns, drawing.splitlines())) <= width
    lines = [label for label in drawing.replace("\n", " ").split(" ") if "漢" in label]
    assert lines == [clip_label(token, max(8, width // 2 - 1)) for token in tokens]


def test_without_a_width_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = BeamTrees.from_merges([LISTOPS])
    monkeypatch.setenv("COLUMNS", "24")
    assert trees.draw(TOKENS) == trees.draw(TOKENS, width=24)
    monkeypatch.setenv("COLUMNS", "100")
    assert trees.draw(TOKENS) == trees.draw(TOKENS, width=40)


def test_both_box_tables_have_each_character_turned_by_the_diagonal() -> None:
    turned = str.maketrans("╵╷│╴┘┐┤╶└┌├─┴┬┼", "╴╶─╵┘└┴╷┐┌┬│┤├┼")
    assert UPRIGHT.translate(turned) == SIDEWAYS


def test_labels_show_unprintable_characters_and_are_cut_to_their_columns() -> None:
    assert clip_label("a\nb\x00", 20) == "a\\nb\\x00"
    assert clip_label("abcdef", 6) == "abcdef"
    assert clip_label("abcdefg", 6) == "abcde…"
    assert clip_label("漢字漢字", 6) == "漢字…"
    assert clip_label("e\u0301e\u0301", 2) == "e\u0301e\u0301"
    assert clip_label("", 6) == ""
