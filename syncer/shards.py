"""A checkpoint in shards on its way: the shards, then a list of them, then its own file.

The list says how to put the directory together again. The document of the file names the list, and
a point the file. So whoever finds a checkpoint on a server finds all of it, and one of which a
shard is missing here never appears there. Each shard is an artifact of its own, remembered as soon
as the server has it: after a kill nothing but the one in hand is sent again.

What waits beside it goes up between two shards, which may be many and large.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple  # Any: JSON values.

from launchhelm.store import layout, shards
from syncer.api.wire import MAX_NAME
from syncer.naming import shortened
from syncer.shardlist import list_of
from syncer.upload import OCTETS, Artifact, NotThere, Read, Upload, Useless, require_sendable, whole


class _Sent(NamedTuple):
    """A shard that the server has."""

    size: int
    sha256: str
    artifact: str


class Checkpoint:
    """One checkpoint on its way, in shards or not. Turned like an `Upload`.

    Args:
        own: Of its file.
        said: Body of its record.
        run_directory: Where the shards are.
        known: Server's ids by ours.
        done: Called with what was sent beside the file, our id of it, and the server's.

    Attributes:
        is_between: Whether another upload may come in between now.
    """

    def __init__(
        self,
        own: Upload,
        said: Mapping[str, Any],
        run_directory: Path,
        known: Mapping[str, str],
        done: Callable[[Artifact, str, str], object],
    ) -> None:
        self.starts = 0
        self.unseen_since: float | None = None
        self.is_between = False
        self._own = own
        self._said = said
        self._run_directory = run_directory
        self._known = known
        self._done = done
        self._directory: str | None = None
        self._names: list[str] = []
        self._part: Upload | None = None

    @property
    def artifact(self) -> Artifact:
        """What its file is."""
        return self._own.artifact

    def start_over(self) -> None:
        """Announce again what is in hand."""
        (self._part or self._own).start_over()

    def advance(self) -> str:
        """Do one piece; return the server's id of the file once all is there, else "".

        Raises:
            ApiError: As `Upload.advance`.
            NotThere, Useless: The file, or one of the shards.
        """
        self.is_between = False
        if not self._own.is_verified:
            self._own.verify()
            return ""
        if self._directory is None:
            # Not before: what has been read to its end is there, and is what it should be.
            self._directory = shards.parts_named(self._run_directory, self._said)
            self.is_between = bool(self._directory)
            return ""
        if not self._directory:
            return self._own.advance()
        list_id = self._known.get(list_of(self.artifact.id))
        if list_id:
            self._own.artifact = replace(self.artifact, more=((shards.LIST_LABEL, list_id),))
            return self._own.advance()
        self._advance_part(self._directory)
        return ""

    def _advance_part(self, directory: str) -> None:
        if self._part is None:
            self._part = self._next(directory)
        part = self._part
        try:
            server_id = part.advance()
        except NotThere as reason:
            raise NotThere(f"{part.artifact.name}: {reason}") from None
        except Useless as reason:
            raise Useless(f"{part.artifact.name}: {reason}") from None
        if server_id:
            sent = part.artifact
            is_list = sent.id == list_of(self.artifact.id)
            ours = sent.id if is_list else f"{sent.id} {sent.size} {sent.sha256}"
            self._done(sent, ours, server_id)
            self._part, self.starts, self.is_between = None, 0, True

    def _next(self, directory: str) -> Upload:
        """Return the upload of the next shard, or of the list when there is none."""
        if not self._names:
            self._names = self._complete(directory)
        sent = self._sent()
        own = self.artifact
        for name in self._names:
            if name not in sent:
                size = self._size(directory, name)
                label = shortened(f"{own.name}.shards/{name}", MAX_NAME)
                return self._upload(f"{own.id}/{name}", label, OCTETS, size, self._shard(name))
        said = {
            "format": shards.LIST_FORMAT,
            "checkpoint": {"id": own.id, "size": own.size, "sha256": own.sha256},
            "directory": directory,
            "files": [{"name": name, **sent[name]._asdict()} for name in self._names],
        }
        data = json.dumps(said, indent=1).encode()
        label = shortened(f"{own.name}.shards.json", MAX_NAME)
        return self._upload(
            list_of(own.id),
            label,
            "application/json",
            len(data),
            lambda offset, size: data[offset : offset + size],
        )

    def _upload(self, id_: str, name: str, media_type: str, size: int, read: Read) -> Upload:
        own = self.artifact
        artifact = Artifact(id_, name, media_type, size, "", "general", own.coordinates)
        return Upload(self._own.client, artifact, read, self._own.scope)

    def _complete(self, directory: str) -> list[str]:
        """Return the names of all files of the directory, if all are there."""
        missing = shards.missing(self._run_directory, directory)
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise NotThere(f"its shards are not all there: {missing[0]}{others}")
        names = [shards.INDEX, *shards.needed(self._run_directory, directory)]
        odd = next((name for name in names if not (name.isascii() and name.isprintable())), "")
        if odd:
            raise Useless(f"its index names {odd!a}, and torch gives a file no such name")
        return names

    def _size(self, directory: str, name: str) -> int:
        try:
            with shards.opened(self._run_directory, directory, name) as descriptor:
                size = os.fstat(descriptor).st_size
            require_sendable(size)
        except OSError as error:
            raise NotThere(_unreadable(directory, name, error)) from None
        except ValueError as error:
            raise Useless(f"{layout.CHECKPOINTS}/{directory}/{name}: {error}") from None
        return size

    def _shard(self, name: str) -> Read:
        directory = str(self._directory)

        def read(offset: int, size: int) -> bytes:
            try:
                with shards.opened(self._run_directory, directory, name) as descriptor:
                    data = bytearray()
                    while len(data) < size and (
                        piece := os.pread(descriptor, size - len(data), offset + len(data))
                    ):
                        data += piece
            except OSError as error:
                raise NotThere(_unreadable(directory, name, error)) from None
            return whole(bytes(data), size)

        return read

    def _sent(self) -> dict[str, _Sent]:
        """Return the shards that the server has, by their names; also from before a kill."""
        prefix = f"{self.artifact.id}/"
        found = {}
        for id_, theirs in self._known.items():
            if theirs and id_.startswith(prefix) and id_.count(" ") >= 2:
                name, size, sha256 = id_.removeprefix(prefix).rsplit(" ", 2)
                found[name] = _Sent(int(size), sha256, theirs)
        return found


def _unreadable(directory: str, name: str, error: OSError) -> str:
    return f"{layout.CHECKPOINTS}/{directory}/{name} cannot be read: {error.strerror or error}"
