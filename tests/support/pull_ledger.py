"""What became of commands according to the ranks, the run and the server, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launchhelm.records import FINAL_STATES, Outcome
from launchhelm.store.reader import Reader
from tests.support.killed_job import Job, Note


@dataclass
class Recorded:
    """What the coordinators recorded of one command: states with their times, and final ones."""

    states: list[tuple[str, float]] = field(default_factory=list)
    finals: list[Outcome] = field(default_factory=list)

    @property
    def began_at(self) -> float:
        """When it was recorded as applying; 0 when it was not."""
        return next((at for state, at in self.states if state == "applying"), 0.0)

    @property
    def ended_at(self) -> float:
        """When its final state was recorded; infinity when none was."""
        return next((at for state, at in self.states if state in FINAL_STATES), float("inf"))


@dataclass
class Truth:
    """What ranks noted and coordinators recorded; `compare` holds the server against it."""

    size: int
    recorded: dict[str, Recorded]
    noted: dict[float, list[Note]]
    killed_at: Sequence[float]

    @classmethod
    def of(cls, directory: Path, job: Job) -> Truth:
        """Read a run and the notes of its ranks."""
        recorded: dict[str, Recorded] = {}
        for record in Reader(directory, kinds=("oc",), ranks=(0,)).poll():
            outcome = Outcome.parse(record.body)
            one = recorded.setdefault(outcome.command, Recorded())
            one.states.append((outcome.state, record.at))
            if outcome.is_final:
                one.finals.append(outcome)
        noted: dict[float, list[Note]] = {}
        for note in job.notes():
            noted.setdefault(note.value, []).append(note)
        return cls(job.size, recorded, noted, job.killed_at)

    def compare(self, commands: Sequence[Mapping[str, Any]]) -> Counter[str]:
        """Assert that all three agree about every command; return how the commands ended."""
        counts: Counter[str] = Counter()
        for command in commands:
            recorded = self.recorded.get(command["id"], Recorded())
            notes = self.noted.get(command["request"]["input"]["lr"], [])
            what = (command, recorded, notes)
            self._check_notes(notes, what)
            assert len(recorded.finals) <= 1, what
            execution = command["execution"]
            if execution == "applied":
                self._check_applied(command, recorded, notes, what)
            elif execution == "outcome_unknown":
                self._check_unknown(recorded, what)
            else:
                # Nobody may have begun, and nobody may have said anything else.
                assert execution in ("rejected", "cancelled") and not notes, what
                assert not recorded.began_at or recorded.finals, what
                states = {it.state for it in recorded.finals}
                assert states <= {"rejected", "expired"}, what
            self._count(counts, command, recorded, notes)
        known = {it["id"] for it in commands}
        assert self.recorded.keys() <= known, self.recorded.keys() - known
        values = {it["request"]["input"]["lr"] for it in commands}
        assert self.noted.keys() <= values, self.noted.keys() - values
        return counts

    def _check_notes(self, notes: Sequence[Note], what: object) -> None:
        """No rank began twice, in any attempt; and all of them in one attempt at one step."""
        for is_done in (False, True):
            ranks = Counter(note.rank for note in notes if note.is_done == is_done)
            assert not ranks or max(ranks.values()) == 1, what
        assert len({(note.attempt, note.step) for note in notes}) <= 1, what

    def _check_applied(
        self,
        command: Mapping[str, Any],
        recorded: Recorded,
        notes: Sequence[Note],
        what: object,
    ) -> None:
        assert [it.state for it in recorded.finals] == ["applied"], what
        done = {note.rank: note.step for note in notes if note.is_done}
        assert sorted(done) == list(range(self.size)), what
        told = [place["value"] for place in command["applied_at"]]
        assert told == [str(step) for step in set(done.values())], what
        assert command["applied_on"] == {"count": self.size, "of": self.size}, what

    def _check_unknown(self, recorded: Recorded, what: object) -> None:
        """A rank was killed after it was begun, and before anybody said what became of it."""
        assert {it.state for it in recorded.finals} <= {"outcome_unknown"}, what
        assert recorded.began_at, what
        assert any(recorded.began_at <= at <= recorded.ended_at for at in self.killed_at), what

    def _count(
        self,
        counts: Counter[str],
        command: Mapping[str, Any],
        recorded: Recorded,
        notes: Sequence[Note],
    ) -> None:
        code = command.get("failure_code", "")
        counts[f"ended: {command['execution']}{' ' if code else ''}{code}"] += 1
        if command["execution"] == "outcome_unknown":
            done = sum(note.is_done for note in notes)
            counts[f"unknown and applied on {done} of {self.size}"] += 1
        said = {it.code for it in recorded.finals}
        counts["ended with another code there"] += bool(said) and code not in said
