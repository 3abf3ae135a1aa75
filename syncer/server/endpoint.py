"""From a function to an HTTP endpoint: key, limits, JSON in, JSON out, and no other answer.

A plain function runs in the thread pool, where it may use the database; a coroutine function runs
in the event loop and must not, except through `run_in_threadpool`.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from syncer.api import wire
from syncer.server.caller import Caller, authenticate
from syncer.server.errors import ServerError, error_document, too_large, unavailable, validation
from syncer.server.rate import Rates
from syncer.server.state import Server

# What functions take and return is JSON, which only they can type any closer.
Function = Callable[[Server, Caller, Request, Any], Any]
Endpoint = Callable[[Request], Awaitable[Response]]

_DRAINED_BYTES: Final = 16 * 1024 * 1024
"""A body over the limit is read and dropped so far, so that its sender reads our answer."""

_VALUES: Final = 1_000_000
_DEPTH: Final = 64
"""More generous than what clients may send: a refusal can end a training run."""

_log = logging.getLogger(__name__)


def endpoint(function: Function, *, raw: bool = False, limited: bool = True) -> Endpoint:
    """Wrap `f(server, caller, request, body) -> dict`.

    Args:
        function: Plain or coroutine function. `body` is the JSON object of the request, {} when
            there is none. It returns the JSON object of the answer, or a whole Response.
        raw: Hand over the body as bytes, unparsed.
        limited: Whether the rate limit of the key applies.
    """

    async def answer(server: Server, request: Request) -> Any:
        caller = await run_in_threadpool(authenticate, server, request)
        if limited:
            rates: Rates = request.app.state.rates
            rates.take(caller.key_id)
        data = await body_of(request, server.limits.body_bytes)
        body = data if raw else parse_object(data)
        if inspect.iscoroutinefunction(function):
            return await function(server, caller, request, body)
        return await run_in_threadpool(function, server, caller, request, body)

    return guarded(functools.wraps(function)(answer))


def guarded(function: Callable[[Server, Request], Awaitable[Any]]) -> Endpoint:
    """Wrap `async f(server, request) -> dict | Response` that needs no key, for signed addresses.

    Every exception becomes an error document.
    """

    @functools.wraps(function)
    async def respond(request: Request) -> Response:
        try:
            answer = await function(request.app.state.server, request)
            return answer if isinstance(answer, Response) else json_response(answer)
        except ServerError as error:
            return error_response(error)
        except ClientDisconnect:
            # Nobody reads this answer.
            return error_response(validation("The request ended early."))
        except sqlite3.OperationalError as error:
            _log.exception("%s %s: the database", request.method, request.url.path)
            return error_response(unavailable(f"The database did not accept it: {error}."))
        except Exception:  # The request's thread: every failure gets an answer.
            _log.exception("%s %s failed", request.method, request.url.path)
            return internal_error()

    # functools.wraps would make Starlette look at the wrapped function's own signature.
    del respond.__wrapped__
    return respond


def json_response(value: Any, status: int = 200) -> Response:
    """Answer with compact strict JSON."""
    content = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode("utf-8"), status, media_type="application/json")


def error_response(error: ServerError) -> Response:
    """Answer with an error document."""
    response = json_response(error.document, error.status)
    if error.retry_after_s > 0:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def internal_error() -> Response:
    """Answer to our own mistake; the log has the details."""
    return json_response(error_document("internal", "The server failed; its log says why."), 500)


async def body_of(request: Request, limit: int) -> bytes:
    """Read a request's body.

    Raises:
        ServerError: 413 `too_large`.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts.append(part)
        elif size > limit + _DRAINED_BYTES:
            break
    if size > limit:
        raise too_large(f"A request body may hold {limit:,} bytes.")
    return b"".join(parts)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request; nothing at all is {}.

    Raises:
        ServerError: 400 `validation`. Numbers of any finite magnitude are taken.
    """
    if not data:
        return {}
    try:
        value = wire.parse(
            data, max_bytes=len(data), max_values=_VALUES, max_depth=_DEPTH, exact=False
        )
    except wire.WireError as error:
        raise validation(f"The body is not acceptable: {error}") from None
    if not isinstance(value, dict):
        raise validation("The body must be a JSON object.")
    return value
