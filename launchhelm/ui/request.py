"""One request as the routes see it, and the errors that become answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from launchhelm import _strict

MAX_BODY_BYTES: Final = 64 << 10
_MAX_FIELDS: Final = 200


class Problem(Exception):
    """An answer that is an error: what happened, what was kept, what to do."""

    def __init__(
        self, status: int, code: str, happened: str, *, kept: str = "", remedy: str = ""
    ) -> None:
        super().__init__(f"{status} {code}: {happened}")
        self.status = status
        self.fields: dict[str, str] = {}
        self.document = {"code": code, "happened": happened, "kept": kept, "remedy": remedy}


class Request:
    """What was asked for.

    Args:
        environ: As WSGI has it.
        path: Below the base path, decoded.
    """

    def __init__(self, environ: Mapping[str, Any], path: str) -> None:
        self.method = str(environ.get("REQUEST_METHOD", "GET"))
        self.path = path
        self.parts = tuple(path.strip("/").split("/"))
        self._environ = environ
        try:
            self.query = parse_qsl(
                str(environ.get("QUERY_STRING", "")),
                keep_blank_values=True,
                max_num_fields=_MAX_FIELDS,
                errors="strict",
            )
        except ValueError:
            raise Problem(400, "bad_query", "The query cannot be read.") from None

    def header(self, name: str) -> str:
        """Return a header, "" when it was not sent."""
        key = name.upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = f"HTTP_{key}"
        return str(self._environ.get(key, ""))

    def text(self, name: str, default: str = "") -> str:
        """Return the last value of a query field."""
        return next((value for key, value in reversed(self.query) if key == name), default)

    def texts(self, name: str) -> list[str]:
        """Return all values of a query field."""
        return [value for key, value in self.query if key == name]

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        """Return a field that is one of some words."""
        value = self.text(name) or default
        if value not in known:
            raise Problem(400, "bad_query", f"{name} is one of {', '.join(known)}.")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number, pulled into its bounds."""
        text = self.text(name)
        if not text:
            return default
        try:
            return min(max(int(text), low), high)
        except ValueError:
            raise Problem(400, "bad_query", f"{name} is a whole number.") from None

    def number(self, name: str) -> float | None:
        """Return a finite number, None when it is not given."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if value != value or value in (float("inf"), float("-inf")):
            raise Problem(400, "bad_query", f"{name} is a number.")
        return value

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the body.

        Raises:
            Problem: It is too large, or no strict JSON object.
        """
        length = self.header("Content-Length")
        if not length.isascii() or not length.isdigit():
            raise Problem(400, "bad_body", "The body has no length.")
        if int(length) > MAX_BODY_BYTES:
            raise too_large()
        data = self._environ["wsgi.input"].read(int(length))
        try:
            value = _strict.load(data.decode())
        except ValueError:
            raise Problem(400, "bad_body", "The body is no strict JSON.") from None
        if not isinstance(value, dict):
            raise Problem(400, "bad_body", "The body is no JSON object.")
        return value


def too_large() -> Problem:
    """Make the error for a body over the limit."""
    said = f"A request has at most {MAX_BODY_BYTES:,} bytes."
    return Problem(413, "too_large", said, kept="Nothing was changed.")
