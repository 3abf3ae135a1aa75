"""Run the exchange's own machine through every order of events that a small world allows.

The world is 1 to 3 ranks, a few calls of `step`, one or two commands, and a budget of mishaps: a
control that refuses or fails on one rank, wholly or half way, a roll-back that fails, a record that
is late, a rank that leaves (at its end, for an exception, on a signal), a rank that is killed, a
link that breaks, a wait that takes too long because some other rank hangs, is stopped or comes late
and may go on afterwards as if nothing had been, values that drift apart without a command. The
network is as weak as gloo: a broadcast may reach some ranks and not others, a gather may complete
here and fail there once anything broke, and operations of different size must never meet. Every
reachable state is visited once; where several things may happen next, all of them do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import pytest

from launchhelm.torch._messages import (
    Action,
    Applied,
    Apply,
    Await,
    Cause,
    Check,
    Checked,
    Compare,
    Conclude,
    Gather,
    Go,
    Kind,
    Look,
    Looked,
    Lost,
    Off,
    Packet,
    Raise,
    Record,
    Report,
    Restore,
    Result,
    Settle,
    Settled,
    Share,
    Status,
    Verdict,
    Warn,
)
from launchhelm.torch._protocol import (
    Machine,
)

_FIELDS = tuple(field.name for field in fields(Machine))
NEW, OLD = 1, 0
_ALIVE = ("running", "finishing")


@dataclass(frozen=True)
class World:
    """What may happen. Budgets are for one whole run, over all ranks."""

    size: int
    calls: int = 7
    commands: int = 1
    refusals: int = 0
    failures: int = 0
    stuck: int = 0
    late: int = 0
    leaves: int = 0
    kills: int = 0
    breaks: int = 0
    timeouts: int = 0
    drifts: int = 0
    compares: int = 0
    every: int = 0
    interval: int = 1
    proceed: bool = False
    strict: bool = False
    handler: bool = False
    """Whether commands run a handler, which has no state to take back."""
    impatient: bool = False
    """Whether waiting for the coordinator's word may end before the word comes."""


@dataclass(frozen=True)
class Rank:
    """One rank: its machine, what it waits for, and what its training would see.

    `value` is what training would use, `values` what it was at the end of each call that some
    other rank has yet to reach.
    """

    machine: tuple[object, ...]
    waits: Action | None = None
    state: str = "running"
    ops: int = 0
    value: int = OLD
    before: int = OLD
    calls: int = 0
    values: tuple[tuple[int, int], ...] = ()
    applied: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    warned: int = 0
    raised_at: int = 0
    drift: int = 0
    """What its values lie beside those of the others through no command."""


@dataclass(frozen=True)
class State:
    """Everything: ranks, the network, the store's keys, the outcomes, what is left of budgets."""

    ranks: tuple[Rank, ...]
    posted: tuple[tuple[int, tuple[object, ...]], ...] = ()
    """(number, what each rank contributed or None) of operations that some rank has ahead."""
    split: bool = False
    """With proceed: two ranks went on with different values; some outcome must tell it."""
    broken: bool = False
    gone: frozenset[int] = frozenset()
    """Ranks that no longer take part: left, off, raised or dead."""
    torn: frozenset[int] = frozenset()
    """Those of them that were killed, so that even complete operations may fail elsewhere."""
    never: frozenset[int] = frozenset()
    left: tuple[tuple[int, int], ...] = ()
    taken: int = 0
    concluded: tuple[tuple[int, str], ...] = ()
    refusals: int = 0
    failures: int = 0
    stuck: int = 0
    late: int = 0
    leaves: int = 0
    kills: int = 0
    breaks: int = 0
    timeouts: int = 0
    drifts: int = 0
    compares: int = 0
    differing: frozenset[int] = frozenset()
    """Ranks that wrote to the store that they hold other values than rank 0."""
    told: bool = False
    """Whether rank 0 has announced that."""


def _thaw(rank: Rank) -> Machine:
    machine = object.__new__(Machine)
    for name, value in zip(_FIELDS, rank.machine, strict=True):
        setattr(machine, name, value)
    return machine


def _freeze(machine: Machine) -> tuple[object, ...]:
    return tuple(getattr(machine, name) for name in _FIELDS)


def _first(world: World) -> State:
    ranks = tuple(
        Rank(_freeze(Machine(rank, world.size, world.every, world.proceed, world.strict)))
        for rank in range(world.size)
    )
    return State(ranks)


def _with(state: State, index: int, rank: Rank, **changes: object) -> State:
    ranks = (*state.ranks[:index], rank, *state.ranks[index + 1 :])
    return replace(state, ranks=ranks, **changes)  # type: ignore[arg-type]  # budgets are ints


def _post(state: State, index: int, what: object) -> State:
    """Let this rank contribute to its next operation; ranks must come to it with the same kind."""
    rank = state.ranks[index]
    posted = dict(state.posted)
    row = list(posted.get(rank.ops, (None,) * len(state.ranks)))
    kinds = {type(other) for other in row if other is not None}
    assert not kinds or kinds == {type(what)}, f"operation {rank.ops}: {row} meets {what}"
    row[index] = what
    posted[rank.ops] = tuple(row)
    behind = min(other.ops for other in state.ranks if other.state in _ALIVE)
    kept = tuple((number, row) for number, row in sorted(posted.items()) if number >= behind - 1)
    return _with(state, index, replace(rank, ops=rank.ops + 1), posted=kept)


def _pass(world: World, before: State, index: int, **changes: object) -> State:
    """End a call of this rank, and compare what it holds with the ranks that ended it before.

    Two ranks may differ only if one of them has raised by then; with proceed, the user asked to
    go on, and an outcome or a warning must tell it.
    """
    rank = before.ranks[index]
    call = rank.calls + 1
    rank = replace(rank, calls=call, values=(*rank.values, (call, rank.value)), waits=None)
    rank = replace(rank, **changes)  # type: ignore[arg-type]  # fields of Rank
    split = before.split
    for other in before.ranks:
        theirs = dict(other.values).get(call, rank.value)
        if other is before.ranks[index] or theirs == rank.value or other.state == "dead":
            continue
        loud = any(0 < one.raised_at <= call for one in (rank, other))
        assert loud or world.proceed, f"silent disagreement after call {call}: {rank} {before}"
        split = split or not loud
    state = _with(before, index, rank, split=split)
    slowest = min((one.calls for one in state.ranks if one.state in _ALIVE), default=call)
    ranks = tuple(
        replace(one, values=tuple(entry for entry in one.values if entry[0] > slowest))
        for one in state.ranks
    )
    return replace(state, ranks=ranks)


@dataclass(frozen=True)
class _Body:
    """The command's body in a Share."""


@dataclass(frozen=True)
class _Digest:
    """What a rank holds when all compare; rank 0's is broadcast."""

    held: int


@dataclass(frozen=True)
class _News:
    """What rank 0 tells of the values of all ranks."""


_DRIFT = Verdict("diverged", "drift", "values differ", failures=((1, "Drift: x"),))


def _moves(world: World, state: State) -> Iterator[State]:
    """Yield every state that may come next."""
    calm = not (
        state.gone or state.broken or world.kills or world.leaves or world.breaks or world.timeouts
    )
    for index, rank in enumerate(state.ranks):
        if rank.state not in _ALIVE:
            continue
        if calm:
            # Nothing that the others do next can change what this rank may do, nor can what it
            # does change theirs, unless it goes: then one order of the two is enough.
            moves = list(_own_moves(world, state, index))
            if moves and all(after.gone == state.gone for after in moves):
                yield from moves
                return
        if state.kills < world.kills:
            dead = replace(rank, state="dead")
            gone, torn = state.gone | {index}, state.torn | {index}
            yield _with(state, index, dead, gone=gone, torn=torn, kills=state.kills + 1)
        yield from _own_moves(world, state, index)
    if state.breaks < world.breaks and world.size > 1:
        yield replace(state, broken=True, breaks=state.breaks + 1)


def _own_moves(world: World, state: State, index: int) -> Iterator[State]:
    if state.ranks[index].waits is None:
        return _next_call(world, state, index)
    return _answers(world, state, index)


def _next_call(world: World, state: State, index: int) -> Iterator[State]:
    rank = state.ranks[index]
    machine = _thaw(rank)
    done = rank.calls
    leaves = done == world.calls or state.leaves < world.leaves
    if leaves:
        spent = 0 if done == world.calls else 1
        leaver = copy.copy(machine)
        action = leaver.finish()
        left = tuple(sorted({*state.left, (index, done)}))
        after = _with(
            state,
            index,
            replace(rank, machine=_freeze(leaver), state="finishing"),
            leaves=state.leaves + spent,
            left=left,
            gone=state.gone | {index},
        )
        yield from _perform(world, after, index, action)
    if state.drifts < world.drifts:
        drifted = replace(rank, drift=index + 1)
        yield _with(state, index, drifted, drifts=state.drifts + 1)
    if done < world.calls:
        call = done + 1
        if call < machine.wake:
            yield _pass(world, state, index)
        else:
            yield from _act(world, state, index, machine, machine.begin(call, call * 10))


def _act(
    world: World, state: State, index: int, machine: Machine, action: Action
) -> Iterator[State]:
    rank = replace(state.ranks[index], machine=_freeze(machine), waits=None)
    yield from _perform(world, _with(state, index, rank), index, action)


def _answers(world: World, state: State, index: int) -> Iterator[State]:
    """Yield what may come of the group operation that this rank waits in."""
    rank = state.ranks[index]
    action = rank.waits
    answers: list[Result] = []
    if isinstance(action, Settle):
        # It has its own time limit, so it may always end without news.
        if action.before < 1 << 61:
            others = dict(state.left)
            peers = range(1, world.size)
            answers.append(Settled(all(others.get(p, 1 << 61) < action.before for p in peers)))
        elif index == 0:
            count = sum(action.command in other.applied for other in state.ranks)
            answers.append(Settled(False, applied_on=count))
        else:
            if action.command in state.never:
                answers.append(Settled(True))
            if world.impatient or state.ranks[0].state not in ("running", "finishing"):
                answers.append(Settled(False))
            if action.command in state.never and not world.impatient:
                answers = answers[:1]
    else:
        row = dict(state.posted)[rank.ops - 1]
        if isinstance(action, Await):
            if row[0] is not None:
                answers.append(row[0])  # type: ignore[arg-type]  # a Packet
        elif isinstance(action, Share | Compare):
            if row[0] is not None:
                answers.append(None)
        elif isinstance(action, Report):
            if row[0] is not None:
                answers.append(_DRIFT)
        elif all(other is not None for other in row):
            answers.append(row)  # type: ignore[arg-type]  # Rows
        # What a rank sent before it left cleanly arrives; a packet still under way may not.
        complete = bool(answers) and not (isinstance(action, Await) and 0 in state.gone)
        if state.broken or state.torn - {index} or (state.gone - {index} and not complete):
            answers.append(Lost(Cause("dead", tuple(sorted(state.gone)), "something broke")))
        if state.timeouts < world.timeouts and not answers:
            # Whoever did not come may come later all the same.
            machine = _thaw(rank)
            late = replace(state, timeouts=state.timeouts + 1)
            cause = Cause("timeout", (), "somebody did not come")
            yield from _act(world, late, index, machine, machine.feed(Lost(cause)))
        if isinstance(action, Compare) and row[0] is not None and row[0] != row[index]:
            # Before it goes on; a rank that goes on without the broadcast has nothing to say.
            differing = replace(state, differing=state.differing | {index})
            machine = _thaw(rank)
            yield from _act(world, differing, index, machine, machine.feed(None))
            answers.remove(None)
    for answer in answers:
        machine = _thaw(rank)
        yield from _act(world, state, index, machine, machine.feed(answer))


def _perform(world: World, state: State, index: int, action: Action) -> Iterator[State]:
    """Carry out what is local, in all its possible ways, up to the next wait or end of call."""
    rank = state.ranks[index]
    machine = _thaw(rank)

    def answered(changed: State, result: Result) -> Iterator[State]:
        copied = copy.copy(machine)
        yield from _act(world, changed, index, copied, copied.feed(result))

    if isinstance(action, Go):
        if action.issue is not None:
            ops = rank.ops
            if rank.state == "running" or not machine.issued:
                state = _post(state, index, action.issue)
            else:
                # Closing behind a packet that is still under way: one operation further.
                ahead = _with(state, index, replace(rank, ops=ops + 1))
                state = _post(ahead, index, action.issue)
            # Issuing ahead is not waiting: the wait belongs to the due call.
            rank = replace(state.ranks[index], ops=ops)
        rank = replace(rank, waits=None)
        if rank.state == "finishing":
            yield _with(state, index, replace(rank, state="left"))
        else:
            yield _pass(world, _with(state, index, rank), index)
    elif isinstance(action, Raise):
        state = replace(state, gone=state.gone | {index})
        yield _pass(world, state, index, state="raised", raised_at=rank.calls + 1)
    elif isinstance(action, Await):
        if index == 0:
            assert dict(state.posted)[rank.ops][0] is not None, "it was never issued"
            waiting = _with(state, 0, replace(rank, ops=rank.ops + 1))
        else:
            waiting = _post(state, index, Packet(-1, Kind.IDLE, 0))
        yield _with(waiting, index, replace(waiting.ranks[index], waits=action))
    elif isinstance(action, Share | Gather | Compare | Report):
        what: object = action.row if isinstance(action, Gather) else _News()
        if isinstance(action, Share):
            what = _Body()
        elif isinstance(action, Compare):
            what = _Digest(rank.value + rank.drift)
        waiting = _post(state, index, what)
        yield _with(waiting, index, replace(waiting.ranks[index], waits=action))
    elif isinstance(action, Check):
        yield from answered(state, Checked("", world.handler))
        if state.refusals < world.refusals:
            no = replace(rank, refused=rank.refused | {machine.command})
            refused = _with(state, index, no, refusals=state.refusals + 1)
            yield from answered(refused, Checked("no"))
    elif isinstance(action, Look):
        yield from _look(world, state, action, answered)
    elif isinstance(action, Record):
        yield from answered(state, None)
    elif isinstance(action, Apply) and action.handler:
        ran = replace(rank, applied=rank.applied | {machine.command})
        yield from answered(_with(state, index, ran), Applied(Status.OK))
        if state.failures < world.failures:
            failed = replace(state, failures=state.failures + 1)
            yield from answered(failed, Applied(Status.FAILED, "Error: no"))
    elif isinstance(action, Apply):
        yield from _apply(world, state, index, machine, answered)
    elif isinstance(action, Restore):
        yield from answered(_with(state, index, replace(rank, value=rank.before)), "")
        if state.stuck < world.stuck:
            yield from answered(replace(state, stuck=state.stuck + 1), "stuck")
    elif isinstance(action, Conclude):
        number = state.taken
        assert number not in dict(state.concluded), f"two outcomes: {state.concluded} {action}"
        concluded = (*state.concluded, (number, action.verdict.state))
        yield from answered(replace(state, concluded=concluded), None)
    elif isinstance(action, Settle):
        if action.never:
            state = replace(state, never=state.never | {action.command})
        if action.wait:
            yield _with(state, index, replace(rank, waits=action))
        else:
            yield from answered(state, Settled(False))
    elif isinstance(action, Off):
        yield from answered(replace(state, gone=state.gone | {index}), None)
    else:
        assert isinstance(action, Warn)
        yield from answered(_with(state, index, replace(rank, warned=rank.warned + 1)), None)


def _look(world: World, state: State, action: Look, answered) -> Iterator[State]:  # type: ignore[no-untyped-def]
    if action.under_way:
        yield from answered(state, Looked(durable=True, interval=world.interval))
        if state.late < world.late:
            slow = replace(state, late=state.late + 1)
            yield from answered(slow, Looked(interval=world.interval))
            yield from answered(slow, Looked(overdue=True, interval=world.interval))
        return
    yield from answered(state, Looked(interval=world.interval))
    if state.differing and not state.told:
        yield from answered(replace(state, told=True), Looked(interval=world.interval, drift=9))
    if state.compares < world.compares:
        asked = replace(state, compares=state.compares + 1)
        yield from answered(asked, Looked(interval=world.interval, compare=True))
    if state.taken < world.commands:
        taken = replace(state, taken=state.taken + 1)
        yield from answered(taken, Looked(size=3, interval=world.interval))


def _apply(world: World, state: State, index: int, machine: Machine, answered) -> Iterator[State]:  # type: ignore[no-untyped-def]
    rank = state.ranks[index]
    value = rank.value + NEW
    applied = replace(
        rank, before=rank.value, value=value, applied=rank.applied | {machine.command}
    )
    good = Applied(Status.OK, digest=value, changed=True)
    yield from answered(_with(state, index, applied), good)
    if state.failures < world.failures:
        failed = replace(state, failures=state.failures + 1)
        half = replace(rank, before=rank.value, value=value + 100)
        yield from answered(
            _with(failed, index, half), Applied(Status.FAILED, "Error: half way", changed=True)
        )
        yield from answered(failed, Applied(Status.FAILED, "Error: no snapshot"))
        if world.size > 1:
            odd = value + 50 + index
            other = replace(applied, value=odd)
            yield from answered(
                _with(failed, index, other), Applied(Status.OK, digest=odd, changed=True)
            )


def _check_end(world: World, state: State) -> None:
    """Judge a state in which nothing more happens."""
    for rank in state.ranks:
        assert rank.state in ("left", "raised", "dead"), f"dead-lock: {state}"
    outcomes = dict(state.concluded)
    if state.ranks[0].state != "dead":
        assert set(outcomes) == set(range(1, state.taken + 1)), f"no outcome: {state}"
    for number, outcome in outcomes.items():
        appliers = [index for index, rank in enumerate(state.ranks) if number in rank.applied]
        if outcome in ("rejected", "expired"):
            assert not appliers, f"refused, yet applied: {state}"
        if any(number in rank.refused for rank in state.ranks):
            assert outcome == "rejected", f"one rank refused it: {state}"
        if outcome == "applied":
            assert len(appliers) == world.size, f"applied, but not everywhere: {state}"

    for rank in state.ranks:
        # Who raised for values that drifted has no command to take back.
        drifted = world.strict and state.told
        if rank.state == "raised" and world.commands == 1 and not state.stuck and not drifted:
            assert rank.value == rank.before, f"raised, and not taken back: {state}"

    for index in state.differing:
        assert state.ranks[index].drift != state.ranks[0].drift, f"no difference: {state}"

    told = "outcome_unknown" in outcomes.values() or any(rank.warned for rank in state.ranks)
    assert told or not state.split, f"silent disagreement: {state}"

    # Where nothing but the command itself fails, all ranks raise at the same call, or none does.
    calm = not (state.kills or state.leaves or state.breaks or state.timeouts or world.proceed)
    if calm and state.failures:
        assert len({rank.raised_at for rank in state.ranks}) == 1, f"{state}"
        assert state.ranks[0].raised_at, f"{state}"
        assert "outcome_unknown" in outcomes.values(), f"{state}"
    # A rank that does not hear of the difference, because others raised and went, has lost control.
    if calm and state.told and world.strict and not state.failures:
        heard = {rank.raised_at for rank in state.ranks if not _thaw(rank).cause}
        assert len(heard) == 1, f"{state}"


def explore(world: World, limit: int = 2_000_000) -> tuple[int, int]:
    """Visit every reachable state; return how many there are, and how many of them are ends."""
    first = _first(world)
    seen = {first}
    todo = [first]
    ends = 0
    while todo:
        state = todo.pop()
        moved = False
        for after in _moves(world, state):
            moved = True
            if after not in seen:
                seen.add(after)
                todo.append(after)
        # Kills and breaks never free a rank that waits for nothing else: an end is where all ended.
        if not moved or all(rank.state in ("left", "raised", "dead") for rank in state.ranks):
            ends += 1
            _check_end(world, state)
        elif not _free(world, state):
            raise AssertionError(f"dead-lock: {state}")
        assert len(seen) < limit, "the world is too large to explore"
    return len(seen), ends


def _free(world: World, state: State) -> bool:
    """Whether anything can happen without a further mishap."""
    calm = replace(
        world, kills=state.kills, breaks=state.breaks, leaves=state.leaves, drifts=state.drifts
    )
    return any(True for _ in _moves(calm, state))


WORLDS = {
    "one rank": World(1, commands=2, refusals=1, failures=1, stuck=1, late=2),
    "two ranks, nothing breaks": World(2, commands=2, calls=8, late=1, refusals=1),
    "two ranks, an apply fails": World(2, failures=2, stuck=1),
    "two ranks, the user goes on": World(2, calls=9, commands=2, failures=1, proceed=True),
    "two ranks, one leaves": World(2, calls=6, leaves=1, late=1, refusals=1),
    "two ranks, one is killed": World(2, calls=5, kills=1, failures=1, refusals=1),
    "two ranks, the link breaks": World(2, calls=5, breaks=1, late=1, impatient=True),
    "two ranks, every second call": World(2, calls=8, every=2, leaves=1),
    "two ranks, a wide pace": World(2, calls=7, interval=2, leaves=1),
    "two ranks, one is late and goes on": World(2, calls=5, timeouts=2, failures=1),
    "two ranks, a handler": World(2, calls=6, failures=1, handler=True, timeouts=1),
    "two ranks, values drift": World(2, calls=6, drifts=1, compares=2, commands=0, strict=True),
    "two ranks, values drift and one leaves": World(2, calls=4, drifts=1, compares=1, leaves=1),
    "three ranks, one fails": World(3, calls=4, failures=1, stuck=1),
    "three ranks, one leaves": World(3, calls=3, leaves=1),
}

LARGE_WORLDS = {
    "two ranks, all goes wrong": World(2, calls=5, kills=1, leaves=1, late=1, failures=1),
    "two ranks, the user goes on and on": World(
        2, calls=6, commands=2, failures=1, stuck=1, breaks=1, proceed=True, impatient=True
    ),
    "three ranks, the link breaks": World(3, calls=4, breaks=1, failures=1),
    "three ranks, one is killed": World(3, calls=4, kills=1, impatient=True),
    "three ranks, one leaves late": World(3, calls=5, leaves=1),
    "three ranks, one is late and goes on": World(3, calls=4, timeouts=2, failures=1),
    "three ranks, values drift": World(3, calls=5, drifts=1, compares=1, strict=True),
    "two ranks, all goes wrong and one is late": World(
        2, calls=5, kills=1, timeouts=1, failures=1, stuck=1, late=1, impatient=True
    ),
    "two ranks, values drift and all goes wrong": World(
        2, calls=5, drifts=1, compares=1, kills=1, leaves=1, strict=True
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_events_dead_locks_or_hides_a_disagreement(name: str) -> None:
    states, ends = explore(WORLDS[name])
    assert ends > 0
    assert states > ends
