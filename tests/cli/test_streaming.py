"""Long files through a function: order, memory, resuming at any byte, several processes, refusals."""

import hashlib
import json
import lzma
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from beamtree.cli.line_job import LineJob
from beamtree.data.unlabelled import TextRow, Unlabelled
from beamtree.errors import BeamtreeError
from beamtree.training.processes import Processes


def shout(rows: list[TextRow]) -> list[str]:
    return [f"{row.number}\t{row.line.upper()}" for row in rows]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {i}\n" for i in range(1, 24)))
    return path


@pytest.fixture
def expected() -> str:
    return "".join(f"{i}\tLINE {i}\n" for i in range(1, 24))


def job(
    source: Path, *, processes: Processes | None = None, model: str = "m", chunk_lines: int = 4
) -> LineJob:
    made_of = {"model": model}
    return LineJob(
        Unlabelled(source), source.parent / "out.txt", made_of, processes or Processes(), chunk_lines
    )


class Threads(Processes):
    """Processes played by threads, so that a test needs no launcher."""

    def __init__(self, rank: int, barrier: threading.Barrier) -> None:
        super().__init__(rank, barrier.parties)
        self.barrier = barrier

    def wait(self) -> None:
        self.barrier.wait(timeout=20)


def run_in_threads(source: Path, count: int, *, resume: bool = False, chunk_lines: int = 4) -> None:
    barrier = threading.Barrier(count)
    jobs = [job(source, processes=Threads(rank, barrier), chunk_lines=chunk_lines) for rank in range(count)]
    threads = [threading.Thread(target=one.run, args=(shout,), kwargs={"resume": resume}) for one in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_lines_come_out_in_order_and_only_a_sidecar_stays_beside_them(source: Path, expected: str) -> None:
    heard: list[int] = []
    assert job(source).run(shout, advance=heard.append)
    assert (source.parent / "out.txt").read_text() == expected
    assert names_in(source.parent) == ["in.txt", "out.txt", "out.txt.job.json"]
    assert sum(heard) == 23


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("chunk_lines", [1, 4, 23, 100])
def test_any_number_of_processes_gives_the_same_file(
    source: Path, expected: str, count: int, chunk_lines: int
) -> None:
    run_in_threads(source, count, chunk_lines=chunk_lines)
    assert (source.parent / "out.txt").read_text() == expected
    assert names_in(source.parent) == ["in.txt", "out.txt", "out.txt.job.json"]


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_processes_share_all_lines_and_a_short_file_still_feeds_them(source: Path, count: int) -> None:
    shares = [
        job(source, processes=Processes(rank, count), chunk_lines=512).own_lines for rank in range(count)
    ]
    assert sum(shares) == 23
    assert shares.count(0) == max(0, count - 23)


def test_a_run_cut_off_at_any_byte_resumes_to_the_same_file(source: Path, expected: str) -> None:
    out, part = source.parent / "out.txt", source.parent / "out.txt.part0of1"
    job(source).run(shout)
    for size in range(0, len(expected), 7):
        part.write_bytes(expected.encode()[:size])
        out.unlink(missing_ok=True)
        chunks: list[int] = []

        def counted(rows: list[TextRow], chunks: list[int] = chunks) -> list[str]:
            chunks.append(rows[0].number)
            return shout(rows)

        heard: list[int] = []
        assert job(source).run(counted, resume=True, advance=heard.append)
        assert out.read_text() == expected
        assert sum(heard) == 23
        done = expected[:size].count("\n")
        assert chunks == list(range(done // 4 * 4 + 1, 24, 4)), "finished chunks are not computed again"


def test_an_interruption_keeps_finished_chunks_and_each_process_resumes_its_own(
    source: Path, expected: str
) -> None:
    run_in_threads(source, 2)
    (source.parent / "out.txt").unlink()
    (source.parent / "out.txt.part0of2").write_text("1\tLINE 1\n2\tLI")
    (source.parent / "out.txt.part1of2").write_text("".join(f"{i}\tLINE {i}\n" for i in (4, 5, 6, 10, 11)))
    run_in_threads(source, 2, resume=True)
    assert (source.parent / "out.txt").read_text() == expected


def test_an_exception_in_the_middle_loses_no_finished_chunk(source: Path, expected: str) -> None:
    def fail_late(rows: list[TextRow]) -> list[str]:
        if rows[0].number > 8:
            raise KeyboardInterrupt
        return shout(rows)

    with pytest.raises(KeyboardInterrupt):
        job(source).run(fail_late)
    assert not (source.parent / "out.txt").exists(), "only a whole output has the output's name"
    assert (source.parent / "out.txt.part0of1").read_text().count("\n") == 8
    with pytest.raises(BeamtreeError, match="unfinished: --resume continues it, --overwrite starts afresh"):
        job(source).run(shout)
    assert job(source).run(shout, resume=True)
    assert (source.parent / "out.txt").read_text() == expected


def test_resuming_from_nothing_is_a_fresh_start_and_a_whole_output_is_left_alone(
    source: Path, expected: str
) -> None:
    out = source.parent / "out.txt"
    assert job(source).run(shout, resume=True)
    assert out.read_text() == expected
    before = out.stat().st_mtime_ns
    assert not job(source).run(shout, resume=True)
    assert out.stat().st_mtime_ns == before


def test_a_process_killed_before_its_first_line_is_no_obstacle(source: Path, expected: str) -> None:
    (source.parent / "out.txt.part0of2").touch()  # begun by two, before the sidecar was there
    job(source).run(shout, resume=True)
    assert (source.parent / "out.txt").read_text() == expected
    assert not list(source.parent.glob("*.part*"))


def test_an_existing_output_is_kept_unless_told_otherwise(source: Path, expected: str) -> None:
    out = source.parent / "out.txt"
    out.write_text("precious\n")
    with pytest.raises(BeamtreeError, match=r"out\.txt exists: --overwrite replaces it"):
        job(source).run(shout)
    assert out.read_text() == "precious\n"
    with pytest.raises(BeamtreeError, match=r"out\.txt\.job\.json, which says .* is missing or damaged"):
        job(source).run(shout, resume=True)
    assert out.read_text() == "precious\n"

    def stop(rows: list[TextRow]) -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(source).run(stop, overwrite=True)
    assert out.read_text() == "precious\n", "the old output stays until the new one is whole"
    assert job(source).run(shout, overwrite=True)
    assert out.read_text() == expected


def test_resuming_with_another_model_input_or_number_of_processes_is_refused(source: Path) -> None:
    job(source).run(shout)
    with pytest.raises(BeamtreeError, match=r"made with another model \(m, now n\); --overwrite"):
        job(source, model="n").run(shout, resume=True)
    with pytest.raises(BeamtreeError, match="made with another number of lines in a chunk"):
        job(source, chunk_lines=5).run(shout, resume=True)
    with pytest.raises(BeamtreeError, match=r"made with another number of processes \(1, now 2\)"):
        job(source, processes=Processes(0, 2)).run(shout, resume=True)
    source.write_text(source.read_text().replace("line 7", "line X"))
    with pytest.raises(BeamtreeError, match="made with another input"):
        job(source).run(shout, resume=True)
    sidecar = source.parent / "out.txt.job.json"
    sidecar.write_text("[]")
    with pytest.raises(BeamtreeError, match=r"another model \(None, now m\)"):
        job(source).run(shout, resume=True)
    sidecar.write_text("{")
    with pytest.raises(BeamtreeError, match="missing or damaged"):
        job(source).run(shout, resume=True)


def test_the_output_may_not_be_the_input_a_folder_or_in_no_folder(source: Path) -> None:
    text = source.read_text()
    for out, message in [
        (source, "--out names the input file"),
        (source.parent, "is a folder; --out must name a file"),
        (source.parent / "nowhere" / "out.txt", "there is no folder .*nowhere to write out.txt in"),
    ]:
        with pytest.raises(BeamtreeError, match=message):
            LineJob(Unlabelled(source), out, {}, Processes()).run(shout, overwrite=True)
    assert source.read_text() == text


def test_a_read_only_folder_is_named_before_any_work(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By hand, because the superuser may write to a folder of any mode.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(BeamtreeError, match=r"the folder .* is read-only: choose another place with --out"):
        job(source).run(shout)
    assert names_in(source.parent) == ["in.txt"]


def test_a_full_disk_is_reported_and_finished_chunks_stay(
    source: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Iterator[int] = iter(range(100))
    real = os.fsync

    def full(handle: int) -> None:
        if next(calls) == 4:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BeamtreeError, match=r"part0of1: No space left on device; what was done is kept"):
        job(source).run(shout)
    monkeypatch.undo()
    assert (source.parent / "out.txt.part0of1").read_text() == expected[: expected.index("13\t")]
    assert job(source).run(shout, resume=True)
    assert (source.parent / "out.txt").read_text() == expected


def test_an_input_that_shrinks_meanwhile_is_noticed(source: Path) -> None:
    started = job(source)
    source.write_text("line 1\n")
    with pytest.raises(
        BeamtreeError, match=r"1 lines were written for 23 rows: did .*in\.txt change meanwhile"
    ):
        started.run(shout)
    assert not (source.parent / "out.txt").exists()


@pytest.mark.parametrize("results", [[], ["a", "b\nc", "d", "e"]])
def test_a_transform_that_does_not_give_a_line_for_a_line_is_refused(
    source: Path, results: list[str]
) -> None:
    with pytest.raises(ValueError, match="one line for each of 4 lines"):
        job(source).run(lambda rows: results)


def test_a_last_line_without_an_end_and_blank_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\r\n\nb")
    job(path).run(shout)
    assert (tmp_path / "out.txt").read_text() == "1\tA\n2\t\n3\tB\n"


def test_packed_input_is_read_and_a_truncated_one_is_refused_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "in.txt.xz"
    packed = lzma.compress("".join(f"line {i * i}\n" for i in range(5000)).encode())
    path.write_bytes(packed)
    job(path, chunk_lines=1000).run(shout)
    assert (tmp_path / "out.txt").read_text().splitlines()[-1] == f"5000\tLINE {4999 * 4999}"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BeamtreeError, match=r"in\.txt\.xz is truncated"):
        job(path)
    assert names_in(tmp_path) == ["in.txt.xz", "out.txt", "out.txt.job.json"]


def test_an_empty_or_missing_input_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("")
    with pytest.raises(BeamtreeError, match=r"in\.txt is empty"):
        job(tmp_path / "in.txt")
    with pytest.raises(BeamtreeError, match=r"there is no file .*absent"):
        job(tmp_path / "absent")


def test_the_sidecar_says_what_the_output_is_made_of(source: Path) -> None:
    job(source).run(shout)
    recorded = json.loads((source.parent / "out.txt.job.json").read_text())
    assert recorded == {
        "model": "m",
        "input": hashlib.sha256(source.read_bytes()).hexdigest(),
        "lines": 23,
        "number_of_processes": 1,
        "number_of_lines_in_a_chunk": 4,
    }


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        path = tmp_path / "in.txt"
        with path.open("w") as file:
            file.writelines(f"{i:080d}\n" for i in range(lines))
        tracemalloc.start()
        job(path, chunk_lines=50).run(shout, overwrite=True)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(500)
    assert peak(20_000) < 1.5 * peak(2_000)
