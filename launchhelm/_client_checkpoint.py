"""A checkpoint from a server, laid out as in a run directory, where `load_checkpoint` finds it.

    INTO/media/<sha256>              its file, of which the path is returned
    INTO/checkpoints/<id>/           its shards, where it is in shards

A file appears under its name when its bytes are all there and have their digest. Whoever asks again
after a failure gets what is missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol  # Any: JSON values, and what has `write`.

from launchhelm.errors import LaunchHelmError, StorageError
from launchhelm.store import layout, media, shards

_MAX_LIST_BYTES: Final = 256 << 20
_SLOWEST: Final = 75_000
"""Bytes in a second; with less a download is given up."""


class Server(Protocol):
    """Of the v1 client, what is needed here."""

    def get_document(self, document_id: str) -> dict[str, Any]: ...

    def artifact_url(self, artifact_id: str) -> str: ...

    def download(self, url: str, into: Any, *, max_bytes: int, least_rate: float) -> int: ...


class _File(NamedTuple):
    """A file that is wanted: the server's id of its bytes, and what they are."""

    artifact: str
    size: int
    sha256: str


def download(server: Server, artifact_id: str, into: Path) -> Path:
    """Bring a checkpoint here, a piece of it at a time in memory; return the path of its file.

    Raises:
        LaunchHelmError: As `Client.download_artifact`; StorageError where it cannot be written.
    """
    spec = server.get_document(artifact_id)["spec"]
    own = _file({**spec, "artifact": artifact_id}, str(spec.get("name")))
    path = media.path_of(into, own.sha256)
    list_id = ((spec.get("provenance") or {}).get("labels") or {}).get(shards.LIST_LABEL)
    try:
        if list_id:
            _shards(server, _list(server, str(list_id)), into / layout.CHECKPOINTS)
        _fetch(server, own, path)
    except OSError as error:
        raise StorageError(
            f"{error.filename or into} cannot be written: {error.strerror or error}.",
            kept=f"What has arrived whole is in {into}.",
            remedy="Make room, or choose another place; the same call again gets what is missing.",
        ) from error
    return path


def _list(server: Server, list_id: str) -> dict[str, Any]:
    spec = server.get_document(list_id)["spec"]
    wanted = _file({**spec, "artifact": list_id}, "the list of its shards")
    if wanted.size > _MAX_LIST_BYTES:
        raise _invalid(f"The list of its shards has {wanted.size:,} bytes.")
    into = io.BytesIO()
    _copy(server, wanted, into, str(list_id))
    try:
        said = json.loads(into.getvalue())
        form = said.get("format")
    except (ValueError, AttributeError, RecursionError):
        raise _invalid("The list of its shards is no JSON object.") from None
    if form != shards.LIST_FORMAT:
        raise _invalid(f"Its shards are listed as {form!r}, which is not known here.")
    return dict(said)


def _shards(server: Server, said: dict[str, Any], checkpoints: Path) -> None:
    directory = checkpoints / _name(said.get("directory"))
    files = said.get("files")
    if not isinstance(files, list) or not all(isinstance(each, dict) for each in files):
        raise _invalid("The list of its shards names no files.")
    wanted = {_name(each.get("name")): each for each in files}
    # The index comes last: with it the directory counts as whole.
    for name in sorted(wanted, key=lambda name: (name == shards.INDEX, name)):
        _fetch(server, _file(wanted[name], name), directory / name)


def _fetch(server: Server, file: _File, path: Path) -> None:
    """Bring one file here, unless it is."""
    with suppress(OSError, LaunchHelmError):
        is_long = path.stat().st_size == file.size
        if is_long and media.measure(media.file_chunks(path)).sha256 == file.sha256:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(layout.hidden_name("new"))
    try:
        with hidden.open("xb") as into:
            _copy(server, file, into, path.name)
        os.replace(hidden, path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


def _copy(server: Server, file: _File, into: Any, name: str) -> None:
    tee = _Tee(into)
    server.download(
        server.artifact_url(file.artifact),
        tee,
        max_bytes=file.size,
        least_rate=_SLOWEST,
    )
    if (tee.size, tee.digest.hexdigest()) != (file.size, file.sha256):
        raise _invalid(f"The bytes of {name} are not those of the artifact {file.artifact}.")


class _Tee:
    """Writes to a file and takes the digest of what it writes."""

    def __init__(self, into: Any) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._into = into

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        self._into.write(data)
        return len(data)


def _file(said: dict[str, Any], name: str) -> _File:
    """Read what a document or a list says of a file."""
    try:
        size, sha256 = int(said["size"]), str(said["sha256"])
        media.path_of(Path(), sha256)
        return _File(str(said["artifact"]), size, sha256)
    except (KeyError, TypeError, ValueError, StorageError):
        raise _invalid(f"The server does not say what {name} is.") from None


def _name(said: Any) -> str:
    """Return the name of a file or a directory, which leads nowhere else."""
    is_name = isinstance(said, str) and said.isprintable() and Path(said).name == said
    if not is_name or said in ("", ".", ".."):
        raise _invalid(f"The list of its shards names {said!r}, which is no name of a file.")
    return str(said)


def _invalid(message: str) -> LaunchHelmError:
    return LaunchHelmError("invalid_response", message)
