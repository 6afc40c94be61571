"""A search as an animated SVG: whole without motion, and every step of the best beam in its time."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from explored import rebuild, small_model
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.errors import BeamtreeError
from beamtree.explorer.animation import MOST_TOKENS, animate_search
from beamtree.explorer.view import make_view

SVG = "{http://www.w3.org/2000/svg}"
EXPRESSION = "[SM 4 [MAX 2 9 ] 3 ]"


def animate(text: str = EXPRESSION, **options: Any) -> tuple[ElementTree.Element, dict[str, Any]]:
    view = make_view(small_model(**options), [text], name="it")
    (sentence,) = view["sentences"]
    return ElementTree.fromstring(animate_search(view, sentence)), sentence


def groups(picture: ElementTree.Element, name: str) -> dict[int, ElementTree.Element]:
    """The groups that are seen from a step on (`from`), or in it alone (`in`), by step."""
    found = {}
    for group in picture.iter(f"{SVG}g"):
        when = re.search(rf"-{name}(\d+)$", group.get("style", ""))
        if when is not None and group.find(f"{SVG}text[@class='caption']") is None:
            found[int(when[1])] = group
    return found


def test_every_node_appears_with_its_merge_and_every_step_shows_the_shares_of_its_pairs() -> None:
    picture, sentence = animate()
    n, search = len(sentence["tokens"]), sentence["search"]
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert [text for text in texts if text in sentence["tokens"] and len(text) > 1] == ["[SM", "[MAX"]
    assert sorted(groups(picture, "from")) == list(range(1, n))
    slots, slot = [], search["final"][0]
    for t in reversed(range(n - 1)):
        slots.insert(0, search["parent"][t][slot])
        slot = slots[0]
    boards = [None, *(made for _, made in rebuild(sentence))]
    for t, group in groups(picture, "in").items():
        board = boards[t][slots[t]] if t else None
        pairs = search["leaf_scores"] if board is None else board.pairs
        total = sum(2.718281828459045**score for score in pairs)
        shares = sorted((f"{2.718281828459045**score / total:.2f}" for score in pairs), reverse=True)
        shown = [text.text for text in group.iter(f"{SVG}text")]
        assert len(shown) <= 4, "three of the likeliest and the chosen one"
        assert set(shares[:3]) <= set(shown) <= set(shares)
        assert len([one for one in group if one.get("class") == "pair chosen"]) == 1


def test_a_pair_that_is_not_the_likeliest_is_chosen_with_a_word_on_where_that_goes() -> None:
    picture, _ = animate("[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]", seed=0)
    captions = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") == "caption"]
    aside = "(another beam takes the likeliest pair)"
    told = {t for t, words in enumerate(captions) if str(words).endswith(aside)}
    lesser = set()
    for t, group in groups(picture, "in").items():
        share = {one.get("class"): one.findtext(f"{SVG}text") for one in group}["pair chosen"]
        if any(float(str(one.findtext(f"{SVG}text"))) > float(str(share)) for one in group):
            lesser.add(t)
    assert lesser
    assert lesser <= told


def test_without_motion_the_whole_tree_is_seen_and_nothing_else() -> None:
    picture, sentence = animate()
    for group in groups(picture, "in").values():
        assert "passing" in group.get("class", "")
    for group in groups(picture, "from").values():
        assert "passing" not in group.get("class", "")
    style = picture.find(f"{SVG}style")
    assert style is not None
    assert ".passing { opacity: 0 }" in str(style.text)
    assert "prefers-reduced-motion" in str(style.text)
    captions = [text for text in picture.iter(f"{SVG}text") if text.get("class") == "caption"]
    assert len(captions) == len(sentence["tokens"])
    assert "the answer is" in str(captions[-1].text)


@pytest.mark.parametrize("text", ["5", "[MAX 2 ]"])
def test_the_shortest_texts_are_drawn_too(text: str) -> None:
    picture, _ = animate(text)
    assert len(list(picture.iter(f"{SVG}circle"))) == len(text.split()) - 1


def test_what_cannot_be_animated_says_why() -> None:
    with pytest.raises(BeamtreeError, match=r"nothing to animate: .* not the steps that led to them"):
        animate(encoder="balanced-grc")
    with pytest.raises(BeamtreeError, match="at most 100 tokens, not 101: see --format html"):
        animate("[SM " + "1 " * (MOST_TOKENS - 1) + "]")


def test_a_pair_has_both_searches_below_each_other_in_their_own_time(tmp_path: Path) -> None:
    out = tmp_path / "film.svg"
    texts = ["( a ( and b ) )", "( not a )"]
    arguments = ["parse", "logic-ebt-grc", *texts, "--format", "animation", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    root = ElementTree.parse(out).getroot()
    inner = root.findall(f"{SVG}svg")
    assert len(inner) == 2
    named = [set(re.findall(r"@keyframes (\w+)-", str(one.find(f"{SVG}style").text))) for one in inner]  # type: ignore[union-attr]
    assert len(named[0]) == len(named[1]) == 1
    assert named[0] != named[1]
    several = CliRunner().invoke(app, ["parse", "listops-ebt-grc", "5", "6", "--format", "animation"])
    assert several.exit_code == 2
    assert "an animation shows only one text" in several.output
