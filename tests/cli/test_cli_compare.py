"""`beamtree compare` end to end: quick, listed, drawn again, on the user's own files."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from command_line import attempt
from torch import Tensor, nn

import beamtree.compare.contest as contest_module
from beamtree import register_encoder
from beamtree.data.filters_draws import generate_filters
from beamtree.training.recipe import load_recipe

pytest.importorskip("matplotlib")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Contests of a few steps, in a folder without data."""
    few = partial(generate_filters, train=20, dev=8, test=2)
    monkeypatch.setattr("beamtree.data.filters_draws.generate_filters", few)
    find = contest_module.find_contest

    def find_tiny(*given, **options):
        return replace(find(*given, **options), d_model=32, batch_size=8, steps=3)

    monkeypatch.setattr(contest_module, "find_contest", find_tiny)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_quick_contest_draws_its_data_trains_three_models_and_shows_them(tiny: Path) -> None:
    done = attempt("compare", "filters", "--quick")
    assert done.exit_code == 0, done.output
    assert (tiny / "data" / "filters" / "depth10.tsv").is_file()
    out = tiny / "runs" / "compare-filters-quick"
    table = (out / "comparison.md").read_text()
    assert all(f"\n| {label}" in table for label in ("BiLSTM", "EBT-GRC", "gold trees"))
    assert (out / "comparison.png").is_file()
    (out / "comparison.md").unlink()
    again = attempt("compare", "filters", "--quick", "--draw")
    assert again.exit_code == 0, again.output
    assert (out / "comparison.md").read_text() == table


def test_no_figure_is_cut_off_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    kept = Path(__file__).parents[2] / "docs" / "runs" / "compare" / "listops"
    shutil.copytree(kept, tmp_path / "kept")
    done = attempt("compare", "listops", "--draw", "--out", str(tmp_path / "kept"))
    assert done.exit_code == 0, done.output
    (row,) = (line for line in done.output.splitlines() if line.startswith(" EBT-GRC  "))
    assert row.split() == ["EBT-GRC", "99.9", "99.3", "98.3", "97.5", "97.3", "96.5", "95.8"]


def test_runs_of_another_task_are_not_drawn_over(tiny: Path) -> None:
    assert attempt("compare", "filters", "--quick", "--models", "bilstm").exit_code == 0
    page = tiny / "runs" / "compare-filters-quick" / "comparison.md"
    before = page.read_text()
    assert before.startswith("# filters: models compared, quick")  # one model is of no equal size
    refused = attempt("compare", "listops", "--draw", "--out", str(page.parent))
    assert refused.exit_code != 0
    assert "compares models on filters, not on listops" in refused.output
    assert page.read_text() == before


def test_the_plan_is_listed_as_commands_of_one_run_each(tiny: Path) -> None:
    options = ["compare", "filters", "--models", "bilstm", "--seeds", 1, "--out", "here"]
    listed = attempt(*options, "--list").stdout.splitlines()
    assert [line.split(" --run ")[1] for line in listed] == [
        "bilstm-rate0.0003",
        "bilstm-rate0.001",
        "bilstm-rate0.003",
        "bilstm-seed0",
    ]
    for line in listed:
        done = attempt(*line.split()[1:])
        assert done.exit_code == 0, done.output
    assert attempt(*options, "--list").stdout == ""
    assert (tiny / "here" / "comparison.svg").is_file()


def test_time_that_is_up_leaves_the_rest_to_the_next_command(tiny: Path) -> None:
    stopped = attempt("compare", "filters", "--quick", "--models", "bilstm", "--max-minutes", 0)
    assert stopped.exit_code == 1
    assert "the same command continues from here" in stopped.stderr
    assert attempt("compare", "filters", "--quick", "--models", "bilstm").exit_code == 0


def test_own_splits_and_own_tables_are_compared(tiny: Path) -> None:
    generate_filters(tiny / "mine" / "filters", seed=1, train=20, dev=8, test=2)
    test = tiny / "mine" / "filters" / "depth3.tsv"
    options = ["--quick", "--models", "bilstm", "--data", tiny / "mine", "--out", tiny / "files"]
    done = attempt("compare", "filters", *options, "--test", test)
    assert done.exit_code == 0, done.output
    assert f"| {test.stem} |" in (tiny / "files" / "comparison.md").read_text()
    rows = [f"{'good' if i % 2 else 'bad'}\t{'lovely' if i % 2 else 'dull'} film" for i in range(40)]
    for name in ("train.tsv", "test.tsv"):
        (tiny / "table").mkdir(exist_ok=True)
        (tiny / "table" / name).write_text("\n".join(["label\ttext", *rows]) + "\n")
    done = attempt("compare", "own", "--quick", "--models", "bilstm,ebt-grc", "--data", tiny / "table")
    assert done.exit_code == 0, done.output
    assert "| EBT-GRC" in (tiny / "runs" / "compare-own-quick" / "comparison.md").read_text()


def test_an_encoder_of_the_user_s_joins_by_its_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beamtree.zoo.by_name._REGISTERED", {})

    def mean_of_tokens(d_model: int, *, input_size: int | None = None, dropout: float = 0.0) -> nn.Module:
        return MeanOfTokens()

    register_encoder("mean", mean_of_tokens)
    done = attempt("compare", "filters", "--quick", "--models", "mean,bilstm")
    assert done.exit_code == 0, done.output
    assert "\n| mean" in (tiny / "runs" / "compare-filters-quick" / "comparison.md").read_text()


@pytest.fixture
def registered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], None]:
    """Gives an encoder the name `mine`, by what its module makes of tokens."""
    monkeypatch.setattr("beamtree.zoo.by_name._REGISTERED", {})

    def register(forward: Callable[..., Tensor], extra: int = 0) -> None:
        def make(d_model: int, *, input_size: int | None = None, dropout: float = 0.0) -> nn.Module:
            made = MeanOfTokens()
            made.forward = forward
            made.more = nn.Parameter(torch.zeros(extra))
            return made

        register_encoder("mine", make)

    return register


def mean(x: Tensor, key_padding_mask: Tensor) -> Tensor:
    return MeanOfTokens.forward(None, x, key_padding_mask)


QUICK = ("compare", "filters", "--quick", "--models", "mine,bilstm")


def test_an_encoder_that_cannot_be_trained_is_refused_before_anything_is(tiny: Path, registered) -> None:
    for forward, returned in (
        (lambda x, key_padding_mask: x, r"\(2, 5, 32\)"),
        (lambda x, key_padding_mask: x[:, 0, 1:], r"\(2, 31\)"),
        (lambda x, key_padding_mask: (x[:, 0], None), "a tuple"),
    ):
        registered(forward)
        refused = attempt(*QUICK)
        assert refused.exit_code == 2
        assert re.search(f"encoder 'mine' must return .* it returned {returned}", refused.stderr)
    assert not (tiny / "runs").exists()
    registered(lambda x, key_padding_mask: x.mean(1))
    with pytest.warns(UserWarning, match="encoder 'mine' gives a different vector if a sequence is padded"):
        assert attempt(*QUICK).exit_code == 0


def test_an_encoder_of_another_size_is_told_apart_and_not_taken_for_an_earlier_one(
    tiny: Path, registered
) -> None:
    registered(mean)
    done = attempt(*QUICK)
    assert done.exit_code == 0, done.output
    assert "run 1 of 2: mine-seed0" in done.stderr
    assert "BiLSTM" in done.stdout  # the table
    table = (tiny / "runs" / "compare-filters-quick" / "comparison.md").read_text()
    assert table.startswith("# filters: models compared, quick")
    assert "Not of equal size: mine." in table
    registered(mean, extra=7)
    refused = attempt(*QUICK)
    assert refused.exit_code == 2
    assert re.search(r"mine-seed0 is of a mine with ([\d,]+) parameters, but it has", refused.stderr)


def test_a_run_without_figures_is_said_each_time(tiny: Path, registered) -> None:
    registered(lambda x, key_padding_mask: mean(x, key_padding_mask) / 0.0)
    for _ in range(2):
        done = attempt(*QUICK)
        assert done.exit_code == 1
        assert "mine-seed0 has no results, as its loss was not finite: delete runs" in done.stderr
        assert "BiLSTM" in done.stdout


def test_a_plan_of_the_user_s_script_names_the_script(
    tiny: Path, registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(mean)
    monkeypatch.setattr("sys.argv", ["mine.py", *QUICK])
    (first, _) = attempt(*QUICK, "--list").stdout.splitlines()
    assert first.startswith("python mine.py compare filters ")
    assert attempt(*QUICK).exit_code == 0
    assert "all runs are finished" in attempt(*QUICK, "--list").stderr


def test_how_a_table_is_read_can_be_set_and_long_texts_are_read_whole(tiny: Path) -> None:
    rows = [f"{'AB'[i % 2]}\t{'x ' * 40}{'AB'[i % 2]}{' x' * 40}" for i in range(40)]
    (tiny / "table.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    options = ["compare", "own", "--quick", "--models", "bilstm", "--data", "table.tsv"]
    alone = attempt(*options)
    assert alone.exit_code == 2
    assert "table.tsv is a single table: name a file to test on with --test" in alone.stderr
    read = ["--set", "task.own.tokenizer=blanks", "--set", "words.vectors=none"]
    done = attempt(*options, "--test", "table.tsv", *read)
    assert done.exit_code == 0, done.output
    recipe = load_recipe(tiny / "runs" / "compare-own-quick" / "bilstm-seed0" / "recipe.toml")
    assert (recipe.model.tree_tokens, recipe.model.word_dropout) == (0, 0.0)
    assert (recipe.task.own.tokenizer, recipe.words.vectors) == ("blanks", "none")
    assert "| dev |" in (tiny / "runs" / "compare-own-quick" / "comparison.md").read_text()
    refused = attempt(*options, "--set", "training.clip=2")
    assert refused.exit_code == 2
    assert "--set training.clip=2: a comparison can only change task.… and words.…" in refused.stderr


class MeanOfTokens(nn.Module):
    builds_trees = False

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        return x.masked_fill(key_padding_mask.unsqueeze(-1), 0.0).sum(1) / (~key_padding_mask).sum(
            1, keepdim=True
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["fliters"], "there is no task 'fliters'"),
        (["filters", "--models", "lstm"], "no encoder 'lstm' to compare"),
        (["filters", "--draw"], "has no finished run to show"),
        (["filters", "--quick", "--test", "none.tsv"], "there is no file none.tsv to test on"),
        (["listops", "--quick"], "beamtree data listops"),
        (["filters", "--quick", "--data", "fliters"], "there are no filters data in fliters"),
    ],
)
def test_what_cannot_be_done_is_said(tiny: Path, options: list[str], said: str) -> None:
    refused = attempt("compare", *options)
    assert refused.exit_code == 2
    assert said in refused.stderr
