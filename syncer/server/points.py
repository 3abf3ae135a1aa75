"""Reads of points and samples."""

from __future__ import annotations

from typing import Final

from starlette.routing import Route

SCHEMA: Final = ""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return []
