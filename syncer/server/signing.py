"""Addresses that carry their own permission: one object, one method, fifteen minutes.

Whoever holds such an address may use it without a key, so it says everything that it allows, and
an HMAC of the data directory's secret over exactly that keeps it from saying more.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.requests import HTTPConnection

from syncer.server.errors import forbidden, validation

LIFETIME_S: Final = 900

_HOST: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", re.ASCII)
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?", re.ASCII)


def sign(
    secret: bytes, method: str, path: str, now: float, facts: Mapping[str, str] | None = None
) -> str:
    """Return path and query of a signed address.

    Args:
        secret: The server's.
        method: The one that it is good for.
        path: As the router sees it.
        now: Seconds since the epoch.
        facts: More that the query says and the signature covers.
    """
    query = {**(facts or {}), "expires": str(int(now) + LIFETIME_S)}
    query["signature"] = _signature(secret, method, path, query)
    return f"{path}?{urlencode(query)}"


def check(secret: bytes, method: str, path: str, query: Mapping[str, str], now: float) -> None:
    """Accept a signed address.

    Raises:
        ServerError: 403: it is not ours, was changed, is of another method, or too old.
    """
    said = dict(query)
    signature = said.pop("signature", "")
    expected = _signature(secret, method, path, said)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise forbidden("The address is not signed by this server.")
    # What we signed, we wrote: it is a number.
    if now > int(said["expires"]):
        raise forbidden("The address has expired; ask for a new one.")


def origin(request: HTTPConnection, *, trust_proxy: bool) -> str:
    """Return scheme, host and path prefix under which the client reaches us, without a slash.

    Args:
        trust_proxy: Whether X-Forwarded-* are a proxy's words; otherwise anybody may send them.

    Raises:
        ServerError: 400: no usable host.
    """
    headers = request.headers
    scheme = "https" if request.url.scheme in ("https", "wss") else "http"
    host = headers.get("host", "")
    prefix = str(request.scope.get("root_path", ""))
    if trust_proxy:
        scheme = _first(headers.get("x-forwarded-proto")) or scheme
        host = _first(headers.get("x-forwarded-host")) or host
        prefix = _first(headers.get("x-forwarded-prefix")) or prefix
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise validation("The Host of the request is not usable for an address.")
    if not _PREFIX.fullmatch(prefix):
        raise validation("The path prefix of the request is not usable for an address.")
    return f"{scheme}://{host}{prefix.rstrip('/')}"


def _first(value: str | None) -> str:
    """Return what the outermost of several proxies said."""
    return (value or "").partition(",")[0].strip()


def _signature(secret: bytes, method: str, path: str, query: Mapping[str, str]) -> str:
    text = "\n".join((method, path, urlencode(sorted(query.items()))))
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
