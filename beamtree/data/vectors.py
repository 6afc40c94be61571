"""Pretrained word vectors: GloVe text files, plain or in a .zip, or a .npy array with a list of its words;
and those that come with the package, as 8-bit numbers with a scale for every word.
"""

import io
import lzma
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beamtree.errors import BeamtreeError, first_line
from beamtree.files.lines import COMPRESSIONS, OPENERS, read_lines, refuse_if_it_swells, split_lines

SHIPPED = "glove-6b-100d"  # the vectors of the package, by their name in recipes and models
SHIPPED_FILE = Path(__file__).resolve().parent / "glove" / f"{SHIPPED}.npz"
SHIPPED_SHA256 = "d3857827a020c3bcca6e36fb2f8e3f303bad8ae7bb6531e662cf7f45d07659a0"  # of its content

_KINDS = (".npy", ".zip", ".txt")
_LARGEST_TABLE = 4 << 30  # bytes
_WIDEST = 65536  # numbers of a vector
_LARGEST_CONTENTS = 1 << 20  # bytes of the list of files in a .zip
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_INVALID = (OSError, ValueError, EOFError, MemoryError, zlib.error, lzma.LZMAError, SyntaxError, TokenError)


@dataclass(frozen=True)
class WordVectors:
    """The vectors of the wanted words that are in a file, in the file's order."""

    name: str
    words: tuple[str, ...]
    table: NDArray[Any]  # (words, width) float16 or float32, as stored


@dataclass(frozen=True)
class ShippedVectors:
    """All vectors of the package's file: `numbers[i] * scales[i]` is that of `words[i]`."""

    words: tuple[str, ...]  # most frequent first
    numbers: NDArray[np.int8]  # (words, width)
    scales: NDArray[np.float32]  # (words,)

    def deviation(self) -> float:
        """Return the standard deviation of all numbers of all vectors."""
        return float((self.numbers * self.scales[:, None]).std())


@cache
def read_shipped() -> ShippedVectors:
    """Return the vectors that come with the package; they are read once."""
    with np.load(SHIPPED_FILE, allow_pickle=False) as arrays:
        words = arrays["words"].tobytes().decode().split("\n")
        return ShippedVectors(tuple(words), arrays["numbers"], arrays["scales"].astype(np.float32))


def find_vectors(folder: Path) -> Path | None:
    """Return the only vector file of a folder, or None if there is none."""
    if not folder.is_dir():
        return None
    found = [path for path in sorted(folder.iterdir()) if _kind(path) and not _is_word_list(path)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BeamtreeError(f"{folder} has several vector files, {names}: name one as words.vectors")
    return found[0] if found else None


def read_vectors(path: Path, wanted: Collection[str]) -> WordVectors:
    """Read the vectors of the wanted words and skip the others."""
    wanted = frozenset(wanted)
    if _kind(path) == ".npy":
        words, table = _read_array(path, wanted)
    else:
        lines = _zipped_lines(path) if path.suffix == ".zip" else read_lines(path)
        words, table = _read_text(path, lines, wanted)
    if not words:
        raise BeamtreeError(f"{path} has a vector for none of the {len(wanted):,} words")
    if not np.isfinite(table).all():
        raise BeamtreeError(f"{path} has numbers that are not finite")
    name = path.name
    for suffix in (*COMPRESSIONS[1:], *_KINDS):
        name = name.removesuffix(suffix)
    return WordVectors(name, tuple(words), table)


def _kind(path: Path) -> str | None:
    """Return the ending, without that of a compression, if the file can hold vectors."""
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS[1:] else path.suffix
    return suffix if suffix in _KINDS and path.is_file() else None


def _is_word_list(path: Path) -> bool:
    return "words" in path.name


def _read_text(
    path: Path, lines: Iterable[tuple[int, str]], wanted: frozenset[str]
) -> tuple[list[str], NDArray[Any]]:
    """Read lines `word number number …`; those with another number of numbers than the first are skipped."""
    width, words, rows = 0, dict[str, None](), []
    for number, line in lines:
        word, _, rest = line.rstrip().partition(" ")
        if not width:
            width = rest.count(" ") + 1
            if width == 1:  # word2vec's text files begin with their size
                width = 0
                continue
            _refuse_if_large(path, len(wanted), width, 4)
        if word not in wanted or word in words or rest.count(" ") + 1 != width:
            continue
        try:
            rows.append(np.array(rest.split(" "), dtype=np.float32))
        except ValueError:
            raise BeamtreeError(f"{path}, line {number}: the vector of {word!r} is not all numbers") from None
        words[word] = None
    return list(words), np.stack(rows) if rows else np.zeros((0, width), np.float32)


def _zipped_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb", 0) as packed, zipfile.ZipFile(_FewContents(packed)) as archive:
            texts = [name for name in archive.namelist() if name.endswith(".txt")]
            if len(texts) != 1:
                raise BeamtreeError(f"{path} must have one .txt file of vectors, found {len(texts)}")
            if archive.getinfo(texts[0]).compress_type == zipfile.ZIP_LZMA:
                raise zipfile.BadZipFile("LZMA compression is not supported, as it can demand any memory")
            with archive.open(texts[0]) as file:
                yield from split_lines(io.TextIOWrapper(file, encoding="utf-8", newline="\n"), str(path))
    except FileNotFoundError:
        raise BeamtreeError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, OSError, EOFError, RuntimeError) as error:
        raise BeamtreeError(f"{path} is not a valid .zip of text: {first_line(error)}") from None


class _FewContents(io.BufferedReader):
    """A .zip whose list of contents, which `ZipFile` reads in one piece, has a bounded size."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _LARGEST_CONTENTS:
            raise zipfile.BadZipFile(f"the list of its contents has {size:,} bytes")
        return super().read(size)


def _refuse_if_large(path: Path, words: int, width: int, bytes_each: int) -> None:
    if words * width * bytes_each > _LARGEST_TABLE or width > _WIDEST:
        raise BeamtreeError(
            f"{path}: {words:,} vectors of {width:,} numbers are too many: the limits are "
            f"{_LARGEST_TABLE >> 30} GiB and {_WIDEST:,} numbers a vector"
        )


def _read_array(path: Path, wanted: frozenset[str]) -> tuple[list[str], NDArray[Any]]:
    lists = [beside for beside in path.parent.iterdir() if _is_word_list(beside)]
    if len(lists) != 1:
        raise BeamtreeError(f"{path} needs one list of its words next to it (…words.txt), found {len(lists)}")
    refuse_if_it_swells(path)
    count = _count_rows(path)
    rows, listed = dict[str, int](), 0
    for listed, word in islice(read_lines(lists[0]), count + 1):
        if word in wanted:
            rows[word] = listed - 1
    if listed != count:
        listed_words = f"{listed:,}" if listed < count else "more"
        raise BeamtreeError(
            f"{path} must have a row for each word of {lists[0].name}: it has {count:,} rows, the list has "
            f"{listed_words} words"
        )
    with _open_array(path) as file:
        table = np.lib.format.read_array(file, allow_pickle=False)
    if table.dtype not in (np.float16, np.float32):
        table = table.astype(np.float32)
    return list(rows), table[list(rows.values())]


def _count_rows(path: Path) -> int:
    """Return the number of rows according to an array's header, before it takes memory."""
    with _open_array(path) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"its format is {version}")
        shape, _, dtype = _HEADERS[version](file)
    if len(shape) != 2 or min(shape) < 1 or dtype.kind != "f":
        raise BeamtreeError(f"{path} must be a table of floats, got {dtype} of shape {shape}")
    _refuse_if_large(path, *shape, dtype.itemsize)
    return int(shape[0])


@contextmanager
def _open_array(path: Path) -> Iterator[Any]:
    """Open an array's file; errors inside the block become a BeamtreeError."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield file
    except _INVALID as error:
        raise BeamtreeError(f"{path} is not a valid array: {first_line(error)}") from None
