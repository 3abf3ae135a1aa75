"""What all rows of a gather mean together, decided alike on every rank. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from launchhelm.torch._messages import (
    Row,
    Status,
    Verdict,
)

NO_TARGET: Final = "No target: "
"""How a refusal begins for a command that would find nothing to change."""


def judge_votes(rows: Sequence[Row]) -> Verdict | None:
    """Return why a command is refused, the same on every rank; None when all ranks accept."""
    if len({(row.call, row.step) for row in rows}) > 1:
        where = ", ".join(
            f"rank {rank} at step {row.step} (call {row.call})" for rank, row in enumerate(rows)
        )
        message = f"The ranks are not at the same step: {where}."
        return Verdict("rejected", "steps_differ", _shorten(message))
    failures = [(rank, row.text) for rank, row in enumerate(rows) if row.status is not Status.OK]
    if failures:
        return refusal(failures, len(rows))
    if len({row.digest for row in rows}) > 1:
        return Verdict("rejected", "local_validation", "The ranks know different controls.")
    return None


def judge_results(rows: Sequence[Row]) -> Verdict:
    """Return what became of a command that all ranks tried to apply."""
    if all(row.status is Status.EXPIRED for row in rows):
        return Verdict("expired", "expired", "Its last step passed before it could be applied.")
    if all(row.status is Status.EARLY for row in rows):
        return Verdict("rejected", "step_not_reached", f"{rows[0].text}.")
    if all(row.status is Status.NOT_DONE for row in rows):
        return Verdict("rejected", "not_done", rows[0].text)
    failures = [
        (rank, row.text or row.status.name.lower())
        for rank, row in enumerate(rows)
        if row.status is not Status.OK
    ]
    applied_on = len(rows) - len(failures)
    if not failures:
        # The values of most ranks are the norm; among equals, that of the lowest rank.
        usual = Counter(row.digest for row in rows).most_common(1)[0][0]
        failures = [
            (rank, f"ReadBack: holds {row.text}, unlike the other ranks")
            for rank, row in enumerate(rows)
            if row.digest != usual
        ]
        if not failures:
            return Verdict("applied", applied_on=applied_on)
        applied_on -= len(failures)
    return Verdict(
        "outcome_unknown",
        "DivergedStateError",
        f"Applied on {applied_on} of {len(rows)} ranks.",
        failures=tuple(failures),
        applied_on=applied_on,
        rolled_back=False,
        consistent=False,
    )


def judge_roll_back(verdict: Verdict, rows: Sequence[Row]) -> Verdict:
    """Complete a failed verdict by how the roll-back went on each rank."""
    stuck = [
        (rank, f"roll-back failed: {row.text}")
        for rank, row in enumerate(rows)
        if row.status is not Status.OK
    ]
    undone = not stuck
    tail = (
        "All ranks took it back; the state is consistent."
        if undone
        else f"It could not be taken back on rank {', '.join(str(rank) for rank, _ in stuck)}."
    )
    return Verdict(
        verdict.state,
        verdict.code,
        f"{verdict.message} {tail}",
        failures=tuple(sorted((*verdict.failures, *stuck))),
        applied_on=verdict.applied_on,
        rolled_back=undone,
        consistent=undone,
    )


def refusal(failures: Sequence[tuple[int, str]], size: int) -> Verdict:
    """Refuse a command for what some of `size` ranks said."""
    texts = {text for _, text in failures}
    if len(failures) == size and len(texts) == 1:
        message = failures[0][1]
    else:
        message = "; ".join(f"rank {rank}: {text}" for rank, text in failures)
    found_nothing = all(text.startswith(NO_TARGET) for text in texts)
    code = "no_target" if found_nothing else "local_validation"
    return Verdict("rejected", code, _shorten(message), failures=tuple(failures))


def _shorten(message: str, limit: int = 2000) -> str:
    return message if len(message) <= limit else message[: limit - 3] + "..."
