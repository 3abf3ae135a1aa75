"""Is what was commanded still in effect, after a restart, a restored state, or another `watch`?

Optimizer and scheduler know nothing of a live command: a script that starts again, or that loads a
state from before the command, has other values. The coordinator tells that at the first step
afterwards. It changes nothing by itself; with `reapply` it commands the lost values again, by the
way that all commands go, so that they act on every rank at one step and have outcomes of their own.

Everything here runs on the thread that trains, on the coordinator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from launchhelm._ids import new_id
from launchhelm.controls.assign import PER_GROUP, factors_payload, payload_of, values_payload
from launchhelm.controls.undo import same
from launchhelm.records import REAPPLY, Command, Outcome
from launchhelm.run import Run
from launchhelm.torch._controls import StateControl
from launchhelm.torch._controls_past import Commanded, Past, add, past_of, per_group
from launchhelm.torch._groups import before_load, chain
from launchhelm.torch._learning_rate import LearningRate
from launchhelm.torch._plant import Plant
from launchhelm.torch._schedulers import Rates

RESTART: Final = "restore or restart"
"""In a new attempt nobody can tell which: what a script loads before `watch` is not seen."""
RESTORE: Final = "restore"
WATCH: Final = "another watch"

_CLOSE: Final = 1e-6
_ROUNDING: Final = 1e-12
"""By so much a quotient of rates may miss the factor that was typed."""


@dataclass(slots=True)
class _Lost:
    """The groups of one control in which a command is not in effect any more.

    Args:
        why: What has reverted it.
        command: The last one.
        where: It was applied.
    """

    name: str
    groups: list[int]
    why: str
    command: str
    where: str


class Standing:
    """What stands commanded in one run, and whether it is in effect.

    Args:
        run: Where what was lost is recorded.
        plant: The controls of this rank.
        notice: Told of what was lost.
        controlled: Whether this attempt takes commands.
        reapply: Command again what was lost.

    Attributes:
        is_due: Whether `look` has anything to look at; cheap, for every step.
    """

    def __init__(
        self,
        run: Run,
        plant: Plant,
        notice: Callable[[str], object],
        *,
        controlled: bool,
        reapply: bool,
    ) -> None:
        past = Past()
        if run.attempt.number > 1:
            try:
                past = past_of(run.directory, run.attempt.number)
            except Exception as error:
                run.fault("past commands", error)
        self.is_due = False
        self._run = run
        self._plant = plant
        self._notice = notice
        self._controlled = controlled
        self._reapply = reapply and controlled
        self._known = past.commanded
        self._doubts = dict.fromkeys(self._known, RESTART)
        self._lost: deque[_Lost] = deque()
        self._forget: Callable[[], None] = lambda: None

    def watch(self, optimizer: Any) -> None:
        """Notice from now on when a state is loaded into this optimizer, or the one inside it."""
        self._forget()
        self._forget = before_load(chain(optimizer)[-1], self.restoring)

    def offered(self, name: str) -> None:
        """Note that there is a new control of that name."""
        if name in self._known:
            self._doubts.setdefault(name, WATCH)
            self.is_due = True

    def restoring(self) -> None:
        """Note that a state is about to be loaded: each control may hold something else after it.

        Never raises: it is called within the script's own `load_state_dict`.
        """
        try:
            for name, commanded in self._known.items():
                if self._doubts.get(name) == RESTART:
                    continue
                self._doubts[name] = RESTORE
                self.is_due = True
                commanded.seen = per_group(self._plant.values_of(name).get(name))
        except Exception as error:  # A value that cannot be read; what is loaded is looked at.
            self._run.fault("past commands", error)

    def take(self, command: Command, outcome: Outcome) -> None:
        """Note a command that was applied."""
        step = outcome.applied_at.get("step")
        add(self._known, command.id, self._run.attempt.number, step, outcome.changes)
        control, commanded = self._plant.state(command.name), self._known.get(command.name)
        rates = _scheduled(control)
        if commanded is None or rates is None:
            return
        change = outcome.changes["lr"]
        for group, (old, new) in enumerate(zip(change["old"], change["new"], strict=True)):
            if old != new:  # As it will be measured later, and also where the rate was 0.
                commanded.hold(group, rates.factor(group))

    def look(self, step: int) -> list[str]:
        """Tell what is not in effect any more, now that the script has loaded what it loads.

        A control that is still to be declared is looked at when it is. Never raises.

        Returns:
            The controls in which something was lost, or is in effect again.
        """
        self.is_due = False
        found: list[str] = []
        for name in list(self._doubts):
            control = self._plant.state(name)
            if control is None:
                continue
            commanded, why = self._known[name], self._doubts.pop(name)
            try:
                groups = _lost_groups(control, commanded)
                if groups:
                    lost = _Lost(name, groups, why, commanded.command, commanded.where)
                    self._tell(control, commanded, lost, step)
                    found.append(name)
                elif commanded.is_lost:
                    self._tell_of_return(control, commanded, step)
                    found.append(name)
            except Exception as error:  # Training goes on, and so does the look at the others.
                self._run.fault("past commands", error)
        return found

    def _tell_of_return(self, control: StateControl, commanded: Commanded, step: int) -> None:
        """Say that a state was loaded in which a command that was lost is in effect again."""
        commanded.is_lost, commanded.reverted_to = False, {}
        body = {
            "cmd": commanded.command,
            "name": control.name,
            "step": step,
            "attempt": self._run.attempt.number,
            "values": control.values(),
        }
        self._run.recorder.append("effect", body, step=step)
        self._notice(
            f"{control.name}: what was commanded {commanded.where} is in effect again, "
            "by a restored state."
        )

    def _tell(self, control: StateControl, commanded: Commanded, lost: _Lost, step: int) -> None:
        text = _sentence(control, commanded, lost)
        body = {
            "cmd": lost.command,
            "name": lost.name,
            "step": step,
            "attempt": self._run.attempt.number,
            "values": control.values(),
            "reverted": lost.why,
            "not_effective": text,
        }
        rates = _scheduled(control)
        if rates is not None:
            now = {group: rates.factor(group) for group in lost.groups}
            commanded.reverted_to = dict(now)
            body["factors"] = {str(group): factor for group, factor in now.items()}
        self._run.recorder.append("effect", body, step=step)
        commanded.is_lost = True
        if self._reapply:
            self._lost.append(lost)
            text += " It is commanded again."
        elif self._controlled:
            text += " Send the command again to have it back."
        self._notice(text)

    # Commanding again.

    def command(self) -> Command | None:
        """Return a command that brings back some of what was lost, None when all of it is back.

        What is missing is found out anew for each, so that nothing is changed twice. Never raises.
        """
        while self._lost:
            lost, payload = self._lost[0], None
            try:
                control = self._plant.state(lost.name)
                if control is not None:
                    payload = _missing(control, self._known[lost.name], lost.groups)
            except Exception as error:  # The commands of others must not wait for it.
                self._run.fault("past commands", error)
            if payload is None:
                self._lost.popleft()
                continue
            return Command(
                new_id(),
                lost.name,
                payload,
                issued_by=REAPPLY,
                reason=f"commanded {lost.where}, reverted by {lost.why}",
                replays=f"{self._run.run_id}/{lost.command}",
            )
        return None


def _scheduled(control: StateControl | None) -> Rates | None:
    """Return the rates behind a control, None unless a schedule moves them."""
    if isinstance(control, LearningRate) and control.rates.has_schedule:
        return control.rates
    return None


def _lost_groups(control: StateControl, commanded: Commanded) -> list[int]:
    """Return the groups in which the last command is not in effect."""
    rates = _scheduled(control)
    if rates is not None:
        # The rate says nothing of a schedule, whose next step may undo it.
        return [
            group
            for group, factor in commanded.factors.items()
            if group < rates.group_count
            and not _is_held(factor, rates.factor(group), commanded.had.get(group, {1.0}))
        ]
    now = per_group(control.values().get(control.name))
    seen = commanded.seen
    return [
        group
        for group, value in commanded.values.items()
        # What the script or its scheduler made of it afterwards may have been restored too.
        if group < len(now)
        and not same(now[group], value)
        and not (group < len(seen) and same(now[group], seen[group]))
    ]


def _is_held(factor: float | None, now: float, had: set[float]) -> bool:
    """Whether a schedule is scaled by this factor, rather than by one that it had earlier.

    A schedule that multiplies the rate it finds may carry a factor on inexactly, above a floor.
    """
    if factor is None:
        return not math.isclose(now, 1.0, rel_tol=1e-3)
    if now <= 0.0:
        return False
    nearest = min(had | {factor}, key=lambda each: abs(math.log(now / each)) if each > 0 else 1e9)
    return math.isclose(nearest, factor, rel_tol=_CLOSE)


def _missing(
    control: StateControl, commanded: Commanded, groups: list[int]
) -> dict[str, Any] | None:
    """Return the input that brings back as many of these groups as one command can.

    They are taken off the list. None: nothing is missing, or no command can.
    """
    rates = _scheduled(control)
    if rates is not None:
        factors = [1.0] * rates.group_count
        for group in [each for each in groups if commanded.factors.get(each) is not None]:
            groups.remove(group)
            factors[group] = _factor(rates.factor(group), commanded.factors[group])
        if any(each != 1.0 for each in factors):
            return factors_payload([_nearly(each, factors) for each in factors])
    now = per_group(control.values().get(control.name))
    lost = {each: commanded.values[each] for each in groups if each < len(now)}
    lost = {each: value for each, value in lost.items() if not same(now[each], value)}
    groups[:] = lost
    if rates is None and lost:
        wanted = [lost.get(group, value) for group, value in enumerate(now)]
        payload = values_payload(control.name, wanted, now)
        if payload is not None:
            groups.clear()
            return payload
    while groups:
        group = groups.pop(0)
        number = group if control.name in PER_GROUP else None
        payload = payload_of(control.name, lost[group], number)
        if payload is not None:
            return payload
    return None


def _factor(now: float, wanted: float | None) -> float:
    """Return what leads from one factor to another; 1 where nothing is missing, or nothing leads.

    Rates are read back inexactly, and a factor of 0.5 is no 0.49999999999999994.
    """
    if wanted is None or not now or same(now, wanted):
        return 1.0
    factor = wanted / now
    plain = float(f"{factor:.10g}")
    return plain if math.isclose(plain, factor, rel_tol=_ROUNDING) else factor


def _nearly(factor: float, factors: list[float]) -> float:
    """Return the first of the factors that is equal but for rounding, so that ratios stay."""
    return next(each for each in factors if math.isclose(each, factor, rel_tol=_ROUNDING))


def _sentence(control: StateControl, commanded: Commanded, lost: _Lost) -> str:
    now = per_group(control.values().get(control.name))
    what = f"{control.name} is {_said([now[group] for group in lost.groups])}"
    was = _said([commanded.values[group] for group in lost.groups])
    rates = _scheduled(control)
    if rates is not None:
        factors = [rates.factor(group) for group in lost.groups]
        is_plain = all(math.isclose(factor, 1.0, rel_tol=_CLOSE) for factor in factors)
        what += f" and its schedule is {'unscaled' if is_plain else f'scaled by {_said(factors)}'}"
        commands = [commanded.factors[group] for group in lost.groups]
        was = was if None in commands else f"a factor of {_said(commands)}"
    return (
        f"{what}; {was} was commanded {lost.where} and is not in effect any more "
        f"(reverted by {lost.why})."
    )


def _said(values: list[Any]) -> str:
    texts = [f"{each:.6g}" if isinstance(each, float) else repr(each) for each in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"
