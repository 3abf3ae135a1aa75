"""What is said of commands and what became of them, by evidence only. Pure.

The words "on all" appear in one place only, where every process of the group reported success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from launchhelm._wording.values import (
    and_more,
    changes_text,
    duration,
    named_text,
    plain,
    processes,
    short_reason,
    values_text,
)
from launchhelm.records import Outcome

NOT_PICKED_UP_EXCHANGES: Final = 3
NOT_PICKED_UP_S: Final = 30.0
"""A waiting command is called not picked up after this many exchanges and at least this long."""

_SEVERAL_LOOKS_S: Final = 6.0
"""Rank 0 looks into the inbox every 0.5 to 5 s; after this long it is worth a word."""

_NAMED_FAILURES: Final = 3


class Sentence(NamedTuple):
    """One statement: `head` is the part to print bold, `rest` follows it directly.

    `mark` is the shape that stands beside it. `tone` is good, bad, unknown or waiting; an unknown
    outcome is never good.
    """

    head: str
    rest: str = ""
    mark: str = ""
    tone: str = "waiting"

    def __str__(self) -> str:
        return self.head + self.rest


class CommandLike(Protocol):
    """What `outcome_text` needs of a command."""

    @property
    def outcome(self) -> Outcome | None:
        """The newest state on record, None while the file waits in the inbox."""
        ...

    @property
    def first_step(self) -> int | None:
        """The step before which it must not act, when given."""
        ...


class Quiet(NamedTuple):
    """A rank that is `late` or `silent`, and since when."""

    rank: int
    state: str
    seconds: float

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.state}, no heartbeat for {duration(self.seconds)})"


@dataclass(frozen=True, slots=True)
class Around:
    """What a reader knows of the run around one command; None means not reported.

    Args:
        waited_s: How long the command has been in its present state, on the reader's own clock.
        exchange_s: Seconds between two control exchanges.
        next_exchange_s: Seconds until the next one.
        step: The front step now.
        pace_s: Seconds per step.
        world_size: Processes of the training group.
        handler: A handler that runs now, for example `checkpoint`, and for how long.
        quiet: Ranks without a heartbeat for long, in order; the others wait for them.
        paused: All ranks wait for `resume`; commands without a step act meanwhile.
        held: Nobody knows when the next step ends, since ranks wait for another one.
        control_off: Why controlling is off, when it is.
        leaderless: Rank 0, which takes commands, has ended, and the others go on.
        run_over: Why nobody will answer, for example "the run finished".
        run_closed: No attempt can come after that.
        cancelled_by: Who cancelled it.
        reverted_by: What undid the value later, for example "restore at step 13,900, attempt 3".
        not_effective: Why it had no effect at the next step, "" when it had.
        returned_by: The command by which the run brought it back after that, "" for none.
        diverged: (rank, value text) of ranks that show another effective value, and what
            the others show.
    """

    waited_s: float | None = None
    exchange_s: float | None = None
    next_exchange_s: float | None = None
    step: int | None = None
    pace_s: float | None = None
    world_size: int | None = None
    handler: str = ""
    handler_s: float | None = None
    quiet: Sequence[Quiet] = field(default_factory=tuple)
    paused: bool = False
    held: bool = False
    control_off: str = ""
    leaderless: bool = False
    run_over: str = ""
    run_closed: bool = False
    cancelled_by: str = ""
    reverted_by: str = ""
    not_effective: str = ""
    returned_by: str = ""
    diverged: Sequence[tuple[int, str]] = field(default_factory=tuple)
    others_show: str = ""


NOTHING_KNOWN: Final = Around()


def outcome_text(command: CommandLike, around: Around = NOTHING_KNOWN) -> Sentence:
    """Say what became of a command, by evidence only."""
    outcome = command.outcome
    if outcome is None or outcome.state == "claimed":
        return _waiting(command, around, picked_up=outcome is not None)
    if outcome.state == "applying" and (around.run_over or around.leaderless):
        rest = ": rank 0 was gone before it could say. It will not be tried again"
        return Sentence("Outcome unknown", rest, mark="?", tone="unknown")
    if outcome.state == "applying":
        count = outcome.of if outcome.of is not None else around.world_size
        on = f" on {processes(count)}" if count is not None else ""
        waited = f" for {duration(around.waited_s)}" if around.waited_s is not None else ""
        return Sentence(f"Running{on}{waited}", mark="◆")
    if outcome.state == "applied":
        return _applied(outcome, around)
    if outcome.state == "outcome_unknown":
        return _unknown(outcome)
    if outcome.state == "rejected":
        why = _said(outcome.message) or plain(outcome.code)
        return Sentence(
            "Rejected, nothing changed", f": {why}" if why else "", mark="✕", tone="bad"
        )
    if outcome.state == "expired":
        at = _at_step(outcome)
        why = f": {_said(outcome.message)}" if outcome.message and not at else ""
        return Sentence(f"Expired{at}, nothing changed", why, mark="✕", tone="bad")
    if outcome.state == "cancelled":
        by = f" by {plain(around.cancelled_by)}" if around.cancelled_by else ""
        return Sentence(f"Cancelled{by}, nothing changed", mark="✕", tone="bad")
    return Sentence(plain(outcome.state), _reason(outcome), mark="?", tone="unknown")


def _applied(outcome: Outcome, around: Around) -> Sentence:
    head = f"Applied{_at_step(outcome)}"
    if around.diverged:
        named = ", ".join(
            f"rank {rank} has {plain(value)}" for rank, value in around.diverged[:_NAMED_FAILURES]
        )
        named += and_more(len(around.diverged) - _NAMED_FAILURES)
        others = f", the others {plain(around.others_show)}" if around.others_show else ""
        return Sentence("Diverged since", f": {named}{others}", mark="?", tone="bad")
    if around.reverted_by:
        rest = f": reverted by {plain(around.reverted_by)}"
        if around.returned_by:
            rest += f", and brought back by command {plain(around.returned_by)}"
            return Sentence(head, rest, mark="▲", tone="good")
        return Sentence(f"{head}, not in effect any more", rest, mark="▲", tone="bad")
    if around.not_effective:
        rest = f": {_said(around.not_effective)}"
        return Sentence(f"{head}, and not in effect", rest, mark="▲", tone="bad")
    changes = changes_text(outcome.changes) or _said(outcome.message)
    said = [each for each in (changes, _result_text(outcome)) if each]
    tail = f", {', '.join(said)}" if said else ""
    count, of = outcome.applied_on, outcome.of
    if count is None or of is None:
        tail = f", number of processes not reported{tail}"
    elif count != of:
        head += f" on {count:,} of {processes(of)}"
    elif of > 1:
        head += f" on all {processes(of)}"
    return Sentence(head, tail, mark="▲", tone="good")


def _result_text(outcome: Outcome) -> str:
    """Say in short what a command returned, beyond the values that it changed."""
    result = outcome.result
    if isinstance(result, Mapping) and isinstance(result.get("modules"), int):
        names = [plain(str(name)) for name in result.get("names") or ()][:_NAMED_FAILURES]
        count = result["modules"]
        named = f" ({', '.join(names)}{and_more(count - len(names))})" if names else ""
        return f"in {count:,} {'module' if count == 1 else 'modules'}{named}"
    if outcome.changes or result in (None, {}):
        return ""
    if isinstance(result, Mapping):
        # As in JSON, which it is: null, where a value that is shown says none.
        told = {name: "null" if value is None else value for name, value in result.items()}
        return f"result {short_reason(named_text(told))}"
    return f"result {short_reason(values_text(result))}"


def _unknown(outcome: Outcome) -> Sentence:
    count, of = outcome.applied_on, outcome.of
    if count is None or of is None:
        rest = f"{_reason(outcome)}. Number of processes not reported. It will not be tried again"
        return Sentence("Outcome unknown", rest, mark="?", tone="unknown")
    if count >= of:
        rest = f", although {count:,} of {of:,} reported success{_reason(outcome)}"
        return Sentence(
            "Outcome unknown", f"{rest}. It will not be tried again", mark="?", tone="unknown"
        )
    head = f"Outcome unknown: {count:,} of {processes(of)} reported success."
    parts = []
    if outcome.failures:
        named = "; ".join(
            f"rank {rank}{f' ({plain(host)})' if host else ''}, `{plain(text)}`"
            for rank, host, text in outcome.failures[:_NAMED_FAILURES]
        )
        parts.append(f"Not from: {named}{and_more(len(outcome.failures) - _NAMED_FAILURES)}.")
    elif outcome.code or outcome.message:
        parts.append(f"{_reason(outcome).removeprefix(': ')}.")
    if outcome.rolled_back:
        parts.append("All ranks report the old values again (rolled back).")
    else:
        parts.append("The change may be partly in effect.")
    parts.append("It will not be tried again")
    return Sentence(head, " " + " ".join(parts), mark="?", tone="unknown")


def _waiting(command: CommandLike, around: Around, *, picked_up: bool) -> Sentence:
    over = around.run_over
    if around.leaderless:
        over = f"control is off: {plain(around.control_off)}"
    if over:
        then = "a next attempt gets it while it is valid, else it expires"
        if around.run_closed:
            then = "nothing takes it any more, and nothing has changed"
        elif picked_up:
            then = "rank 0 that had taken it is gone, so that a next attempt rejects it"
            then += " (`runtime_restart`)"
        return Sentence("Waiting", f": {over}; {then}", mark="◆")
    first_step = command.first_step
    if around.paused and first_step is not None and (around.step or 0) < first_step:
        rest = ": the run is paused, and goes on with `resume`"
        return Sentence(f"Scheduled for step {first_step:,}", rest, mark="◆")
    # What is scheduled stays in the inbox until its step is near.
    is_ahead = first_step is not None and (around.step is None or around.step < first_step)
    is_overdue = _is_overdue(around) and not is_ahead
    if not picked_up and (is_overdue or _coordinator(around) is not None):
        waited = f" for {duration(around.waited_s)}" if around.waited_s is not None else ""
        rest = f": {_why_not_picked_up(around)}. Nothing has changed"
        return Sentence(f"Not picked up{waited}", rest, mark="◆", tone="bad")
    if around.control_off:
        rest = f": control is off: {plain(around.control_off)}. Nothing has changed"
        return Sentence("Waiting", rest, mark="◆", tone="bad")
    if around.handler:
        running = (
            f", running for {duration(around.handler_s)}" if around.handler_s is not None else ""
        )
        return Sentence("Waiting", f" behind `{plain(around.handler)}`{running}", mark="◆")
    waits = around.waited_s is not None and around.waited_s >= _SEVERAL_LOOKS_S
    if not picked_up and not is_ahead and waits and around.waited_s is not None:
        rest = f": rank 0 has not picked it up for {duration(around.waited_s)}"
        return Sentence("Waiting", rest, mark="◆")
    if first_step is not None and is_ahead:
        rest = ""
        if around.quiet:
            rest = f": all wait for {_quiet_text(around)}"
        elif around.step is not None and around.pace_s is not None:
            ahead_s = (first_step - around.step) * around.pace_s
            rest = f": about {duration(ahead_s)} at the present pace"
        return Sentence(f"Scheduled for step {first_step:,}", rest, mark="◆")
    if around.quiet:
        return Sentence("Waiting", f": all wait for {_quiet_text(around)}", mark="◆")
    if around.held:
        return Sentence(
            "Waiting", ": at the next control point; ranks wait for each other", mark="◆"
        )
    due = around.next_exchange_s if around.next_exchange_s is not None else around.exchange_s
    about = f" in about {duration(max(1.0, due))}" if due is not None else ""
    return Sentence(
        "Waiting", f": next exchange{about}, then at a step all ranks agree on", mark="◆"
    )


def _coordinator(around: Around) -> Quiet | None:
    """Return rank 0 when it is among the ranks without a heartbeat."""
    return next((each for each in around.quiet if each.rank == 0), None)


def _quiet_text(around: Around) -> str:
    more = len(around.quiet) - 1
    return str(around.quiet[0]) + and_more(more, " rank" if more == 1 else " ranks")


def _is_overdue(around: Around) -> bool:
    if around.waited_s is None:
        return False
    exchanges_s = NOT_PICKED_UP_EXCHANGES * (around.exchange_s or 0.0)
    return around.waited_s >= max(NOT_PICKED_UP_S, exchanges_s)


def _why_not_picked_up(around: Around) -> str:
    coordinator = _coordinator(around)
    if coordinator is not None:
        return f"rank 0 is {coordinator.state}, no heartbeat for {duration(coordinator.seconds)}"
    if around.control_off:
        return f"control is off: {plain(around.control_off)}"
    return "rank 0 is not late, but has not come to a control point"


def _at_step(outcome: Outcome) -> str:
    step = outcome.applied_at.get("step")
    if isinstance(step, str) and step.lstrip("-").isdecimal():
        step = int(step)
    return f" at step {step:,}" if isinstance(step, int) else ""


def _reason(outcome: Outcome) -> str:
    """Give the code as it is, known or not, and the message beside it."""
    code = f"`{plain(outcome.code)}`" if outcome.code else ""
    said = ", ".join(part for part in (code, _said(outcome.message)) if part)
    return f": {said}" if said else ""


def _said(message: str) -> str:
    """Prepare a message for the middle of a sentence."""
    return plain(message).removesuffix(".")
