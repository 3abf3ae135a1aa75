"""Every sentence that page, terminal and report say about runs and commands.

One wording for all of them, so that they can never disagree. Pure: no clock, no disk, no locale.
The words "on all" appear in one place only, where every process of the group reported success.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from launchhelm.records import Outcome

NOT_PICKED_UP_EXCHANGES: Final = 3
NOT_PICKED_UP_S: Final = 30.0
"""A waiting command is called not picked up after this many exchanges and at least this long."""

_SEVERAL_LOOKS_S: Final = 6.0
"""Rank 0 looks into the inbox every 0.5 to 5 s; after this long it is worth a word."""

RANK_MARKS: Final[Mapping[str, str]] = {
    "ok": "",
    "starting": "…",
    "busy": "▣",
    "behind": "▼",
    "late": "◐",
    "silent": "✕",
    "ended": "■",
    "missing": "?",
}

NO_NEWS_EXPLANATIONS: Final = (
    "the job ended without saying so",
    "all ranks hang",
    "this is a copy, or a cached view of another file system",
)

_REASON_WIDTH: Final = 80
_SOURCE: Final = re.compile(r"\[/\S+:\d+\] ")
_UNFINISHED: Final = {
    "gone": ("ended without an end record", "ended without an end record"),
    "silent": ("is silent without an end record", "are silent without an end record"),
    "terminated": ("was terminated", "were terminated"),
    "interrupted": ("was interrupted", "were interrupted"),
    "preempted": ("was preempted", "were preempted"),
}
"""What is said of ranks that did not finish although the run did: of one, and of several."""

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_NAMED_FAILURES: Final = 3
_SHOWN_GROUPS: Final = 4


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
        return f"rank {self.rank}, {self.state}: no heartbeat for {duration(self.seconds)}"


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
        control_off: Why controlling is off, when it is.
        run_over: Why nobody will answer, for example "the run finished".
        run_closed: No attempt can come after that.
        cancelled_by: Who cancelled it.
        reverted_by: What undid the value later, for example "restore at step 13,900, attempt 3".
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
    control_off: str = ""
    run_over: str = ""
    run_closed: bool = False
    cancelled_by: str = ""
    reverted_by: str = ""
    diverged: Sequence[tuple[int, str]] = field(default_factory=tuple)
    others_show: str = ""


NOTHING_KNOWN: Final = Around()


# Commands -----------------------------------------------------------------------------------


def outcome_text(command: CommandLike, around: Around = NOTHING_KNOWN) -> Sentence:
    """Say what became of a command, by evidence only."""
    outcome = command.outcome
    if outcome is None or outcome.state == "claimed":
        return _waiting(command, around, picked_up=outcome is not None)
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
        named += _and_more(len(around.diverged) - _NAMED_FAILURES)
        others = f", the others {plain(around.others_show)}" if around.others_show else ""
        return Sentence("Diverged since", f": {named}{others}", mark="?", tone="bad")
    if around.reverted_by:
        rest = f": reverted by {plain(around.reverted_by)}"
        return Sentence(f"{head}, not in effect any more", rest, mark="▲", tone="bad")
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
        named = f" ({', '.join(names)}{_and_more(count - len(names))})" if names else ""
        return f"in {count:,} {'module' if count == 1 else 'modules'}{named}"
    if outcome.changes or result in (None, {}):
        return ""
    return "result " + short_reason(
        payload_text(result) if isinstance(result, Mapping) else values_text(result)
    )


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
        parts.append(f"Not from: {named}{_and_more(len(outcome.failures) - _NAMED_FAILURES)}.")
    elif outcome.code or outcome.message:
        parts.append(f"{_reason(outcome).removeprefix(': ')}.")
    if outcome.rolled_back:
        parts.append("All ranks report the old values again (rolled back).")
    else:
        parts.append("The change may be partly in effect.")
    parts.append("It will not be tried again")
    return Sentence(head, " " + " ".join(parts), mark="?", tone="unknown")


def _waiting(command: CommandLike, around: Around, *, picked_up: bool) -> Sentence:
    if around.run_over:
        then = "a next attempt gets it while it is valid, else it expires"
        if around.run_closed:
            then = "nothing takes it any more, and nothing has changed"
        elif picked_up:
            then = "rank 0 that had taken it is gone, so that a next attempt rejects it"
            then += " (`runtime_restart`)"
        return Sentence("Waiting", f": {around.run_over}; {then}", mark="◆")
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
    due = around.next_exchange_s if around.next_exchange_s is not None else around.exchange_s
    about = f" in about {duration(max(1.0, due))}" if due is not None else ""
    return Sentence(
        "Waiting", f": next exchange{about}, then at a step all ranks agree on", mark="◆"
    )


def _coordinator(around: Around) -> Quiet | None:
    """Return rank 0 when it is among the ranks without a heartbeat."""
    return next((each for each in around.quiet if each.rank == 0), None)


def _quiet_text(around: Around) -> str:
    return str(around.quiet[0]) + _and_more(len(around.quiet) - 1)


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


def changes_text(changes: Mapping[str, Any]) -> str:
    """Say old and new value, for example `lr 0.01 -> 0.005` or per group where groups differ."""
    return "; ".join(
        f"{plain(name)} {change_text(change.get('old'), change.get('new'))}"
        for name, change in changes.items()
        if isinstance(change, Mapping)
    )


def change_text(old: Any, new: Any) -> str:
    """Say `old -> new`; lists hold one value per parameter group."""
    if not isinstance(old, list | tuple) or not isinstance(new, list | tuple):
        return arrow(old, new)
    pairs = list(zip(old, new, strict=False))
    if not pairs:
        return "in no group"
    if all(pair == pairs[0] for pair in pairs):
        return arrow(*pairs[0]) + (f" in {len(pairs)} groups" if len(pairs) > 1 else "")
    # Groups that stay as they are would hide the ones that change.
    said = [
        f"group{index} {arrow(*pair)}" for index, pair in enumerate(pairs) if pair[0] != pair[1]
    ]
    return ", ".join(said[:_SHOWN_GROUPS]) + _and_more(len(said) - _SHOWN_GROUPS, " groups")


def arrow(old: Any, new: Any) -> str:
    """Say `old -> new`, with all digits where four would hide the difference."""
    before, after = value_text(old), value_text(new)
    if before == after and old != new:
        before, after = repr(old), repr(new)
    return f"{before} -> {after}"


def values_text(value: Any) -> str:
    """Say one value, or one per parameter group."""
    if not isinstance(value, list | tuple):
        return value_text(value)
    said = [value_text(item) for item in value]
    if len(set(said)) == 1:
        return said[0]
    return " ".join(said[:_SHOWN_GROUPS]) + _and_more(len(said) - _SHOWN_GROUPS)


def payload_text(payload: Mapping[str, Any]) -> str:
    """Say the input of a command as it is typed: `scale=0.5 group=1`."""
    return " ".join(f"{plain(str(key))}={values_text(value)}" for key, value in payload.items())


# Runs ---------------------------------------------------------------------------------------


def starting_text(seen: int, world_size: int | None, since_s: float) -> str:
    """Say how many ranks have been seen so far."""
    of = f"{seen:,} of {world_size:,}" if world_size is not None else f"{seen:,}"
    return f"starting: {of} {'rank' if (world_size or seen) == 1 else 'ranks'} seen, " + duration(
        since_s
    )


def running_text(
    exceptions: Mapping[str, int],
    no_step_s: float | None = None,
    *,
    paused_at: int | None = None,
) -> str:
    """Say `running` and what is out of order: `running, 1 rank silent, 1 behind`.

    Args:
        exceptions: Count per state of a rank, in order of weight; ok, busy and zero are left out.
        no_step_s: Seconds since a step was seen to end, when that is long.
        paused_at: The step at which the ranks wait, since they were told to.
    """
    said: list[str] = []
    for word, count in exceptions.items():
        if count and word not in ("ok", "busy"):
            unit = "" if said else (" rank" if count == 1 else " ranks")
            said.append(f"{count:,}{unit} {word}")
    if no_step_s is not None:
        said.append(f"no step for {duration(no_step_s)}")
    head = "running" if paused_at is None else f"paused at step {paused_at:,}"
    return ", ".join([head, *said])


def no_news_text(silent_s: float, last_written: str = "", host: str = "") -> str:
    """Say for how long nothing moved; `last_written` is a time of day by that host's clock."""
    last = f"; last written {last_written} by {plain(host)}'s clock" if last_written else ""
    return f"no news for {duration(silent_s)}{last}"


def finished_text(after_s: float | None, lost: Mapping[int, str] | None = None) -> str:
    """Say how long the run took, and which ranks did not finish.

    Args:
        lost: Per rank how it ended, `gone` without an end record, or `silent`.
    """
    said = "finished" if after_s is None else f"finished after {duration(after_s)}"
    ranks: dict[str, list[int]] = {}
    for rank, word in sorted((lost or {}).items()):
        ranks.setdefault(word, []).append(rank)
    for word, those in ranks.items():
        how = _UNFINISHED.get(word) or (plain(word), plain(word))
        said += f"; {ranks_text(those)} {how[len(those) > 1]}"
    return said


def ranks_text(ranks: Sequence[int]) -> str:
    """Name ranks in order, runs of them as `4-9`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    said = [f"{low}" if low == high else f"{low}-{high}" for low, high in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(said)


def failed_text(rank: int, step: int | None, reason: str) -> str:
    """Say which rank failed first, where and why."""
    at = f" at step {step:,}" if step is not None else ""
    return f"failed on rank {rank}{at}" + (f": {plain(reason)}" if reason else "")


def stopped_text(reason: str, step: int | None) -> str:
    """Say what stopped the run."""
    by = f" by {plain(reason)}" if reason else ""
    return f"stopped{by}" + (f" at step {step:,}" if step is not None else "")


def copy_text(step: int | None) -> str:
    """Say that a directory is a copy of a run that had not ended, and how far it goes."""
    return "a copy" + (f", as of step {step:,}" if step is not None else "")


def unreadable_text(problem: str, owner: str = "") -> str:
    """Say why a directory that looks like a run cannot be read."""
    return f"unreadable: {plain(problem)}" + (f" (owner {plain(owner)})" if owner else "")


def waiting_text(count: int) -> str:
    """Say how many commands have no outcome yet."""
    return f"{count:,} {'command' if count == 1 else 'commands'} waiting"


def diverged_text(name: str, by_rank: Mapping[str, Any]) -> str:
    """Say which value a control has on which rank, where they differ."""
    said = ", ".join(
        f"{values_text(value)} on rank {plain(str(rank))}" for rank, value in by_rank.items()
    )
    return f"diverged: {plain(name)} is {said}"


def inbox_text(path: str, owner: str, mode: int) -> str:
    """Say why this user may not control a run."""
    return (
        f"{plain(path)} is owned by {plain(owner)}, mode {mode:04o}: you may not control this run"
    )


READ_ONLY: Final = "this dashboard is read-only (--read-only)"


# Numbers, time, names -----------------------------------------------------------------------


def processes(count: int) -> str:
    """Say `1 process` or `512 processes`."""
    return f"{count:,} process" if count == 1 else f"{count:,} processes"


def size_text(count: int) -> str:
    """Say a number of bytes."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count:,} bytes" if not unit else f"{value:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Say `41 s`, `23 min`, `3 h 12 min` or `2 d`; rounded down, so that ages never jump back."""
    if not math.isfinite(seconds):
        return "an unknown time"
    whole = max(0, int(seconds))
    if whole < 180:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def step_text(step: int | None) -> str:
    """Write a step with thousands separators, `-` before the first."""
    return "-" if step is None else f"{step:,}"


def joins_text(first: int | None, front: int | None) -> str:
    """Say how the first step of an attempt joins the highest one of those before it.

    "" where either is not known.
    """
    if first is None or front is None:
        return ""
    if first <= front:
        return f"repeats {first:,} to {front:,}"
    return "" if first == front + 1 else f"nothing between {front:,} and {first:,}"


def value_text(value: Any) -> str:
    """Write one value: 4 significant digits, `NaN` and `+∞` by name, other things as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _float_text(value)
    return plain(str(value))


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+∞" if value > 0 else "-∞"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e4:
        return f"{value:.4g}"
    if 1e4 <= size < 1e6:
        return f"{float(f'{value:.4g}'):,.0f}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def plain(text: str) -> str:
    """Escape what could move the cursor or reorder a line; everything else stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(character) if _is_hostile(character) else character for character in text
    )


def _is_hostile(character: str) -> bool:
    # Controls, surrogates, line separators, and the format characters that reorder or hide text.
    # The joiners stay: emoji and several scripts need them.
    category = unicodedata.category(character)
    if category == "Cf":
        return character not in "\u200c\u200d"
    return category in ("Cc", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character) or (
        f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    )


def cut(text: str, width: int) -> str:
    """Cut a long name in the middle, so that both ends stay readable."""
    if len(text) <= width or width < 3:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short_reason(reason: str) -> str:
    """Cut a reason to its beginning, without the place in a library's sources that some lead with.

    For tables, and beside a reason that matters more.
    """
    said = plain(_SOURCE.sub("", reason))
    return said if len(said) <= _REASON_WIDTH else f"{said[: _REASON_WIDTH - 1]}…"


def listed(items: Iterable[str], *, empty: str = "none") -> str:
    """Join names with commas."""
    return ", ".join(plain(item) for item in items) or empty


def _and_more(count: int, unit: str = "") -> str:
    return f" and {count:,} more{unit}" if count > 0 else ""
