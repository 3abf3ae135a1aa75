"""A command of a server reaches the run once or not at all, and is answered once it has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome, WriterId
from launchhelm.store.inbox import send
from launchhelm.store.layout import CommandName, parse_command
from syncer import commands
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.commands import APPLIED_ON, Offer, Origin, Voice
from syncer.intents import Intents
from syncer.keys import Keys
from syncer.presence import Coordinator
from syncer.pull import RunPull
from tests.support.pushing import WrittenRun
from tests.support.v1_server import HandClock

PARTICIPANT = "55555555-5555-4555-8555-555555555555"
CAPABILITY = "44444444-4444-4444-8444-444444444444"
ID = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
OTHER = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
SERVER = "0123456789abcdef"
WRITER = WriterId(0, 1, "00010000")
OFFER = Offer(CAPABILITY, "1", "lr", frozenset({"lht"}))


def refused(status: int, code: str = "") -> ApiError:
    return ApiError(code or {409: "conflict"}.get(status, "validation"), "no", status=status)


def lost() -> ApiError:
    return ApiError("transport", "no answer", status=0, retryable=True)


@dataclass
class Far:
    """A server that does what a test wrote down; without a word it agrees.

    Attributes:
        offered: Commands that the next claims give.
        script: Per call, what the next ones of it raise or return.
        said: Every call but claims, with what it carried.
        during: Called in the middle of a call of that name.
        given: Fingerprints of the commands that it has, by id.
        refuse: What the next claims raise.
    """

    origin: str = "https://127.0.0.1"
    offered: list[dict[str, Any]] = field(default_factory=list)
    script: dict[str, list[Any]] = field(default_factory=dict)
    said: list[tuple[str, Any]] = field(default_factory=list)
    during: dict[str, Callable[[], object]] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    claims: int = 0
    refuse: list[ApiError] = field(default_factory=list)

    def claim(self, participant: str, epoch: str, wait_ms: int, *, token: str | None) -> Any:
        assert (participant, epoch, token) == (PARTICIPANT, "7", "bearer")
        self.claims += 1
        if self.refuse:
            raise self.refuse.pop()
        return self.offered.pop(0) if self.offered else None

    def begin(self, id_: str, lease: str, epoch: str, *, token: str | None) -> Any:
        return self._answer("begin", (id_, lease))

    def renew(self, id_: str, lease: str, epoch: str, *, token: str | None) -> Any:
        return self._answer("renew", (id_, lease))

    def get_command(self, id_: str, *, token: str | None) -> Any:
        if "get" in self.script:
            return self._answer("get", id_)
        if id_ not in self.given:
            raise refused(404)
        return {"fingerprint": self.given[id_]}

    def result(self, id_: str, body: dict[str, Any], *, token: str | None) -> Any:
        return self._answer("result", (id_, body))

    def create_key(self, body: dict[str, Any]) -> str:
        return "bearer"

    def _answer(self, name: str, given: Any) -> Any:
        self.said.append((name, given))
        self.during.get(name, lambda: None)()
        planned = self.script.get(name) or [{}]
        answer = planned.pop(0) if len(planned) > 1 or name in self.script else planned[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def words(self, *names: str) -> list[str]:
        return [name for name, _ in self.said if not names or name in names]

    @property
    def results(self) -> list[tuple[str, str, str, str]]:
        """Id, outcome, failure code and lease of each result that was sent."""
        bodies = [given for name, given in self.said if name == "result"]
        return [(id_, it["outcome"], it["failure_code"], it["lease_id"]) for id_, it in bodies]


class Speaker:
    """What a push would tell."""

    def __init__(self, far: Far, clock: HandClock) -> None:
        self.keys = Keys(far, clock)  # type: ignore[arg-type]  # It stands in for a client.
        self.voice: Voice | None = Voice(
            WRITER, PARTICIPANT, "7", {"run_id": "3"}, offers={CAPABILITY: OFFER}
        )
        self.coordinator: Coordinator | None = Coordinator(WRITER, "", clock.now)
        self.extensions = frozenset({APPLIED_ON})
        self.scope = {"run_id": "3"}
        self.is_replaced = False
        self.reported: frozenset[str] = frozenset()
        self.silence = ""
        self.remembered: list[str] = []
        self.notes: list[tuple[str, float | None]] = []

    def note_reported(self, command: str) -> None:
        self.remembered.append(command)

    def note_asked(self, why: str, asked_at: float | None = None) -> None:
        self.notes.append((why, asked_at))

    def look(self) -> None:
        """Nothing new."""


class Rig:
    """A run, a server and a clock."""

    def __init__(self, path: Path) -> None:
        self.clock = HandClock()
        self.began = self.clock.now
        self.far = Far()
        self.run = WrittenRun(path)
        self.speaker = Speaker(self.far, self.clock)
        self.control = self.run.directory / "control"
        self.pull = self.new_pull()

    def new_pull(self) -> RunPull:
        """Begin as a new process does."""
        return RunPull(
            self.run.directory,
            self.far,  # type: ignore[arg-type]  # It stands in for a client.
            self.speaker,
            SERVER,
            clock=self.clock,
            wait=self.wait,
        )

    def wait(self, seconds: float) -> None:
        """Let time pass; the coordinator moves meanwhile."""
        self.clock.now += seconds
        if self.speaker.coordinator is not None and not self.speaker.coordinator.end:
            self.speaker.coordinator = replace(self.speaker.coordinator, moved_at=self.clock.now)

    def command(self, id_: str = ID, *, lease: str = "lease-1", **changes: Any) -> dict[str, Any]:
        request = {
            "scope": {"organization_id": "1", "project_id": "2", "run_id": "3"},
            "capability": {"id": CAPABILITY, "kind": "capability", "revision": "1"},
            "participant_id": PARTICIPANT,
            "epoch": "7",
            "expected_state_revision": "0",
            "targets": [],
            "input": {"scale": 0.5},
            "safe_point": "lht",
            "expires_at": wire.timestamp(self.began + 600),
            "reason": "",
            **changes,
        }
        fingerprint = self.far.given[id_] = wire.fingerprint(request)
        return {"id": id_, "fingerprint": fingerprint, "lease_id": lease, "request": request}

    def offer(self, *given: dict[str, Any]) -> None:
        """Let the server have commands, and the pull turn once for each."""
        self.far.offered += given
        for _ in given:
            self.pull.turn()

    def turn(self, count: int = 1, seconds: float = 1.5) -> None:
        """Turn, with so much time before each."""
        for _ in range(count):
            self.wait(seconds)
            self.pull.turn()

    def names(self) -> list[str]:
        """The files of the inbox without what changes: `new`, `.srv`, `.srv-code`."""
        return sorted(it.name.rsplit(".", 3)[0] for it in self.control.iterdir())

    def record(self, state: str, id_: str = ID, **fields: Any) -> None:
        """Record a state of a command as the coordinator does."""
        origin = commands.origin_of(self.command(id_), SERVER)
        assert origin is not None
        server = {} if state == "applying" else origin.field()
        self.run.add("oc", Outcome(id_, state, name="lr", server=server, **fields).body())

    def take(self, id_: str = ID) -> None:
        """Take the file as the coordinator does."""
        name = CommandName(0, id_)
        (self.control / str(name)).rename(self.control / str(CommandName(0, id_, WRITER)))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_nothing_is_in_the_inbox_before_begin_was_granted(rig: Rig) -> None:
    seen: list[list[str]] = []
    rig.far.during["begin"] = lambda: seen.append(rig.names())
    rig.offer(rig.command())
    assert seen == [[".srv"]] and rig.names() == ["new"]
    (path,) = rig.control.iterdir()
    body = json.loads(path.read_text())
    assert (body["cmd"], body["kind"], body["args"]) == (ID, "lr", {"scale": 0.5})
    assert Origin.parse(body["server"], SERVER) is not None
    assert rig.far.words() == ["begin"]


def test_a_command_that_does_not_fit_is_answered_and_touches_nothing(rig: Rig) -> None:
    rig.offer(rig.command(safe_point="other"))
    assert rig.names() == [] and rig.far.words() == ["result"]
    assert rig.far.results == [(ID, "rejected", "undeclared_safe_point", "lease-1")]
    assert rig.speaker.remembered == [ID]


@pytest.mark.parametrize("status", [400, 403, 404, 409])
def test_a_begin_that_is_refused_delivers_nothing(rig: Rig, status: int) -> None:
    rig.far.script["begin"] = [refused(status)]
    rig.offer(rig.command())
    assert rig.names() == []
    assert rig.far.results == [(ID, "rejected", "begin_rejected", "lease-1")]


@pytest.mark.parametrize(
    ("begins", "gets", "is_delivered"),
    [
        ([lost()], [{"execution": "applying", "lease_id": "lease-1"}], True),
        ([lost(), {}], [{"execution": "claimed", "lease_id": "lease-1"}], True),
        ([lost(), refused(409)], [{"execution": "claimed", "lease_id": "lease-1"}], False),
        ([lost()], [lost(), lost(), {"execution": "applying", "lease_id": "lease-1"}], True),
        ([lost()], [{"execution": "applying", "lease_id": "lease-2"}], False),
        ([lost()], [{"execution": "rejected", "lease_id": "lease-1"}], False),
        ([refused(503)], [lost()] * 99, False),
        ([refused(429), *[lost()] * 98], [{"execution": "claimed"}] * 99, False),
    ],
)
def test_a_begin_without_an_answer_delivers_only_what_the_server_is_known_to_have_granted(
    rig: Rig, begins: list[Any], gets: list[Any], is_delivered: bool
) -> None:
    rig.far.script.update(begin=begins, get=gets)
    started = rig.clock.now
    rig.offer(rig.command())
    assert rig.names() == (["new"] if is_delivered else [])
    assert rig.clock.now - started < 60.0, "the lease lapses meanwhile"
    if not is_delivered:
        ((_, outcome, code, _),) = rig.far.results
        assert outcome == "rejected" and code in ("begin_uncertain", "begin_rejected")


def test_an_intent_that_somebody_refused_meanwhile_is_not_delivered_and_not_spoken_of(
    rig: Rig,
) -> None:
    def take_over() -> None:
        other = Intents(rig.run.directory)
        (intent,) = other.list().intents
        refused_one = other.refuse(intent, "runtime_restart")
        assert refused_one is not None
        other.drop(refused_one)

    rig.far.during["begin"] = take_over
    rig.offer(rig.command())
    assert rig.names() == [] and rig.far.results == []


def test_a_pull_that_is_stopped_while_its_claim_waits_delivers_what_it_is_given(rig: Rig) -> None:
    claim = rig.far.claim

    def stops(*given: Any, **options: Any) -> Any:
        rig.pull.stop()
        return claim(*given, **options)

    rig.far.claim = stops  # type: ignore[method-assign]
    rig.offer(rig.command())
    assert rig.names() == ["new"]
    rig.turn(3)
    assert rig.far.claims == 1
    rig.far.claim = claim  # type: ignore[method-assign]
    rig.record("claimed")
    rig.record("applied", result={})
    rig.pull = rig.new_pull()
    rig.turn()
    assert rig.far.results == [(ID, "applied", "", "lease-1")]


def test_what_somebody_delivered_under_an_earlier_lease_is_not_called_rejected(rig: Rig) -> None:
    other = rig.new_pull()

    def delivers() -> None:
        # Between the other's look at the run and its intent, the first holder wakes up.
        rig.far.during.clear()
        rig.far.script["begin"] = [{}, refused(409)]
        rig.far.offered = [rig.command()]
        rig.pull.turn()

    promise = other._intents.promise

    def late_promise(command: Any) -> Any:
        delivers()
        return promise(command)

    other._intents.promise = late_promise  # type: ignore[method-assign]
    rig.far.offered = [rig.command(lease="lease-2")]
    other.turn()
    assert rig.names() == ["new"] and rig.far.results == []
    rig.take()
    rig.record("claimed")
    rig.record("applied", result={})
    rig.wait(1.5)
    other.turn()
    assert [(id_, outcome) for id_, outcome, *_ in rig.far.results] == [(ID, "applied")]


def leave_intent(rig: Rig, server: str = SERVER) -> None:
    """Leave what a killed syncer leaves before it delivers."""
    origin = commands.origin_of(rig.command(), server)
    assert origin is not None
    Intents(rig.run.directory).promise(
        commands.inbox_command(
            rig.command()["request"], OFFER, origin, WRITER, issued_by="", now=rig.clock.now
        )
    )


def test_an_intent_that_was_left_behind_is_never_delivered_and_answered(rig: Rig) -> None:
    leave_intent(rig)
    rig.far.script["result"] = [lost(), {}]
    with pytest.raises(ApiError):
        rig.pull.turn()
    assert rig.names() == [".srv-runtime_restart"] and rig.far.claims == 0
    rig.turn()
    assert rig.names() == []
    assert rig.far.results == 2 * [(ID, "rejected", "runtime_restart", "lease-1")]
    assert rig.far.claims == 1


def test_an_intent_of_another_server_is_left_alone(rig: Rig) -> None:
    leave_intent(rig, "fedcba9876543210")
    rig.turn(3)
    assert rig.names() == [".srv"] and rig.far.said == [] and rig.far.claims == 3


def test_while_a_command_is_in_hand_none_is_claimed_and_its_lease_is_renewed(rig: Rig) -> None:
    rig.offer(rig.command())
    rig.turn(30, seconds=2.0)
    assert rig.far.claims == 1
    assert len(rig.far.words("renew")) == 3
    rig.record("applied", result={"lr": [0.5]}, applied_on=2, of=2)
    rig.turn(2)
    assert rig.far.results == [(ID, "applied", "", "lease-1")]
    assert rig.far.claims == 3


def test_a_command_in_the_run_is_taken_in_hand_by_the_next_syncer(rig: Rig) -> None:
    rig.offer(rig.command())
    rig.take()
    rig.record("claimed")
    rig.pull = rig.new_pull()
    rig.turn(3)
    assert rig.far.claims == 1 and rig.far.words("renew") == ["renew"]
    rig.record("applying")
    rig.record("outcome_unknown", code="DivergedStateError", applied_on=3, of=4)
    rig.turn()
    assert rig.far.results == [(ID, "outcome_unknown", "DivergedStateError", "lease-1")]
    assert rig.far.said[-1][1][1]["applied_on"] == {"count": 3, "of": 4}


def test_a_known_command_that_is_offered_again_gets_its_outcome_under_the_new_lease(
    rig: Rig,
) -> None:
    rig.record("claimed")
    rig.record("applied", result={})
    rig.turn()
    rig.offer(rig.command(lease="lease-2"))
    assert [lease for *_, lease in rig.far.results] == ["lease-1", "lease-2"]
    assert rig.far.words("begin") == [] and rig.names() == []


def test_a_command_that_waits_in_the_run_and_is_offered_again_is_not_delivered_again(
    rig: Rig,
) -> None:
    claim, before = rig.far.claim, []

    def meanwhile(*given: Any, **options: Any) -> Any:
        rig.far.claim = claim  # type: ignore[method-assign]
        rig.far.offered = [rig.command(), rig.command(lease="lease-2")]
        rig.new_pull().turn()  # Somebody who was thought to be gone.
        before.extend(rig.names())
        return claim(*given, **options)

    rig.far.claim = meanwhile  # type: ignore[method-assign]
    rig.turn()
    rig.record("applied", result={})
    rig.turn()
    assert before == ["new"] and rig.far.words("begin") == ["begin"]
    assert [lease for *_, lease in rig.far.results] == ["lease-2"]


def test_what_was_answered_and_is_in_no_record_is_rejected_when_it_is_offered_again(
    rig: Rig,
) -> None:
    rig.speaker.reported = frozenset({ID})
    rig.pull = rig.new_pull()
    rig.offer(rig.command())
    assert rig.far.results == [(ID, "rejected", "runtime_restart", "lease-1")]
    assert rig.names() == []


def test_outcomes_are_reported_without_a_thread_and_not_again_by_who_remembers(rig: Rig) -> None:
    rig.record("rejected", code="local_validation")
    rig.record("applied", OTHER, result={})
    rig.speaker.voice = None
    assert rig.pull.settle() and len(rig.far.results) == 2
    rig.speaker.reported = frozenset(rig.speaker.remembered)
    assert rig.new_pull().settle() and len(rig.far.results) == 2


def test_local_commands_and_those_of_other_servers_are_not_spoken_of(rig: Rig) -> None:
    run = rig.run
    run.add("oc", Outcome("local-1", "applied").body())
    origin = commands.origin_of(rig.command(), "fedcba9876543210")
    assert origin is not None
    run.add("oc", Outcome(ID, "applied", server=origin.field()).body())
    assert rig.pull.settle() and rig.far.said == []


@pytest.mark.parametrize(
    ("answers", "tries"),
    [
        ([refused(404, "not_found")], 1),
        ([refused(409)], 1),
        ([refused(400), {}], 2),
        ([refused(413), refused(413), {}], 3),
        ([refused(422)] * 3, 3),
    ],
)
def test_a_result_that_the_server_does_not_take_holds_nothing_up(
    rig: Rig, answers: list[Any], tries: int
) -> None:
    rig.far.script["result"] = answers
    rig.record("applied", result={"lr": 1}, applied_on=1, of=1)
    assert rig.pull.settle()
    assert len(rig.far.results) == tries
    assert [("applied_on" in given[1]) for _, given in rig.far.said] == [True, False, False][:tries]
    assert rig.speaker.remembered == [ID]


def test_a_result_that_cannot_be_sent_now_is_sent_later_and_before_anything_else(rig: Rig) -> None:
    rig.record("applied", result={})
    rig.far.script["result"] = [lost(), refused(503), {}]
    for _ in range(2):
        with pytest.raises(ApiError):
            rig.turn()
    assert rig.far.claims == 0 and rig.speaker.remembered == []
    rig.turn()
    assert rig.far.claims == 1 and rig.speaker.remembered == [ID]


@pytest.mark.parametrize("after_s", [0.0, 0.5, 60.0], ids=["before", "soon", "never"])
def test_what_is_offered_while_a_claim_waits_may_be_commanded_at_once(
    rig: Rig, after_s: float
) -> None:
    known = rig.speaker.voice
    assert known is not None
    rig.speaker.voice = replace(known, offers={})
    claim, wait, began = rig.far.claim, rig.pull._wait, rig.clock.now

    def publishes() -> None:
        if rig.clock.now - began >= after_s:
            rig.speaker.voice = known

    def claims(*given: Any, **options: Any) -> Any:
        publishes()
        return claim(*given, **options)

    def waits(seconds: float) -> None:
        wait(seconds)
        publishes()

    rig.far.claim = claims  # type: ignore[method-assign]
    rig.pull._wait = waits
    rig.offer(rig.command())
    assert rig.names() == (["new"] if after_s < 5.0 else [])
    if after_s >= 5.0:
        assert [code for _, _, code, _ in rig.far.results] == ["handler_unavailable_or_changed"]


def test_nothing_is_claimed_that_the_run_cannot_apply(rig: Rig) -> None:
    voice = rig.speaker.voice
    assert voice is not None
    rig.speaker.voice = None
    rig.turn(3)
    rig.speaker.voice = replace(voice, until=rig.clock.now)
    rig.turn(3)
    rig.speaker.voice = voice
    rig.run.attempt()
    rig.turn(3)
    assert rig.far.claims == 0


def test_a_process_that_ends_while_a_claim_waits_is_given_nothing(rig: Rig) -> None:
    claim = rig.far.claim

    def ends(*given: Any, **options: Any) -> Any:
        rig.speaker.coordinator = Coordinator(WRITER, "finished", rig.clock.now)
        return claim(*given, **options)

    rig.far.claim = ends  # type: ignore[method-assign]
    rig.offer(rig.command())
    assert rig.names() == []
    assert rig.far.results == [(ID, "rejected", "run_ended", "lease-1")]


@pytest.mark.parametrize(
    ("states", "is_taken", "said"),
    [
        ([], False, ("rejected", "run_ended")),
        ([], True, ("rejected", "runtime_restart")),
        (["claimed"], True, ("rejected", "runtime_restart")),
        (["claimed", "applying"], True, ("outcome_unknown", "runtime_restart")),
    ],
)
@pytest.mark.parametrize("end", ["gone", "finished"])
def test_a_coordinator_that_ended_without_a_word_is_answered_for_and_never_guessed(
    rig: Rig, states: list[str], is_taken: bool, said: tuple[str, str], end: str
) -> None:
    rig.offer(rig.command())
    if is_taken:
        rig.take()
    for state in states:
        rig.record(state)
    rig.turn(3)
    assert rig.far.results == []
    rig.speaker.coordinator = Coordinator(WRITER, end, rig.clock.now)
    rig.speaker.voice = None
    assert rig.pull.settle()
    assert [(outcome, code) for _, outcome, code, _ in rig.far.results] == [said]
    assert [name for name in rig.names() if name == "new"] == []


def test_a_newer_coordinator_that_lives_has_the_last_word(rig: Rig) -> None:
    rig.offer(rig.command())
    rig.take()
    rig.record("claimed")
    rig.run.attempt()
    newer = WriterId(0, 2, "00020000")
    rig.speaker.coordinator, rig.speaker.voice = Coordinator(newer, "", rig.clock.now), None
    rig.turn(20, seconds=30.0)
    assert rig.far.results == []
    rig.record("outcome_unknown", code="runtime_restart")
    rig.turn()
    assert rig.far.results == [(ID, "outcome_unknown", "runtime_restart", "lease-1")]


def test_a_silent_run_is_waited_for_beyond_the_end_of_the_command_and_its_lease_let_go(
    rig: Rig,
) -> None:
    rig.offer(rig.command())
    rig.take()
    rig.record("applying")
    rig.speaker.voice = None
    silent_since = rig.clock.now
    while rig.clock.now - silent_since < 700:
        rig.clock.now += 10.0
        rig.pull.turn()
    assert len(rig.far.words("renew")) <= 9 and rig.far.results == []
    for _ in range(5):
        rig.clock.now += 10.0
        rig.pull.turn()
    assert rig.far.results == [(ID, "outcome_unknown", "runtime_restart", "lease-1")]


def test_a_server_that_holds_no_claim_is_not_asked_without_a_pause(rig: Rig) -> None:
    assert rig.pull.turn() >= 1.0


def test_an_inbox_that_cannot_be_written_is_said(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("syncer.intents.write_durably", full)
    rig.offer(rig.command())
    assert rig.far.results == [(ID, "rejected", "inbox_unavailable", "lease-1")]


def test_a_local_command_beside_it_is_nobodys_concern_here(rig: Rig) -> None:
    from launchhelm.records import Command

    send(rig.run.directory, Command("local-1", "lr", {"scale": 2.0}))
    rig.turn(2)
    assert rig.far.claims == 2 and rig.far.said == []
    assert [parse_command(it.name) is not None for it in rig.control.iterdir()] == [True]


def test_what_stands_in_the_way_is_noted_after_each_turn(rig: Rig) -> None:
    voice = rig.speaker.voice
    assert voice is not None
    planned: list[Callable[[], object]] = [
        lambda: None,
        lambda: setattr(rig.speaker, "silence", "control is off in the run: rank 3 left"),
        lambda: setattr(rig.speaker, "silence", ""),
        lambda: rig.far.refuse.append(refused(401, "unauthorized")),
        lambda: setattr(rig.speaker, "voice", replace(voice, until=rig.clock.now)),
        lambda: setattr(rig.speaker, "voice", voice),
        lambda: rig.far.offered.append(rig.command()),
        lambda: None,
    ]

    def wait(seconds: float) -> None:
        rig.wait(seconds)
        if planned:
            planned.pop(0)()
        else:
            rig.pull.stop()

    rig.pull._wait = wait
    rig.pull._run()
    said = [why for why, _ in rig.speaker.notes]
    changes = [why for why, before in zip(said, [None, *said], strict=False) if why != before]
    off, refusal, busy = changes[1], changes[3], changes[5]
    assert changes == ["", off, "", refusal, "", busy]
    assert off == "control is off in the run: rank 3 left" and "refuses the key" in refusal
    assert busy == f"at the last look command {ID} was under way, and the next one waits for it"
    assert said.count(refusal) >= 2, "as long as nothing was asked since"
    assert all(at is not None for _, at in rig.speaker.notes)


@pytest.mark.parametrize(
    ("claims", "is_ended"),
    [(False, False), (False, True), (True, True)],
    ids=["local, waiting", "local, applied", "as if of the server"],
)
def test_a_command_whose_id_another_one_has_in_the_run_is_rejected(
    rig: Rig, claims: bool, is_ended: bool
) -> None:
    real = rig.command()
    origin = commands.origin_of(rig.command(reason="another"), SERVER)
    assert origin is not None
    rig.far.given[ID] = real["fingerprint"]
    server = origin.field() if claims else {}
    if is_ended:
        rig.run.add("oc", Outcome(ID, "applied", name="lr", server=server).body())
        rig.turn()
        assert rig.far.results == []
    else:
        send(rig.run.directory, Command(ID, "lr", {"scale": 9.0}, server=server))
    rig.offer(real)
    assert rig.far.results == [(ID, "rejected", "id_taken", "lease-1")]
    assert ".srv" not in rig.names() and "begin" not in rig.far.words()


def test_whoever_was_replaced_says_and_asks_nothing_more(rig: Rig) -> None:
    rig.offer(rig.command())
    rig.record("applied")
    rig.speaker.is_replaced = True
    said, claims = list(rig.far.said), rig.far.claims
    rig.turn(30)
    assert (rig.far.said, rig.far.claims) == (said, claims)


def test_what_only_says_that_it_comes_from_the_server_is_not_spoken_of(rig: Rig) -> None:
    rig.record("applied")
    rig.far.given.clear()
    rig.turn(3)
    assert rig.far.results == [] and rig.far.claims == 3
    rig.record("applied", OTHER)
    rig.far.script["get"] = [lost(), refused(403)]
    with pytest.raises(ApiError):
        rig.turn()
    rig.turn()
    assert [it[0] for it in rig.far.results] == [OTHER], "a key that may not look reports"
