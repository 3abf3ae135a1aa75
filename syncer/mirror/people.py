"""The processes of a run as a server knows them: who they are, and when they were last heard of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final  # Any: JSON of documents.

from launchhelm.records import WriterId
from launchhelm.store.layout import parse_writer
from syncer.naming import NAME_LABEL, WRITER_LABEL
from syncer.runindex import labels_of
from syncer.server.documents import Document

_RANK: Final = "launchhelm.rank"
_LOCAL_RANK: Final = "launchhelm.local_rank"
_PID: Final = "launchhelm.offline.pid"
_HOST: Final = "launchhelm.offline.host"


@dataclass(frozen=True, slots=True)
class Person:
    """One process.

    Args:
        id: Of its document.
        is_ours: Our syncer speaks for it, and sends its records.
    """

    id: str
    writer: WriterId
    name: str
    role: str
    host: str
    pid: int | None
    local_rank: int | None
    labels: Mapping[str, str]
    created_at: float
    is_ours: bool


def people(participants: Iterable[Document]) -> list[Person]:
    """Read the participants of a run, in the order of their creation.

    One that another client made has the rank of its label, else its place among all; one of the
    same name as an earlier one is the next attempt.
    """
    found: list[Person] = []
    names: Counter[str] = Counter()
    for document in participants:
        spec = document["spec"]
        labels = {str(key): str(text) for key, text in labels_of(document).items()}
        name = str(labels.get(NAME_LABEL) or spec.get("name") or "")
        writer = parse_writer(labels.get(WRITER_LABEL, ""))
        names[name] += 1
        rank = _integer(labels.get(_RANK))
        if rank is None:
            rank = len({each.name for each in found if not each.is_ours} - {name})
        token = str(document["id"]).replace("-", "")[-8:].lower()
        found.append(
            Person(
                id=str(document["id"]),
                writer=writer or WriterId(rank, names[name], token),
                name=name,
                role=str(spec.get("role") or ""),
                host=labels.get(_HOST, ""),
                pid=_integer(labels.get(_PID)),
                local_rank=_integer(labels.get(_LOCAL_RANK)),
                labels=labels,
                created_at=float(document["created_at"]),
                is_ours=writer is not None,
            )
        )
    return found


def opening(person: Person, world: int | None) -> dict[str, Any]:
    """Return what stands in the first line of a process's files.

    Boot and start of the process are left out: the server is another host, and could not judge.
    """
    said = {
        "rank": person.writer.rank,
        "attempt": person.writer.attempt,
        "world": world,
        "host": person.host,
        "pid": person.pid,
        "t": person.created_at,
        "participant": {
            "id": person.id,
            "name": person.name,
            "role": person.role,
            "labels": dict(person.labels),
            "local_rank": person.local_rank,
        },
    }
    return {name: value for name, value in said.items() if value is not None}


def _integer(text: Any) -> int | None:
    text = str(text)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
