"""What a classifier reads: roots, pooled tokens and word scores, and trees over part of a long text."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from beamtree.classifier.inference import set_beam_size
from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.classifier.parsing import Parsed, parse_lines
from beamtree.classifier.readout import SCORE_SCALE, WordScores
from beamtree.data.batching import EncodedExamples
from beamtree.data.task import Example, find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import ShippedRows, Words
from beamtree.errors import BeamtreeError
from beamtree.explorer.view import make_view

LETTERS = "abcdefghijkl"
LONG = " ".join(LETTERS)


def small(task: str = "imdb", **settings: object) -> TreeClassifier:
    torch.manual_seed(0)
    chosen = ModelSettings(**({"d_model": 8, "embedding_size": 6, "classifier_hidden": 8} | settings))
    return create_model(chosen, find_task(task), Words(Vocabulary(tuple(LETTERS)))).eval()


@pytest.mark.parametrize(("task", "pairs"), [("imdb", 0), ("imdb", 50), ("snli", 50)])
def test_pooled_reads_all_tokens_beside_the_root_and_is_saved(task: str, pairs: int, tmp_path: Path) -> None:
    model = small(task, readout="pooled", word_pairs=pairs)
    torch.nn.init.normal_(model.pooling.query.weight)
    if model.word_scores is not None:
        torch.nn.init.normal_(model.word_scores.scores.weight)
        examples = [
            Example((tuple(text),), label) for text, label in (("abc", "1"), ("dabc", "1"), ("d", "0"))
        ]
        model.word_scores.count(EncodedExamples.encode(examples, model.vocabulary, ("0", "1")), 2)
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    texts = ["a b c", "d"] if task == "imdb" else [("a b c", "d"), ("d", "e f")]
    predictions = model.predict(texts)
    assert seen[0].shape[1] == (8 + 2 * 6) * (1 if task == "imdb" else 4)
    if task == "imdb":
        rows = model.embedding.table(torch.tensor(model.vocabulary.encode(["a", "b", "c"])))
        mean = (rows * model.pooling.query(rows).softmax(0)).sum(0)
        wanted = torch.cat([F.layer_norm(half, (6,)) for half in (mean, rows.amax(0))])
        assert any(torch.allclose(row[8:], wanted, atol=1e-6) for row in seen[0])
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.predict(texts) == predictions
    if model.word_scores is not None:
        model.word_scores.scores.weight.data.zero_()
        assert model.predict(texts) != predictions


@pytest.mark.parametrize("task", ["imdb", "snli"])
def test_with_tokens_only_mean_and_maximum_are_read_and_no_encoder_is_made(task: str, tmp_path: Path) -> None:
    model = small(task, readout="tokens", tree_tokens=5, encoder="ebt-gau" if task == "snli" else "ebt-grc")
    seen: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    texts = ["a b c", LONG] if task == "imdb" else [("a b c", "d"), (LONG, "e f")]
    predictions = model.predict(texts, need_trees=True)
    assert seen[0].shape[1] == 2 * 6 * (1 if task == "imdb" else 4)
    if task == "imdb":
        rows = model.embedding.table(torch.tensor(model.vocabulary.encode(["a", "b", "c"])))
        wanted = torch.cat([F.layer_norm(half, (6,)) for half in (rows.mean(0), rows.amax(0))])
        assert any(torch.allclose(row, wanted, atol=1e-6) for row in seen[0])
        assert make_view(model, [LONG], name="x")["sentences"][0]["tokens"] == LONG.split()
    assert not list(model.encoder.parameters())
    assert not model.builds_trees
    assert all(prediction.trees == () for prediction in predictions)
    save_model(model, tmp_path / "model")
    assert load_model(tmp_path / "model").predict(texts) == predictions


def test_what_needs_a_tree_is_refused_by_a_model_without_trees() -> None:
    model = small(readout="tokens")
    with pytest.raises(BeamtreeError, match="'tokens, no tree' has no beams"):
        set_beam_size(model, 2)
    with pytest.raises(BeamtreeError, match="'tokens, no tree' gives no access to its node vectors"):
        model.read_nodes("a b c")


def test_at_first_tokens_have_equal_weights_and_words_no_effect() -> None:
    model = small(readout="pooled")
    x = torch.randn(1, 5, 6)
    padding = torch.tensor([[False] * 3 + [True] * 2])
    mean = F.layer_norm(x[:, :3].mean(1), (6,))
    assert torch.allclose(model.pooling(x, padding)[:, :6], mean, atol=1e-6)
    assert model.word_scores is not None
    assert not model.word_scores(torch.tensor([[3, 4, 5]])).any()


def test_scores_are_weighted_by_rarity_not_by_length_and_unseen_words_have_none() -> None:
    words = Words(
        Vocabulary(tuple("abcdexy")),
        torch.zeros(0, 4),
        shipped=ShippedRows(torch.zeros(2, 4, dtype=torch.int8), torch.ones(2)),  # of x and y
        rarity=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
    )
    scores = WordScores(words, 2)
    torch.nn.init.normal_(scores.scores.weight)
    a, b, x, unknown, padding = 3, 4, 8, 1, 0
    said = scores(torch.tensor([[a, b, padding], [a, b, x], [unknown, a, b], [b, b, b]]))
    of_a, of_b = scores.scores.weight[a], scores.scores.weight[b]
    for row in said[:3]:
        assert torch.allclose(row / SCORE_SCALE, (1 * of_a + 2 * of_b) / 5**0.5)
    assert torch.allclose(said[3] / SCORE_SCALE, 3 * 2 * of_b / (3 * 4) ** 0.5)
    assert not scores(torch.tensor([[x, padding]])).any()


TEXTS = ("a b", "a b c", "b a b", "c d", "b a", "e d c", "d c", "c d e", "a x b", "x", "d x c")
LABELS = {2: "10110110010", 3: "10210210212"}


def counted(labels: int, pairs: int = 1000) -> tuple[WordScores, list[tuple[str, ...]]]:
    """Random scores after counting TEXTS, in which x has only a vector of the package."""
    torch.manual_seed(1)
    words = Words(
        Vocabulary(tuple("abcdex")),
        torch.zeros(0, 4),
        shipped=ShippedRows(torch.zeros(1, 4, dtype=torch.int8), torch.ones(1)),
        rarity=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
    )
    texts = [tuple(text.split()) for text in TEXTS]
    examples = [Example((text,), label) for text, label in zip(texts, LABELS[labels], strict=True)]
    scores = WordScores(words, 1 if labels == 2 else labels, pairs)
    torch.nn.init.normal_(scores.scores.weight)
    train = EncodedExamples.encode(examples, words.vocabulary, ("0", "1", "2")[:labels])
    scores.count(train, labels)
    return scores, texts


def logits_by_hand(scores: WordScores, labels: int, text: tuple[str, ...]) -> list[float]:
    """The logits from the words and pairs of a text, word by word and label by label."""
    texts, classes = [tuple(text.split()) for text in TEXTS], list(map(int, LABELS[labels]))
    having = [{*words, *pairwise(words)} for words in texts]
    said, length = [0.0] * labels, 0.0
    for thing in (*text, *pairwise(text)):
        count = [
            sum(thing in have and c == label for have, c in zip(having, classes, strict=True))
            for label in range(labels)
        ]
        if "x" in thing or (len(thing) == 2 and sum(count) < 2):
            continue
        ids = [3 + "abcde".index(word) for word in thing]
        if len(thing) == 1:
            row, rarity = ids[0], float(scores.rarity[ids[0]])
        else:
            pair = ids[0] * scores.words + ids[1]
            row = scores.words + int((scores.owner == pair).nonzero())
            rarity = 1 + math.log((1 + len(texts)) / (1 + sum(count)))
        length += rarity**2
        for label in range(labels):
            share = (classes.count(label) + 1) / (len(texts) + labels)
            mine, others = count[label] / share + labels, (sum(count) - count[label]) / (1 - share) + labels
            score = scores.scores.weight[row, label if labels > 2 else 0].item()
            said[label] += rarity * score * math.log(mine / others)
    logits = said if labels > 2 else said[1:]
    return [SCORE_SCALE * each / max(1.0, length**0.5) for each in logits]


@pytest.mark.parametrize("labels", [2, 3])
def test_scores_are_weighted_by_how_far_words_and_pairs_lean_to_a_label(labels: int) -> None:
    scores, texts = counted(labels)
    ids = Vocabulary(tuple("abcdex")).encode
    texts += [tuple("eabdc"), ("a",), tuple("ee")]
    for text in texts:
        wanted = logits_by_hand(scores, labels, text)
        for padding in ([], [0, 0]):
            found = scores(torch.tensor([[*ids(text), *padding]]))[0]
            assert found.tolist() == pytest.approx(wanted, abs=1e-4)
    assert any(abs(each) > 1 for each in logits_by_hand(scores, labels, tuple("ab")))


def test_of_pairs_with_one_place_the_most_informative_gets_it() -> None:
    scores, _ = counted(2, pairs=1)
    a, b, c, d = 3, 4, 5, 6
    # (d, c) is in two texts, both of label 1; (a, b) is in two of label 1 and one of label 0.
    assert scores.owner.tolist() == [d * scores.words + c]
    scores.leaning[: scores.words] = 0
    owner, others = scores(torch.tensor([[d, c]])), scores(torch.tensor([[a, b], [c, d], [d, d]]))
    assert owner.any()
    assert not others.any()


def test_pairs_that_occur_in_a_single_text_have_no_score() -> None:
    scores = WordScores(Words(Vocabulary(("a", "b"))), 1, 100)
    train = [Example((("a", "b"),), "0"), Example((("b",),), "1")]
    scores.count(EncodedExamples.encode(train, Vocabulary(("a", "b")), ("0", "1")), 2)
    assert (scores.owner < 0).all()
    assert scores.leaning.any()


def test_many_labels_leave_room_for_fewer_pairs() -> None:
    words = Words(Vocabulary(tuple(LETTERS)))
    assert WordScores(words, 1024, 65536).pairs == 4096
    assert WordScores(words, 5, 65536).pairs == 65536
    assert not hasattr(WordScores(words, 5), "leaning")


def test_words_have_no_scores_for_pairs_of_sentences_or_without_pooling() -> None:
    assert small("snli", readout="pooled").word_scores is None
    assert small("imdb").word_scores is None


def test_with_tree_tokens_trees_cover_the_first_and_the_last_tokens() -> None:
    bounded, free = small(tree_tokens=5), small()
    assert "".join(bounded.in_trees(LETTERS)) == "abckl"
    assert bounded.in_trees("abcde") == tuple("abcde")
    texts = [LONG, "a b c k l", "a b", LONG + " c"]
    found = bounded.predict(texts, need_trees=True)
    wanted = free.predict([" ".join(bounded.in_trees(text.split())) for text in texts], need_trees=True)
    for one, other in zip(found, wanted, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-6)
        assert one.trees[0].brackets() == other.trees[0].brackets()


def test_pooling_covers_all_tokens_even_if_trees_do_not() -> None:
    model = small(tree_tokens=5, readout="pooled")
    one, other = model.predict([LONG, "a b c e e e e e e e k l"])
    assert one.probability != other.probability
    alone = small(tree_tokens=5)
    one, other = alone.predict([LONG, "a b c e e e e e e e k l"])
    assert one.probability == pytest.approx(other.probability, abs=1e-6)


@pytest.mark.parametrize("readout", ["root", "pooled"])
def test_parse_and_the_explorer_show_the_part_and_predict_from_the_whole(readout: str) -> None:
    model = small(tree_tokens=5, readout=readout)
    (prediction,) = model.predict([LONG])
    (parsed,) = parse_lines(model, [LONG])
    assert isinstance(parsed, Parsed)
    assert parsed.trees[0].tokens == tuple("abckl")
    view = make_view(model, [LONG], name="small")
    assert view["sentences"][0]["tokens"] == list("abckl")
    assert view["sentences"][0]["ranges"][-1] == (22, 23)
    for probability in (parsed.probability, view["prediction"]["probability"]):
        assert probability == pytest.approx(prediction.probability, abs=1e-4)


def test_encoders_that_read_pairs_or_follow_trees_take_neither_pooling_nor_tree_tokens() -> None:
    for change in ({"readout": "pooled"}, {"tree_tokens": 5}):
        with pytest.raises(BeamtreeError, match=r"'ebt-gau' reads pairs: model\.readout must be root"):
            small("snli", encoder="ebt-gau", **change)
        settings = ModelSettings(encoder="gold-grc", d_model=8, embedding_size=8, **change)
        with pytest.raises(BeamtreeError, match=r"'gold-grc' follows given trees: model\.readout must"):
            create_model(settings, find_task("listops"))


def test_gradients_reach_tokens_that_no_tree_covers() -> None:
    model = small(tree_tokens=4, readout="pooled").train()
    batch = model.encode([Example((tuple(LETTERS),), "")], labelled=False)
    batch = batch.collate(np.arange(1))
    model(batch.ids, batch.key_padding_mask).sum().backward()
    gradient = model.embedding.table.weight.grad
    assert gradient is not None
    assert (gradient[3:].abs().sum(1) > 0).all()


def test_dropout_applies_to_the_tree_but_not_to_pooling() -> None:
    model = small(readout="pooled", input_dropout=0.9, output_dropout=0.0).train()
    pooled: list[torch.Tensor] = []
    model.head.register_forward_pre_hook(lambda _, given: pooled.append(given[0][:, 8:]))
    batch = model.encode([Example((tuple(LETTERS),), "")], labelled=False).collate(np.arange(1))
    model(batch.ids, batch.key_padding_mask)
    model.eval()(batch.ids, batch.key_padding_mask)
    assert torch.equal(pooled[0], pooled[1])
