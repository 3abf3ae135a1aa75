"""Which addresses a key, or an object, may be sent to."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from launchhelm.errors import ConfigError
from syncer.api.document import WireError

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Literal, as the official client has it: a name that merely leads here is another host."""

_VISIBLE: Final = re.compile(r"[!-\[\]-~]+")  # ASCII without space and backslash.
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def check_origin(url: str) -> str:
    """Return a server's address without its trailing slashes.

    Raises:
        ConfigError: Not HTTPS (plain HTTP is for loopback only), or with user, query or fragment.
    """
    parts = _split(url)
    if parts is None or not _is_safe(parts):
        raise ConfigError(
            "The server's address must begin with https:// and name a host; "
            "http:// is for localhost, 127.0.0.1 and ::1.",
            remedy="Set LAUNCHHELM_URL to such an address, or use a tunnel to this host.",
        )
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError("The server's address must not hold a user, a query or a fragment.")
    return url.rstrip("/")


def is_object_url(url: str) -> bool:
    """Whether bytes may be sent to, or read from, this signed address."""
    parts = _split(url)
    return parts is not None and _is_safe(parts) and "@" not in parts.netloc


def host_of(url: str) -> str:
    """Return `host:port` of an address, for messages: never a user, a path or a query."""
    parts = _split(url)
    return parts.netloc.rpartition("@")[2] if parts else ""


def check_organization(organization: str) -> str:
    """Return the id of an organisation, as it is spelled.

    Raises:
        ConfigError: Not a UUID.
    """
    if _UUID.fullmatch(organization) is None:
        raise ConfigError(
            "The organisation must be given by its id, a UUID.",
            remedy="Set LAUNCHHELM_ORGANIZATION, or leave it out if the key knows only one.",
        )
    return organization


def check_id(identity: str) -> str:
    """Return an id that goes into a path.

    Raises:
        WireError: Not a UUID.
    """
    if not isinstance(identity, str) or _UUID.fullmatch(identity) is None:
        raise WireError("An id is not a UUID.", reason="not_uuid")
    return identity


def _split(url: str) -> SplitResult | None:
    if not isinstance(url, str) or _VISIBLE.fullmatch(url) is None:
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:  # A port or an IPv6 address that is none.
        return None


def _is_safe(parts: SplitResult) -> bool:
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
