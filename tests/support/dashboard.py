"""A dashboard without sockets, and one with real ones."""

from __future__ import annotations

import contextlib
import io
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from launchhelm.ui.app import App
from launchhelm.ui.board import Board
from launchhelm.ui.guard import Guard
from launchhelm.ui.serve import Service

TOKEN = "a-token-of-thirty-two-characters-and-more"


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def document(self) -> Any:
        """The JSON of it; refuses what is not strict."""

        def refuse(constant: str) -> Any:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.data, parse_constant=refuse)

    @property
    def code(self) -> str:
        """Why it was refused."""
        return str(self.document["error"]["code"])


class Dashboard:
    """Asks the WSGI application as a browser on this host would."""

    def __init__(self, root: Path, **more: Any) -> None:
        board = {key: more.pop(key) for key in ("read_only", "clock") if key in more}
        self.board = Board([root], **board)
        self.app = App(self.board, Guard(TOKEN, more.pop("hosts", ())), **more)

    def ask(
        self, method: str, path: str, body: bytes = b"", query: str = "", **headers: str | None
    ) -> Said:
        """Send one request; a header of None is left out."""
        sent: dict[str, str | None] = {
            "Host": "localhost:1234",
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json" if method == "POST" else None,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "wsgi.input": io.BytesIO(body),
        }
        if body:
            environ["CONTENT_LENGTH"] = str(len(body))
        for name, value in sent.items():
            if value is not None:
                key = name.upper().replace("-", "_")
                environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
        said: list[Any] = []
        parts = self.app(environ, lambda status, found: said.extend((status, found)))
        data = b"".join(parts)
        return Said(int(said[0].split()[0]), dict(said[1]), data)

    def get(self, path: str, **query: Any) -> Any:
        """Return the document of an address of the API."""
        pairs = [
            (name.rstrip("_"), each)
            for name, value in query.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in pairs)
        answer = self.ask("GET", f"/api/1/{path}", query=text)
        assert answer.status == 200, (answer.status, answer.data)
        return answer.document

    def post(self, path: str, body: Any) -> Said:
        """Send a document to an address of the API."""
        return self.ask("POST", f"/api/1/{path}", json.dumps(body).encode())


@contextlib.contextmanager
def serving(root: Path, folder: Path, **more: Any) -> Iterator[Service]:
    """Serve a root on loopback and on a socket in a private folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    service = Service(Dashboard(root, **more).app, socket_path=folder / "ui.sock")
    service.start()
    try:
        yield service
    finally:
        service.close()


def raw(port: int, data: bytes) -> bytes:
    """Send bytes to a port of loopback and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.settimeout(30)
        found = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                found += part
        return found
