"""Data files: what cannot be read, or is too much, says why; a file is written whole or not at all."""

import gzip
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import call

from beamtree.errors import BeamtreeError
from beamtree.files import lines as lines_module
from beamtree.files.lines import find_file, in_blocks, read_lines, read_rows, write_lines

LINES = [f"line {number} é" for number in range(1, 500)]
TEXT = "".join(line + "\n" for line in LINES)


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_plain_gz_and_xz_files_give_the_same_numbered_lines(tmp_path: Path, suffix: str, compress) -> None:
    path = tmp_path / f"data.tsv{suffix}"
    path.write_bytes(compress(TEXT.encode()))
    assert list(read_lines(path)) == list(enumerate(LINES, start=1))


def test_byte_order_mark_and_windows_line_ends_are_dropped_and_inner_returns_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes("\ufeffone\r\ntw\ro\nlast".encode())
    assert list(read_lines(path)) == [(1, "one"), (2, "tw\ro"), (3, "last")]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_truncated_archive_is_named_as_truncated(tmp_path: Path, suffix: str, compress) -> None:
    path = tmp_path / f"data.tsv{suffix}"
    whole = compress(os.urandom(40_000).hex().encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        BeamtreeError, match=rf"data\.tsv\{suffix} is truncated: the archive ends after line 0"
    ):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_archive_that_is_none_is_named_as_unsound(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.tsv{suffix}"
    path.write_text(TEXT)
    with pytest.raises(BeamtreeError, match=rf"is not a valid \{suffix} archive"):
        list(read_lines(path))


def test_damaged_gz_data_is_named_as_unsound(tmp_path: Path) -> None:
    path = tmp_path / "data.gz"
    whole = bytearray(gzip.compress(TEXT.encode()))
    whole[10] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(BeamtreeError, match=r"is not a valid \.gz archive"):
        list(read_lines(path))


def test_unreadable_files_say_why(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"there is no file .*absent\.tsv"):
        list(read_lines(tmp_path / "absent.tsv"))
    with pytest.raises(BeamtreeError, match="is a folder, not a file"):
        list(read_lines(tmp_path))
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(BeamtreeError, match=r"empty\.tsv is empty"):
        list(read_lines(tmp_path / "empty.tsv"))
    (tmp_path / "latin.tsv").write_bytes("caf\u00e9\n".encode("latin-1"))
    with pytest.raises(BeamtreeError, match=r"latin\.tsv is not UTF-8 text \(after line 0"):
        list(read_lines(tmp_path / "latin.tsv"))
    with pytest.raises(BeamtreeError, match=r"cannot read .*: Not a directory"):
        list(read_lines(tmp_path / "empty.tsv" / "inside"))


@pytest.mark.parametrize(
    ("beginning", "told"),
    [
        (b"PK\x03\x04\x14\x00", "is an Excel workbook or another zip archive: save its table as .csv"),
        (b"\xd0\xcf\x11\xe0\xa1", "is an old Excel workbook"),
        (b"PAR1\x15\x04", "is a Parquet file"),
        (gzip.compress(b"label", mtime=0), r"is a gzip archive: end its name in \.gz"),
        (lzma.compress(b"label"), r"is an xz archive: end its name in \.xz"),
        ("label\ttext\n".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
    ],
)
@pytest.mark.parametrize("wrong_bytes", ["strict", "surrogateescape"])
def test_a_file_of_another_kind_is_named_whatever_it_is_called(
    beginning: bytes, told: str, wrong_bytes: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_bytes(beginning)
    with pytest.raises(BeamtreeError, match=told):
        list(read_lines(tmp_path / "rows.csv", wrong_bytes=wrong_bytes))


def test_a_text_that_begins_like_another_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("PAR1\nPK\n")
    assert [line for _, line in read_lines(tmp_path / "rows.txt")] == ["PAR1", "PK"]


def test_find_file_takes_the_first_name_present_in_any_compression(tmp_path: Path) -> None:
    (tmp_path / "old.tsv.xz").touch()
    assert find_file(tmp_path, ["new.tsv", "old.tsv"]) == tmp_path / "old.tsv.xz"
    (tmp_path / "new.tsv").touch()
    assert find_file(tmp_path, ["new.tsv", "old.tsv"]) == tmp_path / "new.tsv"


def test_folder_without_the_file_lists_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(
        BeamtreeError, match=r"has no a\.tsv or b\.tsv \(plain, \.gz or \.xz\); it holds nothing"
    ):
        find_file(tmp_path, ["a.tsv", "b.tsv"])
    for number in range(22):
        (tmp_path / f"c{number:02}.tsv").touch()
    with pytest.raises(BeamtreeError, match=r"it holds c00\.tsv, c01\.tsv, .*c19\.tsv and 2 more"):
        find_file(tmp_path, ["a.tsv"])
    with pytest.raises(BeamtreeError, match=r"there is no folder .*absent"):
        find_file(tmp_path / "absent", ["a.tsv"])
    with pytest.raises(BeamtreeError, match=r"c00\.tsv is not a folder"):
        find_file(tmp_path / "c00.tsv", ["a.tsv"])


def test_written_lines_are_read_back_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "data.tsv"
    write_lines(path, iter(LINES))
    assert path.read_bytes() == TEXT.encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["data.tsv"]


@pytest.mark.parametrize("failure", [BeamtreeError("bad line"), KeyboardInterrupt()])
def test_failing_lines_leave_the_older_file_and_nothing_else(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("older\n")

    def lines() -> Iterator[str]:
        yield "newer"
        raise failure

    with pytest.raises(type(failure)):
        write_lines(path, lines())
    assert path.read_text() == "older\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.tsv"]


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BeamtreeError, match=r"cannot make the folder .*file: "):
        write_lines(tmp_path / "file" / "data.tsv", LINES)


def test_a_line_may_be_as_long_as_the_bound_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 10)
    path = tmp_path / "lines.txt"
    path.write_text("123456789\n😀😀😀😀😀😀😀😀😀\n1234567890")
    assert [line for _, line in read_lines(path)] == ["123456789", "😀" * 9, "1234567890"]
    path.write_text("1\n12345678901\n")
    with pytest.raises(BeamtreeError, match=r"lines\.txt, line 2 has more than 10 characters, .*: put each"):
        list(read_lines(path))
    told = call("parse", "listops-ebt-grc", "-", input="5\n" + "[MAX " * 3 + "\n", rc=2).stderr
    assert "standard input, line 2 has more than 10 characters" in told


def test_lines_come_in_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 10)
    lines = ["12345", "1234", "12", "1234567890", "", "", "", "1"]
    blocks = [["12345", "1234"], ["12"], ["1234567890", "", ""], ["", "1"]]
    assert list(in_blocks(lines, 3)) == blocks


def test_archives_of_several_streams_and_great_but_honest_ones_are_read(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    rows = "".join(f"{digit}\t{digit}\n" for digit in random.randint(0, 10, 2_500_000))  # 10 MB
    for suffix, packed in ((".gz", gzip.compress), (".xz", lambda text: lzma.compress(text, preset=0))):
        path = tmp_path / f"rows.tsv{suffix}"
        path.write_bytes(packed(rows[: len(rows) // 2].encode()) + packed(rows[len(rows) // 2 :].encode()))
        assert sum(1 for _ in read_rows(path)) == 2_500_000
    path = tmp_path / "repeated.tsv.gz"
    path.write_bytes(gzip.compress(b"3\t3\n" * 2_000_000))
    assert sum(1 for _ in read_rows(path)) == 2_000_000
    path.write_bytes(gzip.compress(b"3\t3\n" * 2_500_000))
    with pytest.raises(
        BeamtreeError, match=r"repeated\.tsv\.gz unpacks to more than 200 times its size, .*unpack it"
    ):
        next(read_rows(path))
    assert sum(1 for _ in read_lines(path)) == 2_500_000, "what is not kept may be as long as it is"


def test_an_xz_that_ends_early_or_goes_on_is_named_as_unsound(tmp_path: Path) -> None:
    path = tmp_path / "rows.xz"
    path.write_bytes(lzma.compress(b"1\n2\n") + b"more")
    with pytest.raises(BeamtreeError, match=r"rows\.xz is (not a sound|truncated)"):
        list(read_lines(path))
    path.write_bytes(b"")
    with pytest.raises(BeamtreeError, match=r"rows\.xz is truncated"):
        list(read_lines(path))


def test_blank_lines_inside_a_file_are_rows_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("a\n\n \t\nb\n\n \n")
    assert list(read_rows(path)) == [(1, "a"), (2, ""), (3, " \t"), (4, "b")]
    path.write_text("\n\n")
    with pytest.raises(BeamtreeError, match="rows is empty"):
        list(read_rows(path))
