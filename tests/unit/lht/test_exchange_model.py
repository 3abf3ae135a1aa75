"""No order of events lets ranks wait for ever or differ silently, and the check would notice."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest

from launchhelm.torch._messages import (
    Action,
    Go,
    Looked,
    Packet,
    Restore,
    Row,
    Settled,
    Status,
    Verdict,
)
from launchhelm.torch._protocol import Machine
from tests.support.exchange_model import World, explore

WORLDS = {
    "one rank": World(1, commands=2, refusals=1, failures=1, stuck=1, late=1),
    "one rank, a command for a later step": World(1, commands=2, failures=1, ahead=2),
    "nothing breaks": World(2, commands=2, calls=6, late=1, refusals=1),
    "an apply fails": World(2, calls=6, failures=2, stuck=1),
    "the user goes on": World(2, calls=7, commands=2, failures=1, proceed=True),
    "one leaves": World(2, calls=5, leaves=1, refusals=1),
    "one is killed": World(2, calls=4, kills=1, failures=1),
    "the link breaks": World(2, calls=5, breaks=1),
    "every second call": World(2, calls=8, every=2, leaves=1),
    "a wide pace": World(2, calls=7, interval=2, leaves=1),
    "a long body": World(2, calls=4, long=True, kills=1),
    "a command for a later step": World(2, calls=6, ahead=3, leaves=1),
    "a step that has passed": World(2, calls=5, misses=Status.EXPIRED, leaves=1),
    "a step that has not come": World(2, calls=5, misses=Status.EARLY, kills=1),
    "ranks at different steps": World(2, calls=5, skew=True, leaves=1),
    "a pause and its end": World(2, calls=9, commands=2, pauses=True, interval=2),
    "a pause, and one leaves": World(2, calls=6, commands=2, pauses=True, leaves=1),
    "a stop": World(2, calls=7, commands=2, stops=True),
    "one is late and goes on": World(2, calls=5, timeouts=2, failures=1),
    "a handler": World(2, calls=6, failures=1, handler=True, timeouts=1),
    "a handler beside reductions": World(2, calls=4, handler=True, reduces=True, timeouts=1),
    "values drift": World(2, calls=5, drifts=1, compares=1, commands=0, strict=True),
    "three ranks, one fails": World(3, calls=4, failures=1),
    "one rank, several due at one step": World(1, commands=3, chains=True, failures=1, refusals=1),
    "one rank, one due after the other": World(1, commands=3, chains=True, apart=1, failures=1),
    "several due at one step": World(2, commands=3, calls=6, chains=True, failures=1, late=1),
    "several due, one refused": World(2, commands=3, calls=5, chains=True, refusals=2),
    "one due after the other": World(2, commands=2, calls=6, chains=True, apart=1, leaves=1),
    "two due, one rank is killed": World(2, commands=2, calls=4, chains=True, kills=1),
    "one after the other, and a kill": World(
        2, commands=2, calls=6, chains=True, apart=1, kills=1, long=True
    ),
    "two due, and the link breaks": World(2, commands=2, calls=4, chains=True, breaks=1),
    "two due, one is late and goes on": World(2, commands=2, calls=4, chains=True, timeouts=2),
    "two due, of every second call": World(
        2, commands=2, calls=8, every=2, chains=True, apart=1, leaves=1
    ),
    "two handlers due": World(2, commands=2, calls=5, chains=True, handler=True, timeouts=1),
    "two due at a step that has not come": World(
        2, commands=2, calls=5, chains=True, misses=Status.EARLY, kills=1
    ),
    "two due, and the user goes on": World(
        2, commands=2, calls=7, chains=True, failures=1, proceed=True
    ),
    "three ranks, two due, one is killed": World(3, commands=2, calls=4, chains=True, kills=1),
}

LARGE_WORLDS = {
    "one rank, all goes wrong": World(1, commands=3, refusals=2, failures=2, stuck=2, late=2),
    "nothing breaks, for long": World(2, commands=3, calls=10, late=1, refusals=1),
    "the user goes on": World(2, calls=9, commands=2, failures=1, proceed=True),
    "the link breaks, and patience ends": World(2, calls=5, breaks=1, late=1, impatient=True),
    "a handler, and one is killed": World(2, calls=5, handler=True, kills=1, leaves=1),
    "values drift twice": World(2, calls=6, drifts=1, compares=2, commands=0, strict=True),
    "values drift and one leaves": World(2, calls=4, drifts=1, compares=1, leaves=1),
    "three ranks, one leaves": World(3, calls=3, leaves=1),
    "all goes wrong": World(2, calls=5, kills=1, leaves=1, late=1, failures=1),
    "the user goes on and on": World(
        2, calls=6, commands=2, failures=1, stuck=1, breaks=1, proceed=True, impatient=True
    ),
    "three ranks, the link breaks": World(3, calls=4, breaks=1, failures=1),
    "three ranks, one is killed": World(3, calls=4, kills=1, impatient=True),
    "three ranks, one leaves late": World(3, calls=5, leaves=1),
    "three ranks, one is late and goes on": World(3, calls=4, timeouts=2, failures=1),
    "three ranks, values drift": World(3, calls=5, drifts=1, compares=1, strict=True),
    "three ranks, a handler": World(3, calls=4, handler=True, kills=1, timeouts=1),
    "three ranks, a long body and a later step": World(3, calls=5, long=True, ahead=2, kills=1),
    "three ranks, a pause": World(3, calls=5, commands=2, pauses=True, leaves=1),
    "all goes wrong and one is late": World(
        2, calls=5, kills=1, timeouts=1, failures=1, stuck=1, late=1, impatient=True
    ),
    "all goes wrong ahead of a later step": World(
        2, calls=6, ahead=3, kills=1, leaves=1, failures=1, late=1
    ),
    "a pause, and all goes wrong": World(
        2, calls=7, commands=2, pauses=True, kills=1, leaves=1, timeouts=1
    ),
    "a handler beside reductions, and all goes wrong": World(
        2, calls=5, handler=True, reduces=True, kills=1, leaves=1, timeouts=1, failures=1
    ),
    "three due, and all goes wrong": World(
        2, commands=3, calls=5, chains=True, kills=1, leaves=1, refusals=1, timeouts=1
    ),
    "one after the other, and all goes wrong": World(
        2, commands=3, calls=6, chains=True, apart=1, kills=1, leaves=1, failures=1, late=1
    ),
    "three ranks, one after the other": World(
        3, commands=2, calls=5, chains=True, apart=1, kills=1, timeouts=1
    ),
    "values drift and all goes wrong": World(
        2, calls=5, drifts=1, compares=1, kills=1, leaves=1, strict=True
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_events_dead_locks_or_hides_a_disagreement(name: str) -> None:
    explore_aloud(name, WORLDS[name])


def explore_aloud(name: str, world: World) -> None:
    """Explore a world, and print how large it was."""
    began = time.monotonic()
    states, ends = explore(world)
    print(f"{name}: {states:,} states, {ends:,} ends, {time.monotonic() - began:.1f} s")
    assert states > ends > 0


# Machines with one mistake each. That the check finds it is what it is worth.


class NeverInDoubt(Machine):
    """A peer that forgets that it has agreed."""

    def _after_votes(self, rows: tuple[Row, ...]) -> Action:
        self.doubt = False
        return super()._after_votes(rows)


class RejectsWhatItAnnounced(Machine):
    """A coordinator that thinks nothing can have happened yet."""

    def _packet(self, looked: Looked) -> Packet:
        packet = super()._packet(looked)
        self.doubt = False
        return packet


class KeepsWhatFailed(Machine):
    """A failed apply is told, and not taken back."""

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        action = super()._after_results(rows)
        return self._after_restored("") if isinstance(action, Restore) else action


class OnlyTheFailedTakesBack(Machine):
    """The others keep what they applied."""

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        if rows[self.rank].status is Status.OK:
            self.changed = False
        return super()._after_results(rows)


class TrustsItself(Machine):
    """Applied here is applied everywhere."""

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        return self._resolved(Verdict("applied", applied_on=self.size))


class AppliesAtOnce(Machine):
    """The apply call is the one at which the others first hear of it."""

    def apply_at(self, wanted: int) -> int:
        return self.due


class WaitsForNoRecord(Machine):
    """Announces an apply whose record may still be lost."""

    def _packet(self, looked: Looked) -> Packet:
        return super()._packet(replace(looked, durable=True))


class ForgetsTheWord(Machine):
    """A coordinator that refuses a command and does not tell those who are in doubt."""

    def _say_never(self, then: str = "said") -> Action:
        return Go()


class DoesNotAsk(Machine):
    """A peer in doubt that takes silence for a no."""

    def _after_settled(self, settled: Settled) -> Action:
        return super()._after_settled(replace(settled, never=settled.never or not self.coordinator))


class ClosesOverAComparison(Machine):
    """A coordinator that says goodbye where its peers expect a digest."""

    def _after_closing(self, settled: Settled | None) -> Action:
        self.follows = False
        return super()._after_closing(settled)


class ClosesOverACommand(Machine):
    """A coordinator that says goodbye where its peers expect the body of a command."""

    def _after_ended(self, _: None) -> Action:
        super()._after_ended(None)
        return self._after_closing(None)


class CountsOtherwise(Machine):
    """A peer that expects the next packet one call later than it was told."""

    def _after_packet(self, packet: Packet) -> Action:
        if not self.coordinator:
            packet = replace(packet, next_due=packet.next_due + 1)
        return super()._after_packet(packet)


class IgnoresSteps(Machine):
    """Ranks at different steps agree all the same."""

    def _after_votes(self, rows: tuple[Row, ...]) -> Action:
        return super()._after_votes(tuple(replace(row, step=0) for row in rows))


class RaisesAlone(Machine):
    """Only the rank that failed raises."""

    def _diverged(self, verdict: Verdict) -> Action:
        if not self.coordinator and self.rank not in dict(verdict.failures):
            return self._resolved(verdict)
        return super()._diverged(verdict)


class FollowsWithoutDoubt(Machine):
    """A rank that has accepted a command that follows another, and thinks it may still not act."""

    def _agreed(self) -> Action:
        action = super()._agreed()
        self.doubt = False
        return action


class FollowsAlone(Machine):
    """A coordinator that hands on another command without having said so."""

    def _after_results(self, rows: tuple[Row, ...]) -> Action:
        own = replace(rows[0], more=self.coordinator)
        return super()._after_results((own, *rows[1:]))


class FollowsAtAnotherCall(Machine):
    """A peer that applies a command that follows another one call late."""

    def _agreed(self) -> Action:
        if not self.coordinator:
            self.announced += 1
        return super()._agreed()


@dataclass(frozen=True)
class Mistake:
    """A machine with a mistake, and a world in which it must show."""

    machine: type[Machine]
    world: World


MISTAKES = [
    Mistake(NeverInDoubt, World(2, calls=5, kills=1)),
    Mistake(RejectsWhatItAnnounced, World(2, calls=5, breaks=1)),
    Mistake(KeepsWhatFailed, World(2, failures=1)),
    Mistake(OnlyTheFailedTakesBack, World(2, failures=1)),
    Mistake(TrustsItself, World(2, failures=1)),
    Mistake(AppliesAtOnce, World(2, calls=5)),
    Mistake(WaitsForNoRecord, World(2, calls=5, late=1)),
    Mistake(ForgetsTheWord, World(2, calls=4, leaves=1)),
    Mistake(DoesNotAsk, World(2, calls=5, breaks=1)),
    Mistake(ClosesOverAComparison, World(2, calls=5, compares=1, leaves=1)),
    Mistake(ClosesOverACommand, World(2, calls=5, leaves=1, long=True)),
    Mistake(CountsOtherwise, World(2, calls=5)),
    Mistake(IgnoresSteps, World(2, calls=5, skew=True)),
    Mistake(RaisesAlone, World(2, failures=1)),
    Mistake(FollowsWithoutDoubt, World(2, commands=2, calls=5, chains=True, apart=1, kills=1)),
    Mistake(FollowsAlone, World(2, calls=5)),
    Mistake(FollowsAtAnotherCall, World(2, commands=2, calls=5, chains=True)),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.machine.__name__)
def test_a_machine_with_a_mistake_is_found_out(mistake: Mistake) -> None:
    with pytest.raises(AssertionError):
        explore(replace(mistake.world, machine=mistake.machine))
