"""One process that serves a data directory through uvicorn, until a signal asks it to stop.

At SIGTERM or SIGINT it takes no more connections, ends parked claims, lets requests in flight
finish, and returns. The signal handlers are the main thread's; off it (tests) there are none.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import uvicorn

from launchhelm.errors import ConfigError
from syncer.server import data
from syncer.server.app import application
from syncer.server.state import Server

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
"""The hosts for which clients accept plain HTTP; any other address of this machine is refused."""

_KEEP_ALIVE_S: Final = 75
"""Longer than clients keep an idle connection, so that none is closed under a request of theirs."""

_FINISH_S: Final = 30
"""How long requests in flight may take once the server stops."""

_BACKLOG: Final = 2048

HANDLED: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Address:
    """Where to listen.

    Args:
        port: 0 takes a free one.
        certificate: PEM file; with `private_key` TLS is served.
        insecure: Serve plain HTTP on a host that is not loopback.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    certificate: str = ""
    private_key: str = ""
    insecure: bool = False

    @property
    def scheme(self) -> str:
        """Return http or https."""
        return "https" if self.certificate else "http"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    def check(self) -> None:
        """Refuse what would send keys over a network unprotected.

        Raises:
            ConfigError: Not loopback and without TLS, or half of a TLS pair.
        """
        if bool(self.certificate) != bool(self.private_key):
            raise ConfigError("A certificate and its key come together.")
        if not self.loopback and not self.certificate and not self.insecure:
            raise ConfigError(
                f"{self.host} is not loopback: keys would go over the network as plain text,"
                " and clients refuse plain HTTP there.",
                remedy="Give --tls-cert and --tls-key, or serve 127.0.0.1 behind a tunnel.",
            )


class Service(uvicorn.Server):
    """A uvicorn server that says when it accepts, and ends parked claims when it stops.

    Args:
        ready: Called once with the URL.
        beside: Returns the application that is served, given ours: with pages beside it.
        stopping: Called once the service stops, to end what would go on for long.
    """

    def __init__(
        self,
        server: Server,
        address: Address,
        ready: Callable[[str], None] = lambda url: None,
        *,
        beside: Callable[[Any], Any] = lambda app: app,  # Any: an ASGI application.
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        address.check()
        super().__init__(
            uvicorn.Config(
                beside(application(server)),
                host=address.host,
                port=address.port,
                ssl_certfile=address.certificate or None,
                ssl_keyfile=address.private_key or None,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # They count where `trust_proxy` says so.
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_FINISH_S,
            )
        )
        self._state = server
        self._address = address
        self._ready = ready
        self._stopping = stopping

    def serve_until_stopped(self) -> None:
        """Serve until a signal comes or `should_exit` is set; the port is free afterwards.

        Raises:
            ConfigError: The address cannot be had, or the certificate cannot be used.
            Conflict: Another process serves the data directory.
        """
        with data.serving(self._state.data), self._signals():
            try:
                self.config.load()
                listener = _listen(self._address)
            except OSError as error:
                raise ConfigError(
                    f"Cannot serve {self._address.host} port {self._address.port}:"
                    f" {error.strerror or error}."
                ) from error
            with listener:
                self.run(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where."""
        await super().startup(sockets)
        if self.started and sockets:
            host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
            self._ready(f"{self._address.scheme}://{host}:{sockets[0].getsockname()[1]}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let nobody wait for a command any more, then finish what is in flight."""
        self._state.wake.close()
        self._stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Take a signal that comes before uvicorn listens to them, and those that it raises again
        after it has stopped because of them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._stop) for each in HANDLED}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True


def _listen(address: Address) -> socket.socket:
    """Take the port. Host names are looked up."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )[0]
    # The protocol is given, and not 0, because asyncio turns Nagle's algorithm off only for
    # sockets that say TCP; with it on, every answer waits 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
