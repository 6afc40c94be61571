"""Bracketing F1 and exact match, against hand-counted trees and against a second way of counting."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beamtree import BeamTrees
from beamtree.trees.brackets import Agreement, spans_of


def random_merges(n: int, rng: random.Random) -> list[int]:
    return [rng.randrange(n - step - 1) for step in range(n - 1)]


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
    merges = random_merges(n, random.Random(seed))
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


@given(st.lists(st.integers(3, 12), min_size=2, max_size=8), st.integers(0, 2**32))
def test_corpora_add_up(lengths: list[int], seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(random_merges(n, rng), random_merges(n, rng)) for n in lengths]
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
    one, other = random_merges(n, rng), random_merges(n, rng)
    itself, forward, backward = Agreement(), Agreement(), Agreement()
    itself.add(one, one)
    forward.add(one, other)
    backward.add(other, one)
    assert itself.f1 == itself.exact_match == 1
    assert forward == backward
