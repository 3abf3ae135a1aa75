"""Why a command has to be confirmed before it is sent, and what waits in front of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from launchhelm import _wording
from launchhelm.controls.preview import Change, is_number
from launchhelm.views.commands import CommandView
from launchhelm.views.plan import Plan
from launchhelm.views.run import RunView

_FACTOR: Final = 10.0
_DROPOUT: Final = 0.5
_FACTORED: Final = ("lr", "weight_decay", "grad_clip")
_FINAL: Final = frozenset({"stop"})
"""Controls after which the training does not go on."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One reason to confirm.

    Args:
        typed: What has to be typed for it; "" for a plain confirmation.
    """

    rule: str
    text: str
    typed: str = ""


def guards(run: RunView, plan: Plan) -> list[Guard]:
    """Return the reasons to confirm a command."""
    name = plan.command.name
    said = [Guard("value", text) for text in _bold(name, plan.change)]
    if plan.trouble:
        said.append(Guard("trouble", plan.trouble))
    said += [Guard("queue", text) for text in queue(run, name)]
    if any(each.state == "outcome_unknown" and each.name == name for each in run.commands):
        text = f"An earlier outcome of {_wording.plain(name)} is unknown."
        said.append(Guard("unknown", text))
    capability = run.capabilities.get(name, {})
    if name in _FINAL or capability.get("requires_approval"):
        text = f"{_wording.plain(name)} cannot be taken back; type the title of the run."
        said.append(Guard("final", text, _wording.plain(run.name)))
    return said


def queue(run: RunView, name: str) -> list[str]:
    """Say which commands for the same control have no outcome yet."""
    return [
        f"{_wording.plain(each.name)} {_wording.payload_text(each.payload)}".rstrip()
        + f" waits ({_by(each)})"
        for each in run.commands
        if each.is_pending and each.name == name
    ]


def _by(command: CommandView) -> str:
    return _wording.plain(command.issued_by or command.owner or "by nobody known")


def _bold(name: str, change: Change | None) -> list[str]:
    if change is None:
        return []
    old: list[Any] = change.old if isinstance(change.old, list) else [change.old]
    new: list[Any] = change.new if isinstance(change.new, list) else [change.new]
    for before, after in zip(old, new, strict=False):
        if not is_number(after):
            continue
        if name == "dropout" and after > _DROPOUT:
            return [f"dropout above {_DROPOUT}"]
        if name in _FACTORED and after == 0 and before:
            return [f"{name} becomes 0"]
        if name in _FACTORED and is_number(before) and before and after:
            factor = abs(after / before)
            if factor > _FACTOR or factor < 1 / _FACTOR:
                return [f"{name} changes by a factor of {factor:.4g}"]
    return []
