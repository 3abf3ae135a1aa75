"""What is said of runs and their processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from launchhelm._wording.values import duration, plain, values_text

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

_UNFINISHED: Final = {
    "gone": ("ended without an end record", "ended without an end record"),
    "silent": ("is silent without an end record", "are silent without an end record"),
    "terminated": ("was terminated", "were terminated"),
    "interrupted": ("was interrupted", "were interrupted"),
    "preempted": ("was preempted", "were preempted"),
}
"""What is said of ranks that did not finish although the run did: of one, and of several."""

READ_ONLY: Final = "this dashboard is read-only (--read-only)"


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


def failed_text(rank: int, step: int | None, reason: str, *, on_record: bool = True) -> str:
    """Say which rank failed first, where and why.

    Args:
        on_record: The rank left an end record; else the step is the last one heard of.
    """
    return f"failed on rank {rank}{_at(step, on_record)}" + (f": {plain(reason)}" if reason else "")


def all_gone_text(ranks: Sequence[int], step: int | None) -> str:
    """Say that several ranks ended without a word, so that nobody knows which was the first."""
    return f"failed: {ranks_text(ranks)} are gone without an end record{_at(step, False)}"


def stopped_text(reason: str, step: int | None, *, on_record: bool = True) -> str:
    """Say what stopped the run; `on_record` as for `failed_text`."""
    by = f" by {plain(reason)}" if reason else ""
    return f"stopped{by}{_at(step, on_record)}"


def _at(step: int | None, on_record: bool) -> str:
    if step is None:
        return ""
    return f" at step {step:,}" if on_record else f", last heard of at step {step:,}"


def copy_text(step: int | None) -> str:
    """Say that a directory is a copy of a run that had not ended, and how far it goes."""
    return "a copy" + (f", as of step {step:,}" if step is not None else "")


def unreadable_text(problem: str, owner: str = "") -> str:
    """Say why a directory that looks like a run cannot be read."""
    return f"unreadable: {plain(problem)}" + (f" (owner {plain(owner)})" if owner else "")


def joins_text(first: int | None, front: int | None) -> str:
    """Say how the first step of an attempt joins the highest one of those before it.

    "" where either is not known.
    """
    if first is None or front is None:
        return ""
    if first <= front:
        return f"repeats {first:,} to {front:,}"
    return "" if first == front + 1 else f"nothing between {front:,} and {first:,}"


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
