"""A run on a server as whoever commands it sees it: its document, its controls, its sessions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final  # Any: JSON of the API.

from launchhelm import _wording
from launchhelm.cli._remote_words import SILENT_AFTER_S, seconds
from launchhelm.errors import Conflict, NotFound
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.naming import NAME_LABEL, RUN_LABEL

Json = dict[str, Any]

LATEST: Final = "latest"
_SHOWN: Final = 5


@dataclass(frozen=True)
class Found:
    """A run on a server.

    Args:
        id: Of its document.
        local_id: The id of its run directory, when it came from one.
    """

    id: str
    local_id: str
    name: str
    state: str
    scope: Json

    @property
    def title(self) -> str:
        """The name, safe to print."""
        return _wording.plain(self.name)


@dataclass(frozen=True)
class Session:
    """Where the newest session of a participant stands; fields as a command must name them.

    Args:
        open_commands: Those that were given and have not ended, as far as the server tells.
    """

    epoch: str
    state_revision: str
    safe_points: Sequence[str]
    silent_s: float
    step: int | None
    now: float
    ended: str
    open_commands: int = 0

    @property
    def place(self) -> tuple[str, str]:
        """What a command must name to be taken."""
        return (self.epoch, self.state_revision)

    @property
    def is_lost(self) -> bool:
        """Whether it was not heard of for long."""
        return self.silent_s > SILENT_AFTER_S


@dataclass(frozen=True)
class Offer:
    """One control that some participant of a run offers."""

    document: Json
    session: Session | None

    @property
    def spec(self) -> Json:
        """The capability as it was registered."""
        return dict(self.document["spec"])

    @property
    def participant_id(self) -> str:
        """Who carries it out."""
        return str(self.document["spec"].get("participant_id", ""))

    @property
    def is_live(self) -> bool:
        """Whether a command may still have an effect."""
        return self.session is not None and not self.session.ended

    def safe_point(self) -> str:
        """Return where the command is to be applied: a place that the process passes, if any."""
        offered = [str(name) for name in self.spec.get("safe_points") or ()]
        passed = self.session.safe_points if self.session is not None else ()
        return next((name for name in offered if name in passed), offered[0] if offered else "")


@dataclass
class RunOnServer:
    """One run, asked for what it offers.

    Raises:
        ApiError: Of every method: the server cannot be asked.
    """

    client: Client
    found: Found
    _sessions: dict[str, Session | None] = field(default_factory=dict)

    @property
    def scope(self) -> Json:
        """The scope of what belongs to the run."""
        project_id = str(self.found.scope.get("project_id", ""))
        return self.client.scope(project_id, self.found.id)

    def capabilities(self) -> list[Json]:
        """Return the documents of all controls that ever were, oldest first."""
        scope = self.scope
        return list(
            self.client.list_documents("capability", scope.get("project_id", ""), self.found.id)
        )

    def names(self) -> dict[str, str]:
        """Return the name of every control that ever was, by the id of its document."""
        return {str(each["id"]): str(each["spec"].get("name")) for each in self.capabilities()}

    def offers(self) -> dict[str, Offer]:
        """Return the newest offer of each control: live ones, and where none is live, all."""
        newest: dict[str, Offer] = {}
        for document in reversed(self.capabilities()):
            name = str(document["spec"].get("name", ""))
            if name in newest and newest[name].is_live:
                continue
            participant_id = str(document["spec"].get("participant_id", ""))
            offer = Offer(document, self.session(participant_id))
            if name not in newest or offer.is_live:
                newest[name] = offer
        live = {name: offer for name, offer in newest.items() if offer.is_live}
        return dict(sorted((live or newest).items()))

    def session(self, participant_id: str, *, again: bool = False) -> Session | None:
        """Return the newest session of a participant; None when the server tells of none."""
        if again or participant_id not in self._sessions:
            try:
                self._sessions[participant_id] = _session(self.client.session(participant_id))
            except ApiError as error:
                if error.status != 404:
                    raise
                self._sessions[participant_id] = None
        return self._sessions[participant_id]


def refusal_of(there: RunOnServer, offers: Mapping[str, Offer]) -> str:
    """Say why no command can have an effect, "" when one may."""
    title = there.found.title
    if there.found.state == "closed":
        return f"{title} has ended; a command would have no effect."
    if not offers:
        return f"{title} declares no controls on this server."
    if any(offer.is_live for offer in offers.values()):
        return ""
    if all(offer.session is None for offer in offers.values()):
        return (
            f"The server tells of no session of {title}: it has none, or the server cannot be "
            "asked for one."
        )
    return f"{title} has ended its session; a command would have no effect."


def find(client: Client, project: str, selector: str) -> Found:
    """Return the run that a person means: an id here or there, its unique beginning, a name, or
    `latest`.

    Raises:
        NotFound: No run fits.
        Conflict: Several fit; the message lists them.
        ApiError: The server cannot be asked.
    """
    project_id = _project_id(client, project)
    if _is_id(selector):
        try:
            document = client.get_document(selector)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            if document["kind"] == "run":
                return _found(document)
    runs = [_found(each) for each in client.list_documents("run", project_id)]
    if selector == LATEST and runs:
        return runs[-1]
    wanted = selector.lower()
    for tests in (
        lambda run: wanted in (run.id, run.local_id),
        lambda run: selector == run.name,
        lambda run: run.id.startswith(wanted) or run.local_id.startswith(wanted),
    ):
        fitting = [run for run in runs if tests(run)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            shown = ", ".join(
                f"{run.title} ({run.id}, {run.state})" for run in fitting[-_SHOWN:][::-1]
            )
            raise Conflict(
                f"{len(fitting)} runs on the server fit {_wording.plain(selector)}: {shown}"
                f"{' and others' if len(fitting) > _SHOWN else ''}.",
                remedy="Give the id.",
            )
    raise NotFound(
        f"The server has no run {_wording.plain(selector)}.",
        remedy="Has it been sent there? See: launchhelm status",
    )


def _project_id(client: Client, project: str) -> str:
    if not project or _is_id(project):
        return project
    found = [
        str(each["id"])
        for each in client.list_documents("project")
        if each["spec"].get("name") == project
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"The server has no project {_wording.plain(project)}.")
    raise Conflict(
        f"{len(found)} projects are called {_wording.plain(project)}: {', '.join(found)}.",
        remedy="Give the id.",
    )


def _found(document: Json) -> Found:
    spec = document["spec"]
    labels = spec.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    return Found(
        id=str(document["id"]),
        local_id=str(labels.get(RUN_LABEL) or ""),
        name=str(labels.get(NAME_LABEL) or spec.get("name") or document["id"]),
        state=str(spec.get("state") or ""),
        scope=dict(document["scope"]),
    )


def _session(answer: Json) -> Session:
    silent_s = answer.get("silent_s")
    silent_s = float(silent_s) if isinstance(silent_s, int | float) else 0.0
    step = str(answer.get("step") or "")
    waiting = answer.get("open_commands")
    ended = str(answer.get("end_reason") or "ended") if answer.get("ended_at") else ""
    return Session(
        epoch=str(answer["epoch"]),
        state_revision=str(answer.get("state_revision", "0")),
        safe_points=[str(name) for name in answer.get("safe_points") or ()],
        silent_s=silent_s,
        step=int(step) if step.isdecimal() else None,
        # By the server's clock, which decides what has expired.
        now=seconds(answer.get("last_seen_at")) + silent_s,
        ended=ended,
        open_commands=waiting if isinstance(waiting, int) else 0,
    )


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
