"""Trees as text and back, what is said about text that is no binary tree, and how far trees agree.

Bracketing F1 and exact match are held against hand-counted trees and against a second way of counting.
"""

import random

import pytest
import torch
from given_trees import draw_merges
from hypothesis import given
from hypothesis import strategies as st

from beamtree.errors import BeamtreeError
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import Agreement, merges_from_brackets, spans_from_brackets, spans_of

tokens_of_any_kind = st.text(st.sampled_from("ab()[]-é漢 ."), min_size=1, max_size=5)


@given(st.lists(tokens_of_any_kind, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_brackets_come_back_as_the_same_tokens_and_tree(tokens: list[str], rng: random.Random) -> None:
    merges = draw_merges(len(tokens), rng)
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


@given(st.lists(tokens_of_any_kind, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_spans_are_read_from_what_trees_write_with_and_without_labels(
    tokens: list[str], rng: random.Random
) -> None:
    trees = BeamTrees.from_merges([draw_merges(len(tokens), rng)])
    assert spans_from_brackets(trees.brackets([tokens])[0]) == (tokens, trees.span_sets())
    assert spans_from_brackets(trees.nltk([tokens])[0], labels=True) == (tokens, trees.span_sets())


@pytest.mark.parametrize(
    ("text", "labels", "tokens", "spans"),
    [
        ("(a b c)", False, "a b c", {(0, 3)}),
        ("((a) ((b c)) d)", False, "a b c d", {(0, 4), (1, 3)}),
        (
            "( (S (NP (DT the) (JJ old) (NN cat)) (VP (VBD sat)) (. .)) )",
            True,
            "the old cat sat .",
            {(0, 3), (0, 5)},
        ),
        ("(-LRB- (-LRB- -LRB-) (NP x y))", True, "( x y", {(0, 3), (1, 3)}),
    ],
)
def test_gold_trees_need_not_be_binary(
    text: str, labels: bool, tokens: str, spans: set[tuple[int, int]]
) -> None:
    assert spans_from_brackets(text, labels=labels) == (tokens.split(), spans)


@pytest.mark.parametrize(
    ("text", "labels", "message"),
    [
        ("(X)", True, "the node opened at character 1 and closed at character 3 has no tokens"),
        ("(a ())", False, "the node opened at character 4 and closed at character 5 has no tokens"),
        ("", False, "the tree has no tokens"),
        ("((a b c)", False, r"the '\(' at character 1 is never closed"),
        (")", False, r"the '\)' at character 1 has no matching '\('"),
        ("(a b) (c d)", False, r"the tree ends before character 7 .'\('.: give one tree only"),
        ("a b", False, "the tree ends before character 3 .'b'.: give one tree only"),
    ],
)
def test_brackets_that_are_not_one_tree_are_refused_with_their_place(
    text: str, labels: bool, message: str
) -> None:
    with pytest.raises(BeamtreeError, match=message):
        spans_from_brackets(text, labels=labels)


def spans_by_nesting(merges: list[int]) -> set[tuple[int, int]]:
    """The same spans by building nested tuples of tokens and looking at the leaves of each."""
    nodes: list[tuple[int, ...]] = [(token,) for token in range(len(merges) + 1)]
    spans = set()
    for position in merges:
        nodes[position : position + 2] = [nodes[position] + nodes[position + 1]]
        spans.add((nodes[position][0], nodes[position][-1] + 1))
    return spans - {(0, len(merges) + 1)}


def test_the_spans_of_a_left_chain_are_its_prefixes() -> None:
    assert spans_of([0, 0, 0]) == {(0, 2), (0, 3)}


def test_the_spans_of_a_right_chain_are_its_suffixes() -> None:
    assert spans_of([2, 1, 0]) == {(2, 4), (1, 4)}


def test_different_merge_orders_of_one_tree_have_the_same_spans() -> None:
    assert spans_of([0, 1, 0]) == spans_of([2, 0, 0]) == {(0, 2), (2, 4)}


@given(st.integers(1, 30), st.integers(0, 2**32))
def test_spans_agree_with_nested_tuples_and_number_n_minus_two(n: int, seed: int) -> None:
    merges = draw_merges(n, random.Random(seed))
    assert spans_of(merges) == spans_by_nesting(merges)
    assert len(spans_of(merges)) == max(n - 2, 0)


@pytest.mark.parametrize("merges", [[3, 0, 0], [0, 2, 0], [-1, 0, 0], [0, 0, 1]])
def test_a_merge_outside_the_live_nodes_is_refused(merges: list[int]) -> None:
    with pytest.raises(ValueError, match=r"merges\[\d\] is -?\d"):
        spans_of(merges)


def test_counts_of_a_hand_made_corpus() -> None:
    corpus = Agreement()
    corpus.add([0, 0, 0], [0, 0, 0])  # 2 of 2
    corpus.add([0, 0, 0, 0], [0, 1, 1, 0])  # (0,2) of (0,2) (2,4) (2,5)
    corpus.add([0, 0], [1, 0])  # 0 of 1
    assert (corpus.sentences, corpus.exact, corpus.shared, corpus.spans) == (3, 1, 3, 6)
    assert corpus.f1 == pytest.approx(3 / 6)
    assert corpus.sentence_f1 == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert corpus.exact_match == pytest.approx(1 / 3)


@pytest.mark.parametrize("merges", [[], [0]])
def test_sentences_with_a_single_possible_tree_do_not_count(merges: list[int]) -> None:
    corpus = Agreement()
    corpus.add(merges, merges)
    assert corpus == Agreement()
    assert corpus.f1 is None
    assert corpus.sentence_f1 is None
    assert corpus.exact_match is None


def test_trees_over_different_numbers_of_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="merges has 2 steps, gold_merges 3"):
        Agreement().add([0, 0], [0, 0, 0])


def test_positions_may_be_a_padded_tensor_and_nothing_else_is_counted() -> None:
    corpus, same = Agreement(), Agreement()
    corpus.add(torch.tensor([0, 1, 0, -1, -1]), (0, 0, 0))
    same.add([0, 1, 0], [0, 0, 0])
    assert corpus == same
    trees = BeamTrees.from_merges([[0, 1, 0]])
    for other in (trees[0], ["(a b)", "c"], "((a b) c)", trees.merges[0]):
        with pytest.raises(TypeError, match=r"gold_merges must be the positions of one tree's merges"):
            corpus.add([0, 1, 0], other)


def test_flat_gold_trees_have_a_precision_and_a_recall() -> None:
    corpus = Agreement()
    corpus.add_spans([0, 0, 0, 0], {(0, 5), (0, 3), (3, 5), (1, 2)})  # (0,2) (0,3) (0,4) of (0,3) (3,5)
    corpus.add_spans([0, 0, 0], {(0, 4)})  # (0,2) (0,3) of none
    corpus.add_spans([0], {(0, 2)})
    corpus.add_spans([], set())
    assert (corpus.sentences, corpus.exact, corpus.shared, corpus.spans, corpus.gold_spans) == (2, 0, 1, 5, 2)
    assert (corpus.precision, corpus.recall) == (1 / 5, 1 / 2)
    assert corpus.f1 == pytest.approx(2 * (1 / 5) * (1 / 2) / (1 / 5 + 1 / 2))
    assert corpus.sentence_f1 == pytest.approx((2 / 5 + 0) / 2)


@given(st.integers(1, 20), st.integers(0, 2**32))
def test_the_spans_of_a_binary_gold_tree_count_as_its_merges_do(n: int, seed: int) -> None:
    rng = random.Random(seed)
    merges, gold = draw_merges(n, rng), draw_merges(n, rng)
    by_merges, by_spans = Agreement(), Agreement()
    by_merges.add(merges, gold)
    by_spans.add_spans(merges, BeamTrees.from_merges([gold]).span_sets())
    assert by_merges == by_spans
    assert by_merges.f1 == by_merges.precision == by_merges.recall


@pytest.mark.parametrize("spans", [{(0, 4)}, {(0, 2)}, {(0, 3), (1, 4)}, {(1, 3)}, set()])
def test_gold_spans_over_other_tokens_are_refused(spans: set[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match=r"gold_spans must have the whole sentence, \(0, 3\)"):
        Agreement().add_spans([0, 0], spans)


@given(st.lists(st.integers(3, 12), min_size=2, max_size=8), st.integers(0, 2**32))
def test_corpora_add_up(lengths: list[int], seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(draw_merges(n, rng), draw_merges(n, rng)) for n in lengths]
    first, second, both = Agreement(), Agreement(), Agreement()
    for index, pair in enumerate(pairs):
        (first if index % 2 else second).add(*pair)
        both.add(*pair)
    total = first + second
    assert (total.sentences, total.exact, total.shared, total.spans) == (
        both.sentences,
        both.exact,
        both.shared,
        both.spans,
    )
    assert total.sentence_f1 == pytest.approx(both.sentence_f1)


@given(st.integers(3, 25), st.integers(0, 2**32))
def test_a_tree_agrees_wholly_with_itself_and_f1_is_symmetric(n: int, seed: int) -> None:
    rng = random.Random(seed)
    one, other = draw_merges(n, rng), draw_merges(n, rng)
    itself, forward, backward = Agreement(), Agreement(), Agreement()
    itself.add(one, one)
    forward.add(one, other)
    backward.add(other, one)
    assert itself.f1 == itself.exact_match == 1
    assert forward == backward
