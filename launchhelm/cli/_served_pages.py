"""The dashboard beside the API of `launchhelm serve`: whoever has a key sees what the key may read.

A WSGI application as `launchhelm ui` has it, one per key because each sees other runs, behind
a2wsgi. Nothing is asked of the API over HTTP.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any, Final  # Any: requests and answers of ASGI and WSGI.

from a2wsgi import WSGIMiddleware

import launchhelm
from launchhelm.cli._served_board import ServedBoard
from launchhelm.ui.app import API, App
from launchhelm.ui.guard import Guard, is_same_origin
from launchhelm.ui.pages import Pages
from launchhelm.ui.request import Problem, Request
from syncer.mirror.shelf import Shelf
from syncer.server.caller import Caller, caller_of
from syncer.server.errors import ServerError
from syncer.server.state import Server

BASE: Final = "/ui"
MAX_KEYS: Final = 64
"""Keys whose boards are kept; a key that comes again later waits for its list once more."""

THREADS: Final = 64
_GET_A_KEY: Final = (
    "Enter an API key of this server; `launchhelm serve keys create --read-only` makes one that "
    "only looks."
)
_SYNC: Final = {
    "servers": [],
    "runs": [],
    "not_here": "This dashboard shows what came to a server. What a host has not sent yet is told "
    "there, by launchhelm status and launchhelm ui.",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class KeyGuard(Guard):
    """Checks requests to a server that may have any name: a key protects it, and no cookie.

    Args:
        admitted: The request brought a key that is valid.
        trust_proxy: Only a reverse proxy reaches the server, so what it forwards counts.
    """

    def __init__(self, *, admitted: bool, trust_proxy: bool) -> None:
        super().__init__("")
        self._admitted = admitted
        self._trust_proxy = trust_proxy

    def check_address(self, request: Request, *, is_page: bool) -> None:
        """Refuse requests that another site's page makes."""
        host = request.header("Host")
        if self._trust_proxy:
            host = request.header("X-Forwarded-Host") or host
        origin = request.header("Origin")
        is_foreign = bool(origin) and not is_same_origin(origin, host)
        site = request.header("Sec-Fetch-Site")
        if not is_page and (is_foreign or site not in ("", "same-origin", "none")):
            raise Problem(403, "foreign_origin", "The request comes from another site's page.")

    def check_token(self, request: Request) -> None:
        """Refuse whoever has no key."""
        if not self._admitted:
            given = request.header("Authorization")
            said = "The key is unknown, expired or revoked." if given else "The key is missing."
            raise Problem(401, "no_token", said, remedy=_GET_A_KEY)


class ServedPages:
    """The dashboards of a server, one per key."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._shelf = Shelf(server)
        self._pages = Pages(BASE, mode="server")
        self._apps: OrderedDict[str, App] = OrderedDict()
        self._lock = threading.Lock()
        self._nobody = App(
            ServedBoard(self._shelf, NOBODY),
            KeyGuard(admitted=False, trust_proxy=server.trust_proxy),
            self._pages,
            base=BASE,
        )

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request as WSGI has it."""
        environ["wsgi.errors"] = sys.stderr  # Programs read what goes to the other one.
        app = self._nobody
        if str(environ.get("PATH_INFO", "")).startswith(f"{BASE}{API}"):
            try:
                header = str(environ.get("HTTP_AUTHORIZATION", ""))
                app = self._app(caller_of(self._server, header))
            except ServerError:
                pass  # Then nobody answers, after the other checks.
        parts = app(environ, start_response)
        gone = environ.get("asgi.scope", {}).get("launchhelm.gone")
        return parts if gone is None else _until(gone, parts)

    def _app(self, caller: Caller) -> App:
        with self._lock:
            app = self._apps.pop(caller.key_id, None)
            if app is None:
                app = App(
                    ServedBoard(self._shelf, caller),
                    KeyGuard(admitted=True, trust_proxy=self._server.trust_proxy),
                    self._pages,
                    base=BASE,
                    sync=lambda: _SYNC,
                    mode="server",
                    version=launchhelm.__version__,
                )
            self._apps[caller.key_id] = app
            while len(self._apps) > MAX_KEYS:
                self._apps.popitem(last=False)[1].scanner.close()
            return app

    def close(self) -> None:
        """End all streams."""
        for app in list(self._apps.values()):
            app.scanner.close()

    def beside(self, application: Application) -> Application:
        """Return an application that answers with the pages below BASE, and as given elsewhere."""
        pages = WSGIMiddleware(self, workers=THREADS)  # type: ignore[arg-type]

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            path = str(scope.get("path", ""))
            if scope["type"] != "http" or not (path == BASE or path.startswith(f"{BASE}/")):
                await application(scope, receive, send)
            elif path == f"{BASE}{API}stream":
                await _streamed(pages, scope, receive, send)
            else:
                await pages(scope, receive, send)  # type: ignore[arg-type]

        return both


NOBODY: Final = Caller(
    organization_id="",
    organization="",
    project_id="",
    run_id="",
    participant_id="",
    actions=frozenset(),
    key_id="",
    key_name="",
    grants=(),
)


async def _streamed(pages: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a stream, and end it soon after its viewer went away, which WSGI cannot tell."""
    gone = threading.Event()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    watching = asyncio.ensure_future(watch())
    try:
        await pages({**scope, "launchhelm.gone": gone}, receive, send)
    finally:
        gone.set()
        watching.cancel()


def _until(gone: threading.Event, parts: Iterable[bytes]) -> Iterator[bytes]:
    try:
        for part in parts:
            if gone.is_set():
                return
            yield part
    finally:
        getattr(parts, "close", lambda: None)()
