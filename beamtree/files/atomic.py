"""A file is replaced whole: written beside, flushed, renamed. A crash leaves the old one or the new."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from beamtree.errors import BeamtreeError


def replace_file(path: Path, content: bytes | str) -> None:
    """Write `content` to `path`; what stood there stays until the last byte of the new is safe."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `path` when the block ends, and is gone if the block fails."""
    # A fixed name, so that what a killed process leaves behind is overwritten by the next one.
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not path.is_file():  # a rename would put a file in the place of a device
            raise BeamtreeError(f"cannot write {path}: it is no ordinary file, and is not replaced")
        with _open_alone(part) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if sys.platform == "win32":
                    file.close()  # what is open cannot be renamed there
                os.replace(part, path)  # before the lock falls with the file
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise
        flush_folder(path.parent)
    except OSError as error:
        raise BeamtreeError(f"cannot write {path}: {error.strerror or error}") from error


def _open_alone(part: Path) -> BinaryIO:
    """The empty part file; a second process that wants to write the same file waits here for the first."""
    no_link = getattr(os, "O_NOFOLLOW", 0)  # a link planted in its place would be followed to a foreign file
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
        file.close()  # the process before renamed or removed it meanwhile


def make_folder(path: Path) -> None:
    """Make a folder and its parents; one that exists is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BeamtreeError(f"cannot make the folder {path}: {error.strerror or error}") from error


def flush_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
