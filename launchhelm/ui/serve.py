"""Listening: HTTP/1.1 for a few browsers of one user, on loopback or a private unix socket.

Strict and small: whatever is ambiguous in a request is refused, and every limit is a constant.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from launchhelm.errors import ConfigError
from launchhelm.ui.request import MAX_BODY_BYTES

MAX_LINE_BYTES: Final = 8 << 10
MAX_HEADER_BYTES: Final = 32 << 10
MAX_CONNECTIONS: Final = 64
IDLE_S: Final = 15.0
REQUEST_S: Final = 30.0
MAX_SOCKET_PATH: Final = 100
METHODS: Final = ("GET", "HEAD", "POST")

_MAX_DRAIN_BYTES: Final = 16 << 20
_DRAIN_S: Final = 5.0
_LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]\r?\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r?\n")
_REASONS: Final = {
    200: "OK",
    201: "Created",
    204: "No Content",
    206: "Partial Content",
    304: "Not Modified",
    400: "Bad Request",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    405: "Method Not Allowed",
}

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Refused(Exception):
    """A request that is answered without asking the application; the connection ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Handler(socketserver.StreamRequestHandler):
    """One connection: requests one after the other."""

    timeout = IDLE_S
    server: _Listener

    def handle(self) -> None:
        """Answer until the client leaves, is idle for long, or breaks a rule."""
        with contextlib.suppress(OSError, ValueError):
            while self._answer_one():
                self.connection.settimeout(IDLE_S)

    def finish(self) -> None:
        """Close; a client that went away is nobody's fault."""
        with contextlib.suppress(OSError):
            super().finish()

    def _answer_one(self) -> bool:
        try:
            environ = self._read()
        except _Refused as refused:
            reason = _REASONS[refused.status]
            head = f"HTTP/1.1 {refused.status} {reason}\r\nContent-Length: 0\r\n"
            self.wfile.write(f"{head}Connection: close\r\n\r\n".encode())
            return False
        if environ is None:
            return False
        return self._respond(environ)

    def _read(self) -> dict[str, Any] | None:
        line = self.rfile.readline(MAX_LINE_BYTES + 1)
        if not line:
            return None
        self.connection.settimeout(REQUEST_S)
        if len(line) > MAX_LINE_BYTES:
            raise _Refused(414)
        match = _LINE.fullmatch(line)
        if match is None:
            raise _Refused(400)
        headers = self._headers()
        method = match[1].decode()
        if method not in METHODS:
            raise _Refused(405)
        if "transfer-encoding" in headers or headers.get("host") is None:
            raise _Refused(400)
        path, _, query = match[2].decode().partition("?")
        try:
            decoded = unquote(path, errors="strict")
        except UnicodeDecodeError:
            raise _Refused(400) from None
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": decoded.encode().decode("latin-1"),
            "QUERY_STRING": query,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "0",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(self._body(headers)),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in headers.items():
            key = name.upper().replace("-", "_")
            if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
                key = f"HTTP_{key}"
            environ[key] = value
        return environ

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        left = MAX_HEADER_BYTES
        while True:
            line = self.rfile.readline(left + 1)
            left -= len(line)
            if left < 0:
                raise _Refused(431)
            if line in (b"\r\n", b"\n"):
                return headers
            match = _HEADER.fullmatch(line)
            if match is None:
                raise _Refused(400)
            name = match[1].decode().lower()
            # Two of the same may be read in two ways; no browser sends them.
            if name in headers or "_" in name:
                raise _Refused(400)
            headers[name] = match[2].decode("latin-1")

    def _body(self, headers: Mapping[str, str]) -> bytes:
        text = headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise _Refused(400)
        length = int(text)
        if length > MAX_BODY_BYTES:
            self._drain(length)
            raise _Refused(413)
        if length and headers.get("expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = self.rfile.read(length)
        if len(data) != length:
            raise _Refused(400)
        return data

    def _drain(self, length: int) -> None:
        """Let a client that does not listen while it sends get our answer."""
        left, until = min(length, _MAX_DRAIN_BYTES), time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            while left > 0 and time.monotonic() < until:
                read = len(self.rfile.read(min(left, MAX_BODY_BYTES)))
                left -= read
                if not read:
                    return

    def _respond(self, environ: dict[str, Any]) -> bool:
        head: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], _: Any = None) -> None:
            head.append((status, headers))

        parts = self.server.app(environ, start_response)
        try:
            status, headers = head[0]
            names = {name.lower() for name, _ in headers}
            stays = "content-length" in names and environ.get("HTTP_CONNECTION") != "close"
            lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
            lines.append(f"Connection: {'keep-alive' if stays else 'close'}")
            self.wfile.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
            if environ["REQUEST_METHOD"] != "HEAD":
                for part in parts:
                    self.wfile.write(part)
            return stays
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()


class _Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """One socket that is listened at; connections over the limit are turned away."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS
    allow_reuse_address = True

    def __init__(self, app: Wsgi, family: int, address: Any) -> None:
        self.app = app
        self.address_family = family
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind; a unix socket is private from the instant at which it is there."""
        if self.address_family != socket.AF_UNIX:
            super().server_bind()
            return
        before = os.umask(0o177)
        try:
            self.socket.bind(self.server_address)
        finally:
            os.umask(before)

    def get_request(self) -> tuple[Any, Any]:
        """Accept; a unix socket's client has no address."""
        connection, _ = self.socket.accept()
        return connection, ("", 0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or turn away."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say a fault of ours in one line; a request never ends the server."""
        error = sys.exc_info()[1]
        print(f"launchhelm ui: our failure, {type(error).__name__}: {error}", file=sys.stderr)


class Service:
    """The listening sockets of one dashboard.

    Args:
        app: A WSGI callable.
        port: Of loopback; 0 takes a free one, None listens at none.
        socket_path: Where the unix socket is made; None for none.
        host: Another address than loopback.

    Raises:
        ConfigError: An address cannot be had; the remedy says what to do.
    """

    def __init__(
        self,
        app: Wsgi,
        *,
        port: int | None = 0,
        socket_path: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.socket_path: Path | None = None
        self.port: int | None = None
        self._listeners: list[_Listener] = []
        self._threads: list[threading.Thread] = []
        try:
            if socket_path is not None:
                self._listeners.append(_unix(app, socket_path))
                self.socket_path = socket_path
            if port is not None:
                listener = _tcp(app, host, port)
                self._listeners.append(listener)
                self.port = listener.socket.getsockname()[1]
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Answer from now on, in threads."""
        for listener in self._listeners:
            thread = threading.Thread(
                target=listener.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Listen no more, and remove the socket."""
        for listener in self._listeners:
            if self._threads:
                listener.shutdown()
            listener.server_close()
        self._listeners.clear()
        if self.socket_path is not None:
            with contextlib.suppress(OSError):
                self.socket_path.unlink()
            self.socket_path = None


def _tcp(app: Wsgi, host: str, port: int) -> _Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return _Listener(app, family, (host, port))
    except OSError as error:
        raise ConfigError(
            f"Port {port} of {host} cannot be had: {error.strerror or error}.",
            remedy="Leave out --port for any free one.",
        ) from error


def _unix(app: Wsgi, path: Path) -> _Listener:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"The path of a socket has at most {MAX_SOCKET_PATH} bytes: {path}.",
            remedy="Name a shorter one with --socket, in a directory that only you may enter.",
        )
    facts = os.stat(path.parent)
    if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise ConfigError(
            f"The directory {path.parent} is open to others; a socket there would be too.",
            remedy="Name a path with --socket in a directory of yours with mode 0700.",
        )
    try:
        return _Listener(app, socket.AF_UNIX, str(path))
    except OSError as error:
        raise ConfigError(
            f"The socket {path} cannot be made: {error.strerror or error}.",
            remedy="Name another path with --socket.",
        ) from error
