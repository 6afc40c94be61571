"""A run's folder: what stands in it is refused, replaced or continued as the user says, and never lost."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from small_runs import run_in, small_recipe

from beamtree.errors import BeamtreeError
from beamtree.training.run_folder import RunFolder

SMALL = small_recipe()


def test_a_standing_run_is_refused_replaced_or_continued_as_the_user_says(tmp_path: Path) -> None:
    run_in(tmp_path, SMALL, steps=6)
    run = RunFolder(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BeamtreeError) as caught:
        run.refuse_if_taken(overwrite=False)
    assert str(caught.value) == (
        f"{tmp_path} already holds a run: --resume {tmp_path} continues it, --overwrite replaces it, "
        "--out names another folder"
    )
    assert sorted(tmp_path.rglob("*")) == before
    run.refuse_if_taken(overwrite=True)
    run.begin(SMALL)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["recipe.toml"]


def test_a_folder_that_holds_something_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(
            BeamtreeError, match="exists and is not a run folder: name another one with --out"
        ):
            RunFolder(tmp_path).refuse_if_taken(overwrite)
    with pytest.raises(BeamtreeError, match="exists and is not a run folder"):
        RunFolder(tmp_path / "thesis.txt").refuse_if_taken(overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_new_or_empty_folder_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path).refuse_if_taken(overwrite=False)
    RunFolder(tmp_path / "new").refuse_if_taken(overwrite=False)


def test_a_second_process_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    script = f"""
from pathlib import Path
from beamtree.training.run_folder import RunFolder
with RunFolder(Path({str(out)!r})).held():
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        RunFolder(out).write_recipe(SMALL)
        for words in (("--resume", out), (out / "recipe.toml", "--out", out, "--overwrite")):
            refused = call("train", *words, rc=2).stderr
            assert f"another process is training in {out}: let it finish, or stop it" in refused
        other.kill()
    call("train", "--resume", out, "--max-steps", 1)


def test_without_locks_a_folder_is_held_by_anyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with RunFolder(tmp_path / "run").held(), RunFolder(tmp_path / "run").held():
        assert (tmp_path / "run").is_dir()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(BeamtreeError, match=rf"cannot make the folder .*run: {os.strerror(number)}"):
        RunFolder(tmp_path / "run").begin(SMALL)


def test_a_run_that_cannot_be_emptied_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in(tmp_path, SMALL, steps=2)

    def refused(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(shutil, "rmtree", refused)
    with pytest.raises(BeamtreeError, match=r"cannot empty .*: Read-only file system"):
        RunFolder(tmp_path).begin(SMALL)


def test_resuming_refuses_other_settings_and_a_folder_without_a_run(tmp_path: Path) -> None:
    run_in(tmp_path, SMALL, steps=2)
    run = RunFolder(tmp_path)
    with pytest.raises(BeamtreeError) as caught:
        run.continue_with(None, ["training.learning_rate=1"])
    assert str(caught.value) == (
        f"{tmp_path} was begun with training.learning_rate = 0.01, not 1.0; a resumed run may only change "
        "training.max_epochs, training.patience, training.checkpoint_minutes"
    )
    with pytest.raises(
        BeamtreeError, match=r"there is no run to resume in .*nowhere: it has no recipe\.toml"
    ):
        RunFolder(tmp_path / "nowhere").continue_with(None, ())


@pytest.mark.parametrize("out", ["one", "two"])
def test_an_edited_recipe_is_refused_by_setting_unless_it_only_says_when_to_stop(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL.to_toml())
    seeds = ["--seeds", 2] if out == "two" else []
    call("train", "small.toml", "--out", out, *seeds, "--max-steps", 2)
    recipe = RunFolder(Path(out)).recipe_file
    begun = recipe.read_text()
    edited = begun.replace("learning_rate = 0.01 ", "learning_rate = 1.0 ")
    assert edited != begun
    recipe.write_text(edited)
    assert call("train", "--resume", out, rc=2).stderr.splitlines()[-1] == (
        f"beamtree: {out} was begun with training.learning_rate = 0.01, recipe.toml now says 1.0: put it "
        "back, or start a new run"
    )
    recipe.write_text(edited.replace("d_model = 8 ", "d_model = 4 "))
    told = call("train", "--resume", out, rc=2).stderr
    assert (
        f"{out} was begun with model.d_model = 8 and training.learning_rate = 0.01, recipe.toml now says "
        "4 and 1.0: put them back"
    ) in told
    recipe.write_text(begun.replace("max_epochs = 3 ", "max_epochs = 1 "))
    call("train", "--resume", out)
    assert [len(run.read_metrics()) for run in RunFolder(Path(out)).seeds or [RunFolder(Path(out))]] == (
        [1, 1] if seeds else [1]
    )


def test_a_run_of_an_older_version_which_kept_no_recipe_is_resumed(tmp_path: Path) -> None:
    run_in(tmp_path, SMALL, steps=2)
    run = RunFolder(tmp_path)
    run.begun_file.unlink()
    assert run.continue_with(None, ["training.max_epochs=5"]).training.max_epochs == 5
    with pytest.raises(BeamtreeError, match=r"begun with training\.seed = 0, not 3"):
        run.continue_with(None, ["training.seed=3"])


def test_metrics_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(BeamtreeError, match=r"cannot read .*metrics\.jsonl: No such file"):
        run.read_metrics()
    run.metrics_file.write_text("{}\nnot json\n")
    with pytest.raises(BeamtreeError, match=r"metrics\.jsonl, line 2, is not JSON"):
        run.read_metrics()
