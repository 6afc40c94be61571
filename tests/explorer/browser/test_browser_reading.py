"""Typing a text, what is said of it, and texts that cannot be read."""

import re

from browsing import EXPRESSION, HOLD, Explorer
from selenium.webdriver.support.select import Select


def tree_texts(explorer: Explorer) -> list[str]:
    return explorer.each(".tree .leaf text", "e.textContent")


def test_the_page_opens_with_an_example_and_its_tree(explorer: Explorer) -> None:
    explorer.open()
    opened = "[MAX 2 9 [MIN 4 7 ] 0 ]"
    assert explorer.one("#text-0").get_attribute("value") == opened
    assert tree_texts(explorer) == opened.split()
    assert not explorer.one("#loading").is_displayed()
    explorer.shot("first-look")


def test_who_types_before_the_first_example_is_there_is_not_overwritten(explorer: Explorer) -> None:
    with explorer.answers_held(of="examples"):
        explorer.load(explorer.address)
    explorer.wait("return document.querySelector('#text-0')")
    explorer.type("[MIN 3 4 ]")
    explorer.said("says 3")
    explorer.run("release()")
    explorer.wait("return document.querySelector('#examples button')")
    assert explorer.one("#text-0").get_attribute("value") == "[MIN 3 4 ]"
    assert tree_texts(explorer) == ["[MIN", "3", "4", "]"]


def test_who_types_right_after_choosing_another_model_is_not_overwritten(explorer: Explorer) -> None:
    explorer.open()
    explorer.run(HOLD.replace("OF", "examples"))
    Select(explorer.one("#model")).select_by_value("logic")
    explorer.wait("return document.querySelector('#text-1')")
    explorer.run("document.querySelector('#text-0').value = '( not a )'")
    explorer.run("release()")
    explorer.wait("return document.querySelector('#examples button').title.includes('(')")
    assert explorer.one("#text-0").get_attribute("value") == "( not a )"


def test_a_typed_expression_gives_prediction_bars_tree_and_beams(explorer: Explorer) -> None:
    explorer.open()
    explorer.type(EXPRESSION)
    explorer.said("listops-ebt-grc says 8")
    assert explorer.text(".verdict strong") == "8"
    assert "right" in explorer.text(".verdict")
    assert len(explorer.all(".bars li")) == 10
    shares = explorer.each(".bars li", "+e.style.getPropertyValue('--share')")
    assert abs(sum(shares) - 1) < 1e-3
    assert tree_texts(explorer) == EXPRESSION.split()
    assert len(explorer.all(".tree .node")) == 16
    names = [name.text for name in explorer.all(".beam-list .name")]
    assert names == ["Beam 1", "Beam 2", "Beam 3", "Beam 4", "Beam 5", "Gold tree"]


def test_the_next_text_leaves_nothing_of_the_last(explorer: Explorer) -> None:
    explorer.open(text="[MAX 4 5 ]")
    for text in ("[MIN 4 5 ]", "[SM 4 6 ]", "7", "[MED 4 6 ]"):
        explorer.type(text)
        leaves = "[...document.querySelectorAll('.tree .leaf text')].map(e => e.textContent).join(' ')"
        explorer.wait(f"return {leaves} === arguments[0]", text)


def test_an_example_is_one_click(explorer: Explorer) -> None:
    explorer.open()
    examples = explorer.all("#examples button")
    assert len(examples) >= 5
    next(button for button in examples if button.text == "three levels").click()
    explorer.wait("return document.querySelectorAll('.tree .node').length === 16")


def test_a_text_that_cannot_be_read_is_explained_and_marked_at_its_token(explorer: Explorer) -> None:
    explorer.open()
    explorer.type("[SM 4 [MAX 2 9 ] [MINI 3 ] ]")
    explorer.wait("return !document.querySelector('#problem').hidden")
    assert "unknown token '[MINI'" in explorer.text("#problem")
    assert explorer.one("#problem").get_attribute("role") == "alert"
    assert explorer.run("return document.querySelector('.backdrop mark').textContent") == "[MINI"
    box = explorer.one("#text-0")
    assert box.get_attribute("aria-invalid") == "true"
    assert explorer.run("return document.activeElement.id") == "text-0"
    assert "the previous text" in explorer.text("#problem")
    assert (
        explorer.each("#panes, #player", "[e.inert, +getComputedStyle(e).opacity < 0.5]")
        == [[True, True]] * 2
    )
    explorer.shot("bad-input")
    mark, text = explorer.box(".backdrop mark"), explorer.box("#text-0")
    assert mark["left"] > text["left"] + 100, "the mark lies where the token is, not at the start"
    box.send_keys(" ")
    assert not explorer.one("#problem").is_displayed()
    explorer.type("sm(4, [max 2 5]]")
    explorer.wait("return !document.querySelector('#problem').hidden")
    explorer.type("sm(4, [max 2 3])")
    explorer.said("says 7")
    assert tree_texts(explorer) == ["[SM", "4", "[MAX", "2", "3", "]", "]"]
    assert explorer.all(".stale") == []


def test_in_a_long_text_the_mark_is_scrolled_into_sight(explorer: Explorer) -> None:
    explorer.open(text="[SM " + "[MAX 1 2 3 ] " * 90 + "7x ]")
    assert explorer.each(".backdrop mark", "e.textContent") == ["7x"]
    mark, paper = explorer.box(".backdrop mark"), explorer.box(".paper")
    assert paper["top"] < mark["top"] < mark["bottom"] < paper["bottom"]
    widths = explorer.each(".backdrop, .paper textarea", "e.clientWidth")
    assert widths[0] == widths[1], "both break lines at the same places"


def test_the_mark_counts_characters_as_people_do(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 🙂🙂 é 3 ]")
    assert explorer.run("return document.querySelector('.backdrop mark').textContent") == "🙂🙂"


def test_a_text_larger_than_a_request_may_be_is_explained_in_whole_sentences(explorer: Explorer) -> None:
    explorer.open(text="5")
    explorer.run("document.querySelector('#text-0').value = '9'.repeat(70000)")
    explorer.click("#ask .primary")
    explorer.wait("return !document.querySelector('#problem').hidden")
    assert re.fullmatch(r"[^.]+ limit of 65,536 bytes\. Below you [^.]+\.", explorer.text("#problem"))
    explorer.complaints()  # the browser logs the status


def test_while_an_answer_is_awaited_the_one_before_is_faint(explorer: Explorer) -> None:
    explorer.open(text="[MAX 1 2 ]")
    explorer.run("window.fetch = () => new Promise(() => {})")
    explorer.type("[MAX 1 9 ]")
    for part in ("#player", "#panes"):
        explorer.wait(f"return getComputedStyle(document.querySelector('{part}')).opacity < 0.6")


def test_a_missing_bracket_and_an_empty_text_are_explained(explorer: Explorer) -> None:
    explorer.open(text="[MAX 2 [MIN 3")
    assert "not closed" in explorer.text("#problem")
    explorer.type(" ")
    explorer.wait("return document.querySelector('#problem').textContent.includes('empty')")


def test_text_is_never_markup(explorer: Explorer) -> None:
    explorer.open(text="<img src=x onerror=document.title='owned'>")
    assert "unknown token" in explorer.text("#problem")
    assert explorer.driver.title == "beamtree explorer"
    assert explorer.all("main img") == []


def test_a_server_that_is_gone_is_told_in_a_sentence(explorer: Explorer) -> None:
    explorer.open()
    explorer.run("window.fetch = () => Promise.reject(new TypeError('gone'))")
    explorer.type("[MAX 1 2 ]")
    explorer.wait("return document.querySelector('#problem').textContent.includes('does not answer')")


def test_a_pair_has_two_texts_and_two_trees(explorer: Explorer) -> None:
    explorer.open(model="logic")
    assert len(explorer.all("#texts textarea")) == 2
    explorer.type("( not ( a ( or b ) ) )", "#text-0")
    explorer.type("( ( not a ) ( and ( not b ) ) )", "#text-1")
    explorer.wait(
        "return location.hash.includes('and+%28+not') && document.querySelectorAll('.leaf').length === 10"
    )
    Select(explorer.one("#sentence")).select_by_value("1")
    explorer.wait("return document.querySelectorAll('.tree .leaf').length === 13")
    explorer.shot("pair")


def test_a_model_that_knows_the_words_of_no_example_waits_for_a_text(explorer: Explorer) -> None:
    explorer.open()
    Select(explorer.one("#model")).select_by_value("own")
    explorer.wait("return !document.querySelector('#examples button')")
    explorer.wait("return document.activeElement.id === 'text-0' && !document.querySelector('.pane')")
    assert explorer.one("#text-0").get_attribute("placeholder") == "Type a text"
    assert not explorer.one("#problem").is_displayed()
    explorer.wait("return location.hash === '#model=own'")  # which a link opens likewise
    explorer.load(f"{explorer.address}#model=own")
    explorer.wait("return document.activeElement.id === 'text-0'")
    explorer.type("a man plays")
    explorer.said("own says")


def test_tables_of_texts_and_of_pairs_are_one_task_but_have_boxes_of_their_own(explorer: Explorer) -> None:
    explorer.open(model="own", text="a man plays")
    assert "own-pairs" not in explorer.each("#other option", "e.value"), "the two cannot be compared"
    Select(explorer.one("#model")).select_by_value("own-pairs")
    explorer.wait("return document.querySelector('#text-1')?.value.length")
    explorer.said("own-pairs says")
    Select(explorer.one("#model")).select_by_value("own")
    explorer.wait("return !document.querySelector('#text-1')")


def test_a_model_without_trees_says_so_and_still_predicts(explorer: Explorer) -> None:
    explorer.open(model="transformer", text="[MAX 1 2 ]")
    assert "builds no tree" in explorer.text(".pane-note")
    assert not explorer.one(".stage").is_displayed()
    assert not explorer.one("#player").is_displayed()
    assert len(explorer.all(".bars li")) == 10


def test_a_sentence_has_words_unknown_to_the_model_and_labels_of_several_letters(explorer: Explorer) -> None:
    explorer.open(model="sentiment", text="a gripping <b>film</b> with a weak ending")
    dotted = explorer.each(".tree .leaf.unknown text", "e.textContent")
    assert "gripping" in dotted
    assert f"{len(dotted)} tokens unknown to the model" in explorer.text(".pane-note")
    assert explorer.all(".tree b") == []
    edges = explorer.each(".bars .bar", "e.getBoundingClientRect().left")
    assert len(edges) == 5
    assert len(set(edges)) == 1, "bars can be compared"
    explorer.shot("sentiment")


def test_a_single_token_is_a_tree_of_one_leaf_with_nothing_to_merge(explorer: Explorer) -> None:
    explorer.open(text="5")
    assert tree_texts(explorer) == ["5"]
    assert not explorer.one("#player").is_displayed()
    assert explorer.text(".verdict strong") == "5"
    assert "there is nothing to merge" in explorer.text(".readout")
    assert "beams" not in explorer.text(".pane-note")
    assert explorer.each(".beam-list .name", "e.textContent") == ["Beam 1"]


def test_another_number_of_beams_can_be_asked_for(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION, beams=2)
    assert [name.text for name in explorer.all(".beam-list .name")] == ["Beam 1", "Beam 2", "Gold tree"]
    explorer.run(
        "const b = document.querySelector('#beams'); b.value = 99; b.dispatchEvent(new Event('change'))"
    )
    explorer.wait("return document.querySelector('#problem').textContent.includes('at most 20')")
