"""Local ids to server ids: each document is found by our label, or created once.

Creating is not idempotent, and an answer may be lost. So before the first create of a kind, and
again after a create that failed in whatever way, what the server has is listed and matched. Where
several match, the oldest is ours: two syncers, or two tries, agree on it without a word.

Every method may raise ApiError; calling it again is always safe.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final  # Any: the JSON of documents.

from launchhelm._ids import project_id_for
from launchhelm.errors import ConfigError, Conflict, NotFound
from launchhelm.records import WriterId
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.api.wire import MAX_DOCUMENTS_PER_BATCH, encode
from syncer.documents import participant_spec, project_spec, run_spec, stream_spec, updated_run
from syncer.facts import Facts
from syncer.naming import (
    CAPABILITY_LABEL,
    PROJECT_LABEL,
    STREAM_LABEL,
    WRITER_LABEL,
    StreamKey,
    shortened,
)
from syncer.runindex import RunIndex, instant, labels_of

Document = dict[str, Any]

_MAX_CREATE_BYTES: Final = 512 << 10
_MAX_CREATE_VALUES: Final = 40_000
_VALUES_OF_A_STREAM: Final = 24
"""Of one stream's document without its axes; generous."""


class IdMap:
    """The documents of one run on one server.

    Args:
        client: The server and organisation.
        project: Id or name; "" means the project that the run names itself.
        facts: What the run says.
        runs: What is known of the server's runs, shared by the runs of a connection.
        create_project: Whether a project of that name is made when there is none.

    Attributes:
        participants: Ids by writer, as far as they are known.
        known_streams: (id, revision) by key, as far as they are known.
    """

    def __init__(
        self,
        client: Client,
        project: str,
        facts: Facts,
        *,
        runs: RunIndex | None = None,
        create_project: bool = True,
    ) -> None:
        self.participants: dict[WriterId, str] = {}
        self.known_streams: dict[StreamKey, tuple[str, str]] = {}
        self._capabilities: dict[str, tuple[str, str]] = {}
        self._client = client
        self._runs = runs or RunIndex(client)
        self._project = project or _project_of(facts)
        self._facts = facts
        self._may_create_project = create_project
        self._project_id = ""
        self._run_id = ""
        self._listed: set[str] = set()
        self._doubtful: set[str] = set()
        self._found: dict[str, dict[str, Document]] = {}

    def seed(
        self,
        *,
        project_id: str = "",
        run_id: str = "",
        participants: Mapping[WriterId, str] | None = None,
        streams: Mapping[StreamKey, tuple[str, str]] | None = None,
    ) -> None:
        """Take over ids that were found out before, so that nothing is listed for them."""
        self._project_id = project_id or self._project_id
        self._run_id = run_id or self._run_id
        self.participants.update(participants or {})
        self.known_streams.update(streams or {})

    # --- project ----------------------------------------------------------------------------------

    def project_id(self) -> str:
        """Return the project's id; it is created when it is given by name and there is none.

        Raises:
            NotFound: There is none, and none may be made.
            Conflict: Several have that name.
            ConfigError: The key may not look for a name.
        """
        if not self._project_id:
            is_id = _is_uuid(self._project)
            self._project_id = self._checked_id() if is_id else self._by_name()
        return self._project_id

    def _checked_id(self) -> str:
        try:
            document = self._client.get_document(self._project)
        except ApiError as error:
            if error.status == 403:
                return self._project  # It may still be written to; else the next call says so.
            if error.status != 404:
                raise
            document = {}
        if document.get("kind") != "project":
            raise NotFound(
                f"The server has no project with the id {self._project}.",
                kept="Nothing was changed, neither here nor there.",
                remedy="Look at the project's page for its id, or give its name instead.",
            )
        return str(document["id"])

    def _by_name(self) -> str:
        found = self._projects()
        if not found and self._may_create_project:
            spec = project_spec(self._project, self._facts.manifest.project_id)
            try:
                made = self._client.create_document("project", self._client.scope(), spec)
                return str(made["id"])
            except ApiError as error:
                if error.status == 403:
                    raise self._needs_id() from error
                if error.status != 409:
                    raise
            found = self._projects()  # Somebody else was faster.
        if not found:
            raise NotFound(
                f"The server has no project called {self._project!r}.",
                kept="Nothing was changed, neither here nor there.",
                remedy="Create it there, or give the id of another one with LAUNCHHELM_PROJECT.",
            )
        if len(found) > 1 and not all(PROJECT_LABEL in labels_of(document) for document in found):
            ids = ", ".join(str(document["id"]) for document in found[:5])
            raise Conflict(
                f"{len(found)} projects on the server are called {self._project!r}: {ids}.",
                kept="Nothing was changed, neither here nor there.",
                remedy="Give the id of the one that is meant with LAUNCHHELM_PROJECT.",
            )
        return str(_oldest(found)["id"])

    def _projects(self) -> list[Document]:
        name = shortened(self._project)
        try:
            every = self._client.list_documents("project")
            return [document for document in every if document["spec"].get("name") == name]
        except ApiError as error:
            if error.status == 403:
                raise self._needs_id() from error
            raise

    def _needs_id(self) -> ConfigError:
        return ConfigError(
            f"The key may not look up or create the project {self._project!r} by its name.",
            kept="Nothing was changed, neither here nor there.",
            remedy="Set LAUNCHHELM_PROJECT to the project's id, or use a key of the organisation.",
        )

    # --- run --------------------------------------------------------------------------------------

    def run(self) -> str:
        """Return the id of the run's document."""
        if not self._run_id:
            project = self.project_id()
            mine = self._runs.find(project, self._facts.run_id)
            if not mine:
                scope = self._client.scope(project)
                made = self._client.create_document("run", scope, run_spec(self._facts))
                mine = self._runs.agreed(project, self._facts.run_id, made)
            self._run_id = mine
        return self._run_id

    def update_run(self) -> bool:
        """Bring the run's document up to date; True when it had to be written.

        Raises:
            ApiError: Also with status 409, when somebody changed it meanwhile.
        """
        document = self._client.get_document(self.run())
        spec = updated_run(document["spec"], self._facts)
        if spec is None:
            return False
        self._client.update_document(document["id"], document["revision"], spec)
        return True

    def scope(self) -> dict[str, str]:
        """Return where participants and streams of the run live."""
        return self._client.scope(self.project_id(), self.run())

    # --- participants and streams -----------------------------------------------------------------

    def participant(self, writer: WriterId, facts: Facts | None = None) -> str:
        """Return the id of a process."""
        if writer not in self.participants:
            mine = self._of_run("participant", WRITER_LABEL).get(str(writer))
            if mine is None:
                spec = participant_spec(writer, facts or self._facts)
                with self._creating("participant"):
                    mine = self._client.create_document("participant", self.scope(), spec)
                if self._is_doubtful("participant"):
                    found = self._of_run("participant", WRITER_LABEL)
                    mine = found.get(str(writer), mine)
            self.participants[writer] = str(mine["id"])
        return self.participants[writer]

    def capability(self, ours: str, spec: Document) -> tuple[str, str]:
        """Return id and revision of a capability, which is created as `spec` where there is none.

        Args:
            ours: Its id in the run.
            spec: With the label that holds this id.
        """
        if ours not in self._capabilities:
            mine = self._of_run("capability", CAPABILITY_LABEL).get(ours)
            if mine is None:
                with self._creating("capability"):
                    mine = self._client.create_document("capability", self.scope(), spec)
                if self._is_doubtful("capability"):
                    mine = self._of_run("capability", CAPABILITY_LABEL).get(ours, mine)
            self._capabilities[ours] = (str(mine["id"]), str(mine["revision"]))
        return self._capabilities[ours]

    def streams(self, keys: Iterable[StreamKey]) -> dict[StreamKey, tuple[str, str]]:
        """Return id and revision of each stream; new ones are created together."""
        wanted = list(dict.fromkeys(keys))
        missing = [key for key in wanted if key not in self.known_streams]
        if missing:
            self._match_streams(missing)
            self._create_streams([key for key in missing if key not in self.known_streams])
            if self._is_doubtful("stream"):
                self._match_streams(missing)
        return {key: self.known_streams[key] for key in wanted}

    def _match_streams(self, keys: Iterable[StreamKey]) -> None:
        found = self._of_run("stream", STREAM_LABEL)
        for key in keys:
            mine = found.get(key.label)
            if mine is not None:
                self._remember(key, mine)

    def _create_streams(self, keys: Sequence[StreamKey]) -> None:
        if not keys:
            return
        scope = self.scope()
        documents = [
            {
                "kind": "stream",
                "scope": scope,
                "spec": stream_spec(key, self.participant(key.writer), self._facts.unit(key.name)),
            }
            for key in keys
        ]
        start = 0
        for end in _portions(documents):
            with self._creating("stream"):
                made = self._client.create_documents(documents[start:end])
                for key, document in zip(keys[start:end], made, strict=True):
                    self._remember(key, document)
            start = end

    def _remember(self, key: StreamKey, document: Document) -> None:
        self.known_streams[key] = (str(document["id"]), str(document["revision"]))

    # --- listing and creating ---------------------------------------------------------------------

    def _of_run(self, kind: str, label: str) -> Mapping[str, Document]:
        return self._list(kind, label, project_id=self.project_id(), run_id=self.run())

    def _list(self, kind: str, label: str, **scope: str) -> Mapping[str, Document]:
        """Return the documents of a kind by our label; asks the server only when it has to."""
        if kind not in self._listed:
            matches: dict[str, list[Document]] = {}
            for document in self._client.list_documents(kind, **scope):
                text = labels_of(document).get(label)
                if text:
                    matches.setdefault(str(text), []).append(document)
            self._found[kind] = {text: _oldest(those) for text, those in matches.items()}
            self._listed.add(kind)
        return self._found[kind]

    @contextmanager
    def _creating(self, kind: str) -> Iterator[None]:
        """Have a kind listed again unless the create inside gets its answer."""
        was_listed = kind in self._listed
        self._listed.discard(kind)
        try:
            yield
        except BaseException:
            self._doubtful.add(kind)
            raise
        if was_listed:
            self._listed.add(kind)

    def _is_doubtful(self, kind: str) -> bool:
        """Whether an earlier create of a kind failed, once; then it is to be listed again.

        That earlier one may have come through after it was looked for.
        """
        if kind not in self._doubtful:
            return False
        self._doubtful.discard(kind)
        self._listed.discard(kind)
        return True


def _project_of(facts: Facts) -> str:
    """Return the id of the project where the run was told one, else its name."""
    manifest = facts.manifest
    made_up = project_id_for(str(manifest.extra.get("organization", "")), manifest.project)
    was_told = _is_uuid(manifest.project_id) and manifest.project_id != made_up
    return manifest.project_id if was_told else manifest.project


def _portions(documents: Sequence[Document]) -> Iterator[int]:
    """Yield the ends of portions that fit one request each."""
    count = size = values = 0
    for index, document in enumerate(documents):
        document_size = len(encode(document)) + 1
        document_values = _VALUES_OF_A_STREAM + len(document["spec"]["axes"])
        is_full = (
            count == MAX_DOCUMENTS_PER_BATCH
            or size + document_size > _MAX_CREATE_BYTES
            or values + document_values > _MAX_CREATE_VALUES
        )
        if count and is_full:
            yield index
            count = size = values = 0
        count, size, values = count + 1, size + document_size, values + document_values
    if count:
        yield len(documents)


def _oldest(documents: Sequence[Document]) -> Document:
    return min(documents, key=lambda document: (instant(document), str(document["id"])))


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
