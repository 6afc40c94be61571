"""The table and the picture say what the runs measured, seed by seed."""

from dataclasses import replace
from pathlib import Path

import pytest

from beamtree.compare.contest import MODELS, choose_rate, find_contest
from beamtree.compare.outcome import Measured, Outcome, read_outcome, read_outcomes
from beamtree.compare.page import columns, gather, page, star_note, write_page
from beamtree.data.task import find_task
from beamtree.errors import BeamtreeError

CONTEST = find_contest(find_task("filters"))


def outcome(model: str, seed: int = 0, *, inside: float = 0.99, beyond: float = 0.8, **changes) -> Outcome:
    splits = {
        split: Measured(100, inside if int(depth) <= 4 else beyond, None, [[int(depth), 100, beyond]])
        for depth, split in CONTEST.points.items()
    }
    made = Outcome(
        task="filters",
        model=model,
        seed=seed,
        trial=False,
        learning_rate=1e-3,
        options={},
        parameters=439_810,
        epochs=8,
        steps=6256,
        best_epoch=6,
        end="all 8 epochs are done",
        train_accuracy=0.99,
        dev_accuracy=0.98,
        minutes=2.0,
        peak_bytes=512_000_000,
        device="CPU",
        splits=splits | {"train": Measured(100, 0.995)},
    )
    return replace(made, **changes)


def row(text: str, label: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {label} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = outcome("bilstm", 2)
    folder = tmp_path / "bilstm-seed2"
    folder.mkdir()
    kept.write(folder)
    assert read_outcome(folder) == kept
    assert read_outcomes(tmp_path) == [kept]
    assert read_outcome(tmp_path) is None
    (folder / "outcome.json").write_text('{"splits": {}}')
    with pytest.raises(BeamtreeError, match="is not the outcome of a run: delete it"):
        read_outcomes(tmp_path)


def test_the_best_trial_gives_the_rate_and_of_equals_the_lowest() -> None:
    trials = [
        outcome("s4d", trial=True, learning_rate=rate, dev_accuracy=dev)
        for rate, dev in ((3e-3, 0.9), (1e-3, 0.97), (3e-4, 0.97))
    ]
    assert choose_rate(trials) == 3e-4
    assert choose_rate([replace(trials[0], dev_accuracy=0.98), *trials[1:]]) == 3e-3


def test_columns_are_training_what_is_like_it_and_each_place_beyond() -> None:
    assert list(columns(CONTEST)) == ["train", "1–4", "5", "6", "7", "8", "9", "10"]
    assert columns(CONTEST)["1–4"] == ["depth1", "depth2", "depth3", "depth4"]
    assert list(columns(find_contest(find_task("listops"))))[:3] == ["train", "near-IID", "200–300"]


def test_the_table_has_mean_and_range_of_seeds_costs_and_who_did_not_learn() -> None:
    runs = [
        outcome("ebt-grc", 0, beyond=0.9),
        outcome("ebt-grc", 1, beyond=0.7, minutes=4.0, peak_bytes=600_000_000),
        outcome("mamba", 0, inside=0.94),
        outcome("mamba", trial=True),
    ]
    text = page(CONTEST, gather(runs, ["mamba", "ebt-grc"]), "a title")
    mine = row(text, "EBT-GRC")
    assert mine[:3] == ["EBT-GRC", "439,810", "0.001"]
    assert mine[3:6] == ["99.5 (99.5–99.5)", "99.0 (99.0–99.0)", "80.0 (70.0–90.0)"]
    assert mine[-2:] == ["3.0", "600"]
    assert row(text, "Mamba *")[4] == "94.0"
    assert "did not learn" in text
    assert text.index("Mamba") < text.index("EBT-GRC")
    assert "did not learn" not in page(CONTEST, gather(runs[:2], []), "a title")
    assert star_note(CONTEST, gather(runs, [])).startswith("* below 95% inside training: it did not learn")
    assert not star_note(CONTEST, gather(runs[:2], []))


def test_a_picture_and_a_table_are_written_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    contest = replace(CONTEST, by_depth=True)
    unlearnt = outcome("bilstm", inside=0.9)
    groups = gather([outcome("ebt-grc", 0), outcome("ebt-grc", 1, beyond=0.6), unlearnt], [])
    paths = write_page(contest, groups, tmp_path, "a title")
    assert [path.name for path in paths] == ["comparison.md", "comparison.svg", "comparison.png"]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_page(contest, groups, tmp_path, "a title")] == first
    drawing = paths[1].read_text()
    assert all(
        f">{word}<" in drawing
        for word in (
            "EBT-GRC",
            "BiLSTM *",
            "* below 95% inside training",
            "depth of brackets",
            "seen in training",
            "a title",
        )
    )
    with pytest.raises(BeamtreeError, match="has no finished run to show"):
        write_page(contest, [], tmp_path, "a title")


@pytest.mark.parametrize("task", ["filters", "logic", "listops"])
def test_the_figures_of_the_page_are_those_of_the_kept_runs(task: str) -> None:
    root = Path(__file__).resolve().parents[2]
    groups = gather(read_outcomes(root / "docs" / "runs" / "compare" / task), MODELS)
    told = (root / "docs" / "why.md").read_text(encoding="utf-8").splitlines()
    contest = find_contest(find_task(task))
    shown = page(contest, groups, task) if groups else ""
    missing = [line for line in shown.splitlines() if line.startswith("| ") and line not in told]
    assert not missing
