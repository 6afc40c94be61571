"""Replacing a file: the new content or the old, never a part or a leftover; and where data are looked for."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from beamtree.cli.line_job import LineJob
from beamtree.data.folders import data_folder
from beamtree.data.unlabelled import Unlabelled
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import make_folder, replace_file, replacing
from beamtree.training.processes import Processes


def test_text_and_bytes_replace_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    replace_file(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(BeamtreeError, match="not an ordinary file"):
        replace_file(path, "new")
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(BeamtreeError, match=r"cannot write .*file: No space left on device"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was flushed to the disk and renamed, in order."""
    done: list[str] = []
    flush, rename = os.fsync, os.replace

    def flushed(handle: int) -> None:
        found = os.fstat(handle)
        of_folder = os.path.samestat(found, tmp_path.stat())
        done.append("folder" if of_folder else "file" if stat.S_ISREG(found.st_mode) else "elsewhere")
        flush(handle)

    def renamed(part: Path, path: Path) -> None:
        done.append("rename")
        rename(part, path)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    return done


def test_the_file_is_flushed_before_its_rename_and_the_folder_after(tmp_path: Path, order: list[str]) -> None:
    replace_file(tmp_path / "file", "new")
    assert order == ["file", "rename", "folder"]


def test_a_whole_output_is_flushed_before_its_rename_and_the_folder_after(
    tmp_path: Path, order: list[str]
) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    job = LineJob(Unlabelled(tmp_path / "lines"), tmp_path / "out", {}, Processes())
    assert job.run(lambda rows: [row.line for row in rows])
    assert order == ["file", "rename", "folder", "file", "rename", "folder"]  # the sidecar's, then its own


WRITER = """
import sys
from pathlib import Path
from beamtree.files.atomic import replace_file
for turn in range(150):
    replace_file(Path(sys.argv[1]), sys.argv[2] * 200_000)
"""


def test_two_processes_that_write_the_same_file_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            content = path.read_text()
            assert len(content) == 200_000
            seen.add(content[:1] if len(set(content)) == 1 else "both")
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == {"a", "b"}
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".file.part").write_text("a longer leftover")
    replace_file(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_in_place_of_the_part_is_not_followed(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("mine")
    (tmp_path / ".file.part").symlink_to(foreign)
    with pytest.raises(BeamtreeError, match=r"cannot write .*file: Too many levels of symbolic links"):
        replace_file(tmp_path / "file", "new")
    assert foreign.read_text() == "mine"


def test_a_folder_in_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BeamtreeError, match=r"cannot make the folder .*inside: Not a directory"):
        make_folder(tmp_path / "file" / "inside")
    with pytest.raises(BeamtreeError, match=r"cannot write .*inside"):
        replace_file(tmp_path / "file" / "inside", "")


def test_data_are_looked_for_where_the_user_says_then_the_environment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BEAMTREE_DATA", raising=False)
    assert data_folder("listops") == Path("data/listops")
    monkeypatch.setenv("BEAMTREE_DATA", str(tmp_path))
    assert data_folder("listops") == tmp_path / "listops"
    assert data_folder("listops", tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "mine" / "listops").mkdir(parents=True)
    assert data_folder("listops", tmp_path / "mine") == tmp_path / "mine" / "listops"


def test_a_part_that_another_process_renamed_meanwhile_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = os.path.samestat, iter([False, True])
    monkeypatch.setattr(os.path, "samestat", lambda one, other: next(answers) and real(one, other))
    replace_file(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert next(answers, None) is None


def test_where_an_open_file_cannot_be_renamed_it_is_closed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with replacing(tmp_path / "file") as file:
        file.write(b"new")

        def rename(part: Path, path: Path) -> None:
            assert file.closed
            part.rename(path)

        monkeypatch.setattr(os, "replace", rename)
    assert (tmp_path / "file").read_bytes() == b"new"


def test_where_there_are_no_locks_files_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    replace_file(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_part_that_cannot_be_emptied_leaves_no_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os.path, "samestat", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BeamtreeError, match=r"cannot write .*file: Input/output error"):
        replace_file(tmp_path / "file", "new")
    assert len(os.listdir("/proc/self/fd")) == before
