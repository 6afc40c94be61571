"""axe-core, which knows what shuts people out, finds no serious fault: at three sizes, light and dark.

`make test` gets it by npm where that is there; without it these are skipped. It is no part of the package.
"""

from pathlib import Path
from typing import Any

import pytest
from browsing import EXPRESSION, Explorer

AXE = Path(__file__).resolve().parents[3] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
STATES: list[tuple[int, int, str, list[tuple[str, Any]]]] = [
    (1280, 800, "light", [("text", EXPRESSION), ("step", 7)]),
    (1920, 1080, "dark", [("text", EXPRESSION), ("with", "beams:1,3,5")]),
    (375, 812, "dark", [("text", EXPRESSION), ("step", 7)]),
    (375, 812, "light", [("model", "logic"), ("text", "( a ( and b ) )"), ("text", "a")]),
    (1280, 800, "dark", [("text", "[MAX 2 [MINI 3 ] ]")]),
]
FAULTS = """
const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`)));
"""


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
