"""The shell and its files: read once at the start into a dictionary, and never from disk again.

So a path that a client sends is a key, or nothing. The address of a file carries the digest of
all of them, so that browsers may keep it for good.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).resolve().parent / "static"
SHELL: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_EMPTY_SHELL: Final = (
    b"<!doctype html><html lang=en><title>LaunchHelm</title>"
    b"<p>This installation has no pages; the API is at /api/1/."
)


@dataclass(frozen=True, slots=True)
class Page:
    """One file, also packed."""

    media_type: str
    data: bytes
    packed: bytes


class Pages:
    """All files of the page.

    Args:
        base: The path under which a proxy shows this server, "" for none.
        mode: What is shown: run directories, or what a server holds.
    """

    def __init__(self, base: str = "", static: Path = STATIC, *, mode: str = "directory") -> None:
        found = {
            path.relative_to(static).as_posix(): path.read_bytes()
            for path in sorted(static.rglob("*"))
            if path.is_file() and path.suffix in _TYPES
        }
        digest = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]
        shell = found.pop(SHELL, _EMPTY_SHELL)
        shell = shell.replace(b'"/static/', f'"{base}/static/{digest}/'.encode())
        shell = shell.replace(b'data-mode="directory"', f'data-mode="{mode}"'.encode())
        self.shell = _page(SHELL, shell)
        self._files = {f"{digest}/{name}": _page(name, data) for name, data in found.items()}

    def file(self, name: str) -> Page | None:
        """Return the file of an address below /static/, None when there is none."""
        return self._files.get(name)

    def names(self) -> list[str]:
        """Return the addresses of all files below /static/."""
        return list(self._files)


def _page(name: str, data: bytes) -> Page:
    return Page(_TYPES[Path(name).suffix], data, gzip.compress(data, 9, mtime=0))
