"""The story of a search: each sentence is true, follows from the last and stands beside what it tells."""

import re

import pytest
from browsing import EXPRESSION, Explorer
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

OPENED = "[MAX 2 9 [MIN 4 7 ] 0 ]"
FIFTY = (
    "[MAX [MIN [MAX 1 [SM [MED [SM 6 1 4 ] [MAX 7 [SM 7 4 ] 2 ] [MED 2 1 [MED 4 6 ] 1 ] 5 ] 7 ] 1 "
    "[MIN 9 4 3 ] ] [MIN 3 9 4 ] 4 ] 1 0 1 ]"
)
FIRST_VIEW = 657  # pixels that a browser leaves of a screen of 1280 x 800
BEST = re.compile(r"(?:the best,|last pair,|Of \d+ pairs,) “(.+?)” and “(.+?)” \((.+? %)\)")
WHY_DROPPED = re.compile(
    r"The old beams? (?P<names>[\d, and]+) (?:are|is) dropped: weight "
    r"\(its shares multiplied and rescaled\) × best share is (?:at most )?"
    r"(?P<lost>[\d.]+ % × [\d.]+ %), less than the (?P<last>[\d.]+ % × [\d.]+ %) of the last choice kept\."
)


def tell(explorer: Explorer) -> str:
    return explorer.text("#story")


def numbers(words: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", words)]


def test_the_page_opens_on_a_story_that_stops_when_touched(explorer: Explorer) -> None:
    explorer.open()
    explorer.wait("return document.querySelector('#player.playing')")
    assert explorer.one("#step").get_attribute("value") == "0"
    assert "merges two neighbours at a time" in tell(explorer)
    assert "[SM the last digit of the sum" in explorer.text("#about")
    explorer.wait("return document.querySelector('#step').value === '1'")
    assert tell(explorer).startswith("Beam 1 compares 7 pairs and splits: the best, “")
    assert "step=" not in explorer.driver.current_url, "who reloads hears it from the start"
    explorer.click("#play")  # which would go on, had this touch not stopped it
    assert explorer.all("#player.playing") == []
    explorer.click("#tell")
    explorer.wait("return document.querySelector('#player.playing')")
    explorer.keys("x")
    assert explorer.all("#player.playing") == []
    assert explorer.text("#tell") == "Explain again"
    explorer.run("document.activeElement.blur()")
    explorer.click("#tell")
    explorer.run("document.activeElement.blur()")
    explorer.keys(" ")
    assert explorer.all("#player.playing") == []
    explorer.open(text="[MAX 1 2 ]")
    assert explorer.all("#player.playing") == [], "who brings a text is shown its tree"


def test_who_asks_for_little_motion_gets_none_and_reads_at_their_own_pace(explorer: Explorer) -> None:
    explorer.prefers("reduced-motion", "reduce")
    explorer.open()
    explorer.wait("return document.querySelector('#step').value === '0'")
    assert explorer.all("#player.playing") == []
    assert "neighbours" in tell(explorer)
    explorer.click("#next")
    assert explorer.each(".tree .node", "getComputedStyle(e).animationName") == ["none"]


@pytest.mark.parametrize("text", [OPENED, EXPRESSION])
@pytest.mark.parametrize("model", ["listops-ebt-grc", "untrained"])
def test_the_pair_that_is_called_best_heads_the_list_and_beams_follow_on(
    explorer: Explorer, text: str, model: str
) -> None:
    explorer.open(text=text, model=model, step=0)
    expected = 1
    for step in range(len(text.split()) - 1):
        words = tell(explorer)
        left, right, share = BEST.search(words).groups()  # type: ignore[union-attr]
        [listed] = explorer.each(
            ".pairs li:first-child",
            "[...e.querySelectorAll('code, .share, .fate')].map(part => part.textContent)",
        )
        assert [left[:20], right[:20], share] == [listed[0][:20], listed[1][:20], listed[2]]
        shown = explorer.text(".beam-list [aria-pressed=true] .name")
        assert shown == f"Beam {expected}", "the beam of the sentence before"
        assert step == 0 or words.startswith(f"{shown} ")
        becomes = numbers(listed[3])
        if named := re.search(r"(?:new|now) beam (\d+)", words):
            assert [int(named[1])] == becomes
        followed = re.search(r"We follow beam (\d+), which ends as the best", words)
        expected = int(followed[1]) if followed else becomes[0]
        explorer.click("#next")
    assert explorer.text(".beam-list [aria-pressed=true] .name") == f"Beam {expected}"


def test_every_beam_that_is_said_to_be_dropped_is_crossed_out(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION, step=1)
    told = []
    for _ in range(len(EXPRESSION.split()) - 2):
        fates = [fate.text for fate in explorer.all(".beam-list .fate")]
        dropped = [i + 1 for i, fate in enumerate(fates) if fate == "is dropped"]
        found = re.search(r"The old beams? ([\d, and]+) (?:are|is) dropped", tell(explorer))
        assert (numbers(found[1]) if found else []) == dropped
        told += dropped
        explorer.click("#next")
    assert len(told) >= 3
    explorer.open(text=EXPRESSION, step=1)
    explorer.click(".beam-list button.dies")
    assert "is dropped here" in tell(explorer)


def test_a_drop_that_surprises_is_told_with_the_products_that_decided_it(explorer: Explorer) -> None:
    """Where a beam of the same weight lives on."""
    explorer.open(text=OPENED, step=3)
    found = re.search(
        r"The old beam (\d) is dropped: (\S+) % × (\S+) % is less than "
        r"the (\S+) % × (\S+) % of the last choice kept\.",
        tell(explorer),
    )
    assert found
    weights = explorer.each(".beam-list .share", "e.textContent")
    dropped = int(found[1]) - 1
    assert weights.count(weights[dropped]) == 2
    weight, share, *last = map(float, found.groups()[1:])
    assert weight * share < last[0] * last[1]
    assert f"{weight:.0f} %" == weights[dropped]
    explorer.click(".beam-list .dies")
    assert explorer.text(".pairs li:first-child .share") == f"{share:.0f} %"
    figures = " % × ".join(found.groups()[1:3])
    assert f"its weight times its best share, {figures} %, is less than" in tell(explorer)


@pytest.mark.parametrize("height", [FIRST_VIEW, 800])
def test_the_opening_story_says_why_at_the_first_drop_and_the_drop_is_in_sight(
    explorer: Explorer, height: int
) -> None:
    explorer.resize(1280, height)
    explorer.open()
    explorer.wait("return document.querySelector('#player.playing')")
    assert "dropped" not in tell(explorer)
    explorer.wait("return document.querySelector('#step').value === '1'")
    explorer.keys(Keys.SHIFT)  # it stops here
    found = WHY_DROPPED.search(tell(explorer))
    assert found
    crossed = explorer.all(".beam-list .dies .name")
    assert [f"Beam {number}" for number in numbers(found["names"])] == [name.text for name in crossed]
    (weight, share), last = (
        [float(one) for one in re.findall(r"[\d.]+", found[name])] for name in ("lost", "last")
    )
    assert weight * share < last[0] * last[1]
    assert explorer.run("return scrollY") == 0
    edges = explorer.each("#story, .beam-list .dies, .tree .leaf", "e.getBoundingClientRect().bottom")
    assert max(edges) <= height
    assert explorer.box(".river")["bottom"] <= height
    explorer.shot(f"first-drop-{height}")


def test_each_lesson_of_the_opening_story_is_told_once(explorer: Explorer) -> None:
    explorer.open(text=OPENED, step=0)
    story = []
    for _ in OPENED.split():
        story.append(tell(explorer))
        explorer.click("#next")
    for lesson in (
        "merges two neighbours at a time",
        "best share is at most",
        "its shares multiplied and rescaled",
        "We follow beam 2, which ends as the best.",
        "numbered by rank",
        "is a reading, not a calculation",
        "hold the same parts",
        "All 5 beams built the same tree, but in different orders, so they stayed separate beams",
        "are averaged using the beams' weights",
        "worked out exactly, it is 9",
    ):
        assert sum(lesson in words for words in story) == 1, lesson
    assert not any("best tree" in words for words in story), "the beams are equal trees, not rivals"
    assert max(map(len, story)) < 300, "two lines or three"
    explorer.resize(1280, 800)
    lines = explorer.run("const s = document.querySelector('#story'); return s.scrollHeight / s.clientHeight")
    assert lines == 1


def test_the_answer_is_not_shown_before_the_search_has_ended(explorer: Explorer) -> None:
    explorer.open(text=OPENED, step=0)
    for step in range(8):
        assert not explorer.one(".verdict").is_displayed()
        assert not explorer.one(".bars").is_displayed()
        assert explorer.text(".awaited") == "The answer appears after merge 8."
        heading = f"Beams before merge {step + 1}" if step else "One beam, nothing merged yet"
        assert explorer.text(".beams h3") == heading
        explorer.click("#next")
    assert explorer.text(".verdict strong") == "9"
    assert explorer.one(".bars").is_displayed()
    assert not explorer.one(".awaited").is_displayed()


def test_a_reading_is_rounded_alike_wherever_it_stands(explorer: Explorer) -> None:
    for text in (OPENED, EXPRESSION):
        explorer.open(text=text)
        explorer.run("document.querySelector('.listing').open = true")
        explorer.wait("return document.querySelector('.listing tbody tr')")
        said = {
            tuple(span): re.search(r"read as (\S+), ([^,(]+ %)", label).groups()  # type: ignore[union-attr]
            for span, label in explorer.each(
                ".tree .node", "[[+e.dataset.start, +e.dataset.end], e.ariaLabel]"
            )
        }
        drawn = explorer.each(".tree .value", "[[+e.dataset.start, +e.dataset.end], e.textContent]")
        shown = [(said[tuple(span)], words) for span, words in drawn if "%" in words]
        assert shown
        assert all(words == f"{label} ({share})" for (label, share), words in shown)
        whole = said[0, len(text.split())]
        assert explorer.each(".listing tbody tr:last-child .value", "e.textContent") == [", ".join(whole)]
        assert explorer.text(".beam-list li:first-child .fate").startswith("read as " + ", ".join(whole))


def test_every_pair_that_is_kept_carries_its_share(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION, step=0)
    for _ in range(6):
        kept = explorer.each(".tree .candidate.taken", "e.querySelector('text')?.textContent")
        assert all(kept)
        listed = explorer.each(".pairs .taken .share", "e.textContent")
        assert sorted(kept) == sorted(listed)
        explorer.click("#next")


def test_a_chosen_beam_that_has_another_rank_later_says_so(explorer: Explorer) -> None:
    explorer.open(text=OPENED, step=2)
    assert explorer.all(".chosen-note") == []
    explorer.click(".beam-list li:first-child button")
    explorer.click("#last")
    now = explorer.text(".beam-list [aria-pressed=true] .name").removeprefix("Beam ")
    assert now != "1"
    assert explorer.text(".chosen-note") == f"Beam 1, which you chose before merge 3, is beam {now} here."


def test_after_a_chosen_beam_was_dropped_the_story_says_so_and_goes_on_with_the_best_one(
    explorer: Explorer,
) -> None:
    explorer.open(text=OPENED, step=0)
    followed = []
    for _ in OPENED.split():
        followed.append(explorer.text(".beam-list [aria-pressed=true] .name"))
        explorer.click("#next")
    explorer.go_to(2)
    explorer.click(".beam-list li:nth-child(5) .dies")
    assert tell(explorer).startswith("Beam 5 is dropped here: ")
    for step in range(3, len(OPENED.split())):
        explorer.click("#next")
        shown = explorer.text(".beam-list [aria-pressed=true] .name")
        assert shown == followed[step], "the beam of the story that nobody touched"
        lost = (
            "Beam 5, which you chose before merge 3, was dropped; "
            f"{shown.lower()}, the best at the end, is shown."
        )
        told = tell(explorer)
        assert told.startswith(lost)
        assert f"{shown} " in told.removeprefix(lost) or "All 5 beams built" in told
        assert explorer.text(".chosen-note") == lost


def test_colours_of_the_gold_tree_come_at_the_end_with_what_they_mean_in_sight(explorer: Explorer) -> None:
    explorer.resize(1280, FIRST_VIEW)
    explorer.open(text=OPENED, step=7)
    assert explorer.all(".tree .agrees, .tree .differs") == []
    assert not explorer.one(".legend").is_displayed()
    explorer.click("#next")
    assert explorer.box(".legend")["bottom"] <= FIRST_VIEW
    assert len(set(explorer.each(".tree .node .dot", "getComputedStyle(e).fill"))) == 1, "the top one too"


def test_a_right_answer_from_a_tree_other_than_the_gold_tree_is_remarked(explorer: Explorer) -> None:
    explorer.open(text="[MIN 8 [MAX 8 8 ] ]", model="untrained")  # which answers 8 to much
    assert explorer.one(".verdict .right").is_displayed()
    found = re.search(
        r"Yet the best tree is not the gold tree: they share (\d+) of (\d+) spans", tell(explorer)
    )
    assert found
    assert f"{found[1]} of {found[2]} gold spans" in explorer.text(".beam-list li:first-child .fate")
    assert "brackets" in explorer.text(".beam-list li:last-child .fate"), "what the gold tree is"


def test_the_end_says_what_the_answer_is_read_from(explorer: Explorer) -> None:
    explorer.open(text=OPENED)
    assert "from that average the classifier reads the answer, 9." in tell(explorer)
    explorer.open(model="together", text="a man plays the guitar")
    said = explorer.text(".verdict strong")
    read = "from that average and from the tokens themselves the classifier reads its answer"
    assert f"{read}; the average of the 2 models gives {said}." in tell(explorer)


def test_in_a_comparison_the_story_names_its_model_and_how_the_others_ended(explorer: Explorer) -> None:
    explorer.open(text=OPENED)
    Select(explorer.one("#other")).select_by_visible_text("itself, untrained")
    explorer.wait("return document.querySelectorAll('.pane').length === 2")
    told = tell(explorer)
    assert told.startswith("listops-ebt-grc: All 5 beams")
    assert re.search(
        r"listops-ebt-grc-untrained: its 5 beams built \d different trees; its answer is \d", told
    )
    explorer.click("#first")
    assert tell(explorer).startswith("listops-ebt-grc: The network merges")


@pytest.mark.parametrize("text", [FIFTY, f"[SM {FIFTY} {FIFTY} 3 ]"], ids=["50", "103"])
def test_the_top_and_the_beginning_of_a_tree_on_its_side_are_in_sight(explorer: Explorer, text: str) -> None:
    explorer.resize(1280, 800)
    explorer.open(text=text)
    stage = explorer.box(".stage")
    for box in (explorer.box(".tree .node .dot"), explorer.box(".tree .leaf")):
        assert stage["top"] <= box["top"] < box["bottom"] <= min(800, stage["bottom"])


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (375, 812)])
@pytest.mark.parametrize("other", ["", "beams:1,3,5", "listops-ebt-grc-untrained"])
def test_no_row_of_controls_is_cut_off(explorer: Explorer, width: int, height: int, other: str) -> None:
    explorer.resize(width, height)
    explorer.open(("text", EXPRESSION), ("with", other), ("step", 3))
    if width < 500:
        explorer.click("#more")
        assert explorer.one("#more").get_attribute("aria-expanded") == "true"
    explorer.wait("return document.querySelector('#examples button')")
    rows = explorer.each(
        ".masthead, .toolbar, .options-row, .choices, .examples, .transport",
        "[e.className, e.scrollWidth, e.clientWidth]",
    )
    assert [row for row in rows if row[1] > row[2]] == []
    assert explorer.text("#tell") == "Explain"
    assert explorer.one(".masthead p").is_displayed()
    explorer.shot(f"controls-{width}-{len(other)}")


def test_help_explains_the_words_and_is_opened_and_closed_by_keys(explorer: Explorer) -> None:
    explorer.open(text=OPENED, step=3)
    explorer.run("document.querySelector('#open-help').focus()")
    explorer.keys(Keys.ENTER)
    words = [word.text for word in explorer.all("#terms dt")]
    assert {"node", "score", "weight", "classifier", "span", "height", "gold tree"} <= set(words)
    explorer.shot("help")
    explorer.keys(Keys.ESCAPE)
    assert not explorer.one("#help").is_displayed()
    assert explorer.run("return document.activeElement.id") == "open-help"
    assert all(explorer.each(".term", "e.title"))


def test_a_page_that_waits_for_its_model_says_so(explorer: Explorer) -> None:
    with explorer.answers_held():
        explorer.load(explorer.address)
    assert explorer.text("#loading").startswith("Loading")
    explorer.run("release()")
    explorer.wait("return document.querySelector('.tree .leaf')")
    assert not explorer.one("#loading").is_displayed()


def test_a_long_text_has_no_story(explorer: Explorer) -> None:
    explorer.open(text="[SM " + "5 " * 130 + "]", step=3)
    assert tell(explorer) == ""
    assert not explorer.one("#tell").is_displayed()
