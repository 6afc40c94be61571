"""Files plain or packed, opened alike; packed ones may not ask for any memory, nor swell without bound."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from beamtree.errors import BeamtreeError

_XZ_MEMORY = 128 << 20  # bytes, twice what `xz -9` asks for; Python's own reader lets a file ask for 4 GiB
_MOST_UNPACKED = 200  # times its own size; text packs to a third or a tenth
_ANY_UNPACKED = 8 << 20  # bytes, however small the archive
_PIECE = 64 << 10


class _Unxz(io.RawIOBase):
    """The content of an .xz file, of several streams if it has them."""

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
    """Unpack an archive once, keeping nothing: one that is nearly nothing could fill the memory.

    What is wrong with it otherwise is told by who reads it.
    """
    if path.suffix not in COMPRESSIONS[1:]:
        return
    with suppress(OSError, EOFError, zlib.error, lzma.LZMAError), OPENERS[path.suffix](path, "rb") as file:
        most, size = max(_ANY_UNPACKED, _MOST_UNPACKED * path.stat().st_size), 0
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > most:
                raise BeamtreeError(
                    f"{path} unpacks to more than {_MOST_UNPACKED} times its size, which text hardly does: "
                    "if it is sound all the same, unpack it and name the plain file"
                )
