"""Small files read whole, however they came about: never a pipe, never more than a bound, never a crash."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from beamtree.errors import BeamtreeError
from beamtree.printable import printable

SMALL = 4 << 20  # bytes: settings and figures have some thousand
MOST_VALUES = 1_000_000  # of a JSON text, where a value of three bytes takes a hundred in memory
_HALF_ESCAPE = re.compile(r"\\(x[0-9a-f]?|u[0-9a-f]{0,3})?$")
_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"')


def read_text(path: Path, *, largest: int = SMALL) -> str:
    """The UTF-8 text of a file; what cannot be one is refused by name, what is too large unread."""
    try:
        with opened(path, largest) as file:
            return file.read(largest).decode()
    except UnicodeDecodeError as error:
        raise BeamtreeError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(path: Path, *, largest: int = SMALL) -> Any:
    """What the JSON of a file means."""
    return parse_json(read_text(path, largest=largest), str(path))


def parse_json(text: str, source: str) -> Any:
    """What a JSON text means; `source` is where it stood."""
    values = _count_marks(text)
    if values > MOST_VALUES:  # unless most of the marks stand in texts
        values -= sum(_count_marks(found[0]) for found in _TEXT.finditer(text))
    if values > MOST_VALUES:
        raise BeamtreeError(f"{source} has {values:,} values or more, of which {MOST_VALUES:,} are the most")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BeamtreeError(f"{source} is not JSON: {error}") from error


def _count_marks(text: str) -> int:
    """Of JSON, which has a value or two for each."""
    return text.count(",") + text.count("[") + text.count("{")


def hash_files(*paths: Path) -> str:
    """SHA-256 of the bytes of files, one after the other, of which few are in memory at a time."""
    checksum = hashlib.sha256()
    for path in paths:
        with opened(path, machine_memory()) as file:
            while piece := file.read(1 << 20):
                checksum.update(piece)
    return checksum.hexdigest()


@contextmanager
def opened(path: Path, largest: int) -> Iterator[BinaryIO]:
    """A file's bytes, if it is one and not too large; what the system says against it is a BeamtreeError."""
    refuse_unless_file(path, largest)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BeamtreeError(f"cannot read {path}: {error.strerror or error}") from error


def refuse_unless_file(path: Path, largest: int) -> None:
    """Raise if `path` is missing, is something else than a file (a pipe would never end), or too large."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise BeamtreeError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise BeamtreeError(f"cannot read {path}: it is not a file")
    if found.st_size > largest:
        raise BeamtreeError(
            f"{path} has {found.st_size:,} bytes, more than the {largest:,} that it may have: it is not what "
            "its name says, or damaged"
        )


# Whether there is a file or folder of that name; unlike Path's, these take names that none can have.
is_file, is_folder = os.path.isfile, os.path.isdir


def machine_memory() -> int:
    """Bytes of this machine's memory, or 1 TiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def shown(value: object, *, most: int = 80) -> str:
    """A value as a message shows it: a line, whatever it holds."""
    if isinstance(value, str):
        text = printable(value[:most])
        if max(len(value), len(text)) <= most:
            return f"'{text}'"
        return "'" + _HALF_ESCAPE.sub("", text[: most - 1]) + "…"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to write thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else text[:most] + "…"
