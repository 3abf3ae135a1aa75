"""The server as one ASGI application: every endpoint, and JSON where there is none."""

from __future__ import annotations

from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from syncer.server import (
    artifacts,
    commands,
    documents,
    events,
    keys,
    organizations,
    points,
    sessions,
    telemetry,
)
from syncer.server.endpoint import internal_error, json_response
from syncer.server.errors import error_document
from syncer.server.rate import Rates
from syncer.server.state import Server

_MODULES: Final = (
    telemetry,
    sessions,
    commands,
    documents,
    points,
    artifacts,
    keys,
    organizations,
    events,
)
"""The busiest first: the router tries them in order."""

_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def application(server: Server) -> Starlette:
    """Build the application of one server."""
    app = Starlette(
        routes=[route for module in _MODULES for route in module.routes()],
        exception_handlers={HTTPException: _no_such_route, Exception: _failure},
    )
    # A path with a slash too many is an unknown path; a redirect would be an error to clients.
    app.router.redirect_slashes = False
    app.state.server = server
    app.state.rates = Rates(server.limits.requests_per_s, server.limits.burst, server.clock)
    return app


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}."
    response = json_response(error_document(code, message), error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _failure(request: Request, error: Exception) -> Response:
    return internal_error()
