"""Trees as text and back, and what is said about text that is no binary tree."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.errors import BeamtreeError
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import merges_from_brackets

tokens_of_any_kind = st.text(st.sampled_from("ab()[]-é漢 ."), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(tokens_of_any_kind, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_brackets_come_back_as_the_same_tokens_and_tree(tokens: list[str], rng: random.Random) -> None:
    merges = [rng.randrange(len(tokens) - 1 - step) for step in range(len(tokens) - 1)]
    trees = BeamTrees.from_merges([merges])
    read, order = merges_from_brackets(trees.brackets([tokens])[0])
    assert read == tokens
    again = BeamTrees.from_merges([order])
    assert again.span_sets() == trees.span_sets()
    assert merges_from_brackets(again.brackets([tokens])[0]) == (tokens, order)


@pytest.mark.parametrize(
    ("text", "tokens", "merges"),
    [
        ("a", ["a"], []),
        ("(a b)", ["a", "b"], [0]),
        ("((a b) c)", ["a", "b", "c"], [0, 0]),
        ("(a (b c))", ["a", "b", "c"], [1, 0]),
        ("((a b) (c d))", ["a", "b", "c", "d"], [0, 1, 0]),
        (" (a\n(b(c d)))", ["a", "b", "c", "d"], [2, 1, 0]),
        ("([MAX -LRB-)", ["[MAX", "("], [0]),
    ],
)
def test_nodes_merge_from_left_to_right_and_bottom_up(
    text: str, tokens: list[str], merges: list[int]
) -> None:
    assert merges_from_brackets(text) == (tokens, merges)


def test_symbols_in_a_list_are_taken_as_they_are() -> None:
    assert merges_from_brackets(["(", "a b", "-LRB-", ")"]) == (["a b", "-LRB-"], [0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the tree has no tokens"),
        ("  ", "the tree has no tokens"),
        ("((a b) c", r"the '\(' at character 1 is never closed"),
        (")", r"the '\)' at character 1 has no matching '\('"),
        ("(a b))", r"the tree ends before character 6 \('\)'\)"),
        ("(a b) c", "the tree ends before character 7 .'c'.: give one tree only"),
        ("a b", "the tree ends before character 3"),
        (
            "(x (a b c))",
            "the node opened at character 4 and closed at character 10 must have two children, .*, not 3",
        ),
        (
            "((a) b)",
            "the node opened at character 2 and closed at character 4 must have two children, .*, not 1",
        ),
        (
            "(a ())",
            "the node opened at character 4 and closed at character 5 must have two children, .*, not 0",
        ),
        (
            ["(", "a", ")"],
            "the node opened at symbol 1 and closed at symbol 3 must have two children, .*, not 1",
        ),
    ],
)
def test_malformed_text_is_refused_with_its_place(text: str | list[str], message: str) -> None:
    with pytest.raises(BeamtreeError, match=message):
        merges_from_brackets(text)


@pytest.mark.parametrize("text", ["(" * 4999 + "a" + " a)" * 4999, "(a " * 4999 + "a" + ")" * 4999])
def test_five_thousand_nested_brackets_are_read_without_recursion(text: str) -> None:
    tokens, merges = merges_from_brackets(text)
    assert len(tokens) == 5000
    assert BeamTrees.from_merges([merges]).brackets([tokens]) == [text]
