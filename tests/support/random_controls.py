"""Drive ranks through random commands, faults, stops and leaves, and judge what became of it.

    played = play(root, ranks=4, count=1000, seed=7, deadline_s=900.0)
    print(played)

What is commanded comes from what the run has published, by the table in `orders`. What must be true
is computed here from the commands alone, and compared with the notes that each rank makes of its
own torch objects after every step. Everything random comes from the seed.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.records import FINAL_STATES, Command, Outcome
from launchhelm.store import inbox
from launchhelm.store.reader import Reader
from tests.support.journals import only_run, records, wait_until
from tests.support.orders import KINDS, Order, orders
from tests.support.random_job import PHASES, train
from tests.support.ranks import Ranks

SINGLE = {"write"}
"""What rank 0 alone holds."""

NOT_RANDOM = {"stop", "pause", "resume"}
"""They end or hold the loop, so they are sent on purpose."""


HANDLERS = {"checkpoint", "eval", "ping"}
"""They have nothing to take back, and nothing to read."""


@dataclass
class Sent:
    """A command, the order behind it, and the rank and phase that was made to fail."""

    command: Command
    order: Order
    fault: tuple[int, str] | None = None


@dataclass
class Episode:
    """One trainer: what was sent, and how it was ended.

    Args:
        number: Which.
        run: Its directory.
        leaver: The rank that was told to leave.
    """

    number: int
    run: Path
    sent: list[Sent] = field(default_factory=list)
    leaver: int | None = None
    diverged: tuple[int, str] | None = None


@dataclass
class Played:
    """What was done in all."""

    seed: int
    ranks: int
    episodes: int = 0
    steps: int = 0
    scheduled: int = 0
    stops: int = 0
    leaves: int = 0
    states: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.ranks} ranks, {sum(self.states.values())} commands "
            f"{dict(self.states)}, {self.episodes} trainers, {self.steps} steps, "
            f"{self.scheduled} for a step, {self.stops} stops, {self.leaves} leaves, "
            f"faults {dict(self.phases)}"
        )


def play(root: Path, *, ranks: int, count: int, seed: int, deadline_s: float) -> Played:
    """Send `count` commands, and check every step of every episode.

    Raises:
        AssertionError: Something was not true; the seed brings it back.
    """
    return _Driver(root, ranks, seed, deadline_s).play(count)


class _Driver:
    def __init__(self, root: Path, ranks: int, seed: int, deadline_s: float) -> None:
        self._runs, self._notes = root / "runs", root / "notes"
        self._notes.mkdir(parents=True)
        self._dice = random.Random(seed)
        self._size = ranks
        self._deadline_s = deadline_s
        self._played = Played(seed, ranks)
        self._sent = 0

    def play(self, count: int) -> Played:
        with Ranks(
            train,
            self._size,
            deadline_s=self._deadline_s,
            root=str(self._runs),
            notes=str(self._notes),
            seed=self._played.seed,
        ) as self._ranks:
            episode = self._begin(0)
            while self._sent < count:
                if not self._act(episode):
                    self._judge(episode)
                    episode = self._begin(episode.number + 1)
            self._end(episode, "job")
            ended = self._ranks.wait()
            self._judge(episode)
        assert all(one.code == 0 for one in ended), self._about(str(ended))
        return self._played

    # What is done.

    def _begin(self, number: int) -> Episode:
        for rank in range(self._size):
            self._ranks.wait_for(rank, f"training.{number}")
        run = only_run(self._runs / str(number))
        wait_until(lambda: "set_label" in _offered(run), "the capabilities", timeout_s=60.0)
        return Episode(number, run)

    def _act(self, episode: Episode) -> bool:
        """Do one thing; returns whether the episode goes on."""
        lot = self._dice.random()
        if lot < 0.12:
            return self._fail(episode)
        if lot < 0.15:
            return self._leave(episode)
        if lot < 0.22:
            pause, resume = Order("pause", {}), Order("resume", {})
            for order in (pause, self._good(episode)[0], resume):
                self._await(episode, [self._send(episode, order)])
            return True
        stopped = self._dice.randrange(self._size) if lot < 0.35 else None
        if stopped is not None:
            self._ranks.kill(stopped, signal.SIGSTOP)
            self._played.stops += 1
        # Now and then all are for one step, or for steps close to each other.
        first = self._step(episode) + self._dice.randint(10, 60) if self._dice.random() < 0.3 else 0
        burst = [
            self._send(
                episode,
                order,
                odd=self._dice.random(),
                first=first + self._dice.choice((0, 0, 1, 2)) if first and not order.local else 0,
            )
            for order in self._orders(episode, self._dice.randint(1, 4))
        ]
        if stopped is not None:
            time.sleep(self._dice.uniform(0.02, 0.5))  # The stop itself.
            self._ranks.kill(stopped, signal.SIGCONT)
        self._await(episode, burst)
        return True

    def _fail(self, episode: Episode) -> bool:
        order = next(each for each in self._orders(episode, 50) if _is_good(each))
        phase = self._dice.choice(PHASES if order.name not in HANDLERS else ("validate", "apply"))
        # Which of two ranks is the odd one, nobody can tell: the norm is then that of rank 0.
        rank = self._dice.randrange(1 if phase == "odd" and self._size == 2 else 0, self._size)
        path = self._notes / f"fault.{rank}"
        path.write_text(phase)
        self._played.phases[phase] += 1
        end = "rejected" if phase == "validate" else "outcome_unknown"
        sent = self._send(episode, replace(order, end=end, code=""), fault=(rank, phase))
        self._await(episode, [sent])
        if end == "outcome_unknown":
            episode.diverged = (rank, phase)
            self._finished(episode)
        path.unlink()
        return end == "rejected"

    def _leave(self, episode: Episode) -> bool:
        episode.leaver = self._dice.randrange(self._size)
        self._played.leaves += 1
        (self._notes / f"leave.{episode.number}").write_text(str(episode.leaver))
        others = set(range(self._size)) - {episode.leaver}
        wait_until(
            lambda: all(_heard(episode.run, rank, episode.leaver) for rank in others),
            self._about(f"all to hear that rank {episode.leaver} left"),
            timeout_s=60.0,
        )
        if episode.leaver != 0:
            for order in self._good(episode)[:2]:
                late = replace(order, end="rejected", code="rank_gone")
                self._await(episode, [self._send(episode, late)])
        self._end(episode, "episode")
        self._finished(episode)
        return False

    def _orders(self, episode: Episode, count: int) -> list[Order]:
        names = sorted((_offered(episode.run) & set(KINDS)) - NOT_RANDOM)
        made = orders(names, 2 * len(names) + count, seed=self._dice.randrange(1 << 30))
        return made[:count]

    def _good(self, episode: Episode) -> list[Order]:
        """Make orders that every rank would apply."""
        return [each for each in self._orders(episode, 50) if _is_good(each)]

    def _send(
        self,
        episode: Episode,
        order: Order,
        odd: float = 1.0,
        fault: tuple[int, str] | None = None,
        first: int = 0,
    ) -> Sent:
        self._sent += 1
        more: dict[str, Any] = {}
        if order.end != "applied":
            odd = 1.0
        if odd < 0.05:
            more, order = {"last_step": 1}, replace(order, end="expired", code="")
        elif odd < 0.1:
            more = {"expected": {"set_depth": 77}}
            order = replace(order, end="rejected", code="changed_meanwhile")
        if first:
            more["first_step"] = first
            self._played.scheduled += 1
        command = Command(f"c{self._sent}", order.name, order.given, issued_by="chance", **more)
        sent = Sent(command, order, fault)
        episode.sent.append(sent)
        inbox.send(episode.run, command)
        return sent

    def _step(self, episode: Episode) -> int:
        """Return the step at which rank 0 is about now."""
        return len((self._notes / f"{episode.number}.0").read_bytes().splitlines())

    def _await(self, episode: Episode, sent: list[Sent]) -> None:
        reader = Reader(episode.run, kinds=("oc",), ranks=(0,))
        waiting = {each.command.id for each in sent}

        def all_ended() -> bool:
            for record in reader.poll():
                outcome = Outcome.parse(record.body)
                if outcome.state in FINAL_STATES:
                    waiting.discard(outcome.command)
            return not waiting

        wait_until(all_ended, self._about(f"{sent} to end"), timeout_s=90.0)

    def _end(self, episode: Episode, what: str) -> None:
        path = self._notes / f"end.{episode.number}"
        path.with_suffix(".part").write_text(what)
        path.with_suffix(".part").rename(path)

    def _finished(self, episode: Episode) -> None:
        """Wait until every rank has closed this episode."""
        wait_until(
            lambda: len(records(episode.run, "close")) == self._size,
            self._about("all ranks to end the episode"),
            timeout_s=90.0,
        )

    # What must be true.

    def _judge(self, episode: Episode) -> None:
        notes = [
            [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            for path in (self._notes / f"{episode.number}.{rank}" for rank in range(self._size))
        ]
        outcomes = self._outcomes(episode)
        ends = [lines.pop() if "diverged" in lines[-1] else None for lines in notes]
        self._judge_ranks(notes)
        self._judge_outcomes(episode, outcomes)
        held = self._judge_steps(episode, outcomes, notes)
        self._judge_end(episode, ends, held)
        self._played.episodes += 1
        self._played.steps += len(notes[0])

    def _outcomes(self, episode: Episode) -> list[Outcome]:
        """Return the one final outcome of each command, in order."""
        found = [Outcome.parse(record.body) for record in records(episode.run, "oc")]
        final = [each for each in found if each.state in FINAL_STATES]
        sent = Counter(each.command.id for each in episode.sent)
        assert Counter(each.command for each in final) == sent, self._about(str(final))
        self._played.states.update(each.state for each in final)
        return final

    def _judge_ranks(self, notes: list[list[dict[str, Any]]]) -> None:
        """Every rank holds the same after every step, to the last bit."""
        for rank, lines in enumerate(notes):
            assert len(lines) == len(notes[0]), self._about(f"rank {rank}: {len(lines)} steps")
            for step, (ours, theirs) in enumerate(zip(notes[0], lines, strict=True), start=1):
                differ = {key for key in ours if ours[key] != theirs[key]} - SINGLE
                assert not differ, self._about(f"step {step}, rank {rank}: {differ}")

    def _judge_outcomes(self, episode: Episode, outcomes: list[Outcome]) -> None:
        by_id = {each.command: each for each in outcomes}
        for sent in episode.sent:
            outcome, order = by_id[sent.command.id], sent.order
            why = self._about(f"{sent}: {outcome}")
            end = "rejected" if order.end == "refused" else order.end
            assert outcome.state == end, why
            assert not order.code or outcome.code == order.code, why
            if outcome.state == "applied" and not order.local:
                assert (outcome.applied_on, outcome.of) == (self._size, self._size), why
            if outcome.state == "applied" and not order.local:
                assert outcome.applied_at["step"] >= (sent.command.first_step or 0), why
            if sent.fault is not None:
                rank, phase = sent.fault
                # A rank that takes nothing back is named for that too; it is still one rank.
                assert {each[0] for each in outcome.failures} == {rank}, why
                if phase != "validate":
                    assert (outcome.applied_on, outcome.of) == (self._size - 1, self._size), why
                    is_undone = phase != "rollback" and order.name not in HANDLERS
                    assert outcome.rolled_back is is_undone, why

    def _judge_steps(
        self, episode: Episode, outcomes: list[Outcome], notes: list[list[dict[str, Any]]]
    ) -> dict[str, Any]:
        """What is held changes where the outcomes say, to what the commands ask, nowhere else."""
        orders_by_id = {each.command.id: each.order for each in episode.sent}
        changes: dict[int, list[Order]] = {}
        for outcome in outcomes:
            if outcome.state == "applied":
                step = int(outcome.applied_at["step"])
                changes.setdefault(step, []).append(orders_by_id[outcome.command])
        held = {key: value for key, value in notes[0][0].items() if key not in _MOVING}
        last = len(notes[0])
        assert all(1 < step <= last for step in changes), self._about(str(changes))
        for step, line in enumerate(notes[0], start=1):
            raw, clipped = line["norms"]
            limit = held["grad_clip"]
            expected = raw if limit is None else min(raw, limit)
            assert clipped == pytest.approx(expected, rel=1e-3, abs=1e-6), self._about(
                f"step {step}: norm {raw} became {clipped} under a limit of {limit}"
            )
            for order in changes.get(step, ()):
                held.update(order.effect(held))
            for key, value in held.items():
                same = line[key] == value
                if not same and key in ("lr", "weight_decay"):
                    same = line[key] == pytest.approx(value, rel=1e-12)
                assert same, self._about(
                    f"step {step}: {key} is {line[key]}, not {value}; {changes.get(step)}"
                )
        return held

    def _judge_end(
        self, episode: Episode, ends: list[dict[str, Any] | None], held: dict[str, Any]
    ) -> None:
        """All ranks raised and name the right rank, or none did."""
        if episode.diverged is None:
            assert ends == [None] * self._size, self._about(str(ends))
            return
        faulty, phase = episode.diverged
        order = episode.sent[-1].order
        for rank, end in enumerate(ends):
            assert end is not None, self._about(f"rank {rank} did not raise")
            named = {each for each, _ in end["diverged"]["failures"]}
            assert named == {faulty}, self._about(f"rank {rank}: {end}")
            is_undone = phase != "rollback" and order.name not in HANDLERS
            assert end["diverged"]["consistent"] is is_undone, self._about(f"rank {rank}: {end}")
            is_stuck = not is_undone and (rank == faulty or order.name in HANDLERS)
            for key, value in {**held, **(order.effect(held) if is_stuck else {})}.items():
                same = end["held"][key] == value or key in SINGLE
                assert same or end["held"][key] == pytest.approx(value, rel=1e-12), self._about(
                    f"rank {rank} holds {key} {end['held'][key]}, not {value}"
                )

    def _about(self, what: str) -> str:
        return f"seed {self._played.seed}, {self._size} ranks, {self._sent} sent: {what}"


_MOVING = ("weights", "norms")


def _is_good(order: Order) -> bool:
    return order.end == "applied" and not order.local


def _offered(run: Path) -> set[str]:
    return set(views.open_run(run).capabilities)


def _heard(run: Path, rank: int, leaver: int | None) -> bool:
    return any(
        f"rank {leaver} " in str(record.body.get("text"))
        for record in records(run, "ev", rank=rank)
    )
