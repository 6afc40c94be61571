"""Side by side, against the gold tree, folded, zoomed, long; and links that show the same again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browsing import EXPRESSION, HOLD, Explorer
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from beamtree.data.listops.language import gold_merges
from beamtree.trees.beam_trees import BeamTrees

LONG = "[SM " + " ".join(["[MAX 1 [MIN 2 7 [MED 3 4 5 ] ] 6 ]"] * 38) + " 1 2 ]"
PANES = (".pane:nth-child(1)", ".pane:nth-child(2)")


def test_two_models_stand_side_by_side_and_move_together(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    Select(explorer.one("#other")).select_by_value("untrained")
    explorer.wait("return document.querySelectorAll('.pane').length === 2")
    titles = [title.text for title in explorer.all(".pane-title")]
    assert titles == ["listops-ebt-grc", "untrained"]
    tops = explorer.each(".stage", "e.getBoundingClientRect().top")
    assert tops[0] == tops[1]
    first, second = (set(map(tuple, explorer.spans(pane))) for pane in PANES)
    shared = len((first & second) - {(0, 17)})
    assert explorer.all(".compared")[1].text == f"{shared} of 15 spans are also found by listops-ebt-grc."
    explorer.shot("compare")
    explorer.click("#first")
    explorer.click("#next")
    assert [len(explorer.spans(pane)) for pane in PANES] == [1, 1]
    Select(explorer.one("#other")).select_by_value("")
    explorer.wait("return document.querySelectorAll('.pane').length === 1")


def test_a_search_can_be_compared_with_a_model_that_has_none(explorer: Explorer) -> None:
    explorer.open(("text", EXPRESSION), ("with", "balanced"), ("step", 3), ("beams", 3))
    assert [len(explorer.spans(pane)) for pane in PANES] == [3, 16]


def test_only_models_of_the_same_task_can_be_compared(explorer: Explorer) -> None:
    explorer.open(model="logic")
    offered = [option.text for option in Select(explorer.one("#other")).options]
    assert offered == ["nothing", "1, 3 and 5 beams", "the gold tree"]


def test_one_model_with_one_three_and_five_beams(explorer: Explorer) -> None:
    explorer.resize(1920, 1080)
    explorer.open(text=EXPRESSION, beams=4)
    Select(explorer.one("#other")).select_by_visible_text("1, 3 and 5 beams")
    explorer.wait("return document.querySelectorAll('.pane').length === 3")
    assert [title.text for title in explorer.all(".pane-title")] == ["1 beam", "3 beams", "5 beams"]
    kept = [len(pane.find_elements("css selector", ".beam-list li")) for pane in explorer.all(".pane")]
    assert kept == [2, 4, 6], "the gold tree stands beside them"
    tops = explorer.each(".stage", "e.getBoundingClientRect().top")
    assert len(set(tops)) == 1, "side by side"
    explorer.shot("compare-beams")
    address = explorer.driver.current_url
    explorer.click("#first")
    explorer.click("#next")
    assert [len(explorer.spans(f".pane:nth-child({i})")) for i in (1, 2, 3)] == [1, 1, 1]
    explorer.load(address)
    explorer.wait("return document.querySelectorAll('.pane').length === 3")
    Select(explorer.one("#model")).select_by_value("untrained")
    assert explorer.one("#beams").get_attribute("value") == "", "another model has its own number of beams"


def test_trained_beside_untrained_and_on_the_gold_tree(explorer: Explorer) -> None:
    explorer.open(model="listops-ebt-grc", text=EXPRESSION)
    Select(explorer.one("#other")).select_by_visible_text("itself, untrained")
    explorer.wait("return document.querySelectorAll('.pane').length === 2")
    assert explorer.all(".pane-title")[1].text == "listops-ebt-grc-untrained"
    Select(explorer.one("#model")).select_by_value("untrained")
    Select(explorer.one("#other")).select_by_visible_text("the gold tree")
    explorer.wait("return document.querySelectorAll('.pane-title')[1]?.textContent === 'On the gold tree'")
    gold = sorted([a, b] for a, b in BeamTrees.from_merges([gold_merges(EXPRESSION.split())]).span_sets())
    assert explorer.spans(PANES[1]) == gold
    assert len(explorer.all(f"{PANES[1]} .tree .value")) == 16
    explorer.click("#first")
    assert explorer.spans(PANES[1]) == gold, "it was not searched for, so it stands still"


def test_spans_of_the_gold_tree_are_marked_and_counted(explorer: Explorer) -> None:
    explorer.open(model="untrained", text=EXPRESSION)
    agrees, differs = len(explorer.all(".tree .agrees")), len(explorer.all(".tree .differs"))
    assert agrees + differs == 15, "all but the whole, which every tree has"
    assert f"{agrees} of 15 gold spans" in explorer.text(".beam-list [aria-pressed=true] .fate")
    assert explorer.one(".legend").is_displayed()
    explorer.all(".beam-list button")[-1].click()
    assert explorer.text(".beam-list [aria-pressed=true] .name") == "Gold tree"
    assert len(explorer.all(".tree .agrees")) == agrees, "as seen from the gold tree"
    assert "found by the model" in explorer.text(".legend")
    explorer.shot("gold")


def test_pointing_at_a_node_tells_span_height_and_score(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 [MIN 4 7 ] 0 ]")
    node = next(one for one in explorer.all(".tree .node") if one.get_attribute("data-end") == "7")
    ActionChains(explorer.driver).move_to_element(node.find_element("css selector", ".dot")).perform()
    told = explorer.text(".readout")
    for fact in ("tokens", "height", "score", "chosen with", "also in the gold tree"):
        assert fact in told
    covered = explorer.all(".tree .leaf.covered")
    span = range(int(str(node.get_attribute("data-start"))), 7)
    assert len(covered) == len(span)


def scale(explorer: Explorer) -> float:
    [found] = explorer.each(".tree", "e.getBoundingClientRect().width / e.viewBox.baseVal.width")
    return float(found)


def test_five_hundred_tokens_start_folded_and_can_be_opened_zoomed_and_moved(explorer: Explorer) -> None:
    assert len(LONG.split()) == 498
    explorer.open(text=LONG)
    assert 20 <= len(explorer.all(".tree .leaf")) <= 60
    assert explorer.each(".tree .leaf text", "getComputedStyle(e).fontSize")[0] == "14px"
    assert scale(explorer) >= 0.8, "it can be read"
    explorer.shot("500-tokens")
    explorer.click(".fold")
    assert len(explorer.all(".tree .leaf")) == 498
    explorer.click(".fit")
    stage, tree = explorer.box(".stage"), explorer.box(".tree")
    assert tree["height"] <= stage["height"] + 1
    assert tree["width"] <= stage["width"] + 1
    small = scale(explorer)
    explorer.click(".zoom-in")
    assert scale(explorer) > small * 1.2
    for _ in range(12):
        explorer.click(".zoom-in")
    [start] = explorer.each(".stage", "e.scrollTop")
    hand = ActionChains(explorer.driver).move_to_element_with_offset(explorer.one(".stage"), -200, 0)
    hand.click_and_hold().move_by_offset(0, -150).release().perform()
    assert explorer.each(".stage", "e.scrollTop") == [start + 150]


def test_five_hundred_tokens_can_be_played(explorer: Explorer) -> None:
    explorer.open(text=LONG, step=250)
    explorer.run("for (let i = 0; i < 10; i++) document.querySelector('#next').click()")
    assert explorer.text("#step-text").startswith("Merge 261 of 497")
    stage, merge = explorer.box(".stage"), explorer.box(".candidate.first path")
    assert stage["top"] < merge["top"] < stage["bottom"], "the place of work is in sight"
    explorer.shot("500-tokens-playing")


def test_a_part_can_be_folded_away_and_back(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    whole = len(explorer.all(".tree .leaf"))
    node = next(
        one
        for one in explorer.all(".tree .node")
        if one.get_attribute("data-start") == "2" and one.get_attribute("data-end") == "11"
    )
    explorer.run(
        "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        node.find_element("css selector", ".dot"),
    )
    assert len(explorer.all(".tree .leaf")) == whole - 8
    assert explorer.text(".tree .folded text") == "[MAX … 9 tokens"
    explorer.click(".tree .folded")
    assert len(explorer.all(".tree .leaf")) == whole


def test_turning_puts_one_token_a_line(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    rows = (".tree .leaf text", "e.getAttribute('y')")
    assert len(set(explorer.each(*rows))) == 1
    explorer.click(".turn")
    assert len(set(explorer.each(*rows))) == 17


def seen_by(explorer: Explorer) -> list[str]:
    trees = explorer.each(".tree", "e.outerHTML.replace(/tabindex=.-?\\d./g, '')")
    return [*trees, *explorer.each(".beams", "e.innerHTML"), *explorer.each("#step", "e.value")]


def test_a_link_shows_the_same_view_again(explorer: Explorer) -> None:
    explorer.open(("text", EXPRESSION), ("with", "untrained"))
    explorer.all(".pane:nth-child(2) .beam-list button")[2].click()
    explorer.run("scrollTo(0, 0)")  # the player lies over what is scrolled away
    explorer.click(".pane:nth-child(1) .fold")
    explorer.click(".pane:nth-child(2) .turn")
    hash = "location.hash"
    explorer.wait(f"return ['beam2=16.2', 'turn2=', 'fold='].every(part => {hash}.includes(part))")
    address, seen = explorer.driver.current_url, seen_by(explorer)
    explorer.load(address)
    explorer.wait("return document.querySelectorAll('.tree').length === 2")
    assert seen_by(explorer) == seen
    explorer.one("#step").send_keys("\ue012" * 4)  # arrow left
    explorer.wait("return location.hash.includes('step=12')")


def test_another_link_in_the_same_tab_is_followed(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.run("location.hash = 'text=[MIN 3 4 ]&step=1'")
    explorer.wait("return document.querySelectorAll('.tree .leaf').length === 4")
    assert explorer.one("#text-0").get_attribute("value") == "[MIN 3 4 ]"
    assert explorer.one("#step").get_attribute("value") == "1"


def test_back_and_forward_go_from_question_to_question(explorer: Explorer) -> None:
    def shows(text: str, panes: int = 1) -> None:
        script = (
            "return document.querySelector('#text-0').value === arguments[0]"
            " && document.title.startsWith(arguments[0])"
            " && document.querySelectorAll('.tree').length === arguments[1]"
            " && document.querySelectorAll('.pane:first-child .leaf').length"
            " === arguments[0].split(' ').length"
        )
        explorer.wait(script, text, panes)
        time.sleep(0.2)  # the step is written into the link a moment later

    explorer.open(text="[MIN 3 4 ]")
    explorer.type("[MAX 1 2 8 ]")
    shows("[MAX 1 2 8 ]")
    explorer.click("#previous")
    explorer.wait("return location.hash.includes('step=3')")
    explorer.click("#ask .primary")  # the same question again
    explorer.wait("return document.querySelector('#step').value === '4'")
    Select(explorer.one("#other")).select_by_visible_text("the gold tree")
    shows("[MAX 1 2 8 ]", panes=2)
    explorer.type("5")
    shows("5", panes=2)
    explorer.driver.back()
    shows("[MAX 1 2 8 ]", panes=2)
    explorer.driver.back()
    shows("[MAX 1 2 8 ]")
    explorer.driver.back()
    shows("[MIN 3 4 ]")
    explorer.driver.forward()
    shows("[MAX 1 2 8 ]")


def test_steps_while_an_answer_is_awaited_change_no_entry_of_the_history(explorer: Explorer) -> None:
    def shows(text: str) -> None:
        leaves = len(text.split())
        explorer.wait("return document.querySelectorAll('.tree .leaf').length === arguments[0]", leaves)
        assert explorer.one("#text-0").get_attribute("value") == text
        time.sleep(0.2)  # the step is written into the link a moment later

    @contextmanager
    def stepping_meanwhile() -> Iterator[None]:
        explorer.run(f"{{ {HOLD.replace('OF', 'api/view')} }}")
        yield
        explorer.go_to(1)  # as a player does that was started before
        time.sleep(0.2)
        explorer.run("release()")

    explorer.open(text="[MIN 3 4 ]")
    with stepping_meanwhile():
        explorer.type("[MAX 1 2 8 ]")
    shows("[MAX 1 2 8 ]")
    with stepping_meanwhile():
        explorer.driver.back()
        explorer.wait("return document.body.hasAttribute('aria-busy')")
    shows("[MIN 3 4 ]")
    explorer.driver.forward()
    shows("[MAX 1 2 8 ]")
    explorer.driver.back()
    shows("[MIN 3 4 ]")


def test_the_whole_screen_holds_player_and_tree(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.click(".project")
    explorer.wait("return document.fullscreenElement !== null")
    assert not explorer.one("#ask").is_displayed()
    explorer.click("#previous")
    assert explorer.one(".tree .candidate.first").is_displayed()
    explorer.shot("whole-screen")
    explorer.click(".project")
    explorer.wait("return document.fullscreenElement === null")
    assert explorer.one("#ask").is_displayed()
    assert explorer.one(".project").get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("refused", [False, True])
def test_escape_leaves_the_whole_screen_even_where_the_browser_gave_none(
    explorer: Explorer, refused: bool
) -> None:
    explorer.open(text=EXPRESSION)
    if refused:
        explorer.run("document.documentElement.requestFullscreen = undefined")
    explorer.click(".project")
    assert refused or explorer.wait("return document.fullscreenElement !== null")
    assert not explorer.one("#ask").is_displayed()
    explorer.keys(Keys.ESCAPE)
    explorer.wait("return !document.body.classList.contains('projecting')")
    explorer.wait("return document.fullscreenElement === null")
    assert explorer.one("#ask").is_displayed()
    assert explorer.one(".project").get_attribute("aria-pressed") == "false"


def test_a_link_of_nonsense_shows_the_page_all_the_same(explorer: Explorer) -> None:
    explorer.open(
        model="none", text="[MAX 1 2 ]", step="99999", beam="7.7", fold="x", turn="<b>", sentence="9"
    )
    assert explorer.text(".verdict strong") == "2"
    assert len(explorer.all(".tree .node")) == 3
    explorer.wait("return location.hash.includes('model=listops-ebt-grc')")


def test_a_link_to_a_gold_tree_shows_the_models_tree_where_there_is_none(explorer: Explorer) -> None:
    explorer.open(model="sentiment", text="a good film", gold="1")
    assert explorer.text(".beam-list [aria-pressed=true] .name") == "Beam 1"
