"""What makes the page a teacher: values on the nodes, words that stay in sight."""

import pytest
from browsing import EXPRESSION, Explorer
from selenium.webdriver.common.keys import Keys

TOKENS = EXPRESSION.split()
SIZES = [(1280, 800), (1920, 1080), (375, 812)]
VALUES = ".tree .value"
# The part, what is drawn beside its node, whether it is said to be an extrapolation.
VALUE = "[+e.dataset.start, +e.dataset.end, e.textContent, e.classList.contains('extrapolated')]"


def test_the_value_grows_up_the_tree_and_can_be_switched_off(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    drawn = {" ".join(TOKENS[a:b]): (text, grey) for a, b, text, grey in explorer.each(VALUES, VALUE)}
    assert drawn["[MIN 4 7 ]"][0].split()[0] == "4"
    assert drawn["[MAX 2 9 [MIN 4 7 ]"][0].split()[0] == "9"
    assert drawn[EXPRESSION] == ("8 (100 %)", False)
    wholes = {"[MIN 4 7 ]", "[MAX 2 9 [MIN 4 7 ] 0 ]", "[MED 1 8 5 ]", EXPRESSION}
    assert {part for part, (_, grey) in drawn.items() if not grey} == wholes
    assert "extrapolates" in explorer.text(".values-note")
    label = explorer.each(".tree .node", "e.ariaLabel")[0]
    assert "read as 8, " in label
    assert "read as 8" in explorer.text(".beam-list .fate")
    explorer.click(".listing summary")
    explorer.wait("return document.querySelectorAll('.listing tbody tr').length === 16")
    column = explorer.each(".listing th", "e.textContent").index("Read as") + 1
    assert explorer.each(f".listing td:nth-child({column})", "e.textContent")[-1].startswith("8, ")
    explorer.click("#previous")
    assert explorer.each(".pairs .value", "e.textContent.trim()") == ["8"]

    explorer.click(".values")
    explorer.said("hidden")
    assert explorer.one(".values").get_attribute("aria-pressed") == "false"
    assert explorer.all(VALUES) == []
    assert "read as" not in explorer.each(".tree .node", "e.ariaLabel")[0]
    assert "Read as" not in explorer.each(".listing th", "e.textContent")
    assert explorer.all(".pairs .value") == []
    assert not explorer.one(".values-note").is_displayed()
    explorer.wait("return location.hash.includes('values=0')")
    explorer.driver.refresh()
    explorer.wait("return document.querySelector('.tree .node')")
    assert explorer.all(VALUES) == []


def test_pairs_and_models_without_nodes_say_what_their_values_are(explorer: Explorer) -> None:
    explorer.open(("model", "logic"), ("text", "( a ( and b ) )"), ("text", "a"))
    assert "together with the whole other sentence" in explorer.text(".values-note")
    explorer.open(model="transformer", text="[MAX 1 2 ]")
    assert not explorer.one(".values").is_displayed()
    explorer.open(model="balanced", text="[MAX 1 2 ]")
    assert len(explorer.all(VALUES)) == 3


def test_a_label_of_words_is_whole_where_there_is_room_and_pointing_tells_what_there_is(
    explorer: Explorer,
) -> None:
    explorer.open(model="together", text="a a a a a")
    drawn = explorer.each(VALUES, "e.textContent.split(' ')[0]")
    assert len(drawn) == 4
    assert set(drawn) <= {"fine", "weak"}
    assert explorer.text(".readout") == "Point at a node to see its span, height, score, reading."
    explorer.open(model="balanced", text="[MAX 1 2 ]", values=0)
    assert explorer.text(".readout") == "Point at a node to see its span, height."


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_words_and_search_stay_in_sight_while_stepping(explorer: Explorer, width: int, height: int) -> None:
    """Without scrolling, in both colours; the words stay at their place while the forest grows."""
    explorer.resize(width, height)
    places = []
    for scheme, steps in (("light", (0, 7, 16)), ("dark", (7,))):
        explorer.prefers("color-scheme", scheme)
        explorer.open(text=EXPRESSION, step=0)
        for step in steps:
            explorer.go_to(step)
            boxes = explorer.each(".tree .leaf text", "e.getBoundingClientRect().toJSON()")
            assert len(boxes) == len(TOKENS)
            player, stage, river = (explorer.box(part) for part in ("#player", ".stage", ".river"))
            assert player["bottom"] <= stage["top"] < stage["bottom"] <= river["top"]
            assert river["bottom"] <= height
            assert all(stage["top"] <= box["top"] and box["bottom"] <= stage["bottom"] for box in boxes)
            assert all(box["left"] >= 0 and box["right"] <= width for box in boxes)
            sizes = explorer.each(".tree .leaf text", "e.getBoundingClientRect().height")
            assert min(sizes) > 9, "they can be read"
            places.append([box["top"] for box in boxes])
            explorer.shot(f"teaching-{width}-{scheme}-{step}")
    assert all(place == pytest.approx(places[0], abs=1.5) for place in places)


def test_symbols_are_explained_where_they_stand(explorer: Explorer) -> None:
    explorer.open(("model", "logic"), ("text", "( a ( and b ) )"), ("text", "a"))
    assert "^ each is the other's negation" in explorer.text("#about")
    assert explorer.text(".meaning")
    explorer.open(text="[SM 1 2 ]")
    assert "the last digit of its sum" in explorer.each(".tree .leaf", "e.ariaLabel")[0]
    explorer.open(model="sentiment", text="a man plays")
    assert not explorer.one("#about").is_displayed()


def tab_to(explorer: Explorer, selector: str) -> None:
    for _ in range(80):
        explorer.keys(Keys.TAB)
        if explorer.run("return document.activeElement.matches(arguments[0])", selector):
            return
    raise AssertionError(f"the tab key does not reach {selector}")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_keyboard_is_enough(explorer: Explorer, width: int, height: int) -> None:
    explorer.resize(width, height)
    explorer.prefers("color-scheme", "dark")
    explorer.open(text=EXPRESSION)
    if width < 500:
        tab_to(explorer, "#more")
        explorer.keys(Keys.ENTER)
    tab_to(explorer, "#other")
    explorer.keys(Keys.ARROW_DOWN, Keys.ENTER)
    explorer.wait("return document.querySelectorAll('.pane').length === 3")
    explorer.keys(Keys.ARROW_UP, Keys.ENTER)
    explorer.wait("return document.querySelectorAll('.pane').length === 1")
    tab_to(explorer, "#tell")
    explorer.keys(Keys.ENTER)
    explorer.wait("return document.querySelector('#player.playing')")
    explorer.keys(Keys.ESCAPE)
    assert explorer.all("#player.playing") == []
    tab_to(explorer, ".values")
    explorer.keys(Keys.ENTER)
    assert explorer.all(VALUES) == []
    explorer.keys(Keys.SPACE)
    assert explorer.one(".values").get_attribute("aria-pressed") == "true"
