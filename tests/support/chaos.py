"""A bad network between a client and a server: an HTTP proxy that breaks what passes through it.

Real sockets, threads of its own, one seed. Each fault is one thing that networks, gateways and
servers do: connections end before or after the work was done, requests arrive twice or long after
their sender gave up, answers come late, in part, of another request, or are made up on the way.
After `budget` faults everything passes, so that whoever tries again succeeds in the end.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

CONNECTION: Final = (
    "drop before",
    "drop half of the request",
    "drop after",
    "drop at the head",
    "truncate",
)
TIMING: Final = ("late request", "late answer", "trickle", "ghost")
REPEATED: Final = ("twice", "twice later")
SWAPPED: Final = ("swap",)
ANSWERS: Final = (
    "401",
    "403",
    "404",
    "404 html",
    "409",
    "413",
    "422",
    "429",
    "429 seconds",
    "429 date",
    "500",
    "503",
    "503 seconds",
    "502 html",
    "200 html",
    "200 empty",
    "200 list",
    "302",
)
EVERYTHING: Final = CONNECTION + TIMING + REPEATED + SWAPPED + ANSWERS

PASSING: Final = tuple(
    name
    for name in EVERYTHING
    if name not in ("401", "403", "404", "404 html", "409", "413", "422", "302")
)
"""What no client may take for the server's last word."""

_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_CODES: Final = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    413: "too_large",
    422: "validation",
    429: "rate_limited",
    500: "internal",
    503: "unavailable",
}


@dataclass(frozen=True)
class Answer:
    """One answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Asked:
    """One request, whole."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_telemetry(self) -> bool:
        """Whether the answer holds receipts, which name what they are for."""
        return "/telemetry" in self.target


class Chaos:
    """A proxy in front of one server; use it in a `with`.

    Args:
        upstream: URL of the server.
        seed: Of every choice.
        rate: Share of requests that something happens to.
        budget: Number of faults after which everything passes.
        faults: Which ones.
        longest_s: Of a delay.
    """

    def __init__(
        self,
        upstream: str,
        *,
        seed: int,
        rate: float = 0.4,
        budget: int = 100,
        faults: Collection[str] = EVERYTHING,
        longest_s: float = 0.3,
    ) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self._upstream = (parts.hostname, parts.port or 80)
        self._random = random.Random(seed)
        self._rate = rate
        self._left = budget
        self._faults = tuple(faults)
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._requests = 0
        self._last: dict[str, Answer] = {}
        self._batch_of: dict[tuple[str, str, str], str] = {}
        self._ghosts: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()
        """What happened, by fault; `passed` for what nothing happened to."""

        self.taken_twice: list[tuple[str, str, str]] = []
        """Points (stream, epoch, sequence) that the server accepted under two ids of batches. A
        server that knows nothing but those ids would hold them twice."""
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.chaos = self
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="chaos", daemon=True
        )
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.calm()
        self.settle()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    def calm(self) -> None:
        """Let everything pass from now on."""
        with self._lock:
            self._left = 0

    def storm(self, budget: int) -> None:
        """Allow so many more faults."""
        with self._lock:
            self._left = budget

    @property
    def requests(self) -> int:
        """How many have come."""
        return self._requests

    @property
    def points(self) -> int:
        """How many points the server has accepted."""
        return len(self._batch_of)

    def wait_for(self, requests: int, timeout_s: float) -> bool:
        """Wait until so many requests have come; whether they have."""
        with self._moved:
            return self._moved.wait_for(lambda: self._requests >= requests, timeout_s)

    def settle(self, timeout_s: float = 10.0) -> None:
        """Wait until no request is on its way that its sender has forgotten."""
        with self._lock:
            ghosts, self._ghosts = self._ghosts, []
        deadline = time.monotonic() + timeout_s
        for ghost in ghosts:
            ghost.join(max(0.0, deadline - time.monotonic()))
            assert not ghost.is_alive(), "a delayed request does not end"

    @property
    def faults(self) -> int:
        """How many there were."""
        return self.counts.total() - self.counts["passed"]

    # --- called by the handlers -------------------------------------------------------------------

    def choose(self, asked: Asked) -> tuple[str, float]:
        """Choose what happens to a request, and how long something takes."""
        with self._moved:
            self._requests += 1
            self._moved.notify_all()
            fault = ""
            if self._left > 0 and self._random.random() < self._rate:
                fault = self._random.choice(self._faults)
                if fault == "swap" and not asked.is_telemetry:
                    fault = ""  # Nothing in other answers could tell a client whose they are.
            if fault:
                self._left -= 1
            self.counts[fault or "passed"] += 1
            return fault, self._random.uniform(0.0, self._longest_s)

    def forward(self, asked: Asked) -> Answer:
        """Ask the server; the answer is remembered for a swap.

        Raises:
            OSError: The server cannot be reached.
        """
        connection = http.client.HTTPConnection(*self._upstream, timeout=60)
        try:
            headers = {name: it for name, it in asked.headers.items() if name.lower() not in _HOP}
            connection.putrequest(
                asked.method, asked.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(asked.body)))
            connection.putheader("Connection", "close")
            connection.endheaders(asked.body)
            got = connection.getresponse()
            kept = {name: it for name, it in got.getheaders() if name.lower() not in _HOP}
            answer = Answer(got.status, kept, got.read())
            if asked.is_telemetry and got.status < 300:
                self._note_taken(asked, answer)
            return answer
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def _note_taken(self, asked: Asked, answer: Answer) -> None:
        accepted = {
            receipt["batch_id"]
            for receipt in json.loads(answer.body).get("receipts", ())
            if receipt["status"] == "accepted"
        }
        with self._lock:
            for batch in json.loads(asked.body).get("batches", ()):
                if batch["batch_id"] in accepted:
                    for point in batch["points"]:
                        identity = (batch["stream_id"], batch["epoch"], point["sequence"])
                        first = self._batch_of.setdefault(identity, batch["batch_id"])
                        if first != batch["batch_id"]:
                            self.taken_twice.append(identity)

    def half(self, asked: Asked) -> None:
        """Send half of a request to the server and hang up."""
        head = [f"{asked.method} {asked.target} HTTP/1.1"]
        head += [f"{name}: {it}" for name, it in asked.headers.items() if name.lower() not in _HOP]
        head += [f"Content-Length: {len(asked.body)}", "", ""]
        data = "\r\n".join(head).encode("latin-1") + asked.body
        with socket.create_connection(self._upstream, 10) as connection:
            connection.sendall(data[: max(1, len(data) - 1 - len(asked.body) // 2)])

    def later(self, asked: Asked, delay_s: float) -> None:
        """Ask the server later; nobody waits for that answer."""

        def ask() -> None:
            time.sleep(delay_s)
            with contextlib.suppress(OSError):  # The server may be down by then.
                self.forward(asked)

        ghost = threading.Thread(target=ask, name="chaos-ghost", daemon=True)
        with self._lock:
            self._ghosts = [it for it in self._ghosts if it.is_alive()]
            self._ghosts.append(ghost)
        ghost.start()

    def swapped(self, asked: Asked, answer: Answer) -> Answer:
        """Return the answer that the request before this one got, and keep this one."""
        key = asked.target.partition("?")[0]
        with self._lock:
            before, self._last[key] = self._last.get(key, answer), answer
        return before

    def made_up(self, fault: str) -> Answer:
        """Make up an answer."""
        with self._lock:
            retryable = self._random.random() < 0.5
        word, _, how = fault.partition(" ")
        status = int(word)
        if how == "html":
            page = b"<html><body><h1>Please log in</h1></body></html>"
            return Answer(status, {"Content-Type": "text/html"}, page)
        if how == "empty" or status == 302:
            return Answer(status, {"Location": "/login"} if status == 302 else {}, b"")
        if how == "list":
            return Answer(status, {"Content-Type": "application/json"}, b"[]")
        headers = {"Content-Type": "application/json"}
        if how == "seconds":
            headers["Retry-After"] = "1"
        elif how == "date":
            headers["Retry-After"] = email.utils.formatdate(time.time() + 1, usegmt=True)
        if status == 429:
            retryable = True  # Else it would be the last word, as for every other final answer.
        body = {
            "error": {"code": _CODES[status], "message": "Made up.", "retryable": retryable},
        }
        return Answer(status, headers, json.dumps(body).encode())


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    chaos: Chaos

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed all the time."""


class _Hangup(Exception):
    """End the connection without another word."""


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of tests clean."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        chaos = self.server.chaos
        size = int(self.headers.get("Content-Length") or 0)
        asked = Asked(self.command, self.path, dict(self.headers.items()), self.rfile.read(size))
        fault, pause_s = chaos.choose(asked)
        try:
            self._answer(asked, fault, pause_s)
        except (_Hangup, OSError):
            self._hang_up()

    def _answer(self, asked: Asked, fault: str, pause_s: float) -> None:
        chaos = self.server.chaos
        if fault in ANSWERS:
            return self._send(chaos.made_up(fault))
        if fault == "drop before":
            raise _Hangup
        if fault == "drop half of the request":
            chaos.half(asked)
            raise _Hangup
        if fault == "ghost":
            # It arrives when its sender has long sent it again.
            chaos.later(asked, pause_s * 3)
            raise _Hangup
        if fault == "late request":
            time.sleep(pause_s)
        answer = chaos.forward(asked)
        if fault == "twice":
            answer = chaos.forward(asked)
        if fault == "twice later":
            chaos.later(asked, pause_s * 3)
        if fault == "late answer":
            time.sleep(pause_s)
        if fault == "drop after":
            raise _Hangup
        if asked.is_telemetry:
            before = chaos.swapped(asked, answer)
            answer = before if fault == "swap" else answer
        if fault == "drop at the head":
            self._send(answer, head_bytes=20)
        elif fault == "truncate":
            self._send(answer, body_bytes=len(answer.body) // 2)
        else:
            self._send(answer, pause_s=pause_s / 10 if fault == "trickle" else 0.0)

    def _send(
        self,
        answer: Answer,
        *,
        head_bytes: int | None = None,
        body_bytes: int | None = None,
        pause_s: float = 0.0,
    ) -> None:
        reason = http.client.responses.get(answer.status, "Odd")
        lines = [f"HTTP/1.1 {answer.status} {reason}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines += [f"Content-Length: {len(answer.body)}", "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        if head_bytes is not None:
            self.connection.sendall(head[:head_bytes])
            raise _Hangup
        self.connection.sendall(head)
        for piece in _pieces(answer.body[:body_bytes], 10 if pause_s else 1):
            self.connection.sendall(piece)
            time.sleep(pause_s)
        if body_bytes is not None and body_bytes < len(answer.body):
            raise _Hangup

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            # A reset, as a lost connection gives; what was sent may or may not arrive.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        except OSError:
            pass


def _pieces(data: bytes, count: int) -> Iterable[bytes]:
    size = max(1, -(-len(data) // count))
    for start in range(0, len(data), size):
        yield data[start : start + size]
