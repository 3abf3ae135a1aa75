"""Whatever dies in between, and whoever else holds the run: a command acts at most once.

A coordinator is driven by hand and killed at every point where it touches something; the next
attempt then comes, and the sender sends again. Two coordinators that both believe in themselves are
driven in every order that chance finds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launchhelm._buffer import Ticket
from launchhelm._commands import CommandDesk
from launchhelm._run_service import Service
from launchhelm.controls import schema
from launchhelm.models import Capability, Scope, opaque_schema
from launchhelm.records import WriterId
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import Inbox
from launchhelm.store.layout import CommandName
from launchhelm.store.manifest import Attempt, take_attempt
from tests.support.journals import final_outcomes
from tests.support.runs import DirectRecorder, TurnedClock, empty_run, send

SET_LR = Capability(
    "set_lr",
    "script",
    "1",
    schema.record([schema.field("lr", schema.number())]),
    opaque_schema(),
    ("after_step",),
)


class Killed(BaseException):
    """The process is gone; nothing of it runs any more."""


@dataclass
class Fate:
    """Kills at the n-th point passed; None never does."""

    kill_at: int | None = None
    passed: int = 0

    def point(self) -> None:
        self.passed += 1
        if self.passed == self.kill_at:
            raise Killed


@dataclass
class World:
    """What outlives a process: the run directory, the time, and what handlers did."""

    run: Path
    clock: TurnedClock = field(default_factory=TurnedClock)
    effects: list[tuple[str, int]] = field(default_factory=list)


class FatedInbox(Inbox):
    fate: Fate

    def _claim(self, name: CommandName) -> CommandName | None:
        self.fate.point()
        taken = super()._claim(name)
        self.fate.point()
        return taken

    def remove(self, name: CommandName) -> bool:
        self.fate.point()
        return super().remove(name)


class FatedRecorder(DirectRecorder):
    fate: Fate

    def append_urgent(
        self, kind: str, body: Mapping[str, Any], *, step: int | None = None
    ) -> Ticket:
        self.fate.point()
        ticket = super().append_urgent(kind, body, step=step)
        self.fate.point()
        return ticket


class Coordinator:
    """One process of rank 0, driven call by call."""

    def __init__(self, world: World, kill_at: int | None = None) -> None:
        self.world = world
        self.fate = Fate()
        number = take_attempt(world.run, Attempt(0, 0, {}, 0.0, 1, "here")).number
        writer = WriterId(0, number, f"{number:08x}")
        recorder = FatedRecorder(world.run, writer)
        inbox = FatedInbox(world.run, writer, clock=world.clock)
        recorder.fate = inbox.fate = self.fate
        self.desk = CommandDesk(
            recorder,
            scope=Scope("o"),
            participant_id="p",
            attempt=number,
            inbox=inbox,
            ledger=Ledger(world.run, writer),
            clock=world.clock,
        )
        self.service = Service(self.desk, epoch=str(number), clock=world.clock)
        self.service.register(SET_LR, self._set_lr)
        self.step = 0
        # Points are counted from here, after the process has started.
        self.fate.kill_at, self.fate.passed = kill_at, 0

    def _set_lr(self, payload: Mapping[str, Any], context: Any) -> None:
        self.fate.point()
        self.world.effects.append((context.command_id, int(context.epoch)))
        self.fate.point()

    def poll(self) -> None:
        self.desk.poll()

    def sync(self) -> None:
        self.step += 1
        self.service.visit("after_step", step=self.step, axes={})

    def turn(self) -> None:
        self.sync()
        self.poll()


def check(world: World, commands: set[str]) -> None:
    """Each command acted at most once, and its one outcome tells the truth."""
    outcomes = final_outcomes(world.run)
    acted = [command for command, _ in world.effects]
    assert len(acted) == len(set(acted)), "a command acted twice"
    assert set(outcomes) == commands
    for command, found in outcomes.items():
        assert len(found) == 1, found
        if command in acted:
            assert found[0].state in ("applied", "outcome_unknown")
        else:
            assert found[0].state != "applied"
    assert not list((world.run / "control").glob("*.json"))


def points_of_one_command() -> int:
    """Count the points that a coordinator passes for one command."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(empty_run(Path(folder)))
        coordinator = Coordinator(world)
        send(world.run, "set_lr", {"lr": 0.5})
        for _ in range(4):
            coordinator.turn()
        return coordinator.fate.passed


@pytest.mark.parametrize("sends_again", [False, True], ids=["sent once", "sent again"])
def test_a_kill_at_any_point_leaves_one_outcome_and_no_second_effect(
    tmp_path: Path, sends_again: bool
) -> None:
    points = points_of_one_command()
    assert points >= 10
    for kill_at in range(1, points + 1):
        world = World(empty_run(tmp_path / str(kill_at)))
        first = Coordinator(world, kill_at)
        command = send(world.run, "set_lr", {"lr": 0.5})
        with pytest.raises(Killed):
            for _ in range(4):
                first.turn()
        if sends_again:
            send(world.run, "set_lr", {"lr": 0.5}, id=command.id)
        second = Coordinator(world)
        for _ in range(4):
            second.turn()
            world.clock.turn(8)
        check(world, {command.id})


def test_a_kill_of_the_second_attempt_while_it_tidies_up_changes_nothing(tmp_path: Path) -> None:
    for kill_first in range(1, points_of_one_command() + 1):
        for kill_second in (1, 2, 3):
            world = World(empty_run(tmp_path / f"{kill_first}-{kill_second}"))
            command = send(world.run, "set_lr", {"lr": 0.5})
            for kill_at in (kill_first, kill_second, None):
                coordinator = Coordinator(world, kill_at)
                try:
                    for _ in range(4):
                        coordinator.turn()
                        world.clock.turn(8)
                except Killed:
                    continue
            check(world, {command.id})


@given(
    schedule=st.lists(
        st.sampled_from(["a.poll", "a.sync", "b.poll", "b.sync", "send", "again", "time"]),
        min_size=5,
        max_size=40,
    )
)
def test_two_coordinators_never_both_act(schedule: list[str]) -> None:
    """The older one does not know that it has been replaced until it looks."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(empty_run(Path(folder)))
        pair = {"a": Coordinator(world), "b": Coordinator(world)}
        sent: list[str] = []
        for move in schedule:
            if move == "send":
                sent.append(send(world.run, "set_lr", {"lr": 0.5}).id)
            elif move == "again" and sent:
                send(world.run, "set_lr", {"lr": 0.5}, id=sent[-1])
            elif move == "time":
                world.clock.turn(4)
            elif "." in move:
                who, _, what = move.partition(".")
                getattr(pair[who], what)()
        for _ in range(8):
            world.clock.turn(4)
            for coordinator in pair.values():
                coordinator.turn()
        check(world, set(sent))
