"""The SVG picture is well-formed, complete, readable by screen readers, and laid out without overlaps."""

import random
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from given_trees import draw_merges

from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import merges_from_brackets

SVG = "{http://www.w3.org/2000/svg}"
TOKENS, LISTOPS = merges_from_brackets("(((([MAX 2) 9) ((([MIN 4) 7) ])) (0 ]))")


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def labels_of(picture: ElementTree.Element) -> list[ElementTree.Element]:
    return [text for text in picture.iter(f"{SVG}text") if text.get("class") != "caption"]


def shown(text: ElementTree.Element) -> str:
    """The words of a label without those of its hint."""
    return (text.text or "") + "".join(child.tail or "" for child in text)


def test_it_has_each_token_each_node_and_a_description_for_screen_readers() -> None:
    picture = read(BeamTrees.from_merges([LISTOPS]).svg(TOKENS))
    assert [shown(text) for text in labels_of(picture)] == TOKENS
    assert len(list(picture.iter(f"{SVG}circle"))) == len(list(picture.iter(f"{SVG}path"))) == 8
    title, description = picture.find(f"{SVG}title"), picture.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text == "Binary tree: 9 tokens"
    assert description.text == "(((([MAX 2) 9) ((([MIN 4) 7) ])) (0 ]))"
    assert picture.get("role") == "img"
    assert picture.get("aria-labelledby", "").split() == [title.get("id"), description.get("id")]


def test_it_is_self_contained_and_knows_light_and_dark() -> None:
    svg = BeamTrees.from_merges([LISTOPS]).svg(TOKENS)
    assert "@media (prefers-color-scheme: dark)" in svg
    assert re.findall(r"https?://[^\"]+", svg) == ["http://www.w3.org/2000/svg"]
    assert all(rule.startswith(".beamtree ") for rule in re.findall(r"^[^@}\n]+(?= \{)", svg, re.MULTILINE))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 80, 500])
def test_everything_lies_inside_the_picture_and_labels_do_not_overlap(n: int) -> None:
    rng = random.Random(n)
    tokens = [rng.choice(["a", "[MEDIAN", "word", "漢字"]) for _ in range(n)]
    picture = read(BeamTrees.from_merges([draw_merges(n, rng)]).svg(tokens))
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    for circle in picture.iter(f"{SVG}circle"):
        assert 0 < float(circle.get("cx", -1)) < width
        assert 0 < float(circle.get("cy", -1)) < height
    places = [(float(text.get("x", -1)), float(text.get("y", -1))) for text in labels_of(picture)]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    if labels_of(picture)[0].get("text-anchor") == "middle":
        assert len({y for _, y in places}) == 1
        half = [8.4 * sum(2 if c in "漢字" else 1 for c in token) / 2 for token in tokens]
        edges = [(x - reach, x + reach) for (x, _), reach in zip(places, half, strict=True)]
        assert all(after[0] - before[1] > 15 for before, after in pairwise(edges))
    else:
        assert len({x for x, _ in places}) == 1
        assert all(b[1] - a[1] >= 18 for a, b in pairwise(places))
    assert width <= 1400


def test_a_node_stands_above_its_children_and_between_them() -> None:
    trees = BeamTrees.from_merges([LISTOPS])
    picture = read(trees.svg(TOKENS))
    nodes = {}
    for group in picture.iter(f"{SVG}g"):
        circle, hint = group.find(f"{SVG}circle"), group.findtext(f"{SVG}title")
        if circle is not None and hint:
            merge = int(re.findall(r"merge (\d+)", hint)[0])
            nodes[8 + merge] = (float(circle.get("cx", 0)), float(circle.get("cy", 0)))
    leaves = {
        i: (float(text.get("x", 0)), float(text.get("y", 0))) for i, text in enumerate(labels_of(picture))
    }
    places = leaves | nodes
    for step, (left, right) in enumerate(trees.children[0, 0].tolist()):
        assert places[left][0] < places[9 + step][0] < places[right][0]
        assert places[9 + step][1] < min(places[left][1], places[right][1])


def test_tokens_are_escaped_and_long_ones_cut_with_the_whole_as_a_hint() -> None:
    tokens = ["<script>", "a&b", '"', "\x00\ud800", "long" * 20]
    picture = read(BeamTrees.from_merges([[0, 0, 0, 0]]).svg(tokens))
    labels = [shown(text) for text in labels_of(picture)]
    assert labels[:4] == ["<script>", "a&b", '"', "\\x00\\ud800"]
    assert labels[4].endswith("…")
    assert len(labels[4]) == 28
    assert labels_of(picture)[4].findtext(f"{SVG}title") == "long" * 20


def test_the_caption_tells_beams_apart_and_their_names_differ() -> None:
    merges = torch.tensor([[[0, 0], [1, 0], [-1, -1]]])
    scores = torch.tensor([[0.0, -1.0, -torch.inf]])
    trees = BeamTrees(merges, scores, torch.zeros(1, dtype=torch.float64), torch.tensor([3]))
    first, second = trees.svg(), trees.svg(beam=1)
    assert "3 tokens, beam 1 of 2, weight 0.731" in first
    assert "3 tokens, beam 2 of 2, weight 0.269" in second
    names = [re.findall(r'id="([^"]+)"', svg) for svg in (first, second)]
    assert not set(names[0]) & set(names[1])
