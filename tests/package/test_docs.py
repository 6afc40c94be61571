"""Documentation is true: its Python runs, its commands exist, its pictures are current, its site builds."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import beamtree
from beamtree.cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "runs" not in path.parts)
COMMAND = re.compile(r"(?:\$ )?(?:\.venv/bin/)?(?:(?:torchrun|accelerate) .*-m beamtree|beamtree) (.*)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    return FENCE.findall(path.read_text(encoding="utf-8"))


def commands(path: Path) -> list[list[str]]:
    """The words after `beamtree` of every command in a page's blocks."""
    text = "\n".join(block for kind, block in blocks(path) if kind != "python").replace("\\\n", " ")
    lines = (COMMAND.match(line) for line in text.splitlines())
    return [shlex.split(found[1], comments=True) for found in lines if found]


WITH_PYTHON = [page for page in PAGES if any(kind == "python" for kind, _ in blocks(page))]
WITH_COMMANDS = [page for page in [*PAGES, ROOT / "README.md"] if commands(page)]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("beamtree.zoo.by_name._REGISTERED", {})  # what a page registers ends with it
    if page.name == "sharing.md":  # its Python reads what its command wrote
        (words,) = commands(page)
        assert CliRunner().invoke(app, words).exit_code == 0
    if page.name == "own.md":
        run_with_a_small_table(commands(page))
    names: dict[str, Any] = {}
    for kind, block in blocks(page):
        if kind == "python":
            exec(compile(block, str(page), "exec"), names)


WITH_MINE = [page for page in PAGES if "python mine.py" in page.read_text(encoding="utf-8")]
SMALL = "--set task.sampled.train=16 --set task.sampled.dev=8 --set model.d_model=8 --max-steps 1 --out run"


@pytest.mark.parametrize("page", WITH_MINE, ids=name_of)
def test_mine_py_of_a_page_works_as_a_command_and_when_imported(page: Path, tmp_path: Path) -> None:
    (file,) = [block for kind, block in blocks(page) if kind == "python" and "app()" in block]
    (tmp_path / "mine.py").write_text(file, encoding="utf-8")

    def python(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    (typed,) = re.findall(r"python mine\.py ([^`\n]*)", page.read_text(encoding="utf-8"))
    if typed.startswith("train"):
        python("mine.py", *shlex.split(f"{typed} {SMALL}"))
        loading = (
            "import mine; from beamtree import load_model; print(type(load_model('run').encoder.scorer))"
        )
        assert "mine.DotScorer" in python("-c", loading)
    else:
        assert "max-of-windows" in python("mine.py", *shlex.split(typed), "--list")
        assert "usage" not in python("-c", "import mine; print(mine.MaxOfWindows(8))").lower()


def run_with_a_small_table(typed: list[list[str]]) -> None:
    rows = "pos\tthe plot is thin but I laughed\nneg\ttwo hours I want back\n" * 10
    for name in ("reviews.tsv", "test.tsv"):
        Path(name).write_text("label\ttext\n" + rows, encoding="utf-8")
    Path("new.csv").write_text("id,text\n17,I laughed\n", encoding="utf-8")
    for words in typed:
        short = ["--set=model.d_model=8", "--max-steps=2"] if words[0] == "train" else []
        done = CliRunner().invoke(app, [*words, *short])
        assert done.exit_code == 0, f"{words}: {done.output}"


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_the_commands_of_a_page_have_the_options_it_names(page: Path) -> None:
    for words in commands(page):
        command: Any = typer.main.get_command(app)
        context = command.make_context("beamtree", list(words))
        while hasattr(command, "get_command"):
            name, *words = words
            command = command.get_command(context, name)
            assert command is not None, f"{name_of(page)}: there is no command {name}"
        command.make_context(name, words, parent=context)


def test_pages_speak_of_every_command() -> None:
    from beamtree.cli import COMMANDS

    named = {words[0] for page in WITH_COMMANDS for words in commands(page)}
    assert named == set(COMMANDS)


def test_the_reference_lists_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: beamtree\.(?:\w+\.)*(\w+)$", text, re.MULTILINE))
    assert set(beamtree.__all__) <= listed


def numbers_apart(text: str) -> tuple[str, list[float]]:
    number = re.compile(r"\d+\.\d+")
    return number.sub("#", text), [float(found) for found in number.findall(text)]


def test_pictures_are_what_the_code_draws() -> None:
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    for name, drawn in pictures.draw_all().items():
        text, numbers = numbers_apart(drawn)
        kept_text, kept_numbers = numbers_apart((DOCS / "images" / name).read_text(encoding="utf-8"))
        # The caption is part of an id; a last digit may differ from processor to processor.
        cut = re.compile(r"beamtree-[0-9a-f]{8}")
        assert cut.sub("", text) == cut.sub("", kept_text), f"run python docs/make_pictures.py: {name}"
        assert numbers == pytest.approx(kept_numbers, abs=0.02)


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", page.read_text()
        )
        assert not loaded, f"{page.name}: {loaded[:3]}"


def test_links_of_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_map_of_the_code_names_every_module_and_package() -> None:
    shown = set(re.findall(r"`([\w/.]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    package = ROOT / "beamtree"
    modules = {path.name for path in package.glob("[!_]*.py")}
    packages = {f"{path.name}/" for path in package.glob("[!_]*") if path.is_dir()}
    assert modules | packages <= shown
