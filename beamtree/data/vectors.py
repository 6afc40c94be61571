"""Ready-made word vectors: GloVe text files, plain or in a .zip, or a .npy array with a list of its words."""

import io
import lzma
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beamtree.data.files import COMPRESSIONS, OPENERS, read_lines
from beamtree.errors import BeamtreeError

_KINDS = (".npy", ".zip", ".txt")


@dataclass(frozen=True)
class WordVectors:
    """The vectors of those words that were asked for and are there, in the file's order."""

    name: str
    words: tuple[str, ...]
    table: NDArray[Any]  # (words, width) float16 or float32, as stored


def find_vectors(folder: Path) -> Path | None:
    """The only file with vectors in a folder; None if there is none."""
    if not folder.is_dir():
        return None
    found = [path for path in sorted(folder.iterdir()) if _kind(path) and not _is_word_list(path)]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BeamtreeError(f"{folder} holds several files of vectors, {names}: name one as words.vectors")
    return found[0] if found else None


def read_vectors(path: Path, wanted: Collection[str]) -> WordVectors:
    """The vectors of the wanted words; the rest of the file is passed over."""
    wanted = frozenset(wanted)
    if _kind(path) == ".npy":
        words, table = _from_array(path, wanted)
    else:
        lines = _zipped_lines(path) if path.suffix == ".zip" else read_lines(path)
        words, table = _from_text(path, lines, wanted)
    if not words:
        raise BeamtreeError(f"{path} has a vector for none of the {len(wanted):,} words")
    if not np.isfinite(table).all():
        raise BeamtreeError(f"{path} holds numbers that are not finite")
    name = path.name
    for suffix in (*COMPRESSIONS[1:], *_KINDS):
        name = name.removesuffix(suffix)
    return WordVectors(name, tuple(words), table)


def _kind(path: Path) -> str | None:
    suffix = path.with_suffix("").suffix if path.suffix in COMPRESSIONS[1:] else path.suffix
    return suffix if suffix in _KINDS and path.is_file() else None


def _is_word_list(path: Path) -> bool:
    return "words" in path.name


def _from_text(
    path: Path, lines: Iterable[tuple[int, str]], wanted: frozenset[str]
) -> tuple[list[str], NDArray[Any]]:
    """`word number number …`; lines with another count of numbers than the first one has are passed over."""
    width, words, rows = 0, dict[str, None](), []
    for number, line in lines:
        word, _, rest = line.rstrip().partition(" ")
        if not width:
            width = rest.count(" ") + 1
            if width == 1:  # word2vec's text files begin with their size
                width = 0
                continue
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
        with zipfile.ZipFile(path) as archive:
            texts = [name for name in archive.namelist() if name.endswith(".txt")]
            if len(texts) != 1:
                raise BeamtreeError(f"{path} must hold one .txt file of vectors, it holds {len(texts)}")
            with archive.open(texts[0]) as file:
                yield from enumerate(io.TextIOWrapper(file, encoding="utf-8", newline="\n"), start=1)
    except FileNotFoundError:
        raise BeamtreeError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, zlib.error, UnicodeDecodeError, OSError, EOFError, RuntimeError) as error:
        raise BeamtreeError(f"{path} is not a sound .zip of text: {error}") from None


def _from_array(path: Path, wanted: frozenset[str]) -> tuple[list[str], NDArray[Any]]:
    lists = [beside for beside in path.parent.iterdir() if _is_word_list(beside)]
    if len(lists) != 1:
        raise BeamtreeError(f"{path} needs one list of its words beside it (…words.txt), found {len(lists)}")
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as file:
            table = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, zlib.error, lzma.LZMAError) as error:
        raise BeamtreeError(f"{path} is not a sound array: {error}") from None
    listed = [line for _, line in read_lines(lists[0])]
    if table.ndim != 2 or len(table) != len(listed) or table.dtype.kind != "f":
        raise BeamtreeError(
            f"{path} must hold one row of floats for each of the {len(listed):,} words of {lists[0].name}, "
            f"got {table.dtype} of shape {table.shape}"
        )
    rows = {word: row for row, word in enumerate(listed) if word in wanted}
    if table.dtype not in (np.float16, np.float32):
        table = table.astype(np.float32)
    return list(rows), table[list(rows.values())]
