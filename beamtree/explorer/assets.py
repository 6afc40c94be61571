"""The page's files, read once: a request looks a name up in a table and never touches the disk."""

from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent / "page"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    kind: str
    content: bytes


def read_assets(folder: Path = PAGE) -> dict[str, Asset]:
    """The files of a folder by their paths in it, of known kinds only; `index.html` is the page."""
    return {
        path.relative_to(folder).as_posix(): Asset(_KINDS[path.suffix], path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in _KINDS and path.is_file()
    }
