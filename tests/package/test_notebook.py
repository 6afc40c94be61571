"""The notebook runs from top to bottom, without the internet, and shows what its text promises."""

import ast
import builtins
import json
import re
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "tour.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """The value of the last expression, as a notebook would show it."""
    pip = re.compile(r"^(\s*)%pip .*", re.MULTILINE)
    tree = ast.parse(pip.sub(r"\1raise AssertionError('it is installed')", source))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    def refuse(*_: Any) -> None:
        raise AssertionError("the notebook asks for the internet")

    display = ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebook_runs_offline_and_shows_trees_values_and_a_film(
    cells: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"__builtins__": builtins}
    shown = [run_cell("".join(c["source"]), names) for c in cells if c["cell_type"] == "code"]
    printed = capsys.readouterr().out
    assert printed.startswith("8 ")
    assert re.search(r"\[MIN 4 7 \] +4 ", printed)
    assert "largest:" in printed
    pictures = [value._repr_html_() if hasattr(value, "_repr_html_") else value for value in shown if value]
    assert len(pictures) == 3
    assert all("<svg" in picture for picture in pictures)
    assert sum("@keyframes" in picture for picture in pictures) == 1


def test_the_notebook_is_kept_without_outputs(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
