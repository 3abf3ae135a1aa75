"""What of another run's ledger can be given to this one, and at which steps. Sends nothing.

The command line and the dashboard show the same plan, and send what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _strict, _wording
from launchhelm.controls import preview
from launchhelm.records import ORDERS, REAPPLY
from launchhelm.views.commands import CommandView
from launchhelm.views.lineage import (
    NOT_APPLIED,
    Place,
    brought_back,
    original_of,
    places,
    step_of,
)
from launchhelm.views.plan import values_of
from launchhelm.views.run import RunView

MAX_STEP: Final = 1 << 53
_DONE: Final = "it was replayed already"

Json = dict[str, Any]  # Any: JSON.


@dataclass(frozen=True, slots=True)
class Told:
    """One command of the other ledger.

    Args:
        source: `<run>/<id>`, or the id alone where a file does not tell the run.
        step: From which on it was in effect there, None when that is not known.
        why: It did not lead to the last state of that run, "" when it did.
        reverts: The id of the command that it undid, "" for none.
        brings_back: The id of the command that the run commanded again with it, "" for none.
    """

    source: str
    name: str
    payload: Json
    reason: str
    state: str
    step: int | None
    why: str = ""
    reverts: str = ""
    brings_back: str = ""


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
    found = places(view)
    return [_told_by(view, each, found.get(each.id)) for each in view.commands]


def _told_by(view: RunView, command: CommandView, place: Place | None) -> Told:
    if place is None:
        outcome = command.outcome
        place = Place(step_of(outcome.applied_at) if outcome is not None else None)
    return Told(
        f"{view.run_id}/{command.id}",
        command.name,
        dict(command.payload),
        command.reason,
        command.state,
        place.step,
        place.why,
        command.reverts,
        original_of(command),
    )


def replay_documents(view: RunView) -> dict[str, Json]:
    """Return what an exported ledger says to a replay of it, by command that was applied."""
    return {id_: {"step": it.step, "why": it.why} for id_, it in places(view).items()}


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
    found: list[tuple[Told, int | None, str]] = []
    for each in told:
        if (choice.only and each.name not in choice.only) or each.name in choice.but:
            continue
        step, why = _step_here(each, choice)
        why = _objection(run, each, step, why)
        if not why and _id_of(each.source) in done:
            why = _DONE
        if not why and each.source in planned:
            why = "it is listed twice"
        if not why:
            planned.add(each.source)
        found.append((each, step, why))
    gone = _Gone(found)
    entries = [
        Entry(each.source, each.name, each.payload, each.reason, step, why or gone.of(each))
        for each, step, why in found
    ]
    return sorted(entries, key=lambda entry: entry.step or 0)


class _Gone:
    """Which commands are not given, so that nothing is to be undone of them."""

    def __init__(self, found: Iterable[tuple[Told, int | None, str]]) -> None:
        self._told: dict[str, Told] = {}
        self._is_given: dict[str, bool] = {}
        for each, _, why in found:
            id_ = _id_of(each.source)
            self._told[id_] = each
            self._is_given[id_] = self._is_given.get(id_, False) or why in ("", _DONE)

    def of(self, told: Told) -> str:
        """Say what a command undid that is not given, "" when all of that is."""
        seen: set[str] = set()
        id_ = told.reverts
        while id_ and id_ not in seen:
            seen.add(id_)
            undone = self._told.get(id_)
            if undone is None and id_ == told.reverts:
                return f"it undid {id_}, which is not in that ledger"
            if undone is None or not (undone.brings_back or self._is_given[id_]):
                return f"it undid {told.reverts}, which is left out"
            id_ = undone.brings_back or undone.reverts
        return ""


def _told(number: int, line: str) -> Told:
    try:
        said = _strict.load(line)
        payload = said["payload"] if "payload" in said else said["input"]
        if not isinstance(payload, dict):
            raise TypeError(payload)
        id_, run = str(said["id"]), said.get("run")
        replays, own = str(said.get("replays") or ""), said.get("issued_by") == REAPPLY
        brings_back = _id_of(replays) if own and not said.get("owner") else ""
        # A ledger without that tells no attempts; what the run commanded again is known as such.
        place = said.get("replay") or {
            "step": step_of(said.get("applied_at") or {"step": said.get("applied_step")}),
            "why": brought_back(brings_back) if brings_back else "",
        }
        return Told(
            f"{run}/{id_}" if isinstance(run, str) and run else id_,
            str(said["name"]),
            payload,
            str(said.get("reason") or ""),
            str(said["state"]),
            step_of(place),
            str(place.get("why") or ""),
            str(said.get("reverts") or ""),
            brings_back,
        )
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
        return NOT_APPLIED.get(told.state, "it was not applied")
    if told.why:
        return told.why
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
