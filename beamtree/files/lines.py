"""Text files with one example per line: read with line numbers, plain, .gz or .xz; written atomically.

Memory is bounded: there are limits to the length of a line, to the memory that unpacking takes and, for files
that are kept in memory, to their unpacked size.
"""

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import make_folder, replacing

LONGEST_LINE = 8 << 20  # characters; a ListOps expression of a million tokens has 6.5 million
_XZ_MEMORY = 128 << 20  # bytes, twice what `xz -9` needs; Python's own reader lets a file claim up to 4 GiB
_MOST_UNPACKED = 200  # times the size of the archive; text usually packs to a third or a tenth
_ANY_UNPACKED = 8 << 20  # bytes that even the smallest archive may unpack to
_PIECE = 64 << 10
# How files of other kinds begin, whatever their name says, and what to do with them.
_OTHER_FILES = {
    rb"PK\x03\x04": "an Excel workbook or another zip archive: save its table as .csv in UTF-8",
    rb"\xd0\xcf\x11\xe0": "an old Excel workbook: save its table as .csv in UTF-8",
    rb"PAR1[\x00-\x08\x0e-\x1f]": "a Parquet file: write its table as .csv or .jsonl",
    rb"\x1f\x8b": "a gzip archive: end its name in .gz",
    rb"\xfd7zXZ\x00": "an xz archive: end its name in .xz",
    rb"\xff\xfe|\xfe\xff": "UTF-16 text: save it as UTF-8",
}
Line = TypeVar("Line", bound=Sized)  # text, or an object whose len() is its number of characters


class _Unxz(io.RawIOBase):
    """The unpacked content of an .xz file, which may consist of several streams."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._stream = self._begin()

    @staticmethod
    def _begin() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._file.read(_PIECE)
                if not packed:
                    return 0
                self._stream = self._begin()
            elif self._stream.needs_input:
                packed = self._file.read(_PIECE)
                if not packed:
                    raise EOFError
            content = self._stream.decompress(packed, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_xz(path: Path, mode: str, **text: Any) -> Any:
    file = io.BufferedReader(_Unxz(path), _PIECE)
    return io.TextIOWrapper(file, **text) if mode == "rt" else file


OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": _open_xz}
COMPRESSIONS = tuple(OPENERS)


def refuse_if_it_swells(path: Path) -> None:
    """Refuse an archive that unpacks to far more than its own size, as it could fill the memory.

    It is unpacked once without keeping anything. Other faults are left to the code that reads it.
    """
    if path.suffix not in COMPRESSIONS[1:]:
        return
    with suppress(OSError, EOFError, zlib.error, lzma.LZMAError), OPENERS[path.suffix](path, "rb") as file:
        most, size = max(_ANY_UNPACKED, _MOST_UNPACKED * path.stat().st_size), 0
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > most:
                raise BeamtreeError(
                    f"{path} unpacks to more than {_MOST_UNPACKED} times its size, unusual for text: "
                    "if it is genuine, unpack it and give the plain file instead"
                )


class MissingFileError(BeamtreeError):
    """A folder lacks a file that a split needs."""


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of `names` found in `folder`, plain, .gz or .xz; names may differ between releases.

    Raises `BeamtreeError` if there is no such folder and `MissingFileError` if it has no such file.
    """
    if not folder.is_dir():
        raise BeamtreeError(
            f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
        )
    for name in names:
        for compression in COMPRESSIONS:
            if (path := folder / (name + compression)).is_file():
                return path
    present = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    shown = ", ".join(present[:20]) + (f" and {len(present) - 20} more" if len(present) > 20 else "")
    wanted = " or ".join(names)
    raise MissingFileError(f"{folder} has no {wanted} (plain, .gz or .xz); it holds {shown or 'nothing'}")


def read_lines(path: Path, *, wrong_bytes: str = "strict") -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its newline); a file that cannot be read raises BeamtreeError.

    So do bytes that are not UTF-8, unless `wrong_bytes` is "surrogateescape".
    """
    number = 0
    try:
        with _open(path, wrong_bytes) as file:
            _refuse_other_files(path, file.buffer.peek(8))  # type: ignore[attr-defined]
            for number, line in split_lines(file, str(path)):
                yield number, line
    except FileNotFoundError:
        raise BeamtreeError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise BeamtreeError(f"{path} is a folder, not a file") from None
    except EOFError:
        raise BeamtreeError(
            f"{path} is truncated: the archive ends after line {number}; copy it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise BeamtreeError(f"{path} is not a valid {path.suffix} archive: {error}") from None
    except UnicodeDecodeError as error:
        raise BeamtreeError(f"{path} is not UTF-8 text (after line {number}: {error.reason})") from None
    except OSError as error:
        raise BeamtreeError(f"cannot read {path}: {error.strerror or error}") from None
    if number == 0:
        raise BeamtreeError(f"{path} is empty")


def _refuse_other_files(path: Path, beginning: bytes) -> None:
    for pattern, what in _OTHER_FILES.items():
        if re.match(pattern, beginning):
            raise BeamtreeError(f"{path} is {what}")


def split_lines(file: TextIO, source: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of an open file; a line longer than LONGEST_LINE is an error."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise BeamtreeError(
                f"{source}, line {number} has more than {LONGEST_LINE:,} characters, the most allowed: put "
                "each text on a line of its own"
            )
        yield number, line.removesuffix("\n").removesuffix("\r")


def read_rows(path: Path, *, wrong_bytes: str = "strict") -> Iterator[tuple[int, str]]:
    """Yield the numbered lines, without blank lines at the end of the file; safe to keep all in memory."""
    refuse_if_it_swells(path)
    blank: list[str] = []  # the last lines read
    characters = 0
    number = 0
    for number, line in read_lines(path, wrong_bytes=wrong_bytes):
        if line and not line.isspace():
            yield from enumerate(blank, start=number - len(blank))
            blank.clear()
            characters = 0
            yield number, line
            continue
        blank.append(line)
        characters += len(line) + 64  # the overhead of a string
        if characters > LONGEST_LINE:
            raise BeamtreeError(f"{path}, line {number}: {len(blank):,} lines in a row are blank")
    if len(blank) == number:
        raise BeamtreeError(f"{path} is empty")


def in_blocks(lines: Iterable[Line], most: int) -> Iterator[list[Line]]:
    """Yield lists of at most `most` lines that together have no more characters than LONGEST_LINE."""
    block: list[Line] = []
    characters = 0
    for line in lines:
        if block and characters + len(line) > LONGEST_LINE:
            yield block
            block, characters = [], 0
        block.append(line)
        characters += len(line)
        if len(block) == most:
            yield block
            block, characters = [], 0
    if block:
        yield block


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` to `path` atomically, so that `path` is never half a file.

    If the iterable raises an error, an older file is kept and nothing is left behind.
    """
    make_folder(path.parent)
    with replacing(path) as file:
        file.writelines(line.encode() + b"\n" for line in lines)


def _open(path: Path, wrong_bytes: str) -> TextIO:
    # utf-8-sig drops a byte-order mark; newline="\n" keeps a carriage return inside a line from splitting it.
    file: TextIO = OPENERS.get(path.suffix, open)(
        path, "rt", encoding="utf-8-sig", errors=wrong_bytes, newline="\n"
    )
    return file
