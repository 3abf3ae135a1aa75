"""Run the exchange's own machine through every order of events that a small world allows.

    states, ends = explore(World(2, commands=2, kills=1))

The world is 1 to 3 ranks, a few calls of `step`, one or two commands, and a budget of mishaps: a
control that refuses or fails on one rank, wholly or half way, a roll-back that fails, a record that
is late or never comes, a step that is passed or not reached, a rank that leaves (at its end, for an
exception, on a signal), a rank that is killed, a link that breaks, a wait that takes too long
because some other rank hangs, is stopped or comes late and may go on afterwards as if nothing had
been, values that drift apart without a command. Commands are changes of state, handlers, a pause
and its end, or a stop; the script may reduce values over the data group meanwhile. The network is
as weak as gloo: a broadcast may reach some ranks and not others, a gather may complete here and
fail there once anything broke, and operations of different kinds must never meet. Every reachable
state is visited once; where several things may happen next, all of them do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from launchhelm.torch._messages import (
    INLINE_BYTES,
    NEVER,
    Action,
    Applied,
    Apply,
    Await,
    Cause,
    Check,
    Checked,
    Compare,
    Conclude,
    Follow,
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
from launchhelm.torch._protocol import Machine

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
    long: bool = False
    """Whether the body of a command follows its packet."""
    chains: bool = False
    """Whether the next command may follow another one at once, its record being durable."""
    apart: int = 0
    """Calls between a command and the one that follows it."""
    ahead: int = 0
    """Calls that the coordinator looks ahead, for a command that waits for a later step."""
    misses: Status | None = None
    """What every rank says in place of applying: that a step has passed, or has not come."""
    skew: bool = False
    """Whether ranks are at different steps at equal calls."""
    pauses: bool = False
    """Whether the first command is a pause and the second ends it."""
    stops: bool = False
    """Whether a command ends the loop of every rank."""
    reduces: bool = False
    """Whether the script reduces a value over the data group at every call."""
    machine: type[Machine] = Machine
    impatient: bool = False
    """Whether waiting for the coordinator's word may end before the word comes."""


@dataclass(frozen=True)
class Rank:
    """One rank: its machine, what it waits for, and what its training would see.

    `value` is what training would use, `values` what it was at the end of each call that some
    other rank has yet to reach.
    """

    machine: tuple[object, ...]
    waits: Action | _Reduce | None = None
    state: str = "running"
    ops: int = 0
    data_ops: int = 0
    has_data: bool = True
    """Whether it still uses the data group."""
    reduced: int = 0
    """The last call at which it reduced."""
    now: int = 0
    """The call that it is in, else the last one."""
    value: int = OLD
    before: int = OLD
    calls: int = 0
    values: tuple[tuple[int, int], ...] = ()
    applied: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    warned: int = 0
    raised_at: int = 0
    open: int = 0
    """The command that it has accepted, and whose end it has not seen; not on rank 0."""
    voted: bool = False
    """Whether it has seen the votes on that."""
    doubts: bool = False
    """Whether it lost the exchange meanwhile."""
    drift: int = 0
    """What its values lie beside those of the others through no command."""


@dataclass(frozen=True)
class State:
    """Everything: ranks, the network, the store's keys, the outcomes, what is left of budgets."""

    ranks: tuple[Rank, ...]
    posted: tuple[tuple[tuple[str, int], tuple[object, ...]], ...] = ()
    """((group, number), what each rank contributed or None) of operations that are not over."""
    given: tuple[str, int] = ("", 0)
    """The last gather of which rank 0 has the rows, and so has sent them on."""
    data_lost: bool = False
    """Whether some rank has told the others that it uses the data group no more."""
    split: bool = False
    """With proceed: two ranks went on with different values; some outcome must tell it."""
    broken: bool = False
    gone: frozenset[int] = frozenset()
    """Ranks that no longer take part: left, off, raised or dead."""
    torn: frozenset[int] = frozenset()
    """Those of them that were killed, so that even complete operations may fail elsewhere."""
    never: frozenset[int] = frozenset()
    announced: frozenset[int] = frozenset()
    """Commands of which the store says so, since the coordinator has lost the exchange."""
    durable: bool = False
    """Whether the record of the command under way is on the disk."""
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


def _thaw(world: World, rank: Rank) -> Machine:
    machine = object.__new__(world.machine)
    for name, value in zip(_FIELDS, rank.machine, strict=True):
        setattr(machine, name, value)
    return machine


def _freeze(machine: Machine) -> tuple[object, ...]:
    return tuple(getattr(machine, name) for name in _FIELDS)


def _first(world: World) -> State:
    ranks = tuple(
        Rank(_freeze(world.machine(rank, world.size, world.every, world.proceed, world.strict)))
        for rank in range(world.size)
    )
    return State(ranks)


def _with(state: State, index: int, rank: Rank, **changes: object) -> State:
    ranks = (*state.ranks[:index], rank, *state.ranks[index + 1 :])
    return replace(state, ranks=ranks, **changes)  # type: ignore[arg-type]  # budgets are ints


def _post(state: State, index: int, what: object, group: str = "exchange") -> State:
    """Let this rank contribute to its next operation; ranks must come to it with the same kind."""
    rank = state.ranks[index]
    posted = dict(state.posted)
    number = (group, rank.ops if group == "exchange" else rank.data_ops)
    row = list(posted.get(number, (None,) * len(state.ranks)))
    kinds = {type(other) for other in row if other is not None}
    assert not kinds or kinds == {type(what)}, f"operation {number}: {row} meets {what}"
    row[index] = what
    posted[number] = tuple(row)
    alive = [other for other in state.ranks if other.state in _ALIVE]
    behind = {
        "exchange": min(other.ops for other in alive) - 1,
        "data": min(other.data_ops for other in alive) - 1,
    }
    kept = tuple(sorted(each for each in posted.items() if each[0][1] >= behind[each[0][0]]))
    if group == "exchange":
        rank = replace(rank, ops=rank.ops + 1)
    else:
        rank = replace(rank, data_ops=rank.data_ops + 1)
    return _with(state, index, rank, posted=kept)


def _group_of(action: Action | _Reduce | None) -> str:
    is_data = isinstance(action, _Reduce) or (isinstance(action, Gather) and action.handler)
    return "data" if is_data else "exchange"


def _pass(world: World, before: State, index: int, **changes: object) -> State:
    """End a call of this rank, and compare what it holds with the ranks that ended it before.

    Two ranks may differ only if one of them has raised by then; with proceed, the user asked to
    go on, and an outcome or a warning must tell it.
    """
    rank = before.ranks[index]
    call = rank.now
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


@dataclass(frozen=True)
class _Reduce:
    """What the script itself does on the data group."""


_CHANGED = Verdict("rejected", "changed_meanwhile", "lr is 0.1 now")
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
    machine = _thaw(world, rank)
    done = rank.calls
    call = done + 1
    if world.pauses and rank.value == NEW and machine.on:
        call = max(call, machine.wake)  # It holds, and goes from exchange to exchange.
    is_over = call > world.calls or (world.stops and rank.value == NEW)
    if is_over or state.leaves < world.leaves:
        leaver = copy.copy(machine)
        action = leaver.finish()
        after = _with(
            state,
            index,
            replace(rank, machine=_freeze(leaver), state="finishing"),
            leaves=state.leaves + (not is_over),
            left=tuple(sorted({*state.left, (index, done)})),
            gone=state.gone | {index},
        )
        yield from _perform(world, after, index, action)
    if state.drifts < world.drifts:
        drifted = replace(rank, drift=index + 1)
        yield _with(state, index, drifted, drifts=state.drifts + 1)
    if is_over:
        return
    if world.reduces and rank.reduced < call:
        reducing = _with(state, index, replace(rank, reduced=call))
        if rank.has_data:
            reducing = _post(reducing, index, _Reduce(), "data")
            reducing = _with(reducing, index, replace(reducing.ranks[index], waits=_Reduce()))
        yield reducing
        return
    state = _with(state, index, replace(rank, now=call))
    if call < machine.wake:
        yield _pass(world, state, index)
    else:
        step = 10 * call + (index if world.skew else 0)
        yield from _act(world, state, index, machine, machine.begin(call, step))


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
        if action.before < NEVER:
            others = dict(state.left)
            peers = range(1, world.size)
            answers.append(Settled(all(others.get(p, NEVER) < action.before for p in peers)))
        elif index == 0:
            count = sum(action.command in other.applied for other in state.ranks)
            answers.append(Settled(False, applied_on=count))
        else:
            if action.command in state.never:
                answers.append(Settled(True))
            said = action.command in state.announced
            if said or world.impatient or state.ranks[0].state not in _ALIVE:
                answers.append(Settled(False))
            if action.command in state.never and not world.impatient:
                answers = answers[:1]
    else:
        group = _group_of(action)
        ops = rank.ops if group == "exchange" else rank.data_ops
        row = dict(state.posted)[group, ops - 1]
        if isinstance(action, Await | Follow):
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
        # What a rank sent before it left cleanly arrives; a packet still under way may not, nor
        # rows that rank 0 did not come to send on.
        sent = 0 not in state.gone or state.given == (group, ops - 1)
        complete = bool(answers) and (sent or not isinstance(action, Await | Follow | Gather))
        is_lost = state.broken or (group == "data" and state.data_lost)
        if is_lost or state.torn - {index} or (state.gone - {index} and not complete):
            answers.append(Lost(Cause("dead", tuple(sorted(state.gone)), "something broke")))
        if isinstance(action, _Reduce):
            yield from _reduced(world, state, index, answers)
            return
        if state.timeouts < world.timeouts and not answers:
            # Whoever did not come may come later all the same.
            machine = _thaw(world, rank)
            late = replace(state, timeouts=state.timeouts + 1)
            cause = Cause("timeout", (), "somebody did not come")
            yield from _act(world, late, index, machine, machine.feed(Lost(cause)))
        if isinstance(action, Compare) and row[0] is not None and row[0] != row[index]:
            # Before it goes on; a rank that goes on without the broadcast has nothing to say.
            differing = replace(state, differing=state.differing | {index})
            machine = _thaw(world, rank)
            yield from _act(world, differing, index, machine, machine.feed(None))
            answers.remove(None)
    for answer in answers:
        machine = _thaw(world, rank)
        seen = _with(state, index, _informed(rank, answer))
        if index == 0 and isinstance(answer, tuple):
            seen = replace(seen, given=(group, ops - 1))
        yield from _act(world, seen, index, machine, machine.feed(answer))


def _informed(rank: Rank, answer: Result) -> Rank:
    """Note whether a rank now knows what became of the command that it has accepted."""
    if isinstance(answer, tuple):
        are_votes = not rank.voted
        same = len({(row.call, row.step) for row in answer}) == 1
        if are_votes and same and all(row.status is Status.OK for row in answer):
            return replace(rank, voted=True)
        return replace(rank, open=0, voted=False)
    if isinstance(answer, Packet) and answer.kind is Kind.REJECT:
        return replace(rank, open=0, voted=False)
    return rank


def _reduced(world: World, state: State, index: int, answers: list[Result]) -> Iterator[State]:
    """End a wait of the script's own: with its value, or without the data group from then on."""
    rank = replace(state.ranks[index], waits=None)
    if state.timeouts < world.timeouts and not answers:
        state = replace(state, timeouts=state.timeouts + 1)
        answers = [Lost(Cause("timeout", (), "somebody did not come"))]
    for answer in answers:
        if isinstance(answer, Lost):
            yield _with(state, index, replace(rank, has_data=False), data_lost=True)
        else:
            yield _with(state, index, rank)


def _perform(world: World, state: State, index: int, action: Action) -> Iterator[State]:
    """Carry out what is local, in all its possible ways, up to the next wait or end of call."""
    rank = state.ranks[index]
    machine = _thaw(world, rank)

    def answered(changed: State, result: Result) -> Iterator[State]:
        copied = copy.copy(machine)
        yield from _act(world, changed, index, copied, copied.feed(result))

    if isinstance(action, Go):
        if action.issue is not None or action.expect:
            is_apply = action.issue is not None and action.issue.kind is Kind.APPLY
            assert state.durable or not is_apply, f"announced before it was on record: {state}"
            ops, packet = rank.ops, action.issue or Packet(-1, Kind.IDLE, 0)
            if rank.state == "running" or not machine.issued:
                state = _post(state, index, packet)
            else:
                # Closing behind a packet that is still under way: one operation further.
                ahead = _with(state, index, replace(rank, ops=ops + 1))
                state = _post(ahead, index, packet)
            # Posting ahead is not waiting: the wait belongs to the due call.
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
        assert dict(state.posted)["exchange", rank.ops][index] is not None, "it never began"
        yield _with(state, index, replace(rank, ops=rank.ops + 1, waits=action))
    elif isinstance(action, Follow):
        waiting = _post(state, index, action.issue or Packet(-1, Kind.IDLE, 0))
        yield _with(waiting, index, replace(waiting.ranks[index], waits=action))
    elif isinstance(action, Gather) and action.handler and not rank.has_data:
        yield from answered(state, Lost(Cause("timeout", (), "the data group was lost before")))
    elif isinstance(action, Share | Gather | Compare | Report):
        what: object = action.row if isinstance(action, Gather) else _News()
        if isinstance(action, Share):
            what = _Body()
        elif isinstance(action, Compare):
            what = _Digest(rank.value + rank.drift)
        waiting = _post(state, index, what, _group_of(action))
        yield _with(waiting, index, replace(waiting.ranks[index], waits=action))
    elif isinstance(action, Check):
        opened = replace(rank, open=machine.command if index else 0, voted=False)
        more = _may_follow(world, state, index)
        yield from answered(_with(state, index, opened), Checked("", world.handler, more))
        if state.refusals < world.refusals:
            no = replace(rank, refused=rank.refused | {machine.command})
            refused = _with(state, index, no, refusals=state.refusals + 1)
            yield from answered(refused, Checked("no", more=more))
    elif isinstance(action, Look):
        yield from _look(world, state, action, answered)
    elif isinstance(action, Record):
        yield from answered(state, None)
    elif isinstance(action, Apply) and world.misses is not None:
        more = _may_follow(world, state, index)
        yield from answered(state, Applied(world.misses, "another step", more=more))
    elif isinstance(action, Apply) and action.handler:
        ran = replace(rank, applied=rank.applied | {machine.command})
        more = _may_follow(world, state, index)
        yield from answered(_with(state, index, ran), Applied(Status.OK, more=more))
        if state.failures < world.failures:
            failed = replace(state, failures=state.failures + 1)
            yield from answered(failed, Applied(Status.FAILED, "Error: no", more=more))
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
        elif index == 0 and action.before == NEVER:
            state = replace(state, announced=state.announced | {action.command})
        if action.wait:
            yield _with(state, index, replace(rank, waits=action))
        else:
            yield from answered(state, Settled(False))
    elif isinstance(action, Off):
        lost = _with(state, index, replace(rank, doubts=bool(rank.open)))
        yield from answered(replace(lost, gone=state.gone | {index}), None)
    else:
        assert isinstance(action, Warn)
        yield from answered(_with(state, index, replace(rank, warned=rank.warned + 1)), None)


def _look(world: World, state: State, action: Look, answered) -> Iterator[State]:  # type: ignore[no-untyped-def]
    interval = world.interval
    if action.follows:
        # It is recorded, and may have been cancelled or refused by the desk since.
        yield from answered(state, Looked(interval=interval))
        taken = replace(state, taken=state.taken + 1, durable=True)
        size = INLINE_BYTES + world.long
        at = state.ranks[0].now + world.apart
        yield from answered(taken, Looked(size=size, interval=interval, at=at))
        return
    if action.under_way:
        durable = replace(state, durable=True)
        at = state.ranks[0].now + world.ahead
        yield from answered(durable, Looked(durable=True, interval=interval, at=at))
        if state.late < world.late:
            slow = replace(state, late=state.late + 1)
            yield from answered(slow, Looked(interval=interval))
            yield from answered(slow, Looked(overdue=True, interval=interval))
            yield from answered(durable, Looked(durable=True, interval=interval, refusal=_CHANGED))
        return
    yield from answered(state, Looked(interval=interval))
    if state.differing and not state.told:
        yield from answered(replace(state, told=True), Looked(interval=interval, drift=9))
    if state.compares < world.compares:
        asked = replace(state, compares=state.compares + 1)
        yield from answered(asked, Looked(interval=interval, compare=True))
    if state.taken < world.commands:
        taken = replace(state, taken=state.taken + 1, durable=False)
        size = INLINE_BYTES + world.long
        yield from answered(taken, Looked(size=size, interval=interval))


def _may_follow(world: World, state: State, index: int) -> bool:
    """Whether rank 0 has another command that is on record."""
    return world.chains and index == 0 and state.taken < world.commands


def _apply(world: World, state: State, index: int, machine: Machine, answered) -> Iterator[State]:  # type: ignore[no-untyped-def]
    rank = state.ranks[index]
    value = rank.value + NEW
    applied = replace(
        rank, before=rank.value, value=value, applied=rank.applied | {machine.command}
    )
    more = _may_follow(world, state, index)
    good = Applied(Status.OK, digest=value, changed=True, more=more)
    yield from answered(_with(state, index, applied), good)
    if state.failures < world.failures:
        failed = replace(state, failures=state.failures + 1)
        half = replace(rank, before=rank.value, value=value + 100)
        yield from answered(
            _with(failed, index, half),
            Applied(Status.FAILED, "Error: half way", changed=True, more=more),
        )
        yield from answered(failed, Applied(Status.FAILED, "Error: no snapshot", more=more))
        if world.size > 1:
            odd = value + 50 + index
            other = replace(applied, value=odd)
            yield from answered(
                _with(failed, index, other),
                Applied(Status.OK, digest=odd, changed=True, more=more),
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
            # Rank 0, too, is in doubt once it has voted on a command that follows another.
            mishap = state.kills or state.leaves or state.breaks or state.timeouts
            is_doubted = world.chains and mishap and not appliers
            ends = ("rejected", "outcome_unknown") if is_doubted else ("rejected",)
            assert outcome in ends, f"one rank refused it: {state}"
        if outcome == "applied":
            assert len(appliers) == world.size, f"applied, but not everywhere: {state}"

    for rank in state.ranks:
        cause = _thaw(world, rank).cause
        assert cause is None or cause.kind != "serial", f"they lost the sequence: {state}"

    if world.skew or world.misses is not None:
        assert "applied" not in outcomes.values(), f"{state}"

    for rank in state.ranks:
        is_loud = rank.state in ("raised", "dead") or rank.warned
        is_sure = not rank.doubts or rank.open in state.never
        assert is_loud or is_sure, f"in doubt, and silent: {state}"

    mishaps = state.kills or state.breaks or state.timeouts or state.told or world.impatient
    if world.commands == 1 and not mishaps and "outcome_unknown" not in outcomes.values():
        assert not any(rank.raised_at for rank in state.ranks), f"raised for nothing: {state}"

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
        heard = {rank.raised_at for rank in state.ranks if not _thaw(world, rank).cause}
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
