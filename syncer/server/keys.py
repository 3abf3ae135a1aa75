"""Keys that keys make: POST keys, with which each participant gets one of its own."""

from __future__ import annotations

from starlette.routing import Route


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return []
