"""The keeping half of a Run: files that belong to it, captured before the call returns."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from launchhelm import _run_metadata as metadata
from launchhelm._ids import new_id
from launchhelm._run_metrics import Metrics
from launchhelm.errors import Conflict, StorageError
from launchhelm.models import Document, timestamp
from launchhelm.store import layout, media
from launchhelm.values import axes_text, check_step, name_problem

if TYPE_CHECKING:
    from launchhelm._recorder import Recorder
    from launchhelm._run_inert import NoRecorder
    from launchhelm.runtime import Runtime

Source: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Iterator[bytes]"

OCTETS: Final = "application/octet-stream"
MAX_PURPOSE_CHARS: Final = 64


class Artifacts:
    """Files and bytes that a run keeps. They are copied, so the source may be deleted or changed.

    The calling thread waits for the copy and nothing else: no network, and no other record.
    """

    directory: Path
    run_id: str
    recorder: Recorder | NoRecorder
    runtime: Runtime
    _artifacts_by_key: dict[str, Document]
    _is_over: bool
    _lock: threading.RLock
    _metrics: Metrics
    _next_step: int

    def artifact(
        self,
        path: Source,
        *,
        step: int | None = None,
        name: str | None = None,
        media_type: str = OCTETS,
        idempotency_key: str = "",
        purpose: str = "general",
        **axes: object,
    ) -> Document:
        """Keep a file, or bytes, with the run; a copy is in the run directory on return.

        Args:
            path: A file of 1 byte or more, or its content, whole or as an iterator of pieces.
            step: Where it belongs; default: the counter, which does not move.
            name: A metric that gets the artifact's id as its next value, for `fetch`.
            idempotency_key: A second call with the same key and bytes returns the first artifact.
            purpose: What it is for; one word.
            axes: Further coordinates.

        Returns:
            The artifact; `id`, and in `spec` its `sha256`, `size` and `state`, which is `ready`.

        Raises:
            OSError: The source cannot be opened.
            StorageError: The run directory does not take it (a full disk); the run goes on.
            LaunchHelmError: `source_changed`: the source changed while it was copied.
            Conflict: The key was used for other bytes.
            TypeError, ValueError: A wrong argument, or an empty source.
        """
        place = self._next_step if step is None else check_step(step)
        coordinates = axes_text(axes)
        metadata.check_text(media_type, "media_type", metadata.MAX_NAME_CHARS, may_be_empty=False)
        metadata.check_text(purpose, "purpose", MAX_PURPOSE_CHARS, may_be_empty=False)
        if name:
            self._require_text_metric(name)
        id_ = self._artifact_id(idempotency_key)
        stored = self._captured_bytes(path)
        body = {
            "id": id_,
            "name": _title(path, name),
            "media_type": media_type,
            "size": stored.size,
            "sha256": stored.sha256,
            "purpose": purpose,
        }
        document = self._artifact_document(body, place, coordinates)
        if idempotency_key:
            with self._lock:
                first = self._artifacts_by_key.setdefault(idempotency_key, document)
            if first.spec["sha256"] != stored.sha256:
                raise Conflict(
                    f"The key {idempotency_key!r} was used for an artifact with other bytes.",
                    kept="The earlier artifact is unchanged.",
                    remedy="Use a new key, or none.",
                )
            if first is not document:
                return first
        self._record_artifact(body, name, place, coordinates)
        return document

    def checkpoint(
        self,
        path: Source,
        *,
        step: int | None = None,
        name: str = "checkpoint",
        **axes: Any,  # Any: a coordinate; axes_text checks each.
    ) -> Document:
        """Keep saved training state, as `artifact` with the metric `checkpoint`.

        Raises:
            OSError, StorageError, LaunchHelmError, TypeError, ValueError: As `artifact`.
        """
        return self.artifact(path, step=step, name=name, **axes)

    def keep_stored(self, stored: media.Stored, *, step: int, name: str, media_type: str) -> None:
        """Record as an artifact what is in media/ already, with its id as a point of `name`.

        Raises:
            TypeError, ValueError: The metric is bad, or holds no texts.
        """
        self._require_text_metric(name)
        body = {
            "id": new_id(),
            "name": name,
            "media_type": media_type,
            "size": stored.size,
            "sha256": stored.sha256,
            "purpose": "general",
        }
        self._record_artifact(body, name, step, {})

    def _record_artifact(
        self, body: dict[str, Any], name: str | None, step: int, coordinates: dict[str, str]
    ) -> None:
        # Never given up, and in this order: whoever meets the id as a value knows what it means.
        self.recorder.append_urgent("art", body, step=step, axes=coordinates or None)
        if name:
            self.recorder.append_urgent(
                "m", {name: body["id"]}, step=step, axes=coordinates or None
            )

    def _captured_bytes(self, source: Source) -> media.Stored:
        chunks = _chunks(source)
        if self._is_over:
            return media.measure(chunks)  # A late call records nothing, and says what it got.
        # The first chunk is read before anything is written: a source that cannot be opened is
        # the caller's error, whatever happens afterwards is the run directory's.
        try:
            first = next(chunks)
        except StopIteration:
            raise ValueError(
                "An artifact must have at least 1 byte; a server takes no empty one."
            ) from None
        try:
            return media.put(self.directory, _chain(first, chunks))
        except OSError as error:
            raise StorageError(
                f"{self.directory / layout.MEDIA} does not take the artifact: "
                f"{error.strerror or error}.",
                kept="Nothing of it was recorded, and nothing else was lost; the run goes on.",
                remedy="Make room there, then call again; keep the source until it succeeds.",
            ) from error

    def _require_text_metric(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"The name of a metric must be a string, got {type(name).__name__}.")
        problem = name_problem(name)
        if problem:
            raise ValueError(f"A metric cannot have {problem}.")
        kind = self._metrics.kind(name)
        if kind not in (None, "string"):
            raise TypeError(f"The metric {name!r} holds {kind}s; an artifact's id is a string.")
        self._metrics.learn(name, "string")

    def _artifact_id(self, idempotency_key: str) -> str:
        if not idempotency_key:
            return new_id()
        metadata.check_text(idempotency_key, "idempotency_key", metadata.MAX_NAME_CHARS)
        return str(uuid.uuid5(uuid.UUID(self.run_id), idempotency_key))

    def _artifact_document(
        self, body: dict[str, Any], step: int, coordinates: dict[str, str]
    ) -> Document:
        places = {"step": str(step), **coordinates}
        now = timestamp()
        spec = {
            **{key: value for key, value in body.items() if key != "id"},
            "size": str(body["size"]),
            "state": "ready",
            "provenance": {
                "inputs": [],
                "coordinates": [{"axis": axis, "value": text} for axis, text in places.items()],
                "labels": {},
            },
        }
        return Document(body["id"], "artifact", self.runtime.scope, "1", spec, now, now)


def _chunks(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        return iter([bytes(source)] if len(source) else [])
    return source if isinstance(source, Iterator) else media.file_chunks(Path(source))


def _chain(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _title(source: Source, name: str | None) -> str:
    """Name an artifact as its file, or as its metric where there is no file."""
    if isinstance(source, bytes | bytearray | memoryview | Iterator):
        return (name or "artifact")[: metadata.MAX_NAME_CHARS]
    return os.fspath(Path(source).name).encode(errors="replace").decode()
