"""A file is replaced whole: written beside, flushed, renamed. A crash leaves the old one or the new."""

import os
from contextlib import suppress
from pathlib import Path

from beamtree.errors import BeamtreeError


def replace_file(path: Path, content: bytes | str) -> None:
    """Write `content` to `path`; what stood there stays until the last byte of the new is safe."""
    # A fixed name, so that what a killed process leaves behind is overwritten by the next one.
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise BeamtreeError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Make a folder and its parents; one that exists is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BeamtreeError(f"cannot make the folder {path}: {error.strerror or error}") from error


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
