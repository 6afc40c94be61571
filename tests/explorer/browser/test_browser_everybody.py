"""For everybody: keyboard, screen readers, contrast, phones, dark rooms, little motion.

axe-core, which knows what shuts people out, is no part of the package: `make test` gets it by npm where that
is there, and what needs it is skipped without it.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import EXPRESSION, Explorer
from selenium.webdriver.common.keys import Keys

BAD = "[MAX 2 [MINI 3 ] ]"
AXE = Path(__file__).resolve().parents[3] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
STATES: list[tuple[int, int, str, list[tuple[str, Any]]]] = [
    (1280, 800, "light", [("text", EXPRESSION), ("step", 7)]),
    (1920, 1080, "dark", [("text", EXPRESSION), ("with", "beams:1,3,5")]),
    (375, 812, "dark", [("text", EXPRESSION), ("step", 7)]),
    (375, 812, "light", [("model", "logic"), ("text", "( a ( and b ) )"), ("text", "a")]),
    (1280, 800, "dark", [("text", BAD)]),
]
FAULTS = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`)));
"""


def contrast(front: str, back: str) -> float:
    """As WCAG 2 defines it, from 1 to 21."""

    def luminance(text: str) -> float:
        parts = [float(number) / 255 for number in re.findall(r"[\d.]+", text)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(front), luminance(back)))
    return (high + 0.05) / (low + 0.05)


# Every visible text with its colour and the first opaque colour behind it.
TEXTS = """
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  const element = walker.currentNode.parentElement;
  if (!text || !element.checkVisibility()) continue;
  if (element.closest('.hidden-text, .skip, .backdrop, option, .options, :disabled')) continue;
  if (element.closest('[aria-disabled=true]')) continue;
  let behind = element;
  while (/, 0\\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const style = getComputedStyle(element);
  const front = element.closest("svg") ? style.fill : style.color;
  found.push([text, front, getComputedStyle(behind).backgroundColor]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "fields", [{"text": EXPRESSION, "step": 5}, {"text": EXPRESSION, "model": "untrained"}, {"text": BAD}]
)
def test_every_text_stands_out_from_what_is_behind_it(
    explorer: Explorer, scheme: str, fields: dict[str, Any]
) -> None:
    explorer.prefers("color-scheme", scheme)
    explorer.open(**fields)
    explorer.shot(f"{scheme}-{'bad' if fields['text'] == BAD else 'step' if 'step' in fields else 'tree'}")
    texts = explorer.run(TEXTS)
    assert len(texts) > 12
    dim = [
        (text, round(contrast(front, back), 2)) for text, front, back in texts if contrast(front, back) < 4.5
    ]
    assert dim == []


def test_colours_can_be_chosen_and_are_remembered(explorer: Explorer) -> None:
    explorer.open()
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = explorer.run(paper)
    explorer.click("#theme")
    assert explorer.one("#theme").get_attribute("aria-label") == "Theme: light, light colours"
    explorer.click("#theme")
    dark = explorer.run(paper)
    assert contrast(light, dark) > 10
    explorer.open()
    assert explorer.run(paper) == dark
    explorer.click("#theme")
    assert explorer.run(paper) == light, "the colours of the system again"


def test_everything_that_acts_has_a_name_and_ids_are_unique(explorer: Explorer) -> None:
    explorer.open(("text", EXPRESSION), ("with", "untrained"), ("step", 4))
    names = explorer.each(
        "button, input, select, textarea, a[href], summary, [role=tree], [role=toolbar], [role=group]",
        "(e.ariaLabel || e.labels?.[0]?.textContent || e.textContent || '').trim()",
    )
    assert all(names)
    ids = explorer.each("[id]", "e.id")
    assert len(ids) == len(set(ids))
    for attribute in ("for", "aria-describedby", "aria-labelledby"):
        assert set(explorer.each(f"[{attribute}]", f"e.getAttribute('{attribute}')")) <= set(ids)
    assert explorer.run("return document.documentElement.lang") == "en"
    assert explorer.each("h1, h2, h3", "e.tagName")[0] == "H1"
    assert len(explorer.all("main")) == 1


def test_the_tree_is_a_tree_for_screen_readers(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 ]")
    assert explorer.one(".tree").get_attribute("role") == "tree"
    assert explorer.one(".tree").get_attribute("aria-label") == "Tree of beam 1"
    items = explorer.each("[role=treeitem]", "[e.ariaLabel, +e.ariaLevel, e.ariaExpanded, e.tabIndex]")
    assert len(items) == 7
    label, level, expanded, tab = items[0]
    assert label.startswith("[MAX 2 9 ], tokens 1–4, merge 3, height 3, read as 9, ")
    assert (level, expanded, tab) == (1, "true", 0)
    assert [tab for *_, tab in items[1:]] == [-1] * 6, "one stop of the tab key for the whole tree"
    assert ["9, token 3", 3, None, -1] in items


def test_arrows_walk_the_way_they_point_and_enter_folds(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 ]")
    explorer.run("document.querySelector('.tree [tabindex=\"0\"]').focus()")
    here = "return document.activeElement.ariaLabel.split(',')[0]"
    walked = []
    for key in (
        Keys.ARROW_DOWN,
        Keys.ARROW_DOWN,
        Keys.ARROW_RIGHT,
        Keys.ARROW_RIGHT,
        Keys.ARROW_UP,
        Keys.HOME,
    ):
        explorer.keys(key)
        walked.append(explorer.run(here))
    assert walked == ["[MAX 2 9", "[MAX 2", "9", "]", "[MAX 2 9 ]", "[MAX 2 9 ]"]
    assert "height 3" in explorer.text(".readout")
    explorer.keys(Keys.ENTER)
    assert len(explorer.all("[role=treeitem]")) == 1
    assert explorer.run("return document.activeElement.ariaExpanded") == "false"
    explorer.keys(Keys.ENTER)
    assert len(explorer.all("[role=treeitem]")) == 7
    explorer.keys(Keys.END)
    assert explorer.run(here) == "]"
    explorer.keys("+")


def test_items_are_read_from_the_root_down_whatever_happened_before(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    spans = ("[role=treeitem]", "[+e.dataset.start, -e.dataset.end]")
    for button in (
        "#previous",
        "#previous",
        "#first",
        "#next",
        "#next",
        ".beam-list li:nth-child(3) button",
        "#last",
    ):
        explorer.click(button)
        read = explorer.each(*spans)
        assert read == sorted(read), "a node before what it covers, and from left to right"


def test_the_whole_page_can_be_reached_by_the_tab_key_and_shows_where_it_is(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 ]", step=1)
    explorer.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen: list[str] = []
    for _ in range(60):
        explorer.keys(Keys.TAB)
        mark = "const e = document.activeElement, s = getComputedStyle(e); return "
        if explorer.run(mark + "e === document.body"):
            break
        seen.append(explorer.run(mark + "(e.ariaLabel || e.id || e.textContent).trim().split('\\n')[0]"))
        outlined = explorer.run(mark + "s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2")
        ringed = explorer.run(mark + "!!e.closest('.tree') && e.matches(':focus-visible')")
        assert outlined or ringed, seen[-1]
    for wanted in (
        "text-0",
        "Play the merges",
        "step",
        "Larger",
        "Download SVG",
        "copy-link",
        "Theme: auto, the colours of your system",
    ):
        assert wanted in seen
    assert sum("Beam" in name for name in seen) >= 2


def test_skipping_to_the_trees_keeps_the_text_and_the_link_to_it(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 1 ]", step="2")
    explorer.run("document.querySelector('.skip').click()")
    explorer.wait("return location.hash.includes('step=2')")
    assert explorer.one("#text-0").get_attribute("value") == "[MAX 2 9 1 ]"
    assert explorer.driver.switch_to.active_element.get_attribute("id") == "panes"


def test_changes_are_announced(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 9 ]")
    assert explorer.one("#status").get_attribute("aria-live") == "polite"
    explorer.said("listops-ebt-grc says 9")
    explorer.all(".beam-list button")[1].click()
    explorer.said("Beam 2 of")


def test_the_table_lists_every_merge_and_says_which_are_in_the_gold_tree(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    assert explorer.text(".beam-list li:first-child .fate").endswith("the gold tree")
    explorer.click(".listing summary")
    explorer.wait("return document.querySelectorAll('.listing tbody tr').length === 16")
    heads = explorer.each(".listing th", "e.textContent")
    assert [*heads[:4], heads[-1]] == ["Merge", "Text", "Where", "Height", "In gold tree"]
    assert explorer.each(".listing td:last-child", "e.textContent") == ["yes"] * 16
    explorer.click(".beam-list li:last-child button")
    explorer.wait("return document.querySelector('.listing th:last-child').textContent === 'Found'")
    assert explorer.each(".listing td:last-child", "e.textContent") == ["yes"] * 16
    explorer.click(".beam-list button")
    explorer.click("#previous")
    explorer.wait("return document.querySelectorAll('.listing tbody tr').length === 15")


@pytest.mark.parametrize("width", [320, 375, 768])
def test_nothing_is_wider_than_the_screen(explorer: Explorer, width: int) -> None:
    explorer.resize(width, 812)
    long = "[SM " + " ".join(["[MAX 1 [MIN 2 7 [MED 3 4 5 ] ] 6 ]"] * 12) + " ]"
    for fields in (
        [("text", EXPRESSION), ("step", 6)],
        [("text", long), ("with", "untrained")],
        [("text", BAD)],
    ):
        explorer.open(*fields)
        assert explorer.run("return document.documentElement.scrollWidth") <= width
        explorer.shot(f"width-{width}-{len(fields[0][1])}")


def test_on_a_phone_buttons_are_large_enough_for_a_finger(explorer: Explorer) -> None:
    explorer.resize(375, 812)
    explorer.open(text=EXPRESSION)
    sizes = explorer.each(
        "button:not(.link)", "[e.checkVisibility() ? 1 : 0, e.offsetWidth, e.offsetHeight, e.textContent]"
    )
    small = [name for seen, width, height, name in sizes if seen and (width < 24 or height < 32)]
    assert small == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_paper_the_whole_tree_is_seen_in_dark_ink_and_nothing_to_click(
    explorer: Explorer, theme: str
) -> None:
    explorer.prefers("color-scheme", theme)
    explorer.open(text=EXPRESSION, step=7)
    for _ in range(4):
        explorer.click(".zoom-in")
    box = explorer.box(".tree")
    assert box["width"] > explorer.box(".stage")["width"]
    explorer.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        tree, stage = explorer.box(".tree"), explorer.box(".stage")
        assert tree["width"] <= stage["width"]
        assert tree["height"] <= stage["height"]
        assert explorer.each(".tree .node", "getComputedStyle(e).animationName") == ["none"] * 7
        seen = "button, select, input, summary"
        shown = explorer.each(seen, "e.checkVisibility() && !e.closest('.beam-list') ? e.outerHTML : ''")
        assert [one for one in shown if one] == []
        ink, paper = "getComputedStyle(e).color", "getComputedStyle(e).backgroundColor"
        assert contrast(explorer.each("#story", ink)[0], explorer.each(".card", paper)[0]) > 10
        assert explorer.each(".card", paper)[0] == "rgb(255, 255, 255)"
        explorer.shot(f"paper-{theme}")
    finally:
        explorer.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.skipif(not AXE.is_file(), reason="npm install --prefix build/axe axe-core")
@pytest.mark.parametrize(("width", "height", "scheme", "fields"), STATES)
def test_axe_finds_no_serious_fault(
    explorer: Explorer, width: int, height: int, scheme: str, fields: list[tuple[str, Any]]
) -> None:
    explorer.resize(width, height)
    explorer.prefers("color-scheme", scheme)
    explorer.open(*fields)
    explorer.run("for (const one of document.querySelectorAll('details')) one.open = true")
    if scheme == "light":
        explorer.run("document.querySelector('#more').click()")
    explorer.shot(f"axe-{width}-{scheme}")
    explorer.run(AXE.read_text(encoding="utf-8"))
    assert explorer.driver.execute_async_script(FAULTS) == []
    explorer.run("document.querySelector('#help').showModal()")
    assert explorer.driver.execute_async_script(FAULTS) == []
