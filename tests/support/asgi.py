"""Ask an ASGI application without sockets: from plain tests, or many requests at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import httpx
from starlette.types import ASGIApp

T = TypeVar("T")


class Asgi:
    """An application in an event loop of its own, which a thread runs until the `with` ends.

    Args:
        application: What is asked. Its exceptions become answers, as a server would make them.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asgi", daemon=True)
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)

    def __enter__(self) -> Asgi:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.run(self.http.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float = 60.0) -> T:
        """Run a coroutine in the application's loop and wait for what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def get(self, path: str) -> httpx.Response:
        """Ask for a path."""
        return self.run(self.http.get(path))

    def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a JSON body."""
        return self.run(self.http.post(path, json=body, headers=headers))
