"""`Client`: documents, points and artifacts by their ids, from local runs first, else a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar  # Any: JSON values, and a transport of httpx.

from launchhelm._client_local import LocalRuns
from launchhelm.errors import LaunchHelmError
from launchhelm.models import Document
from launchhelm.transport import Json, ServerCalls

__all__ = ["Client"]

_T = TypeVar("_T")


class Client(ServerCalls):
    """Reads of runs, and every call of the v1 API that a run makes. A context manager.

    `query`, `read_samples`, `list_documents`, `get_document`, `download_artifact` and
    `download_checkpoint` look into the runs that this process has open, under LAUNCHHELM_DIR and
    under ./runs, and need no network for what they find there. Everything else needs a server and a
    key; no connection is made before.

    Args:
        base_url: The server's HTTPS address; plain HTTP for this host only. It may be one that
            nobody can reach as long as local runs are read.
        api_key: The bearer; "" for local runs alone.
        organization_id: A UUID.
        transport: A transport of httpx instead of the network, for tests.
        timeout: Seconds for each step of a request.

    Raises:
        ValueError: User, query or fragment in the address, plain HTTP to another host, or an
            organisation that is no UUID.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        organization_id: str,
        *,
        transport: Any = None,
        timeout: float = 30,
    ) -> None:
        super().__init__(base_url, api_key, organization_id, transport, timeout)
        self._local = LocalRuns()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.base_url!r}, organization_id={self.organization_id!r})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"Client has no {name!r}: this package reads runs and syncs them; what administers a "
            "hosted account is left to the hosted SDK and its website."
        )

    def with_key(self) -> Client:
        """Return another client with the key that this one was made with."""
        key, transport, timeout = self._given
        return Client(
            self.base_url, key, self.organization_id, transport=transport, timeout=timeout
        )

    def get_document(self, document_id: str, *, revision: str = "") -> Document:
        """Return a run, participant, stream or artifact of a local run, else any of the server's.

        Args:
            revision: Only a server has others than the newest.
        """
        found = self._local.document(document_id) if revision in ("", "1") else None
        return found or self._elsewhere(
            document_id, lambda: super(Client, self).get_document(document_id, revision=revision)
        )

    def list_documents(
        self,
        *,
        kind: str = "",
        project_id: str = "",
        run_id: str = "",
        cursor: str = "",
        limit: int = 100,
    ) -> Json:
        """Return a page `{"items": [document, ...], "next_cursor"}`; "" filters nothing.

        Of local runs where `run_id`, or the project without a run, is one of theirs.
        """
        page = (
            self._local.page(
                kind=kind, project_id=project_id, run_id=run_id, cursor=cursor, limit=limit
            )
            if (run_id or project_id)
            else None
        )
        if page is not None:
            return page
        return self._elsewhere(
            run_id or project_id or "the list of everything",
            lambda: super(Client, self).list_documents(
                kind=kind, project_id=project_id, run_id=run_id, cursor=cursor, limit=limit
            ),
        )

    def query(
        self,
        stream_id: str,
        *,
        start: str,
        end: str,
        limit: int = 1000,
        order: str = "",
        after_epoch: str = "",
        after_sequence: str = "",
    ) -> Json:
        """Return a page of a stream, `{"items": [point, ...], "limit", "complete"}`.

        Args:
            start, end: Instants in RFC 3339, both included.
            limit: 1 to 10,000.
            order: `asc`, `desc`, or "" for ascending.
            after_epoch, after_sequence: Skip the points at `start` up to this one; both or neither.
        """
        arguments: dict[str, Any] = {
            "start": start,
            "end": end,
            "limit": limit,
            "order": order,
            "after_epoch": after_epoch,
            "after_sequence": after_sequence,
        }
        page = self._local.query(stream_id, **arguments)
        if page is not None:
            return page
        return self._elsewhere(stream_id, lambda: super(Client, self).query(stream_id, **arguments))

    def read_samples(
        self, stream_id: str, *, axis: Mapping[str, Any] | None = None, select: Mapping[str, Any]
    ) -> Json:
        """Return samples of a stream along an axis, `step` by default.

        Args:
            select: `{"mode": "latest", "limit": n}`, or mode `at`, `spread` or `index`.

        Returns:
            `{"stream_id", "renderer", "points", "complete", "media"}`; the addresses of media are
            those of local files where the run is local.
        """
        found = self._local.read_samples(stream_id, axis=axis, select=select)
        if found is not None:
            return found
        return self._elsewhere(
            stream_id,
            lambda: super(Client, self).read_samples(stream_id, axis=axis, select=select),
        )

    def download_artifact(self, artifact_id: str) -> bytes:
        """Return the bytes of an artifact, compared with its digest.

        Raises:
            StorageError: A local run has it, but its bytes are gone or damaged.
        """
        data = self._local.artifact(artifact_id)
        if data is not None:
            return data
        return self._elsewhere(
            artifact_id, lambda: super(Client, self).download_artifact(artifact_id)
        )

    def download_checkpoint(self, artifact_id: str, into: str | os.PathLike[str]) -> Path:
        """Return the path of a checkpoint, to be given to `load_checkpoint`.

        The one of a local run lies in its directory, and nothing is copied. Any other is brought
        from the server, a piece of it at a time in memory, to `into`: its file and, where it was
        saved with `sharded=True`, its shards. Give the ranks of a job a directory that all see, and
        call this on one of them. After a failure the same call gets what is missing.

        Args:
            artifact_id: The value of the metric `checkpoint`.
            into: A directory; made if it is not there.

        Raises:
            StorageError: A local run has it, but its file is gone; or `into` cannot be written.
        """
        path = self._local.file(artifact_id)
        if path is not None:
            return path
        return self._elsewhere(
            artifact_id, lambda: super(Client, self).download_checkpoint(artifact_id, into)
        )

    def _elsewhere(self, what: str, ask: Callable[[], _T]) -> _T:
        """Ask the server for what no local run has."""
        try:
            return ask()
        except LaunchHelmError as error:
            if error.code not in ("offline", "transport"):
                raise
            roots = ", ".join(map(str, self._local.roots))
            raise LaunchHelmError(
                error.code,
                f"No local run has {what}, and no server could be asked: {error.message}",
                retryable=True,
                kept=f"Open runs and those in {roots} were looked through.",
                remedy=error.remedy or "Set LAUNCHHELM_DIR to the root of the run, or try again.",
            ) from error
