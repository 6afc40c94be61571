"""The view of one input: the engine's own search, told completely, in linear size."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from explored import Slot, rebuild, small_model
from torch import Tensor, nn

from beamtree.classifier.model import TreeClassifier
from beamtree.classifier.parsing import Parsed, parse_lines
from beamtree.data.listops import sample_expressions
from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.errors import BeamtreeError
from beamtree.explorer.api import View
from beamtree.explorer.sentences import UnreadableInputError
from beamtree.explorer.view import make_view
from beamtree.nn.heads import class_probabilities
from beamtree.trees.brackets import Agreement
from beamtree.zoo.by_name import encoder_names

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")
SEARCHERS = ("ebt-grc", "ebt-grc-noslice", "bt-grc", "bt-grc-os")


def expression(length: int, seed: int = 0) -> str:
    """A digit, or a list that is as long as this: `[MAX a … ]`."""
    if length < 6:
        digits = ["4", "7", "1", "9", "2", "5"]
        return digits[seed] if length < 3 else " ".join(["[MAX", *digits[: length - 2], "]"])
    (example,) = sample_expressions(1, seed=seed, min_length=length, max_length=length)
    return " ".join(example.sentences[0])


def view_of(model: TreeClassifier, *texts: str, **options: Any) -> dict[str, Any]:
    view = make_view(model, texts, name="it", **options)
    assert View.model_validate(view).model_dump(mode="json") == json.loads(json.dumps(view))
    return view


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 9, 23])
def test_every_choice_of_the_search_follows_from_its_record(length: int, beam_size: int) -> None:
    (sentence,) = view_of(small_model(seed=length), expression(length), beam_size=beam_size)["sentences"]
    search = sentence["search"]
    assert search["steps"] == length - 1
    slots: list[Slot | None] = []
    for t, (considered, slots) in enumerate(rebuild(sentence)):
        living = [k for k, slot in enumerate(slots) if slot is not None]
        survivors = considered[:beam_size]
        assert living == list(range(len(survivors)))
        assert [search["parent"][t][k] for k in living] == [c.beam for c in survivors]
        assert [search["position"][t][k] for k in living] == [c.position for c in survivors]
        assert [search["log_score"][t][k] for k in living] == pytest.approx(
            [c.score for c in survivors], abs=1e-4
        )
    for beam, slot in zip(sentence["beams"], search["final"], strict=True):
        end = slots[slot] if slots else Slot([0], [], 0.0)
        assert end is not None
        assert len(end.nodes) == 1
        assert end.score == pytest.approx(beam["log_score"], abs=1e-5)


@pytest.mark.parametrize("encoder", SEARCHERS)
def test_trees_and_scores_are_those_of_the_published_algorithm(encoder: str) -> None:
    model = small_model(encoder)
    text = expression(12)
    (sentence,) = view_of(model, text)["sentences"]
    ids = torch.tensor([model.vocabulary.encode(sentence["tokens"])])
    leaves, lengths = model.encoder.read(model.embedding(ids), None)  # type: ignore[operator]

    def score(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if encoder.startswith("bt"):
            return model.encoder.scorer(model.encoder.cell(left, right))  # type: ignore[operator]
        return model.encoder.scorer(left, right)  # type: ignore[operator]

    _, scores, merges = naive_beam_tree_recursion(
        leaves,
        lengths,
        model.encoder.cell,  # type: ignore[arg-type]
        score,  # type: ignore[arg-type]
        beam_size=5,
    )
    assert [beam["merges"] for beam in sentence["beams"]] == merges[0].tolist()
    assert [beam["log_score"] for beam in sentence["beams"]] == pytest.approx(scores[0].tolist(), abs=1e-5)
    weights = scores[0].softmax(0).tolist()
    assert [beam["weight"] for beam in sentence["beams"]] == pytest.approx(weights, abs=1e-5)


@pytest.mark.parametrize("length", [1, 3, 8, 40])
def test_prediction_and_best_tree_are_those_of_parse(length: int) -> None:
    model, text = small_model(), expression(length)
    view = view_of(model, text)
    (record,) = parse_lines(model, [text])
    assert isinstance(record, Parsed)
    (sentence,) = view["sentences"]
    assert view["prediction"]["label"] == record.label
    assert view["prediction"]["probability"] == pytest.approx(record.probability, abs=1e-6)
    assert sum(entry["probability"] for entry in view["prediction"]["probabilities"]) == pytest.approx(
        1, abs=1e-5
    )
    assert sum(beam["weight"] for beam in sentence["beams"]) == pytest.approx(1, abs=1e-5)
    (trees,) = record.trees
    assert [beam["brackets"] for beam in sentence["beams"]] == [
        trees.brackets(k) for k in range(len(sentence["beams"]))
    ]


def test_a_node_has_its_span_its_height_its_children_and_its_share() -> None:
    model = small_model()
    (sentence,) = view_of(model, expression(9))["sentences"]
    n, search = 9, sentence["search"]
    steps = rebuild(sentence)
    for beam, slot in zip(sentence["beams"], search["final"], strict=True):
        nodes = beam["nodes"]
        spans = [(i, i + 1) for i in range(n)]
        heights = [0] * n
        for t in range(n - 1):
            left, right = nodes["left"][t], nodes["right"][t]
            assert spans[left][1] == spans[right][0]
            spans.append((spans[left][0], spans[right][1]))
            heights.append(1 + max(heights[left], heights[right]))
        assert spans[n:] == list(zip(nodes["start"], nodes["end"], strict=True))
        assert heights[n:] == nodes["height"]
        for t in reversed(range(n - 1)):
            gain = search["log_score"][t][slot] - (
                search["log_score"][t - 1][search["parent"][t][slot]] if t else 0.0
            )
            before = steps[t - 1][1][search["parent"][t][slot]] if t else None
            pairs = search["leaf_scores"] if before is None else before.pairs
            assert torch.tensor(nodes["probability"][t]).log() == pytest.approx(gain, abs=1e-4)
            assert nodes["score"][t] == pairs[search["position"][t][slot]]
            log_z = float(torch.tensor(pairs).logsumexp(0))
            assert search["log_z"][t][slot] == pytest.approx(log_z, abs=1e-4)
            slot = search["parent"][t][slot]


def test_beams_with_the_same_tree_say_so() -> None:
    (sentence,) = view_of(small_model(), expression(9))["sentences"]
    spans = [
        set(zip(beam["nodes"]["start"], beam["nodes"]["end"], strict=True)) for beam in sentence["beams"]
    ]
    for k, beam in enumerate(sentence["beams"]):
        first = spans.index(spans[k])
        assert beam["same_tree_as"] == (None if first == k else first)


def test_the_gold_tree_comes_with_what_each_beam_shares_with_it() -> None:
    model = small_model()
    (sentence,) = view_of(model, expression(15))["sentences"]
    gold = sentence["gold"]
    own = model.task.gold_merges(tuple(sentence["tokens"]))  # type: ignore[misc]
    gold_spans = set(zip(gold["nodes"]["start"], gold["nodes"]["end"], strict=True))
    for beam, said in zip(sentence["beams"], gold["agreement"], strict=True):
        agreement = Agreement()
        agreement.add(beam["merges"], own)
        assert (said["shared"], said["spans"]) == (agreement.shared, agreement.spans)
        assert said["f1"] == pytest.approx(agreement.f1, abs=1e-6)
        spans = list(zip(beam["nodes"]["start"], beam["nodes"]["end"], strict=True))
        assert beam["nodes"]["in_gold"] == [span in gold_spans for span in spans]
        assert sum(beam["nodes"]["in_gold"]) == said["shared"] + 1  # the whole sentence


@pytest.mark.parametrize("encoder", encoder_names())
def test_every_encoder_shows_what_it_has_and_says_what_it_lacks(encoder: str) -> None:
    model = small_model(encoder)
    view = view_of(model, expression(7))
    (sentence,) = view["sentences"]
    kind = view["model"]["kind"]
    without_tree = ("bilstm", "transformer", "universal-transformer")
    assert kind == ("search" if encoder in SEARCHERS else "none" if encoder in without_tree else "tree")
    assert (sentence["search"] is not None) == (kind == "search")
    assert len(sentence["beams"]) == {"search": 5, "tree": 1, "none": 0}[kind]
    assert (view["note"] is None) == (kind == "search")
    assert view["prediction"]["label"] == model.predict([sentence["text"]])[0].label
    if encoder == "gold-grc":
        assert sentence["gold"]["agreement"][0]["exact"]
    if kind != "search":
        assert encoder in view["note"]
        with pytest.raises(BeamtreeError, match="beam_size does not apply to the encoder"):
            make_view(model, [sentence["text"]], name="it", beam_size=2)


def test_a_pair_has_two_sentences_and_one_prediction() -> None:
    for encoder in ("ebt-grc", "egt-grc", "transformer"):
        model = small_model(encoder, task="logic")
        texts = ("( a ( and b ) )", "a")
        view = view_of(model, *texts)
        assert [sentence["text"] for sentence in view["sentences"]] == list(texts)
        assert view["answer"] == "<"
        prediction = model.predict([texts])[0]
        assert view["prediction"]["label"] == prediction.label
        assert view["prediction"]["probability"] == pytest.approx(prediction.probability, abs=1e-6)


@pytest.mark.parametrize("encoder", ["ebt-gau", "egt-gau", "gau", "ebt-grc"])
def test_natural_text_is_shown_with_the_words_the_model_does_not_know(encoder: str) -> None:
    model = small_model(encoder, task="snli")
    texts = ["A man doesn't play “the guitar”…", "The MAN plays."]
    view = view_of(model, *texts)
    first, second = view["sentences"]
    assert first["tokens"][:4] == ["a", "man", "does", "n't"]
    assert [texts[0][start:end] for start, end in first["ranges"]][:5] == ["A", "man", "does", "n't", "play"]
    assert [texts[1][start:end] for start, end in second["ranges"]] == ["The", "MAN", "plays", "."]
    assert second["unknown"] == []
    assert "does" in [first["tokens"][place] for place in first["unknown"]]
    assert (view["answer"], first["gold"]) == (None, None)
    assert len(second["beams"]) == {"ebt-gau": 5, "egt-gau": 1, "gau": 0, "ebt-grc": 5}[encoder]
    assert sum(beam["weight"] for beam in first["beams"]) == pytest.approx(
        1 if first["beams"] else 0, abs=1e-5
    )
    assert view["prediction"]["label"] == model.predict([(texts[0], texts[1])])[0].label


def test_a_tree_that_leaves_out_the_midst_of_a_long_text_says_so() -> None:
    model = small_model(task="sst5")
    model.settings = replace(model.settings, tree_tokens=5)
    text = "a man plays the guitar"
    assert view_of(model, text)["note"] is None
    view = view_of(model, f"{text} a man")
    assert view["sentences"][0]["tokens"] == ["a", "man", "plays", "a", "man"]
    assert view["note"] == "The tree covers the first 3 and the last 2 of 7 tokens."


def test_a_search_that_unites_equal_trees_shows_its_trees_without_steps() -> None:
    model = small_model(merge_equal_trees=True)
    view = view_of(model, expression(7))
    (sentence,) = view["sentences"]
    assert (view["model"]["kind"], sentence["search"]) == ("tree", None)
    assert all(beam["same_tree_as"] is None for beam in sentence["beams"])
    assert len({beam["log_score"] for beam in sentence["beams"]}) == len(sentence["beams"]) > 1


class DotScorer(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum(-1)


def test_a_search_with_a_scorer_of_ones_own_shows_its_trees_without_steps() -> None:
    model = small_model()
    model.encoder.scorer = DotScorer()
    text = expression(7)
    view = view_of(model, text)
    (sentence,) = view["sentences"]
    assert (view["model"]["kind"], sentence["search"]) == ("tree", None)
    assert sentence["beams"]
    assert view["prediction"]["label"] == model.predict([text])[0].label


def test_the_answer_is_the_value_of_the_expression() -> None:
    assert view_of(small_model(), "[SM 7 [MAX 2 9 ] ]")["answer"] == "6"


@pytest.mark.parametrize("text", ["[MAX  2 9\t]", "( ( ( [MAX 2 ) 9 ) ] )", "  [MAX 2 9 ]  "])
def test_tokens_are_found_in_the_text(text: str) -> None:
    (sentence,) = view_of(small_model(), text)["sentences"]
    assert sentence["tokens"] == ["[MAX", "2", "9", "]"]
    assert [text[start:end] for start, end in sentence["ranges"]] == sentence["tokens"]


def test_words_behind_a_letter_whose_lower_case_is_longer_are_found_in_the_text() -> None:
    text = "in İİİ, a man plays."
    assert len(text.lower()) > len(text)
    (sentence,) = view_of(small_model(task="sst5"), text)["sentences"]
    words = [",", "a", "man", "plays", "."]
    assert sentence["tokens"][-5:] == words
    assert [text[start:end] for start, end in sentence["ranges"][-5:]] == words


@pytest.mark.parametrize(
    ("task", "texts", "message", "where"),
    [
        ("listops", ["[MAX 2 x ]"], "unknown token 'x' at position 3", (0, 2, 7, 8)),
        ("listops", ["( [MAX 2 ) ø ]"], "unknown token 'ø'", (0, 2, 11, 12)),
        ("listops", ["[MAX 2 ] ]"], "']' at position 4 closes nothing", (0, 3, 9, 10)),
        ("listops", ["[MAX 2 [MIN ] ]"], "closed at position 4 has no arguments", (0, 3, 12, 13)),
        ("listops", ["[MAX 2 [MIN 4"], "not closed at the end", (0, 2, 7, 11)),
        ("listops", ["[MAX 2 ] 3"], "expected one expression, found 2", (0, 3, 9, 10)),
        ("listops", ["( 2"], "unbalanced round brackets", (0, None, 0, 3)),
        ("listops", ["()"], "expected one expression, found 0", (0, None, 0, 2)),
        ("listops", [" \n"], "nothing to read", (0, None, 0, 2)),
        ("listops", ["2", "3"], "takes one text, got 2", None),
        ("listops", ["max(2, 9x, 1)"], "unknown token '9x'", (0, 2, 7, 9)),
        ("logic", ["a"], "takes 2 texts", None),
        ("logic", ["(a (nor b))", "a"], "unknown token 'nor'", (0, 3, 4, 7)),
        ("logic", ["a", "( a ( nor b ) )"], "unknown token 'nor'", (1, 3, 6, 9)),
        ("logic", ["a )", "a"], "closes nothing", (0, 1, 2, 3)),
        ("logic", ["( a ( and b )", "a"], "1 '(' never closed", (0, 0, 0, 1)),
        ("logic", ["a b", "a"], "not a formula", (0, None, 0, 3)),
        ("snli", ["a man", "\x80"], "no words", (1, None, 0, 1)),
    ],
)
def test_what_cannot_be_read_is_explained_at_its_token(
    task: str, texts: list[str], message: str, where: tuple[int, int | None, int, int] | None
) -> None:
    with pytest.raises(UnreadableInputError) as caught:
        make_view(small_model(task=task), texts, name="it")
    assert message in str(caught.value)
    assert caught.value.where == where


@pytest.mark.parametrize("encoder", ["ebt-grc", "bt-grc"])
def test_every_slot_of_the_search_and_the_gold_tree_have_the_labels_of_their_nodes(encoder: str) -> None:
    """Built anew from what the view says, dropped beams included, by plain calls of the cell."""
    model, text = small_model(encoder), "[SM 4 [MAX 2 9 ] 3 ]"
    view = view_of(model, text)
    (sentence,) = view["sentences"]
    n, search = len(sentence["tokens"]), sentence["search"]
    network: Any = model.encoder

    def read(vector: torch.Tensor) -> tuple[int, float]:
        shares = class_probabilities(model.head(vector[None]))[0]
        return int(shares.argmax()), float(shares.max())

    with torch.no_grad():
        ids = torch.tensor([model.vocabulary.encode(sentence["tokens"])])
        leaves = list(network.read(model.embedding(ids), None)[0][0])
        before = [leaves]
        made: dict[tuple[int, int], torch.Tensor] = {}
        for t in range(search["steps"]):
            rows = []
            for k, parent in enumerate(search["parent"][t]):
                row = list(before[parent]) if parent >= 0 else []
                if row:
                    i = search["position"][t][k]
                    made[t, k] = network.cell(row[i][None], row[i + 1][None])[0]
                    row[i : i + 2] = [made[t, k]]
                    label, share = read(made[t, k])
                    assert search["label"][t][k] == label
                    assert search["label_probability"][t][k] == pytest.approx(share, abs=1e-6)
                rows.append(row)
            before = rows
        for beam, slot in zip(sentence["beams"], search["final"], strict=True):
            for t in reversed(range(search["steps"])):
                label, share = read(made[t, slot])
                assert beam["nodes"]["label"][t] == label
                assert beam["nodes"]["label_probability"][t] == pytest.approx(share, abs=1e-6)
                slot = search["parent"][t][slot]
        nodes = sentence["gold"]["nodes"]
        if encoder == "bt-grc":  # which follows no given tree
            assert nodes["label"] is view["with_gold"] is None
            return
        vectors = list(leaves)
        for t in range(n - 1):
            left, right = vectors[nodes["left"][t]], vectors[nodes["right"][t]]
            vectors.append(network.cell(left[None], right[None])[0])
            label, share = read(vectors[-1])
            assert nodes["label"][t] == label
            assert nodes["label_probability"][t] == pytest.approx(share, abs=1e-6)
        label, share = read(vectors[-1])
        assert view["with_gold"]["label"] == model.task.labels[label]
        assert view["with_gold"]["probability"] == pytest.approx(share, abs=1e-6)
    spans = {" ".join(sentence["tokens"][a:b]) for a, b in sentence["texts_in"]}
    assert spans == {"2", "3", "4", "9", "[MAX 2 9 ]", text}


def test_a_text_with_too_many_tokens_is_refused_at_the_first_too_many() -> None:
    with pytest.raises(UnreadableInputError, match="4 tokens exceed the limit of 3") as caught:
        make_view(small_model(), ["[MAX 2 9 ]"], name="it", max_tokens=3)
    assert (caught.value.code, caught.value.where) == ("too_long", (0, 3, 9, 10))
    with pytest.raises(UnreadableInputError, match="6 tokens exceed the limit of 3") as caught:
        make_view(small_model(task="snli"), ["a,b;c!", "a"], name="it", max_tokens=3)
    assert caught.value.where == (0, 3, 3, 4)


def test_the_size_is_linear_in_the_tokens() -> None:
    model = small_model()
    short, long = (len(json.dumps(make_view(model, [expression(n)], name="it"))) for n in (60, 240))
    assert long < 4.5 * short


def test_the_program_in_the_docs_rebuilds_the_search() -> None:
    known: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL):
        exec(block, known)
    assert known["view"]["prediction"]["label"] == "9"
    ends = [known["beams"][slot] for slot in known["search"]["final"]]
    assert [len(nodes) for nodes, _, _ in ends] == [1] * len(known["sentence"]["beams"])
    for (_, _, score), beam in zip(ends, known["sentence"]["beams"], strict=True):
        assert score == pytest.approx(beam["log_score"], abs=1e-4)
