"""Reads of points over HTTP: pages of a stream, and samples of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from syncer.api import routes as paths
from syncer.api.limits import MAX_POINTS_PAGE, POINTS_PAGE
from syncer.server import documents, samples
from syncer.server.batch import instant, integer
from syncer.server.caller import Caller
from syncer.server.endpoint import endpoint
from syncer.server.errors import validation
from syncer.server.pages import EARLIEST, LATEST, Window, page
from syncer.server.state import Server

SCHEMA: Final = ""
"""The table is telemetry's."""


def routes() -> list[Route]:
    """Return the endpoints of this module."""
    return [Route(paths.POINTS, endpoint(_points), methods=["GET"]), *samples.routes()]


def _points(server: Server, caller: Caller, request: Request, body: object) -> Response:
    query = request.query_params
    window = _window(query)
    limit = min(_integer("limit", query.get("limit") or str(POINTS_PAGE)), MAX_POINTS_PAGE)
    if limit < 1:
        raise validation("limit must be at least 1.")
    with server.database.read() as connection:
        stream = documents.find(connection, caller, request.path_params["id"], "stream")
        found = page(connection, stream["place"], window, limit)
    complete = "true" if found.complete else "false"
    text = f'{{"items":[{",".join(found.items)}],"limit":{limit},"complete":{complete}}}'
    return Response(text.encode(), media_type="application/json")


def _window(query: Mapping[str, str]) -> Window:
    order = query.get("order") or "asc"
    if order not in ("asc", "desc"):
        raise validation("order must be asc or desc.")
    epoch, sequence = query.get("after_epoch", ""), query.get("after_sequence", "")
    if bool(epoch) != bool(sequence):
        raise validation("after_epoch and after_sequence come together.")
    return Window(
        start=_instant("from", query.get("from"), EARLIEST),
        end=_instant("to", query.get("to"), LATEST),
        newest_first=order == "desc",
        after=(_integer("after_epoch", epoch), _integer("after_sequence", sequence))
        if epoch
        else None,
    )


def _instant(name: str, text: str | None, default: int) -> int:
    try:
        # A plus that nobody escaped arrives as a space.
        return instant(text.replace(" ", "+")) if text else default
    except (ValueError, OverflowError):
        raise validation(f"{name} must be a time of RFC 3339.") from None


def _integer(name: str, text: str) -> int:
    try:
        return integer(text)
    except ValueError:
        raise validation(f"{name} must be a decimal integer.") from None
