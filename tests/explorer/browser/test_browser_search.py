"""The search step by step: what is drawn at each merge is what the server says of it."""

import json
import math
import urllib.request
from typing import Any

import pytest
from browsing import EXPRESSION, Explorer
from explored import rebuild
from selenium.webdriver.common.keys import Keys

STEPS = len(EXPRESSION.split()) - 1


def ask(address: str, text: str, model: str = "listops-ebt-grc") -> dict[str, Any]:
    body = json.dumps({"model": model, "texts": [text]}).encode()
    request = urllib.request.Request(f"{address}api/view", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_the_slider_shows_every_candidate_with_its_share(explorer: Explorer, address: str) -> None:
    sentence = ask(address, EXPRESSION)["sentences"][0]
    explorer.open(text=EXPRESSION, step=6)
    slots = rebuild(sentence)[5][1]
    pairs = next(slot.pairs for slot in slots if slot)
    explorer.click(".candidates button.link")
    shown = explorer.each(".pairs li", "+e.style.getPropertyValue('--share')")
    total = sum(map(math.exp, pairs))
    assert shown == pytest.approx(sorted((math.exp(pair) / total for pair in pairs), reverse=True), abs=1e-5)
    assert len(explorer.all(".tree .candidate")) == len(pairs) == STEPS - 6
    assert len(explorer.all(".tree .node")) == 6


def test_one_window_holds_a_step_of_the_search_with_everything_said_of_it(explorer: Explorer) -> None:
    explorer.resize(1280, 860)
    explorer.open(text=EXPRESSION, step=7)
    explorer.run("document.documentElement.style.scrollbarWidth = 'none'")
    explorer.shot("explorer-window")
    explorer.resize(1280, 1180)
    for part in (".awaited", ".tree .candidate.first", ".river", ".pairs .taken", ".beam-list .dies"):
        assert explorer.box(part)["bottom"] < 1180, part
    explorer.shot("explorer")  # the picture in docs/images


def test_chosen_pairs_and_beams_that_split_or_die_are_those_of_the_search(
    explorer: Explorer, address: str
) -> None:
    search = ask(address, EXPRESSION)["sentences"][0]["search"]
    explorer.open(text=EXPRESSION, step=0)
    for step in range(STEPS):
        heirs = [
            [k for k, p in enumerate(search["parent"][step]) if p == slot]
            for slot in range(search["beam_size"])
        ]
        alive = [
            slot for slot in range(search["beam_size"]) if step and search["parent"][step - 1][slot] >= 0
        ] or [0]
        fates = [fate.text for fate in explorer.all(".beam-list li .fate")][: len(alive)]
        for slot, fate in zip(alive, fates, strict=True):
            wanted = {0: "is dropped", 1: "becomes beam"}.get(len(heirs[slot]), "splits")
            assert fate.startswith(wanted), (step, slot, fate)
        own = int(explorer.text(".beam-list [aria-pressed=true] .name").removeprefix("Beam ")) - 1
        taken = {search["position"][step][k] for k in heirs[own]}
        assert len(explorer.all(".tree .candidate.taken")) == len(taken)
        assert explorer.text("#step-text").startswith(f"Merge {step + 1} of {STEPS}: ")
        explorer.click("#next")
    assert explorer.text("#step-text") == f"{STEPS} merges: the whole tree"
    assert explorer.all(".tree .candidate") == []


def test_play_runs_to_the_end_and_can_be_paused(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 ]", step=0)
    explorer.click("#play")
    assert explorer.one("#play").get_attribute("aria-label") == "Pause"
    explorer.wait("return document.querySelector('#step').value === '1'")
    explorer.click("#play")
    assert explorer.one("#play").get_attribute("aria-label") == "Play the merges"
    explorer.click("#play")
    explorer.wait("return document.querySelector('#step').value === '3'")
    explorer.wait("return document.querySelector('#play').getAttribute('aria-label') === 'Play the merges'")
    assert len(explorer.all(".tree .node")) == 3


def test_playing_again_starts_from_the_first_merge(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.click("#play")
    assert int(str(explorer.one("#step").get_attribute("value"))) <= 1
    explorer.click("#last")
    assert len(explorer.all(".tree .node")) == STEPS


def test_a_chosen_beam_is_followed_back_and_on(explorer: Explorer, address: str) -> None:
    sentence = ask(address, EXPRESSION, "untrained")["sentences"][0]
    last = len(sentence["beams"]) - 1
    explorer.open(text=EXPRESSION, model="untrained")
    explorer.all(".beam-list button")[last].click()
    nodes = sentence["beams"][last]["nodes"]
    whole = [list(span) for span in zip(nodes["start"], nodes["end"], strict=True)]
    assert explorer.spans() == sorted(whole)
    for _ in range(9):
        explorer.click("#previous")
    assert explorer.spans() == sorted(whole[: STEPS - 9])
    explorer.click("#last")
    assert explorer.spans() == sorted(whole)
    assert explorer.text(".beam-list [aria-pressed=true] .name") == f"Beam {last + 1}"


def test_a_beam_that_will_be_dropped_can_be_looked_at(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION, step=1)
    explorer.click(".beam-list button.dies")
    chosen = explorer.text(".beam-list [aria-pressed=true] .name")
    assert "dropped" in explorer.text(".beam-list [aria-pressed=true] .fate")
    explorer.click("#next")
    assert explorer.text(".beam-list [aria-pressed=true] .name") == "Beam 1"
    explorer.click("#previous")
    assert explorer.text(".beam-list [aria-pressed=true] .name") == chosen
    explorer.shot("dropped-beam")


def test_the_map_of_the_search_is_a_way_to_go(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    assert "beams split" in str(explorer.one(".river svg").get_attribute("aria-label"))
    explorer.run("""const box = document.querySelector('.river svg').getBoundingClientRect();
        document.querySelector('.river svg').dispatchEvent(new MouseEvent('click',
        {clientX: box.left + box.width * 8 / 16, clientY: box.top + 2, bubbles: true}))""")
    assert explorer.one("#step").get_attribute("value") == "8"


@pytest.mark.parametrize(("edge", "beyond", "step"), [("left", -9, "0"), ("right", 9, "399")])
def test_a_click_on_a_thick_line_at_the_edge_of_the_map_goes_to_that_edge(
    explorer: Explorer, edge: str, beyond: int, step: str
) -> None:
    explorer.open(text="[SM " + "5 " * 398 + "]", step=200)
    explorer.run(f"""const map = document.querySelector('.river svg'), box = map.getBoundingClientRect();
        map.dispatchEvent(new MouseEvent('click', {{clientX: box.{edge} + {beyond}, clientY: box.top}}))""")
    assert explorer.one("#step").get_attribute("value") == step


def test_keys_play_step_and_choose_beams(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.run("document.activeElement.blur()")
    explorer.keys(",")
    assert explorer.one("#step").get_attribute("value") == str(STEPS - 1)
    explorer.keys(".")
    explorer.keys("3")
    assert explorer.text(".beam-list [aria-pressed=true] .name") == "Beam 3"
    explorer.keys(Keys.SPACE)
    assert explorer.one("#play").get_attribute("aria-label") == "Pause"
    explorer.keys(Keys.SPACE)
    explorer.one("#step").send_keys(Keys.HOME)
    assert "Merge 1 of" in str(explorer.one("#step").get_attribute("aria-valuetext"))


def test_a_model_without_a_search_shows_its_tree_and_nothing_to_play(explorer: Explorer) -> None:
    explorer.open(model="balanced", text=EXPRESSION)
    assert len(explorer.all(".tree .node")) == STEPS
    assert not explorer.one("#player").is_displayed()
    assert not explorer.one(".river").is_displayed()
    assert "not the steps that led to them" in explorer.text(".pane-note")
