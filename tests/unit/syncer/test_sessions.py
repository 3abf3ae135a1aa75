"""Sessions of a run's processes, against a client that answers as a test says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from launchhelm.records import WriterId
from launchhelm.views import ParticipantView
from launchhelm.views.liveness import Age
from syncer.api.answers import ApiError
from syncer.keys import Keys
from syncer.sessions import BEAT_S, Sessions
from tests.support.runs import TurnedClock


@dataclass
class Server:
    """A client, and the server behind it: `failures` by participant."""

    failures: dict[str, ApiError] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    def connect(self, participant: str, instance: str, **options: Any) -> dict[str, Any]:
        return {"epoch": "1"}

    def heartbeat(self, participant: str, epoch: str, **options: Any) -> dict[str, Any]:
        if participant in self.failures:
            raise self.failures[participant]
        self.heard.append(participant)
        return {"epoch": epoch}

    def create_key(self, body: Any) -> str:
        return ""


class Ids:
    """The ids of participants are their ranks."""

    def participant(self, writer: WriterId) -> str:
        return str(writer.rank)

    def scope(self) -> dict[str, str]:
        return {}


class Job:
    """Three ranks that move, and those who speak for them."""

    def __init__(self) -> None:
        self.clock, self.server = TurnedClock(), Server()
        client: Any = self.server
        ids: Any = Ids()
        self.sessions = Sessions(client, ids, self.clock, Keys(client, self.clock))
        self.rows = [
            ParticipantView(
                writer=WriterId(rank, 1, "0000000a"),
                rank=rank,
                attempt=1,
                state="training",
                host="",
                pid=None,
                local_rank=None,
                group_rank=None,
                world_size=3,
                step=None,
                phase="training",
                phase_s=None,
                age=Age(0.0, True),
                lag=None,
                counter=0,
            )
            for rank in range(3)
        ]
        self.sessions.beat(self.rows)  # What is seen for the first time may be years old.

    def beat(self, after_s: float) -> list[str]:
        """Move every rank, speak for them, and return who was heard of."""
        self.clock.turn(after_s)
        self.rows = [replace(row, counter=(row.counter or 0) + 1) for row in self.rows]
        self.server.heard.clear()
        self.sessions.beat(self.rows)
        return self.server.heard


@pytest.fixture
def job() -> Job:
    return Job()


def test_a_participant_that_the_server_refuses_keeps_no_other_from_being_heard_of(job: Job) -> None:
    job.server.failures["1"] = ApiError("not_found", "There is no such session.", status=404)
    for _ in range(2):
        with pytest.raises(ApiError, match="no such session"):
            job.beat(BEAT_S)
        assert job.server.heard == ["0", "2"]


def test_a_server_that_does_not_answer_is_not_asked_for_every_participant(job: Job) -> None:
    job.server.failures["0"] = ApiError("transport", "Nobody is there.", retryable=True)
    with pytest.raises(ApiError, match="Nobody"):
        job.beat(BEAT_S)
    assert job.server.heard == []


def test_who_comes_by_a_moment_early_does_not_wait_for_the_next_turn(job: Job) -> None:
    assert job.beat(BEAT_S) == ["0", "1", "2"]
    assert job.beat(BEAT_S - 1.001) == ["0", "1", "2"]
    assert job.beat(1.0) == []
