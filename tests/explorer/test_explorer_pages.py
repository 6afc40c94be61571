"""`parse --format html`: one file with page and views that asks nothing of the network and trusts no text."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import explored
import pytest
from small_models import small_model
from typer.testing import CliRunner

from beamtree.classifier.model_folder import save_model
from beamtree.classifier.parsing import Unparsed
from beamtree.cli import app
from beamtree.data import logic
from beamtree.explorer.pages import PAGE, Viewed, bundle_modules, view_lines, write_page
from beamtree.explorer.view import make_view

LINES = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[MAX 2", "5", "<script>alert('x')</script>"]


class Outline(HTMLParser):
    """The scripts, styles, links and records of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.policy = ""
        self.inlined: dict[str, str] = {"script": "", "style": ""}
        self.records: list[tuple[dict[str, str | None], str]] = []
        self.inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.links += [str(given[name]) for name in ("src", "href") if name in given]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])
        self.inside = "record" if given.get("class") == "record" else tag
        if self.inside == "record":
            self.records.append((given, ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside == "record":
            given, before = self.records[-1]
            self.records[-1] = (given, before + data)
        elif self.inside in self.inlined:
            self.inlined[self.inside] += data


@pytest.fixture(scope="module")
def page() -> str:
    records = list(view_lines(small_model(), LINES, name="small"))
    return "\n".join(write_page(records, "my <model>"))


def test_the_file_needs_nothing_but_itself(page: str) -> None:
    outline = Outline(page)
    assert [link for link in outline.links if not link.startswith(("#", "data:"))] == ["api"]
    assert "static/" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_its_policy_allows_exactly_its_own_script_and_style(page: str) -> None:
    outline = Outline(page)
    for kind, content in outline.inlined.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in outline.policy
    assert outline.policy.startswith("default-src 'none';")
    assert "unsafe" not in outline.policy
    assert ' style="' not in page


def test_every_line_is_a_record_that_a_browser_reads_back(page: str) -> None:
    records = Outline(page).records
    assert [given["data-text"] for given, _ in records] == LINES
    assert [given["data-line"] for given, _ in records] == ["1", "2", "3", "4"]
    views = [json.loads(content) for _, content in records]
    expected = make_view(small_model().eval(), [LINES[0]], name="small")
    assert {**views[0], "seconds": 0} == {**json.loads(json.dumps(expected)), "seconds": 0}
    assert records[0][0]["data-label"] == views[0]["prediction"]["label"]
    assert views[1]["error"]["message"].startswith("Line 2: unbalanced brackets")
    assert "data-label" not in records[1][0]


def test_text_and_title_cannot_become_markup(page: str) -> None:
    assert "<script>alert" not in page
    assert "<title>my &lt;model&gt;</title>" in page
    assert page.count("</html>") == 1
    assert page.rstrip().endswith("</html>")


def test_a_text_that_is_read_cannot_end_the_script_element_it_stands_in() -> None:
    line = "a man </script><img src=x> plays"
    records = list(view_lines(explored.small_model(task="sst5"), [line], name="small"))
    outline = Outline("\n".join(write_page(records, "films")))
    assert "x" not in outline.links
    [(given, content)] = outline.records
    assert given["data-text"] == line
    assert json.loads(content)["sentences"][0]["text"] == line


def test_pairs_stand_in_one_line_with_a_tab_between() -> None:
    good, bad = view_lines(small_model(task=logic.TASK), ["a\t( a ( and b ) )", "a"], name="p")
    assert isinstance(good, Viewed)
    assert len(good.view["sentences"]) == 2
    assert isinstance(bad, Unparsed)
    assert "2 sentences separated by a tab" in bad.reason


def test_lines_longer_than_allowed_are_told_so() -> None:
    [refused] = view_lines(small_model(), ["[MAX 1 2 3 4 ]"], name="l", max_length=3)
    assert isinstance(refused, Unparsed)
    assert "6 tokens, more than" in refused.reason


def test_modules_are_put_in_the_order_they_need(tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text('import { b } from "./b.js";\nimport { c } from "./c.js";\nb(c);\n')
    (tmp_path / "b.js").write_text('import { c } from "./c.js";\nexport const b = c;\n')
    (tmp_path / "c.js").write_text("export const c = 1;\n")
    assert " ".join(bundle_modules(tmp_path).split()) == "const c = 1; const b = c; b(c);"


def test_the_page_keeps_to_what_the_bundling_can_do() -> None:
    script = bundle_modules(PAGE)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert "</script" not in script.lower()
    declared = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", script, re.MULTILINE)
    assert len(declared) == len(set(declared)), "modules of one file share one scope"
    names = {path.name for path in PAGE.glob("*.js")}
    assert all(
        f'from "./{name}"' in "".join(p.read_text() for p in PAGE.glob("*.js")) for name in names - {"app.js"}
    )


def test_bytes_of_a_text_that_are_not_utf8_are_replaced_in_the_page(tmp_path: Path) -> None:
    save_model(explored.small_model(task="sst5").float(), tmp_path / "model")
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["parse", str(tmp_path / "model"), "a \udcff film", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert 'data-text="a \ufffd film"' in out.read_text(encoding="utf-8")
