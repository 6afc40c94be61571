"""What can be taken away: brackets, link, SVG, PNG, JSON; and the page as a file of its own."""

import importlib.util
import json
import struct
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from browsing import EXPRESSION, Explorer
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.trees.brackets import merges_from_brackets

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    lines, out = folder / "lines.txt", folder / "page.html"
    lines.write_text(
        f"[MAX 2 9 4 ]\n{EXPRESSION}\n[MAX 2 x ]\n" + "".join(f"[MIN {i} 7 ]\n" for i in range(10))
    )
    result = CliRunner().invoke(app, ["parse", "listops-ebt-grc", "--file", str(lines), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


def clipboard(explorer: Explorer) -> str:
    """What was copied last, as a paste would give it."""
    explorer.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    return str(explorer.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])"))


def test_brackets_and_link_are_copied(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.click(".copy")
    explorer.said("Copied the tree as brackets")
    tokens, merges = merges_from_brackets(clipboard(explorer))
    assert tokens == EXPRESSION.split()
    assert len(merges) == 16
    explorer.click("#copy-link")
    explorer.said("Copied the link")
    assert clipboard(explorer) == explorer.driver.current_url


@pytest.mark.parametrize(("button", "name"), [(".copy", "Copy brackets"), ("#copy-link", "Copy link")])
def test_a_button_that_copied_says_so_and_has_its_name_back_soon(
    explorer: Explorer, button: str, name: str
) -> None:
    explorer.open(text="[MAX 1 2 ]")
    explorer.click(button)
    explorer.wait(f"return document.querySelector('{button}').textContent === 'Copied'")
    explorer.click(button)
    explorer.wait(f"return document.querySelector('{button}').textContent === '{name}'")
    time.sleep(1.3)
    assert explorer.text(button) == name


def test_without_a_clipboard_the_old_way_copies(explorer: Explorer) -> None:
    explorer.open(text="[MAX 1 2 ]")
    explorer.run("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    explorer.click(".copy")
    explorer.said("Copied the tree as brackets")
    assert clipboard(explorer) == "((([MAX 1) 2) ])"


def test_the_svg_is_whole_without_the_page(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.click(".svg")
    content = explorer.downloaded("beamtree-listops-ebt-grc-beam1.svg").decode()
    root = ElementTree.fromstring(content)
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{name}text")]
    assert [text for text in texts if text in EXPRESSION.split() and len(text) > 1] == [
        "[SM",
        "[MAX",
        "[MIN",
        "[MED",
    ]
    assert "8 (100 %)" in texts, "the value of the root"
    nodes = list(root.iter(f"{name}path"))
    assert len(nodes) == 16
    assert all(path.get("fill") == "none" and path.get("stroke", "").startswith("rgb(") for path in nodes)
    assert "var(" not in content
    assert "class=" not in content


def test_the_png_is_as_large_as_the_picture(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.click(".png")
    content = explorer.downloaded("beamtree-listops-ebt-grc-beam1.png")
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    box = explorer.run(
        "const b = document.querySelector('.tree').viewBox.baseVal; return [b.width, b.height]"
    )
    assert abs(width - 2 * box[0]) <= 1
    assert abs(height - 2 * box[1]) <= 1
    assert len(content) > 5000, "it is not an empty sheet"


def test_the_json_is_the_answer_of_the_server(explorer: Explorer) -> None:
    explorer.open(text=EXPRESSION)
    explorer.all(".beam-list button")[-1].click()
    explorer.click(".json")
    view = json.loads(explorer.downloaded("beamtree-listops-ebt-grc-gold.json"))
    assert view["format"] == 1
    assert view["sentences"][0]["tokens"] == EXPRESSION.split()
    assert view["sentences"][0]["search"]["steps"] == 16


def test_the_file_opens_without_a_server_and_plays(explorer: Explorer, page_file: Path) -> None:
    explorer.driver.get(page_file.as_uri())
    explorer.wait("return document.querySelectorAll('.tree .node').length === 4")
    assert not explorer.one("#ask").is_displayed()
    assert len(explorer.all("#record-list button")) == 13
    explorer.all("#record-list button")[1].click()
    assert len(explorer.all(".tree .node")) == 16
    assert len(explorer.all(".beam-list button")) == 6
    explorer.click("#first")
    explorer.click("#next")
    assert len(explorer.all(".tree .node")) == 1
    assert len(explorer.all(".tree .candidate")) == 15
    explorer.shot("file")
    explorer.all("#record-list button")[2].click()
    assert "Line 3: unknown token 'x'" in explorer.text(".pane .problem")
    explorer.driver.back()
    explorer.wait("return document.querySelectorAll('.tree .leaf').length === 17")
    assert explorer.each("#record-list [aria-current='true']", "e.dataset.index") == ["1"]
    explorer.one("#record-filter").send_keys("sm 4")
    assert len(explorer.all("#record-list button")) == 1


def test_the_file_gives_pictures_and_links_too(explorer: Explorer, page_file: Path) -> None:
    explorer.load(f"{page_file.as_uri()}#record=1&step=3")
    explorer.wait("return document.querySelectorAll('.tree .node').length === 3")
    explorer.click(".png")
    assert explorer.downloaded("beamtree-listops-ebt-grc-beam1.png").startswith(b"\x89PNG")
    loaded = explorer.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith(("data:", "blob:"))] == []


def test_the_page_of_the_documentation_tells_its_story_offline(explorer: Explorer, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("try_page", DOCS / "try_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = tmp_path / "try.html"
    page.write_text(module.make_page(), encoding="utf-8")
    explorer.driver.get(page.as_uri())
    explorer.wait("return document.querySelector('#player.playing')")
    assert "merges two neighbours" in explorer.text("#story")
    assert len(explorer.all("#record-list button")) == 12
    for width, height in ((1280, 800), (1920, 1080), (375, 812)):
        explorer.resize(width, height)
        explorer.wait("return document.querySelector('.river').getBoundingClientRect().bottom <= innerHeight")
    explorer.all("#record-list button")[-1].click()
    assert explorer.all("#player.playing") == []
    assert "implies" in explorer.text("#about")
    assert " · " in explorer.text("#record-list li:last-child code"), "between the sentences of a pair"
    assert "from that average and from that of the other sentence the classifier reads" in explorer.text(
        "#story"
    )
    explorer.shot("try-page")
    loaded = explorer.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded == [], "it needs no network"
