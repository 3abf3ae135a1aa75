"""Who may ask: the checks of every request, and the headers of every answer.

On the other side may be another user of the same host, a web page in this user's own browser, and
a file planted in a shared run directory. The token travels in a header, which no page of another
origin can set, and names of hosts are checked because names can be made to point here.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from launchhelm.ui.request import Problem, Request

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
GUESSES: Final = 10
GUESSES_S: Final = 60.0
"""So many wrong tokens within so many seconds; then they are not even compared."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
)


class Guard:
    """Checks requests.

    Args:
        token: What `Authorization: Bearer` must carry.
        hosts: Names beside those of loopback by which this server may be called.
    """

    def __init__(self, token: str, hosts: Iterable[str] = ()) -> None:
        self._token = token.encode()
        self._hosts = LOOPBACK | {host.lower() for host in hosts}
        self._wrong: deque[float] = deque(maxlen=GUESSES)
        self._lock = threading.Lock()

    def check_address(self, request: Request, *, is_page: bool) -> None:
        """Refuse another host's name, and requests that another site's page makes.

        A page itself holds no data, and may be opened by a link that stands anywhere.

        Raises:
            Problem: 421 or 403.
        """
        host = request.header("Host")
        if _without_port(host) not in self._hosts:
            raise Problem(
                421,
                "wrong_host",
                "This server is not called by that name.",
                remedy="Open it as localhost, or name the host with --allow-host.",
            )
        if is_page:
            return
        origin = request.header("Origin")
        if origin and not is_same_origin(origin, host):
            raise Problem(403, "foreign_origin", "The request comes from another site's page.")
        if request.header("Sec-Fetch-Site") not in ("", "same-origin", "none"):
            raise Problem(403, "foreign_origin", "The request comes from another site's page.")

    def check_token(self, request: Request) -> None:
        """Refuse whoever does not have the token.

        Raises:
            Problem: 401 or 429.
        """
        scheme, _, given = request.header("Authorization").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        ):
            return
        with self._lock:
            now = time.monotonic()
            if len(self._wrong) == GUESSES and now - self._wrong[0] < GUESSES_S:
                raise Problem(429, "too_many_guesses", "Too many wrong tokens; wait a minute.")
            if given:
                self._wrong.append(now)
        raise Problem(
            401,
            "no_token",
            "The token is missing or wrong." if given else "The token is missing.",
            remedy="Open the address that `launchhelm ui --list` prints.",
        )

    def check_post(self, request: Request) -> None:
        """Refuse what a form of another page could send.

        Raises:
            Problem: 415.
        """
        kind = request.header("Content-Type").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "not_json", "The body is to be application/json.")


def _without_port(host: str) -> str:
    host = host.lower()
    head, colon, port = host.rpartition(":")
    is_port = bool(colon) and port.isascii() and port.isdigit()
    return head if is_port and (not head.startswith("[") or head.endswith("]")) else host


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host of a Host header."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
