"""Run folders as `train` and `eval --save` leave them, for the tests of reports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beamtree.paper.report import build_report
from beamtree.paper.table import Table, TableCell
from beamtree.training.recipe import load_recipe
from beamtree.training.run_folder import RunFolder


def make_run(
    folder: Path,
    recipe: str = "listops",
    changes: Sequence[str] = (),
    *,
    accuracy: dict[str, float] | None = None,
    epochs: int = 8,
    best: int = 3,
    beam: int | None = None,
    f1: float | None = 0.9,
) -> Path:
    """A run folder as `train` and `eval --save` leave it, but for the weights."""
    settings = load_recipe(recipe, changes)
    run = RunFolder(folder)
    if not run.begun:
        run.begin(settings)
        record = {"dev_loss": 0.25, "dev_accuracy": 0.875, "seconds": 90.0}
        run.write_metrics([{"epoch": i, "best": i <= best, **record} for i in range(1, epochs + 1)])
    if accuracy is not None:
        splits = [
            {
                "split": split,
                "examples": 2000,
                "accuracy": share,
                "accuracy_95": [max(0.0, share - 0.01), min(1.0, share + 0.01)],
                "bracketing_f1": f1,
                "exact_match": None if f1 is None else 0.5,
            }
            for split, share in accuracy.items()
        ]
        content = {
            "task": settings.task.name,
            "encoder": settings.model.encoder,
            "beam": beam,
            "command": f"beamtree eval {folder}",
            "splits": splits,
        }
        name = "eval.json" if beam is None else f"eval-beam{beam}.json"
        (folder / name).write_text(json.dumps(content))
    return folder


def on_device(run: Path, device: str, name: str, accuracy: float, digest: str | None = None) -> None:
    content = json.loads((run / "eval.json").read_text())
    content |= {"device": device, "weights": digest}
    content["splits"][0]["accuracy"] = accuracy
    (run / name).write_text(json.dumps(content))


def seeds(root: Path, recipe: str, shares: Sequence[float], split: str, **options: Any) -> list[Path]:
    return [
        make_run(
            root / f"{recipe}-seed{seed}",
            recipe,
            [f"training.seed={seed}"],
            accuracy={split: share},
            **options,
        )
        for seed, share in enumerate(shares)
    ]


def table_of(paths: Sequence[Path], name: str, **options: Any) -> Table:
    return next(table for table in build_report(paths, **options).tables if table.name == name)


def line_of(table: Table, label: str) -> list[TableCell]:
    return next(row for row in table.rows if row[0].text == label)


def cell_of(table: Table, label: str, header: str) -> TableCell:
    return line_of(table, label)[list(table.headers).index(header)]
