"""A server in front of the real one that records every request and answers what a test says.

with ScriptedServer(server.url) as far:
    far.script = lambda asked: Reply(429, {"Retry-After": "1"}) if asked.is_telemetry else None
    ...                                     # None: the real server answers
    assert [it.status for it in far.seen] == [200, 429, ...]

It may also refuse connections for a while, accept them and never answer, and speak TLS.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

_NOT_PASSED: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_PASS_S: Final = 60.0


@dataclass(frozen=True)
class Reply:
    """An answer; a body that is no bytes is sent as JSON."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def data(self) -> bytes:
        """The body as it is sent."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def refusal(
    status: int, code: str, *, retryable: bool = False, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return an error document of the v1 API."""
    error = {"code": code, "message": "As the test says.", "retryable": retryable}
    return Reply(status, headers or {}, {"error": error})


@dataclass
class Asked:
    """One request, and when it came; `status` is what it was answered, 0 for not at all."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int = 0

    @property
    def json(self) -> Any:
        """The body, which must be strict JSON."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def is_telemetry(self) -> bool:
        """Whether it brings points."""
        return self.method == "POST" and self.path.endswith("/telemetry/batches")

    @property
    def identities(self) -> list[tuple[str, int]]:
        """Stream and sequence of every point that it brings."""
        return [
            (batch["stream_id"], int(point["sequence"]))
            for batch in self.json["batches"]
            for point in batch["points"]
        ]


Script = Callable[[Asked], "Reply | None"]


class ScriptedServer:
    """One listening socket; use it in a `with`.

    Args:
        upstream: URL of the real server; without one, every request needs an answer of the script.
        tls: Where given, it is spoken.

    Attributes:
        seen: Every request, in the order in which they came.
        script: Asked for each request.
        is_silent: Connections are accepted and never answered.
    """

    def __init__(self, upstream: str = "", *, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._tls = tls
        self._port = 0
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None
        self.seen: list[Asked] = []
        self.script: Script = lambda asked: None
        self.is_silent = False

    def __enter__(self) -> ScriptedServer:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.is_silent = False
        self.close()

    @property
    def url(self) -> str:
        """Where it listens, also while it refuses."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Its port."""
        return self._port

    @property
    def telemetry(self) -> list[Asked]:
        """The requests that brought points."""
        return [asked for asked in list(self.seen) if asked.is_telemetry]

    def open(self) -> None:
        """Listen; on the port of before, when there was one."""
        self._listener = _Listener(("127.0.0.1", self._port), _Handler)
        self._listener.scripted = self
        if self._tls is not None:
            self._listener.socket = self._tls.wrap_socket(self._listener.socket, server_side=True)
        self._port = self._listener.server_port
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.02,), name="scripted", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Refuse connections, and end those that there are."""
        if self._listener is None or self._thread is None:
            return
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join(10)
        self._listener.hang_up()
        self._listener = self._thread = None

    def answer(self, asked: Asked) -> Reply:
        """Answer by the script, else as the real server does."""
        reply = self.script(asked)
        if reply is None:
            assert self._upstream[0], f"nobody answers {asked.method} {asked.path}"
            reply = self._passed_on(asked)
        return reply

    def _passed_on(self, asked: Asked) -> Reply:
        connection = http.client.HTTPConnection(*self._upstream, timeout=_PASS_S)
        with contextlib.closing(connection):
            headers = {k: it for k, it in asked.headers.items() if k.lower() not in _NOT_PASSED}
            connection.request(asked.method, asked.path, asked.body, headers)
            got = connection.getresponse()
            kept = {k: it for k, it in got.getheaders() if k.lower() not in _NOT_PASSED}
            return Reply(got.status, kept, got.read())


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    scripted: ScriptedServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End every connection that is open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed and give up all the time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # Head and body in one piece: no waiting for the other side's word.
    server: _Listener

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of tests clean."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        scripted = self.server.scripted
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        asked = Asked(time.monotonic(), self.command, self.path, dict(self.headers.items()), body)
        scripted.seen.append(asked)
        if scripted.is_silent:
            self.close_connection = True
            while scripted.is_silent and not _has_gone(self.connection):
                time.sleep(0.05)
            return
        reply = scripted.answer(asked)
        asked.status = reply.status
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", **reply.headers}
        for name, value in {**headers, "Content-Length": str(len(reply.data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.data)
        self.wfile.flush()


def _has_gone(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class ConnectProxy:
    """A proxy that knows CONNECT alone and leads every name to one port of this host.

    Attributes:
        asked: The hosts and ports that were asked for.
    """

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []
        self._port = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> ConnectProxy:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._tunnel, args=(connection,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            verb, target = head.decode("latin-1").split(" ")[:2]
            self.asked.append(f"{verb} {target}")
            with socket.create_connection(("127.0.0.1", self._port), 10) as far:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_copy, args=(far, client), daemon=True)
                back.start()
                _copy(client, far)
                back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
