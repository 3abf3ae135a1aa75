"""What a request is refused with: status, code and words of the error document."""

from __future__ import annotations

from typing import Any


class ServerError(Exception):
    """A refusal that the client is told.

    Args:
        status: HTTP status.
        code: The word on which clients act.
        message: One sentence for people; never holds a secret.
        retryable: Whether the same request may succeed later. Clients always retry 5xx.
        retry_after_s: Sent as Retry-After when positive.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        retryable: bool = False,
        *,
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_s = retry_after_s

    @property
    def document(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return error_document(self.code, self.message, self.retryable)


def error_document(code: str, message: str, retryable: bool = False) -> dict[str, Any]:
    """Build the body of every answer that is not a success."""
    return {"error": {"code": code, "message": message, "retryable": retryable}}


def validation(message: str) -> ServerError:
    """Say that the request itself is wrong."""
    return ServerError(400, "validation", message)


def unauthorized(message: str) -> ServerError:
    """Say that no valid key came with the request."""
    return ServerError(401, "unauthorized", message)


def forbidden(message: str) -> ServerError:
    """Say that the key has no right to that."""
    return ServerError(403, "forbidden", message)


def not_found(message: str) -> ServerError:
    """Say that nothing of that id exists, as far as this key may know."""
    return ServerError(404, "not_found", message)


def conflict(message: str) -> ServerError:
    """Say that the state of things forbids it. On a heartbeat this fences the client for good."""
    return ServerError(409, "conflict", message)


def too_large(message: str) -> ServerError:
    """Say that a body is over its limit."""
    return ServerError(413, "too_large", message)


def rate_limited(message: str, *, retry_after_s: int) -> ServerError:
    """Say that the key asks too often; clients take 429 for final unless it is retryable."""
    return ServerError(429, "rate_limited", message, retryable=True, retry_after_s=retry_after_s)


def unavailable(message: str, *, retry_after_s: int = 1) -> ServerError:
    """Say that the server cannot do it now."""
    return ServerError(503, "unavailable", message, retryable=True, retry_after_s=retry_after_s)
