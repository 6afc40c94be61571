"""Replaces files atomically: write a temporary file, flush it, rename it.

After a crash there is either the old file or the new one, never a mixture.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from beamtree.errors import BeamtreeError


def replace_file(path: Path, content: bytes | str) -> None:
    """Write `content` to `path`; an existing file is kept until the new one is safely on disk."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; it becomes `path` when the block ends, or is deleted if it fails."""
    # A fixed name, so that the leftover of a killed process is overwritten by the next one.
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not path.is_file():  # the rename would replace a device by a file
            raise BeamtreeError(f"cannot write {path}: it is not an ordinary file and is not replaced")
        with _open_alone(part) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()  # Windows cannot rename open files
                os.replace(part, path)  # before closing the file releases the lock
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        flush_folder(path.parent)
    except OSError as error:
        raise BeamtreeError(f"cannot write {path}: {error.strerror or error}") from error


def _open_alone(part: Path) -> BinaryIO:
    """Open the empty temporary file; a second process that writes the same file waits here for the first."""
    no_link = getattr(os, "O_NOFOLLOW", 0)  # never follow a link that someone put there to another file
    while True:
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | no_link, 0o666), "wb")
        try:
            if sys.platform != "win32":
                import fcntl

                with suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), part.stat()):
                    file.truncate(0)
                    return file
        except BaseException:
            file.close()
            raise
        file.close()  # the other process has renamed or removed it in the meantime: try again


def make_folder(path: Path) -> None:
    """Make a folder and its parents; it may exist already."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BeamtreeError(f"cannot make the folder {path}: {error.strerror or error}") from error


def flush_folder(folder: Path) -> None:
    """Flush a folder to disk, so that renames in it survive a power cut."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
