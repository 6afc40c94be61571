"""Reads small files from any source safely: only regular files, up to a size limit, with clear errors."""

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

SMALL = 4 << 20  # bytes; files of settings and figures have a few thousand
MOST_VALUES = 1_000_000  # in a JSON text: a value of 3 bytes takes 100 bytes in memory
_HALF_ESCAPE = re.compile(r"\\(x[0-9a-f]?|u[0-9a-f]{0,3})?$")
_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"')


def read_text(path: Path, *, largest: int = SMALL) -> str:
    """Read a UTF-8 text file; raises `BeamtreeError` if it is not one or has more than `largest` bytes."""
    try:
        with opened(path, largest) as file:
            return file.read(largest).decode()
    except UnicodeDecodeError as error:
        raise BeamtreeError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(path: Path, *, largest: int = SMALL) -> Any:
    """Read and parse a JSON file."""
    return parse_json(read_text(path, largest=largest), str(path))


def parse_json(text: str, source: str) -> Any:
    """Parse a JSON text; `source` says in error messages where it comes from."""
    values = _count_marks(text)
    if values > MOST_VALUES:  # marks inside strings do not count
        values -= sum(_count_marks(found[0]) for found in _TEXT.finditer(text))
    if values > MOST_VALUES:
        raise BeamtreeError(f"{source} has {values:,} values or more; at most {MOST_VALUES:,} are allowed")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BeamtreeError(f"{source} is not JSON: {error}") from error


def _count_marks(text: str) -> int:
    """Count the commas and opening brackets of a JSON text; there are one or two values for each."""
    return text.count(",") + text.count("[") + text.count("{")


def hash_files(*paths: Path) -> str:
    """Return the SHA-256 of the concatenated files, reading them piece by piece."""
    checksum = hashlib.sha256()
    for path in paths:
        with opened(path, machine_memory()) as file:
            while piece := file.read(1 << 20):
                checksum.update(piece)
    return checksum.hexdigest()


@contextmanager
def opened(path: Path, largest: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most `largest` bytes for reading; an OSError becomes a BeamtreeError."""
    refuse_unless_file(path, largest)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BeamtreeError(f"cannot read {path}: {error.strerror or error}") from error


def refuse_unless_file(path: Path, largest: int) -> None:
    """Raise BeamtreeError if `path` is missing, too large, or not a regular file (a pipe would never end)."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise BeamtreeError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise BeamtreeError(f"cannot read {path}: it is not a file")
    if found.st_size > largest:
        raise BeamtreeError(
            f"{path} has {found.st_size:,} bytes, more than the {largest:,} allowed: it is damaged, or not "
            "what its name says"
        )


# Unlike Path's methods, these return False for names that no file can have, instead of raising.
is_file, is_folder = os.path.isfile, os.path.isdir


def machine_memory() -> int:
    """Return the bytes of memory of this machine, or 1 TiB if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def shown(value: object, *, most: int = 80) -> str:
    """Return a value as an error message shows it: one printable line of about `most` characters at most."""
    if isinstance(value, str):
        text = printable(value[:most])
        if max(len(value), len(text)) <= most:
            return f"'{text}'"
        return "'" + _HALF_ESCAPE.sub("", text[: most - 1]) + "…"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to format integers of thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else text[:most] + "…"
