"""Commands in: one file per command, put into control/ by rename and taken by rename.

Senders (`send`) may be anybody on any host who may write control/. The coordinator's `Inbox` looks
by listing the directory, never by probing for a name, and runs on the recorder's thread. It judges
who sent a file and whether it can be read; what a command means is not its business.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm.errors import ConfigError, StorageError
from launchhelm.records import NAME_PATTERN, ORDERS, Command, WriterId
from launchhelm.store import layout
from launchhelm.store.layout import CommandName, parse_command
from launchhelm.store.manifest import write_durably

MAX_COMMAND_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 32
MAX_FIELD_DEPTH: Final = MAX_DEPTH - 2
"""Levels of lists and objects within one field of a command, whose body is two around it."""
MAX_WAITING: Final = 1024
MAX_LOOKS_PER_POLL: Final = 256
MAX_CLAIMS_PER_POLL: Final = 64
_MAX_PROBLEM: Final = 200
_FORMAT: Final = 1
_NEW, _GOT = "new.", "got."
_SHARED: Final = stat.S_ISGID | stat.S_IWGRP


@dataclass(frozen=True)
class Arrival:
    """One command file that this writer has taken.

    Args:
        name: The file, under its taken name.
        command: What it says; None when it cannot be read, or came again. Only told, never acted
            on, when there is a code.
        owner: Who put it there, as the file system reports it.
        age_s: How long it had waited when it was taken, on the file server's clock.
        code: Why it is refused, for programs; "" when it is not.
        message: Why, for people.
    """

    name: CommandName
    command: Command | None
    owner: str
    age_s: float
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Look:
    """What one poll found.

    Args:
        arrivals: Newly taken files, in order.
        strangers: Files that other writers have taken and not removed.
        superseded: Whether a newer attempt is there; looked up when it matters.
        took_s: How long the listing took.
    """

    arrivals: list[Arrival]
    strangers: list[CommandName]
    superseded: bool
    took_s: float


def encode(command: Command) -> bytes:
    """Write a command as the body of its file; fields that say nothing are left out.

    Raises:
        ValueError: Nobody could read it: text that is no UTF-8, or fields that are nested too deep.
    """
    body: dict[str, Any] = {
        "format": _FORMAT,
        "cmd": command.id,
        "kind": command.name,
        "args": dict(command.payload),
        "issued_by": command.issued_by,
        "issued_at": command.issued_at,
        "reason": command.reason,
        "rev": command.revision,
        "for_attempt": command.for_attempt,
        "first_step": command.first_step,
        "last_step": command.last_step,
        "expected": dict(command.expected),
        "valid_s": command.valid_s,
        "server": dict(command.server),
        "reverts": command.reverts,
        "replays": command.replays,
    }
    kept = {
        name: value for name, value in body.items() if name == "args" or value not in (None, "", {})
    }
    if _is_deeper(kept, MAX_DEPTH):
        raise ValueError(f"A field is nested deeper than {MAX_FIELD_DEPTH} levels")
    return json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Command:
    """Read the body of a command file.

    Raises:
        ValueError: It is not a command; the text says why.
    """
    body = _strict_object(data)
    version = body.get("format", _FORMAT)
    if version != _FORMAT or isinstance(version, bool):
        raise ValueError(f"format {_said(version)}; this version reads {_FORMAT}")
    name = body.get("kind")
    if not isinstance(name, str) or NAME_PATTERN.fullmatch(name) is None:
        raise ValueError(f"kind {_said(name)} is not the name of a control")
    id_ = _typed(body, "cmd", str, "")
    server = _typed(body, "server", dict, {})
    if server and server.get("id") != id_:
        raise ValueError("it is not the command of a server that it says it is")
    return Command(
        id=id_,
        name=name,
        payload=_typed(body, "args", dict, {}),
        issued_by=_typed(body, "issued_by", str, ""),
        issued_at=_seconds(body, "issued_at", 0.0),
        reason=_typed(body, "reason", str, ""),
        revision=_typed(body, "rev", int, 0),
        for_attempt=_typed(body, "for_attempt", int, None),
        first_step=_typed(body, "first_step", int, None),
        last_step=_typed(body, "last_step", int, None),
        expected=_typed(body, "expected", dict, {}),
        valid_s=_seconds(body, "valid_s", Command(id="", name="", payload={}).valid_s),
        server=server,
        reverts=_typed(body, "reverts", str, ""),
        replays=_typed(body, "replays", str, ""),
    )


def send(run_directory: Path, command: Command) -> Path:
    """Put a command into a run's inbox; sending the same id twice is harmless.

    Raises:
        ValueError: The command is larger than MAX_COMMAND_BYTES, or not JSON.
        ConfigError: This user may not write the inbox.
        StorageError: The inbox is not there, or did not accept the file.
    """
    data = encode(command)
    if len(data) > MAX_COMMAND_BYTES:
        raise ValueError(f"A command has at most {MAX_COMMAND_BYTES:,} bytes, got {len(data):,}.")
    inbox = run_directory / layout.CONTROL
    name = CommandName(command.revision, command.id)
    if parse_command(str(name)) is None:
        raise ValueError(f"The command id {command.id!r} cannot be part of a file name.")
    path = inbox / str(name)
    try:
        write_durably(path, data)
    except PermissionError as error:
        raise ConfigError(
            f"You may not control this run: {inbox} is not writable for you ({error.strerror}).",
            remedy="Ask its owner, or share the run directory with a group (mode 2770).",
        ) from error
    except OSError as error:
        raise StorageError(
            f"The command was not sent: {inbox}: {error.strerror}.",
            kept="Nothing was changed.",
            remedy="Look whether the run directory is still there and has space.",
        ) from error
    return path


def waiting(run_directory: Path) -> list[tuple[CommandName, Command | None]]:
    """List the commands that nobody has taken yet, in order; None for one that cannot be read.

    Raises:
        OSError: The inbox cannot be listed.
    """
    found = []
    for name in sorted(_parsed(os.listdir(run_directory / layout.CONTROL)), key=_order):
        if name.taken_by is not None:
            continue
        try:
            command: Command | None = decode(_read(run_directory / layout.CONTROL / str(name))[0])
        except FileNotFoundError:  # Taken while we looked.
            continue
        except (OSError, ValueError):
            command = None
        found.append((name, command))
    return found


def read_command(path: Path) -> Command | None:
    """Read a command file, None when it is gone or not a command."""
    try:
        return decode(_read(path)[0])
    except (OSError, ValueError):
        return None


class Inbox:
    """The coordinator's side of control/. Not thread-safe: the recorder's thread owns it.

    Args:
        accept_uids: Users whose commands are accepted beside the directory's owner, root, and the
            members of its group when the inbox is group-writable and setgid.
    """

    def __init__(
        self,
        run_directory: Path,
        writer: WriterId,
        *,
        accept_uids: Collection[int] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._control = run_directory / layout.CONTROL
        self._attempts = run_directory / layout.ATTEMPTS
        self._writer = writer
        self._accept_uids = frozenset(accept_uids)
        self._clock = clock
        self._seen: dict[CommandName, _Sight] = {}
        self._mine: set[CommandName] = set()

    def poll(self, *, may_claim: bool, holds_claims: bool = False, up_to: float = math.inf) -> Look:
        """List the inbox once and take what is there, unless a newer attempt has taken over.

        Args:
            may_claim: False while the loop does not pass control points; then only orders are
                taken, which need no loop, and files whose validity has run out.
            holds_claims: Whether the caller holds commands that a newer attempt would take away.
            up_to: Commands for later steps are left for later, or for another attempt.

        Raises:
            OSError: The inbox or the attempts cannot be listed.
        """
        started = self._clock.monotonic()
        names = os.listdir(self._control)
        took_s = self._clock.monotonic() - started
        # Names sort as their orders do; looking at all of very many would cost the loop its time.
        waiting = sorted(name for name in names if name.startswith(_NEW))
        new = _parsed(waiting[:MAX_WAITING])
        taken = _parsed(name for name in names if name.startswith(_GOT))
        superseded = bool(new or holds_claims) and self.is_superseded()
        self._remember([] if superseded else new)
        # A rename whose answer was lost is repeated by the file system's client and then fails;
        # the listing shows that it succeeded.
        mine = [name for name in taken if name.taken_by == self._writer and name not in self._mine]
        arrivals = [self._arrived(name) for name in mine[:MAX_CLAIMS_PER_POLL]]
        ready = [
            name
            for name, sight in self._seen.items()
            if (may_claim and sight.first_step <= up_to)
            or sight.kind in ORDERS
            or sight.age_now(self._clock) > sight.valid_s
        ]
        for name in sorted(ready, key=self._turn)[: MAX_CLAIMS_PER_POLL - len(arrivals)]:
            arrival = self._claim(name)
            if arrival is not None:
                arrivals.append(arrival)
        strangers = [name for name in taken if name.taken_by != self._writer]
        return Look(arrivals, strangers, superseded, took_s)

    def fetch(self, command: str) -> Arrival | None:
        """Take one waiting file by the id of its command, None when none was seen."""
        named = [name for name in self._seen if name.command == command]
        return self._claim(named[0]) if named else None

    def is_superseded(self) -> bool:
        """Whether the listing shows an attempt that is newer than this writer's.

        Raises:
            OSError: The attempts cannot be listed.
        """
        numbers = map(layout.parse_attempt, os.listdir(self._attempts))
        return any(number is not None and number > self._writer.attempt for number in numbers)

    def read(self, name: CommandName) -> Command | None:
        """Read a listed file, None when it is gone or not a command."""
        return read_command(self._control / str(name))

    def remove(self, name: CommandName) -> bool:
        """Remove a taken file whose outcome is durable; False to be asked again later."""
        try:
            os.unlink(self._control / str(name))
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            return True  # Not ours to remove; it stays, and was told.
        except OSError:
            return False
        self._mine.discard(name)
        return True

    def _remember(self, new: list[CommandName]) -> None:
        """Note the age of files seen for the first time; forget those that are gone."""
        unseen = [name for name in new if name not in self._seen][:MAX_LOOKS_PER_POLL]
        self._seen = {name: self._seen[name] for name in new if name in self._seen}
        server_now = self._file_server_time() if unseen else None
        for name in unseen:
            sight = _Sight(self._clock.monotonic())
            try:
                data, facts = _read(self._control / str(name))
                sight.sent_at = facts.st_mtime
                if server_now is not None:
                    sight.age_s = max(0.0, server_now - facts.st_mtime)
                command = decode(data)
                sight.valid_s, sight.kind = command.valid_s, command.name
                if command.first_step is not None:
                    sight.first_step = command.first_step
            except (OSError, ValueError):
                pass  # Refused, with its reason, when it is taken.
            self._seen[name] = sight

    def _turn(self, name: CommandName) -> tuple[int, bool, int, float, str]:
        """When it is a file's turn: by order, then age; last what could not be taken before."""
        sight = self._seen[name]
        is_other = sight.kind not in ORDERS
        return sight.misses, is_other, name.order, sight.sent_at, name.command

    def _claim(self, name: CommandName) -> Arrival | None:
        """Take a file by renaming it; None when somebody else was faster or it cannot be taken."""
        taken = CommandName(name.order, name.command, self._writer)
        try:
            if taken in self._mine:  # It came again, and must not take the place of what we hold.
                os.unlink(self._control / str(name))
                return Arrival(name, None, "", 0.0)
            os.rename(self._control / str(name), self._control / str(taken))
        except OSError:
            # ENOENT: somebody took it, or our own rename was answered twice; the next listing
            # tells. Anything else: the file stays, and a later poll tries again.
            self._seen[name].misses += 1
            return None
        return self._arrived(taken, self._seen.pop(name))

    def _arrived(self, taken: CommandName, sight: _Sight | None = None) -> Arrival:
        """Read a taken file and judge its owner."""
        self._mine.add(taken)
        age_s = sight.age_now(self._clock) if sight is not None else 0.0
        owner, command = "", None
        code, problem = "malformed", ""
        try:
            data, facts = _read(self._control / str(taken))
            owner = user_name(facts.st_uid)
            objection = self._objection(facts, owner)
            if objection:
                code, problem = "not_permitted", objection
            said = decode(data)
            if said.id != taken.command:
                raise ValueError("it has another id than its name")
            command = said
        except (OSError, ValueError) as error:
            said_why = error.strerror if isinstance(error, OSError) and error.strerror else error
            problem = problem or f"The command file cannot be read: {said_why}."
        return Arrival(taken, command, owner, age_s, code if problem else "", problem)

    def _objection(self, facts: os.stat_result, owner: str) -> str:
        """Say why a command file is not the word of somebody who may control the run."""
        if facts.st_nlink != 1:  # A link to a file of the owner is not a word of the owner.
            return "The command file has a second name, so that anybody may have put it here."
        directory = os.stat(self._control)
        if facts.st_mode & stat.S_IWOTH and directory.st_mode & stat.S_IXOTH:
            return "Anybody may have written the command file (its mode lets all users write)."
        if facts.st_uid in (0, directory.st_uid) or facts.st_uid in self._accept_uids:
            return ""
        shared = directory.st_mode & _SHARED == _SHARED
        if shared and _is_member(facts.st_uid, directory.st_gid):
            return ""
        return f"{owner} may not control this run."

    def _file_server_time(self) -> float | None:
        """Return the file server's time, from a file touched just now; None when it cannot be."""
        path = self._control / layout.hidden_name("now")
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                return os.fstat(descriptor).st_mtime
            finally:
                os.close(descriptor)
                os.unlink(path)
        except OSError:
            return None


@dataclass
class _Sight:
    """A file that waits: when this process saw it first, and what it knew then."""

    seen_at: float
    age_s: float = 0.0
    sent_at: float = 0.0
    valid_s: float = math.inf
    misses: int = 0
    kind: str = ""
    first_step: float = -math.inf

    def age_now(self, clock: Clock) -> float:
        return self.age_s + clock.monotonic() - self.seen_at


def user_name(uid: int) -> str:
    """Return the name of a user as this host knows it, else the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_member(uid: int, gid: int) -> bool:
    """Whether this host's user database lists the user in the group."""
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return gid in os.getgrouplist(user.pw_name, user.pw_gid)
    except (KeyError, OSError):
        return False


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    """Read a command file whole.

    Raises:
        OSError: It is gone, or may not be read.
        ValueError: It is not a plain file, or too large.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # A link, a socket.
            raise ValueError("it is not a plain file") from None
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("it is not a plain file")
        if facts.st_size > MAX_COMMAND_BYTES:
            raise ValueError(f"{facts.st_size:,} bytes; {MAX_COMMAND_BYTES:,} are allowed")
        data = b""
        while chunk := os.read(descriptor, MAX_COMMAND_BYTES + 1 - len(data)):
            data += chunk
        if len(data) > MAX_COMMAND_BYTES:
            raise ValueError(f"more than {MAX_COMMAND_BYTES:,} bytes")
        return data, facts
    finally:
        os.close(descriptor)


def _parsed(names: Iterable[str]) -> list[CommandName]:
    return [name for name in map(parse_command, names) if name is not None]


def _order(name: CommandName) -> tuple[int, str]:
    return name.order, name.command


def _strict_object(data: bytes) -> dict[str, Any]:
    """Parse what every JSON reader understands alike, and can write again."""
    try:
        body = json.loads(
            data.decode(), parse_constant=_refuse_constant, object_pairs_hook=_without_repeats
        )
        # What parses and has no JSON of its own must not reach a record: 1e999, lone surrogates.
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {str(error)[:_MAX_PROBLEM]}") from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if _is_deeper(body, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return body


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects nest deeper than so many levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(items) and (depth == 0 or any(_is_deeper(item, depth - 1) for item in items))


def _said(value: Any) -> str:
    return repr(value)[:_MAX_PROBLEM]


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a field of the given class, or the default when it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} is not {_WORDS[kind]}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is beyond 64 bits")
    return value


_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "an integer",
    dict: "an object",
}


def _seconds(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise ValueError(f"{name} is not a number of seconds")
    return float(value)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
