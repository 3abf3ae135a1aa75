"""`.env` files: the LAUNCHHELM_* variables of a project, without a line in the script."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from launchhelm._settings import set_default

_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PREFIX: Final = "LAUNCHHELM_"
MAX_FILE_BYTES: Final = 1 << 20


def load_env(start: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Read every `.env` from `start` (default: the current directory) up to the root.

    Only variables whose name begins with LAUNCHHELM_ are taken; keys of other tools stay where
    they are. A variable that the process has already is never changed; of two files the nearer
    one wins. Files that cannot be read are skipped.

    Returns:
        The variables that were set by this call.
    """
    try:
        nearest = Path(start).absolute() if start is not None else Path.cwd()
    except OSError:  # The current directory has been removed.
        return {}
    found: dict[str, str] = {}
    for directory in (nearest, *nearest.parents):
        for key, value in parse_env(_read(directory / ".env")).items():
            if key.startswith(PREFIX) and set_default(key, value):
                found[key] = value
    return found


def parse_env(text: str) -> dict[str, str]:
    """Return the pairs of one file; the first of two equal keys stays.

    Lines are `KEY=value` or `export KEY=value`. There are no inline comments, escapes or
    expansions; one pair of equal quotes around the value is removed.
    """
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        line = line.removeprefix("export ").lstrip() if line.startswith("export ") else line
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or _KEY.fullmatch(key) is None:
            continue
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        pairs.setdefault(key, value)
    return pairs


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
