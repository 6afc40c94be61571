"""Text files of one example a line: read plain, .gz or .xz with line numbers; written whole or not at all."""

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from beamtree.atomic import make_folder, replacing
from beamtree.errors import BeamtreeError

OPENERS: dict[str, Any] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
COMPRESSIONS = tuple(OPENERS)


class MissingFileError(BeamtreeError):
    """A folder lacks a file that a split is made of."""


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """The first of `names` that `folder` holds, plain, .gz or .xz; several names where releases differ."""
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
    """(line number from 1, line without its end); every way a file can be unreadable is a BeamtreeError.

    Bytes that are not UTF-8 are one of these, unless `wrong_bytes` is "surrogateescape".
    """
    number = 0
    try:
        with _open(path, wrong_bytes) as file:
            for number, line in enumerate(file, start=1):
                yield number, line.removesuffix("\n").removesuffix("\r")
    except FileNotFoundError:
        raise BeamtreeError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise BeamtreeError(f"{path} is a folder, a file is wanted") from None
    except EOFError:
        raise BeamtreeError(
            f"{path} is truncated: the archive ends after line {number}; copy it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise BeamtreeError(f"{path} is not a sound {path.suffix} archive: {error}") from None
    except UnicodeDecodeError as error:
        raise BeamtreeError(f"{path} is not UTF-8 text (after line {number}: {error.reason})") from None
    except OSError as error:
        raise BeamtreeError(f"cannot read {path}: {error.strerror or error}") from None
    if number == 0:
        raise BeamtreeError(f"{path} is empty")


def read_rows(path: Path, *, wrong_bytes: str = "strict") -> Iterator[tuple[int, str]]:
    """The lines but blank ones at the end of the file, which are no rows."""
    held: list[tuple[int, str]] = []
    for number, line in read_lines(path, wrong_bytes=wrong_bytes):
        held.append((number, line))
        if line.strip():
            yield from held
            held.clear()
    if held and held[0][0] == 1:
        raise BeamtreeError(f"{path} is empty")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` beside `path` and rename at the end, so that `path` is never half a file.

    Making the lines may fail too: then nothing is left behind and an older file stays as it was.
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
