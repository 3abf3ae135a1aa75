"""Organisations and keys as they are stored: made, found, revoked, rotated.

Of a key only the SHA-256 digest is kept. That is right for a random token of 256 bits, which
nobody can guess from its digest; it would be wrong for a password. A key that another one made
(a worker key) dies with its maker when that is revoked, not when it is rotated.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from launchhelm._ids import new_id

SCHEMA: Final = """
CREATE TABLE facts (  -- Of the data directory itself: its secret.
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE organizations (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    digest BLOB NOT NULL,
    name TEXT NOT NULL,
    organization_id TEXT NOT NULL REFERENCES organizations(id),
    participant_id TEXT NOT NULL,  -- '' when not bound to one
    grants TEXT NOT NULL,
    maker_id TEXT,
    created_at REAL NOT NULL,
    lifetime_s REAL,               -- NULL: for good
    revoked_at REAL
) WITHOUT ROWID;
CREATE INDEX keys_by_maker ON keys(maker_id);
"""

EVERY_ACTION: Final = "*"
_PREFIX: Final = "lhk"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class Grant:
    """Some actions in some place of the key's organisation; an empty id there means all of them."""

    project_id: str
    run_id: str
    actions: frozenset[str]


@dataclass(frozen=True)
class Key:
    """One key, without its secret.

    Args:
        participant_id: Whom it speaks for, else "".
        maker_id: The key that made it, else "".
        lifetime_s: None: until it is revoked.
        active_at: When its participant was last heard of, or when it was made.
    """

    id: str
    name: str
    organization_id: str
    participant_id: str
    grants: tuple[Grant, ...]
    maker_id: str
    created_at: float
    lifetime_s: float | None
    revoked_at: float | None
    active_at: float

    @property
    def expires_at(self) -> float | None:
        """When it ends unless its participant is heard of again.

        A worker key must outlive the date that its client asked for: the client makes only one,
        and a training may take longer.
        """
        return None if self.lifetime_s is None else self.active_at + self.lifetime_s

    def valid(self, now: float) -> bool:
        """Whether it may be used."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class Organization:
    """One organisation."""

    id: str
    name: str


def organization(connection: sqlite3.Connection, organization_id: str) -> Organization | None:
    """Look up one organisation by the stored spelling of its id."""
    row = connection.execute(
        "SELECT id, name FROM organizations WHERE id = ?", (organization_id,)
    ).fetchone()
    return Organization(*row) if row else None


def organizations(connection: sqlite3.Connection) -> list[Organization]:
    """List the organisations, oldest first."""
    rows = connection.execute("SELECT id, name FROM organizations ORDER BY created_at, id")
    return [Organization(*row) for row in rows]


def create_organization(connection: sqlite3.Connection, name: str, now: float) -> str:
    """Make an organisation and return its id. The name must be free."""
    organization_id = new_id()
    connection.execute("INSERT INTO organizations VALUES (?, ?, ?)", (organization_id, name, now))
    return organization_id


def secret(connection: sqlite3.Connection) -> bytes:
    """Return the secret of this data directory, made on the first call; needs a transaction."""
    fresh = secrets.token_bytes(_SECRET_BYTES)
    connection.execute("INSERT OR IGNORE INTO facts VALUES ('secret', ?)", (fresh,))
    row = connection.execute("SELECT value FROM facts WHERE name = 'secret'").fetchone()
    return bytes(row[0])


def generation(connection: sqlite3.Connection) -> str:
    """Return the name of this line of history, made on the first call; needs a transaction.

    A backup gets another one: whoever knows what the original was told must not rely on it there.
    """
    connection.execute(
        "INSERT OR IGNORE INTO facts VALUES ('generation', ?)", (secrets.token_hex(8).encode(),)
    )
    row = connection.execute("SELECT value FROM facts WHERE name = 'generation'").fetchone()
    return bytes(row[0]).decode()


def forget_generation(connection: sqlite3.Connection) -> None:
    """Begin another line of history at the next start."""
    connection.execute("DELETE FROM facts WHERE name = 'generation'")


def create_key(
    connection: sqlite3.Connection,
    *,
    name: str,
    organization_id: str,
    grants: Sequence[Grant],
    now: float,
    participant_id: str = "",
    maker_id: str = "",
    lifetime_s: float | None = None,
) -> tuple[str, str]:
    """Make a key and return its id and its token, which nobody can ask for again."""
    key_id = new_id()
    token, digest = _token(key_id)
    stored = [
        {"project_id": each.project_id, "run_id": each.run_id, "actions": sorted(each.actions)}
        for each in grants
    ]
    connection.execute(
        "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
        (
            key_id,
            digest,
            name,
            organization_id,
            participant_id,
            json.dumps(stored),
            maker_id or None,
            now,
            lifetime_s,
        ),
    )
    return key_id, token


def find_key(connection: sqlite3.Connection, token: str, now: float) -> Key | None:
    """Return the valid key of a token, or None. The digest is compared in constant time."""
    prefix, _, rest = token.partition("_")
    id_text, _, secret_text = rest.partition("_")
    if prefix != _PREFIX or not secret_text or not token.isascii():
        return None
    try:
        key_id = str(uuid.UUID(hex=id_text))
    except ValueError:
        return None
    row = connection.execute(f"{_SELECT} WHERE keys.id = ?", (key_id,)).fetchone()
    # A digest to compare with even for an unknown id, so that both take the same time.
    expected = bytes(row["digest"]) if row else bytes(_SECRET_BYTES)
    if not hmac.compare_digest(_digest(token), expected) or row is None:
        return None
    found = _key(row)
    return found if found.valid(now) else None


def key(connection: sqlite3.Connection, key_id: str) -> Key:
    """Return a key by its id.

    Raises:
        KeyError: There is none.
    """
    row = connection.execute(f"{_SELECT} WHERE keys.id = ?", (key_id,)).fetchone()
    if row is None:
        raise KeyError(key_id)
    return _key(row)


def keys(connection: sqlite3.Connection) -> list[Key]:
    """List every key, oldest first, revoked ones too."""
    return [_key(row) for row in connection.execute(f"{_SELECT} ORDER BY keys.created_at, keys.id")]


def revoke_key(connection: sqlite3.Connection, key_id: str, now: float) -> int:
    """End a key and every key that it made, at once; return how many were still alive."""
    return connection.execute(
        """UPDATE keys SET revoked_at = ? WHERE revoked_at IS NULL AND id IN (
               WITH RECURSIVE line(id) AS (
                   VALUES (?) UNION SELECT keys.id FROM keys JOIN line ON keys.maker_id = line.id)
               SELECT id FROM line)""",
        (now, key_id),
    ).rowcount


def rotate_key(connection: sqlite3.Connection, key_id: str) -> str:
    """Give a key another token and return it; the old one ends at once, its worker keys live on."""
    token, digest = _token(key_id)
    connection.execute("UPDATE keys SET digest = ? WHERE id = ?", (digest, key_id))
    return token


_SELECT: Final = """
SELECT keys.*, (SELECT max(last_seen_at) FROM sessions
                WHERE sessions.participant_id = keys.participant_id) AS seen_at
FROM keys"""


def _key(row: sqlite3.Row) -> Key:
    grants = tuple(
        Grant(each["project_id"], each["run_id"], frozenset(each["actions"]))
        for each in json.loads(row["grants"])
    )
    return Key(
        id=row["id"],
        name=row["name"],
        organization_id=row["organization_id"],
        participant_id=row["participant_id"],
        grants=grants,
        maker_id=row["maker_id"] or "",
        created_at=row["created_at"],
        lifetime_s=row["lifetime_s"],
        revoked_at=row["revoked_at"],
        active_at=max(row["created_at"], row["seen_at"] or 0.0),
    )


def _token(key_id: str) -> tuple[str, bytes]:
    token = f"{_PREFIX}_{uuid.UUID(key_id).hex}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return token, _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
