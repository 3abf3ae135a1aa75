"""The built-in controls of one trainer: which there are, and the objects that they act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from launchhelm.torch._checkpoint_control import Checkpoint
from launchhelm.torch._clipping import Clipping, GradClip
from launchhelm.torch._controls import Control
from launchhelm.torch._dropout import Dropout, Sites
from launchhelm.torch._evaluation import Evaluation
from launchhelm.torch._flow import FLOW_CONTROLS, FlowControl, FlowHolder
from launchhelm.torch._groups import Groups
from launchhelm.torch._learning_rate import LearningRate
from launchhelm.torch._schedulers import Rates
from launchhelm.torch._weight_decay import WeightDecay

DEFAULT_CONTROLS: Final = ("lr", "weight_decay", "grad_clip", "dropout", "checkpoint")
KNOWN_CONTROLS: Final = (*DEFAULT_CONTROLS, "eval", *FLOW_CONTROLS)
"""Names that `watch` accepts."""

ON_STOP: Final = ("flag", "raise")


def require_watchable(
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    controls: Sequence[str],
    eval_fn: object,
    on_stop: str,
) -> None:
    """Refuse wrong arguments of `watch`.

    Raises:
        ValueError: An unknown control, `eval` without a function, or another `on_stop`.
        TypeError: The optimizer has no param_groups, the scheduler no step, the scaler no
            get_scale, or eval_fn is no function.
    """
    for name in controls:
        if name not in KNOWN_CONTROLS:
            known = ", ".join(KNOWN_CONTROLS)
            raise ValueError(f"Unknown control {name!r}; there are {known}.")
    if not isinstance(getattr(optimizer, "param_groups", None), Sequence):
        raise TypeError(f"A {type(optimizer).__name__} has no param_groups to watch.")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise TypeError(f"A {type(scheduler).__name__} has no step() to follow.")
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise TypeError(f"A {type(scaler).__name__} has no get_scale(), as a gradient scaler has.")
    if eval_fn is not None and not callable(eval_fn):
        raise TypeError(f"eval_fn must be a function, got {type(eval_fn).__name__}.")
    if eval_fn is None and "eval" in controls:
        raise ValueError("The control eval needs watch(..., eval_fn=function).")
    if on_stop not in ON_STOP:
        raise ValueError(f"on_stop must be one of {', '.join(ON_STOP)}, got {on_stop!r}.")


class BuiltIn:
    """The built-in controls of one trainer.

    Args:
        offer: Called with each control that may be commanded from now on.
        withdraw: Called with the name of one that may not.
        limit: For gradients, from an earlier attempt.
        world_size: Ranks of the training group.
        log: Logs the result of an evaluation at the present step.
        notice: Told what people should know.
        save: Saves a checkpoint, on every rank together.

    Attributes:
        rates: None without the `lr` control.
        always: What `watch` offers even where it is not wanted.
    """

    def __init__(
        self,
        *,
        offer: Callable[[Control], object],
        withdraw: Callable[[str], object],
        limit: float | None,
        world_size: int,
        log: Callable[[Mapping[str, Any]], object],
        notice: Callable[[str], object],
        save: Callable[[], str | None],
    ) -> None:
        self.rates: Rates | None = None
        self.clipping = Clipping(limit, world_size)
        self.sites = Sites()
        self.flow = FlowHolder()
        self.always: frozenset[str] = frozenset()
        self._offer = offer
        self._withdraw = withdraw
        self._log = log
        self._notice = notice
        self._save = save

    def names(self, wanted: Sequence[str], eval_fn: object) -> set[str]:
        """Return which controls `watch` offers."""
        names = {*wanted, *self.always}
        if "pause" in names:
            names.add("resume")  # Whoever can pause must be able to go on.
        if eval_fn is not None:
            names.add(Evaluation.name)
        return names

    def watch(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any,
        wanted: Sequence[str],
        eval_fn: Callable[[], Any] | None,
    ) -> None:
        """Offer what is wanted for these objects, and nothing for earlier ones."""
        self.sites.watch(model)
        self._watch_rates(optimizer, scheduler, "lr" in wanted)
        controls: list[Control] = [
            WeightDecay(Groups(optimizer)),
            GradClip(self.clipping),
            Dropout(self.sites),
            Checkpoint(self._save),
            *(FlowControl(name, self.flow) for name in FLOW_CONTROLS),
        ]
        names = self.names(wanted, eval_fn)
        if eval_fn is None:
            self._withdraw(Evaluation.name)
        else:
            controls.append(Evaluation(eval_fn, model, self._log, self._notice))
        for control in controls:
            if control.name in names:
                self._offer(control)
            else:
                self._withdraw(control.name)

    def _watch_rates(self, optimizer: Any, scheduler: Any, wanted: bool) -> None:
        old = self.rates
        if wanted and old and old.groups.watched is optimizer and old.scheduler is scheduler:
            return  # Watched again: the multipliers that were commanded stay.
        if old is not None:
            old.unhook()
        self.rates = None
        self._withdraw(LearningRate.name)
        if wanted:
            self.rates = Rates(optimizer, scheduler)
            self._offer(LearningRate(self.rates))

    def let_go(self) -> None:
        """Leave the scheduler as it was, unless a commanded rate must survive our end."""
        if self.rates is not None and all(each == 1.0 for each in self.rates.multipliers()):
            self.rates.unhook()
