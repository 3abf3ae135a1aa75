"""The organisation's event log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import Route

SCHEMA: Final = ""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return []


def note(connection: sqlite3.Connection, kind: str, facts: Mapping[str, Any]) -> None:
    """Write down something that a person should be able to find later."""
