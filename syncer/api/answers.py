"""What an HTTP answer means: a value, or an ApiError with the code that others decide by. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final  # Any: JSON values.

from launchhelm.errors import LaunchHelmError

MAX_MESSAGE: Final = 500
"""Characters of a server's message that we repeat."""
MIN_SECRET: Final = 8
"""Shorter keys are those of tests, and part of any sentence."""


class ApiError(LaunchHelmError):
    """A call to a server failed.

    Args:
        code: The server's code, or `transport`, `http_error`, `invalid_response`,
            `response_too_large`, `upload_uncertain`, `upload_failed`, `insecure_upload`,
            `insecure_download`.
        message: What happened, in one sentence. Never holds a key.
        status: HTTP status, 0 when no answer came.
        retryable: Whether the same call may succeed later.
        retry_after_s: Seconds that the server asks to wait, or None.
        remedy: What to do next, in one sentence.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        retryable: bool = False,
        retry_after_s: float | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(code, message, status=status, retryable=retryable, remedy=remedy)
        self.retry_after_s = retry_after_s


def read(
    status: int,
    headers: Mapping[str, str],
    body: bytes | bytearray,
    *,
    now: float,
    secret: str = "",
) -> Any:
    """Return the value of a successful answer.

    Args:
        status: HTTP status.
        headers: Of the answer; names in any case if the mapping does not mind.
        body: Decoded.
        now: Wall time, for a Retry-After that is a date.
        secret: Taken out of the server's words.

    Raises:
        ApiError: Any status from 300 on, and a success without a JSON body.
    """
    try:
        value, is_json = json.loads(body), True
    except (ValueError, RecursionError):
        value, is_json = None, False
    if status < 300:
        if is_json:
            return value
        raise ApiError("invalid_response", "The answer is not JSON.", status=status)
    wait_s = retry_after(headers, now=now)
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        # A proxy speaks HTML. Only of the server's own word do we believe that it is final.
        retryable = status >= 500 or (status == 429 and not is_json)
        raise ApiError(
            "http_error",
            f"The server answered with status {status}.",
            status=status,
            retryable=retryable,
            retry_after_s=wait_s,
        )
    code, message = error.get("code"), error.get("message")
    raise ApiError(
        _words(code, secret) if isinstance(code, str) else "http_error",
        _words(message, secret)
        if isinstance(message, str)
        else f"The server answered with status {status}.",
        status=status,
        retryable=status >= 500 or error.get("retryable") is True,
        retry_after_s=wait_s,
    )


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, never negative.

    A date is measured against the answer's own Date, so that our clock does not matter.
    """
    text = headers.get("Retry-After") or headers.get("retry-after") or ""
    try:
        seconds = float(text)
    except ValueError:
        until = _date(text)
        if until is None:
            return None
        sent = _date(headers.get("Date") or headers.get("date") or "")
        seconds = until - (now if sent is None else sent)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def plain(message: str) -> str:
    """Return a server's message as one line without control characters, cut where it is long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in message[:4000]).split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def _words(text: str, secret: str) -> str:
    return plain(text.replace(secret, "***") if len(secret) >= MIN_SECRET else text)


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
