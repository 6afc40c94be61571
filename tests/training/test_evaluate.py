"""Intervals, tallies and the evaluation of a model, against one example at a time and against an oracle."""

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.data import listops, logic
from beamtree.data.formal import nesting
from beamtree.data.listops.language import evaluate as value_of
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError
from beamtree.training.evaluate import (
    SplitResult,
    Tally,
    evaluate,
    length_range,
    pool,
    wilson_interval,
)
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import Agreement

SMALL = ModelSettings(d_model=8, embedding_size=8, classifier_hidden=8)
PAIRS = [
    Example((logic.tokenize("( not a )"), logic.tokenize("a")), "^"),
    Example((logic.tokenize("( a ( and b ) )"), logic.tokenize("( ( not b ) ( or ( not a ) ) )")), "^"),
    Example((logic.tokenize("b"), logic.tokenize("( a ( or b ) )")), "<"),
]


@pytest.fixture(scope="module")
def expressions() -> list[Example]:
    drawn = listops.sample_expressions(40, seed=3, min_length=1, max_length=40)
    random.Random(0).shuffle(drawn)
    return drawn


def small_model(task: Any = listops.TASK, **options: Any) -> TreeClassifier:
    torch.manual_seed(1)
    return create_model(ModelSettings(**{**vars(SMALL), **options}), task).double().eval()


class Oracle(TreeClassifier):
    """Knows the answers: works the expression out and follows the gold tree."""

    def forward(
        self,
        ids: Tensor,
        key_padding_mask: Tensor,
        gold_merges: Tensor | None = None,
        *,
        need_trees: bool = False,
    ) -> Any:
        sentences = [row[~padding].tolist() for row, padding in zip(ids, key_padding_mask, strict=True)]
        values = torch.tensor([value_of(self.vocabulary.decode(sentence)) for sentence in sentences])
        logits = 40.0 * torch.nn.functional.one_hot(values, 10)
        assert need_trees
        assert gold_merges is not None
        return logits, BeamTrees.from_merges(gold_merges, (~key_padding_mask).sum(1))


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval_has_its_published_values(correct: int, total: int, low: float, high: float) -> None:
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**6).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_an_interval_holds_the_proportion_and_mirrors_its_complement(counts: tuple[int, int]) -> None:
    correct, total = counts
    low, high = wilson_interval(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    assert wilson_interval(total - correct, total) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize(("correct", "total"), [(0, 0), (3, 2), (-1, 2)])
def test_an_interval_of_impossible_counts_is_refused(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match=f"got {correct} of {total}"):
        wilson_interval(correct, total)


def test_the_ranges_of_length_cover_every_length_once_and_match_the_splits() -> None:
    for length in range(1, 6000):
        low, high = length_range(length)
        assert low <= length <= high
        assert length_range(low) == length_range(high) == (low, high)
    assert length_range(1) == (1, 10)
    assert [length_range(length) for length in range(250, 1000, 100)] == [
        (low + 1, low + 100) for low in range(200, 1000, 100)
    ]
    assert length_range(1501) == (1501, 2000)
    assert length_range(2001) == (2001, 3000)


def test_an_oracle_scores_full_marks_on_labels_and_trees(expressions: list[Example]) -> None:
    torch.manual_seed(0)
    oracle = Oracle(SMALL, listops.TASK, small_model().words)
    result = evaluate(oracle, "test", expressions)
    assert result.total.examples == 40
    assert result.total.accuracy == result.total.trees.f1 == result.total.trees.exact_match == 1
    assert result.total.interval[1] == 1
    assert result.total.loss < 1e-6
    assert result.total.trees.sentences == sum(len(example.sentences[0]) > 2 for example in expressions)


@pytest.mark.parametrize("batch_tokens", [1, 60, 100_000])
def test_batches_do_not_change_what_one_example_at_a_time_gives(
    expressions: list[Example], batch_tokens: int
) -> None:
    model = small_model()
    correct, loss, trees = 0, 0.0, Agreement()
    for example in expressions:
        tokens = example.sentences[0]
        ids = torch.tensor([model.vocabulary.encode(tokens)])
        with torch.no_grad():
            logits, found = model(ids, torch.zeros_like(ids, dtype=torch.bool), need_trees=True)
        label = int(example.label)
        correct += int(logits.argmax()) == label
        loss -= float(logits.log_softmax(-1)[0, label])
        trees.add(found.merges[0, 0].tolist(), listops.TASK.gold_merges(tokens))  # type: ignore[misc]
    heard: list[tuple[int, int]] = []
    result = evaluate(
        model,
        "test",
        expressions,
        batch_tokens=batch_tokens,
        advance=lambda done, total: heard.append((done, total)),
    )
    assert result.total.correct == correct
    assert result.total.loss == pytest.approx(loss / 40, rel=1e-9)
    assert (result.total.trees.shared, result.total.trees.spans) == (trees.shared, trees.spans)
    assert result.total.trees.exact == trees.exact
    assert heard[-1] == (40, 40)


def test_lengths_and_depths_add_up_to_the_whole(expressions: list[Example]) -> None:
    result = evaluate(small_model(), "test", expressions)
    for parts in (result.by_length.values(), result.by_depth.values()):
        assert sum(tally.examples for tally in parts) == 40
        assert sum(tally.correct for tally in parts) == result.total.correct
    depths = sorted({nesting(example.sentences[0]) for example in expressions})
    assert sorted(result.by_depth) == depths


def test_both_sentences_of_a_pair_are_compared_and_the_longer_one_decides_the_length() -> None:
    result = evaluate(small_model(logic.TASK), "test", PAIRS)
    assert result.total.trees.sentences == 4, "the lone variables have one tree only"
    assert result.total.trees.spans == sum(
        len(sentence) - 2 for pair in PAIRS for sentence in pair.sentences if len(sentence) > 2
    )
    lengths = {lengths: tally.examples for lengths, tally in result.by_length.items()}
    assert lengths == {(1, 10): 2, (11, 20): 1}
    assert {depth: tally.examples for depth, tally in result.by_depth.items()} == {1: 1, 2: 1, 3: 1}
    for pair in PAIRS:
        trees = result.by_depth[max(map(nesting, pair.sentences))].trees
        assert trees.spans == sum(max(0, len(sentence) - 2) for sentence in pair.sentences)


def test_trees_of_a_pair_are_compared_with_those_of_the_same_sentence() -> None:
    class GoldTrees(TreeClassifier):
        def forward(self, ids: Tensor, key_padding_mask: Tensor, *rest: Any, need_trees: bool = False) -> Any:
            logits = super().forward(ids, key_padding_mask)
            return logits, BeamTrees.from_merges(rest[0], (~key_padding_mask).sum(1))

    model = GoldTrees(SMALL, logic.TASK, small_model(logic.TASK).words)
    total = evaluate(model, "test", PAIRS).total
    assert total.trees.f1 == total.trees.exact_match == 1
    one_by_one = Agreement()
    ordinary = small_model(logic.TASK)
    for pair in PAIRS:
        for sentence in pair.sentences:
            ids = torch.tensor([ordinary.vocabulary.encode(sentence)])
            _, trees = ordinary.encoder(ordinary.embedding(ids), need_trees=True)
            one_by_one.add(trees.merges[0, 0].tolist(), logic.gold_merges(sentence))
    found = evaluate(ordinary, "test", PAIRS).total.trees
    assert (found.shared, found.exact) == (one_by_one.shared, one_by_one.exact)


def test_a_pair_in_a_batch_adds_to_its_length_and_depth_what_it_gives_alone() -> None:
    model = small_model(logic.TASK)
    pairs = [Example(pair.sentences[::-1], pair.label) for pair in PAIRS[1:]]  # the longer one first
    together = evaluate(model, "test", pairs)
    for pair in pairs:
        alone = evaluate(model, "test", [pair])
        assert alone.total.trees.sentences > 0
        (length,), (depth,) = alone.by_length, alone.by_depth
        assert together.by_length[length].trees == together.by_depth[depth].trees == alone.total.trees


@pytest.mark.parametrize("encoder", ["transformer", "gold-grc"])
def test_an_encoder_without_trees_of_its_own_has_no_tree_figures(
    encoder: str, expressions: list[Example]
) -> None:
    total = evaluate(small_model(encoder=encoder), "test", expressions).total
    assert total.examples == 40
    assert (total.trees.f1, total.trees.sentence_f1, total.trees.exact_match) == (None, None, None)


def test_running_out_of_memory_names_the_option_that_helps(expressions: list[Example]) -> None:
    model = small_model()

    def burst(*inputs: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model.forward = burst  # type: ignore[method-assign]
    with pytest.raises(
        BeamtreeError, match=r"ran out of memory with batches of 500 tokens: lower --batch-tokens"
    ):
        evaluate(model, "test", expressions, batch_tokens=500)


def test_results_as_json_hold_plain_numbers_and_null_where_there_is_none() -> None:
    result = SplitResult("near-iid")
    result.add(Tally(1, 0, math.inf), length=250, depth=None)
    result.add(Tally(1, 1, 0.5), length=12, depth=None)
    table = result.to_dict()
    assert (table["split"], table["examples"], table["accuracy"]) == ("near-iid", 2, 0.5)
    assert table["accuracy_95"] == pytest.approx([0.0945, 0.9055], abs=1e-4)
    assert (table["loss"], table["bracketing_f1"], table["by_depth"]) == (None, None, [])
    assert [(row["from"], row["to"]) for row in table["by_length"]] == [(11, 20), (201, 300)]


def test_pooled_splits_are_the_sum_of_their_parts() -> None:
    first, second = SplitResult("a"), SplitResult("b")
    first.add(Tally(1, 1, 1.0, Agreement(1, 1, 3, 3, 3, 1.0)), length=5, depth=1)
    second.add(Tally(1, 0, 2.0, Agreement(1, 0, 1, 3, 3, 1 / 3)), length=5, depth=2)
    whole = pool([second, first])
    assert (whole.total.examples, whole.total.correct, whole.total.loss) == (2, 1, 1.5)
    assert whole.total.trees.f1 == pytest.approx(4 / 6)
    assert whole.by_length[(1, 10)].examples == 2
    assert [row["depth"] for row in whole.to_dict()["by_depth"]] == [1, 2]


def test_a_file_without_examples_is_named() -> None:
    with pytest.raises(BeamtreeError, match=r"mine\.tsv has no readable example"):
        evaluate(create_model(SMALL, listops.TASK), "mine.tsv", [])
