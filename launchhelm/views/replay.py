"""What of another run's ledger can be given to this one, and at which steps. Sends nothing.

The command line and the dashboard show the same plan, and send what is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _strict, _wording
from launchhelm.controls import preview
from launchhelm.records import ORDERS
from launchhelm.views.plan import values_of
from launchhelm.views.run import RunView

MAX_STEP: Final = 1 << 53

Json = dict[str, Any]  # Any: JSON.


@dataclass(frozen=True, slots=True)
class Told:
    """One command of the other ledger.

    Args:
        source: `<run>/<id>`, or the id alone where a file does not tell the run.
        step: At which it was applied there, None when that is not known.
    """

    source: str
    name: str
    payload: Json
    reason: str
    state: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which commands are wanted, and what becomes of their steps.

    Args:
        scale: Every step is multiplied by it, before `offset` is added.
        only: These controls; all of them when empty.
        but: Not these controls.
    """

    offset: int = 0
    scale: float = 1.0
    only: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One command of the other ledger, and what becomes of it here.

    Args:
        step: At which it is to act here, None when that is not known.
        why: It is left out, "" when it is not.
    """

    source: str
    name: str
    payload: Json
    reason: str
    step: int | None
    why: str


class NotALedger(ValueError):
    """A line of a file is no command.

    Args:
        line: Its number, from 1.
    """

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} is no command")
        self.line = line


class UnknownControls(ValueError):
    """Controls were chosen of which neither ledger nor run knows anything.

    Args:
        option: `only` or `except`.
        known: Those of which the ledger has commands.
    """

    def __init__(self, option: str, unknown: Iterable[str], known: Iterable[str]) -> None:
        super().__init__(f"there is no command of {_wording.listed(unknown)} to replay")
        self.option = option
        self.known = f"There are commands of {_wording.listed(known)}."


def told_by(view: RunView) -> list[Told]:
    """Return the commands of a run, oldest first."""
    return [
        Told(
            f"{view.run_id}/{each.id}",
            each.name,
            dict(each.payload),
            each.reason,
            each.state,
            step_of(each.outcome.applied_at if each.outcome is not None else None),
        )
        for each in view.commands
    ]


def told_in(text: str) -> list[Told]:
    """Return the commands of a file of `control RUN log --json`, or of the dashboard's export.

    Raises:
        NotALedger: It is neither.
    """
    return [_told(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def replay_of(run: RunView, ledger: Iterable[Told], choice: Choice) -> list[Entry]:
    """Plan what of a ledger is given to a run, in order of its steps there.

    Raises:
        UnknownControls: The choice names some.
    """
    told = [each for each in ledger if each.name not in ORDERS]
    known = dict.fromkeys(each.name for each in told)
    for option, names in (("only", choice.only), ("except", choice.but)):
        unknown = names - known.keys() - run.capabilities.keys()
        if unknown:
            raise UnknownControls(option, sorted(unknown), known)
    done = {
        _id_of(each.replays) for each in run.commands if each.is_pending or each.state == "applied"
    }
    planned: set[str] = set()
    found = []
    for each in told:
        if (choice.only and each.name not in choice.only) or each.name in choice.but:
            continue
        step, why = _step_here(each, choice)
        why = _objection(run, each, step, why)
        if not why and _id_of(each.source) in done:
            why = "it was replayed already"
        if not why and each.source in planned:
            why = "it is listed twice"
        if not why:
            planned.add(each.source)
        found.append(Entry(each.source, each.name, each.payload, each.reason, step, why))
    return sorted(found, key=lambda entry: entry.step or 0)


def step_of(at: object) -> int | None:
    """Return the step of `applied_at`, None when it tells none."""
    step = at.get("step") if isinstance(at, Mapping) else None
    return int(str(step)) if re.fullmatch(r"-?\d{1,15}", str(step), re.ASCII) else None


def _told(number: int, line: str) -> Told:
    try:
        said = _strict.load(line)
        payload = said["payload"] if "payload" in said else said["input"]
        if not isinstance(payload, dict):
            raise TypeError(payload)
        run = said.get("run")
        source = f"{run}/{said['id']}" if isinstance(run, str) and run else str(said["id"])
        at = said.get("applied_at") or {"step": said.get("applied_step")}
        reason = str(said.get("reason") or "")
        return Told(source, str(said["name"]), payload, reason, str(said["state"]), step_of(at))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NotALedger(number) from None


def _step_here(told: Told, choice: Choice) -> tuple[int | None, str]:
    """Return the step here, or why there is none."""
    if told.step is None:
        return None, "it was applied at no step"
    scaled = told.step * choice.scale
    if not abs(scaled) < MAX_STEP or not abs(round(scaled) + choice.offset) < MAX_STEP:
        return None, "its step would be out of reach"
    return round(scaled) + choice.offset, ""


def _objection(run: RunView, told: Told, step: int | None, no_step: str) -> str:
    """Say why a command is left out, "" when it is not."""
    if told.state != "applied":
        unknown = told.state == "outcome_unknown"
        return "its outcome is unknown" if unknown else f"it was {told.state}"
    if step is None:
        return no_step
    capability = run.capabilities.get(told.name)
    if capability is None:
        return "this run has no such control"
    if run.step is not None and step <= run.step:
        return f"this run is at step {run.step:,}"
    if step < 0:
        return "its step would be before the first one"
    return preview.problem_with(capability, told.payload, values_of(run))


def _id_of(source: str) -> str:
    return source.rpartition("/")[2]
