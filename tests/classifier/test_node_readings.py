"""A classifier's prediction for a node is that for its part as a text by itself, with the same merges."""

from typing import Any

import pytest
import torch
from torch import Tensor

from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.classifier.node_readings import NodeReader
from beamtree.data.batching import EncodedExamples
from beamtree.data.task import Example, find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError
from beamtree.nn.heads import class_probabilities

WORDS = "a b c d e f g h"
EXPRESSION = "[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] 3 ]"


def small(task: str, encoder: str = "ebt-grc", **settings: Any) -> TreeClassifier:
    """In float64, so that rounding decides nothing."""
    torch.manual_seed(3)
    chosen = ModelSettings(encoder, d_model=8, embedding_size=6, classifier_hidden=8, **settings)
    found = find_task(task)
    words = None if found.tokens else Words(Vocabulary(tuple(WORDS.split())))
    model = create_model(chosen, found, words)
    if model.settings.readout == "pooled":  # these begin at zero
        torch.nn.init.normal_(model.pooling.query.weight)
        if model.word_scores is not None:
            torch.nn.init.normal_(model.word_scores.scores.weight, std=0.05)
            if model.word_scores.pairs:
                train = [Example((tuple(WORDS.split()),), "1")] * 2 + [Example((("a", "c"),), "0")]
                model.word_scores.count(EncodedExamples.encode(train, model.vocabulary, ("0", "1")), 2)
    return model.double().eval()


def build(encoder: Any, leaves: Tensor, children: list[list[int]], node: int) -> Tensor:
    """The vector of a node by plain recursion: leaf i is i, the node of step t is n + t."""
    n = len(children) + 1
    if node < n:
        return leaves[node]
    left, right = (build(encoder, leaves, children, child) for child in children[node - n])
    made: Tensor = encoder.cell(left[None], right[None])[0]
    return made


def classify_alone(model: TreeClassifier, of_sentences: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Probabilities of a text, or a pair, from the root (d,), ids (n,) and token vectors (n, e) of each."""
    roots, ids, x = zip(*of_sentences, strict=True)
    padded = (torch.nn.utils.rnn.pad_sequence(each, batch_first=True) for each in (ids, x))
    padding = torch.stack([torch.arange(max(map(len, ids))) >= len(each) for each in ids])
    return class_probabilities(model.classify(torch.stack(roots), *padded, padding))[0]


@pytest.mark.parametrize(
    ("task", "encoder", "settings", "text"),
    [
        *(
            ("listops", encoder, {}, EXPRESSION)
            for encoder in ("ebt-grc", "bt-grc", "bt-grc-os", "egt-grc", "gt-grc", "balanced-grc", "gold-grc")
        ),
        ("logic", "ebt-grc", {}, ("( a ( and ( not b ) ) )", "( not b )")),
        ("sst5", "ebt-grc", {}, WORDS),
        ("imdb", "ebt-grc", {"readout": "pooled"}, WORDS),
        ("imdb", "ebt-grc", {"readout": "pooled", "tree_tokens": 5}, WORDS),
        ("imdb", "ebt-grc", {"readout": "pooled", "word_pairs": 50}, WORDS),
        ("snli", "ebt-grc", {"readout": "pooled"}, (WORDS, "b a h")),
    ],
)
@torch.no_grad()
def test_a_node_is_classified_like_its_part_alone(
    task: str, encoder: Any, settings: dict[str, Any], text: Any
) -> None:
    model = small(task, encoder, **settings)
    texts = (text,) if isinstance(text, str) else text
    sentences = tuple(map(model.task.tokenize, texts))
    (prediction,) = model.predict([text], need_trees=True)
    given = NodeReader(model, sentences)
    encoder = model.encoder
    wholes = []  # the root of each sentence, averaged over the beams, its ids and its tokens
    for s, trees in enumerate(prediction.trees):
        leaves = encoder.read(given.parts[s], None)[0][0]
        roots = [
            build(encoder, leaves, trees.children[0, k].tolist(), 2 * len(leaves) - 2)
            for k in range(int(trees.alive.sum()))
        ]
        weights = trees.weights[0, : len(roots)].double()
        own = ~given.key_padding_mask[s]
        wholes.append((weights @ torch.stack(roots), given.ids[s, own], given.x[s, own]))

    beam = min(int(trees.alive.sum()) for trees in prediction.trees) - 1
    for s, readings in enumerate(model.read_nodes(text, beam)):
        children = prediction.trees[s].children[0, beam].tolist()
        leaves, (_, ids, tokens) = encoder.read(given.parts[s], None)[0][0], wholes[s]
        places = model.in_trees(range(len(tokens)))
        assert len(readings) == len(leaves) - 1
        for t, reading in enumerate(readings):
            assert (reading.start, reading.end) == tuple(prediction.trees[s].spans[0, beam, t].tolist())
            covered = slice(places[reading.start], places[reading.end - 1] + 1)
            alone = list(wholes)
            alone[s] = (build(encoder, leaves, children, len(leaves) + t), ids[covered], tokens[covered])
            probability, label = classify_alone(model, alone).max(-1)
            assert reading.label == model.task.labels[int(label)]
            assert reading.probability == pytest.approx(float(probability), abs=1e-9)


def test_parts_that_could_be_texts_by_themselves_are_marked() -> None:
    (readings,) = small("listops").read_nodes(EXPRESSION)
    texts = {EXPRESSION, "[MAX 2 9 [MIN 4 7 ] 0 ]", "[MIN 4 7 ]"}
    tokens = EXPRESSION.split()
    for reading in readings:
        assert reading.is_text == (" ".join(tokens[reading.start : reading.end]) in texts)
    assert readings[-1].is_text
    formula = "( ( not a ) ( and b ) )"
    tokens = formula.split()
    found = find_task("logic").texts_in(tuple(tokens))  # type: ignore[misc]
    assert {" ".join(tokens[start:end]) for start, end in found} == {"a", "b", "( not a )", formula}
    assert [one.is_text for one in small("sst5").read_nodes("a b c")[0]] == [False, True]


@pytest.mark.parametrize(("task", "encoder"), [("listops", "transformer"), ("snli", "ebt-gau")])
def test_an_encoder_without_node_vectors_says_so(task: str, encoder: str) -> None:
    text = "5" if task == "listops" else ("a b", "c")
    with pytest.raises(BeamtreeError, match=f"'{encoder}' gives no access to its node vectors"):
        small(task, encoder).read_nodes(text)


def test_a_dead_beam_is_refused_and_a_single_token_has_no_nodes() -> None:
    with pytest.raises(BeamtreeError, match="no beam 5"):
        small("listops").read_nodes(EXPRESSION, beam=5)
    assert small("listops").read_nodes("7") == ([],)
