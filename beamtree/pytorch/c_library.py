"""Compiles a C file of the package at its first use, if there is a compiler; else callers use PyTorch.

The library is kept in a cache folder of the user's. Its name depends on source, options and processor, so
each combination is compiled once; processes that compile it at the same time do not disturb each other.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SWITCH = "BEAMTREE_COMPILE"  # 0 turns it off
FOLDER = "BEAMTREE_CACHE"  # where compiled libraries are kept
_OPTIONS = ("-O3", "-march=native", "-std=gnu99", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_PATIENCE = 120.0  # seconds after which a compiler is stopped
_PROCESSOR = Path("/proc/cpuinfo")


def load(source: Path, **definitions: str) -> ctypes.CDLL | None:
    """The library compiled from a C file; None if that is not possible, for the reason `why_not` gives."""
    return _load(source, tuple(sorted(definitions.items())), _surroundings())[0]


def why_not(source: Path, **definitions: str) -> str | None:
    """Why `load` returns None, in a few words; None if it returns a library."""
    return _load(source, tuple(sorted(definitions.items())), _surroundings())[1]


def _surroundings() -> tuple[str | None, ...]:
    """Environment variables that affect the result; a user may change them while the program runs."""
    return tuple(map(os.environ.get, (SWITCH, FOLDER, "CC", "PATH", "XDG_CACHE_HOME", "HOME")))


@cache
def _load(
    source: Path, definitions: tuple[tuple[str, str], ...], surroundings: tuple[str | None, ...]
) -> tuple[ctypes.CDLL | None, str | None]:
    switch, *_ = surroundings
    if switch == "0":
        return None, f"turned off by {SWITCH}=0"
    if sys.platform != "linux":
        return None, "compiled on Linux only"
    try:
        options = (*_OPTIONS, *(f"-D{name}={value}" for name, value in definitions))
        return ctypes.CDLL(str(_compiled(source, options))), None
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or b""
        return None, f"the compiler failed: {said.decode(errors='replace').strip()[:200] or error}"
    except (OSError, RuntimeError) as error:  # no compiler, no home, nowhere to write, cannot be loaded
        return None, str(error)


def _compiled(source: Path, options: tuple[str, ...]) -> Path:
    text = source.read_bytes()
    made_for = repr((options, platform.machine(), _processor(), platform.libc_ver())).encode()
    name = f"{source.stem}-{hashlib.sha256(text + made_for).hexdigest()[:24]}.so"
    folder = _private_folder()
    path = folder / name
    if path.is_file():
        return path
    compiler = shlex.split(os.environ.get("CC", "")) or [_find_compiler()]
    # Written under a temporary name, then renamed: other processes see either no file or the whole one.
    handle, part = tempfile.mkstemp(suffix=".so", prefix=f".{source.stem}-", dir=folder)
    os.close(handle)
    try:
        command = [*compiler, *options, "-x", "c", "-", "-o", part, "-lm"]
        subprocess.run(command, input=text, capture_output=True, check=True, timeout=_PATIENCE, cwd=folder)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
    return path


def _find_compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        if (found := shutil.which(name)) is not None:
            return found
    raise FileNotFoundError("no C compiler found")


def _private_folder() -> Path:
    """The cache folder. Nobody else may write to it, as they could put a library there for us to load."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get(FOLDER) or Path(home) / "beamtree").expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} can be written to by others")
    return folder.resolve()


def _processor() -> str:
    """The lines of /proc/cpuinfo that say what -march=native compiles for."""
    lines = _PROCESSOR.read_text(errors="replace").splitlines() if _PROCESSOR.is_file() else []
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
