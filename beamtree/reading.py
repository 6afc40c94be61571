"""Small files read whole, however they came about: never a pipe, never more than a bound, never a crash."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from beamtree.errors import BeamtreeError
from beamtree.printable import printable

LARGEST = 64 << 20  # bytes: a vocabulary of a million tokens has 16 MiB


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; what cannot be one is refused by name."""
    refuse_unless_file(path, LARGEST)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BeamtreeError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BeamtreeError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def read_json(path: Path) -> Any:
    """What the JSON of a file means."""
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path) -> Any:
    """What a JSON text means that stood in the file `path`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BeamtreeError(f"{path} is not JSON: {error}") from error


def refuse_unless_file(path: Path, largest: int) -> None:
    """Raise if `path` is missing, is something else than a file (a pipe would never end), or too large."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise BeamtreeError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise BeamtreeError(f"cannot read {path}: it is not a file")
    if found.st_size > largest:
        raise BeamtreeError(f"{path} has {found.st_size:,} bytes, more than the {largest:,} that it may have")


def is_file(path: Path) -> bool:
    """Whether a file of that name can be seen; a name that none can have is no error."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder of that name can be seen."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def machine_memory() -> int:
    """Bytes of this machine's memory, or 1 TiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def shown(value: object, *, most: int = 80) -> str:
    """A value as a message shows it: a line, whatever it holds."""
    if isinstance(value, str):
        return f"'{printable(value)}'" if len(value) <= most else f"'{printable(value[: most - 1])}…"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to write thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= most else text[:most] + "…"
