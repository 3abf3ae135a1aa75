"""What the callbacks of both frameworks share: one training, its run, its controls and its end."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from launchhelm import _endings
from launchhelm.torch._built_in import DEFAULT_CONTROLS, KNOWN_CONTROLS
from launchhelm.torch._callback_archive import Archive
from launchhelm.torch._callback_clip import FrameworkClip
from launchhelm.torch._controls import Control
from launchhelm.torch._open import init
from launchhelm.torch._trainer import Trainer

__all__ = ["DEFAULT_CONTROLS", "Recording"]

END_S: Final = 10.0
"""What the end of a training may take: copies of checkpoints first, then the records."""


class Recording:
    """One training of a framework after the other, each with a run of its own.

    Made when the callback is, so that wrong arguments raise there. Everything is called on the
    thread that trains, and on every rank alike.

    Args:
        project: Given to `launchhelm.torch.init`, as are `name`, `config` and `options`.
        controls: Names of the controls to offer.
        log_every: As for `Trainer.watch`.
        archive: The metric that gets the checkpoints which the framework writes.

    Attributes:
        trainer: None while nothing is trained.
        before_failure: Called when a training ends that did not come to its own end.
    """

    def __init__(
        self,
        project: str | None,
        name: str,
        config: Mapping[str, Any] | None,
        controls: Sequence[str],
        log_every: int,
        archive: str,
        options: Mapping[str, Any],
    ) -> None:
        inspect.signature(init).bind(project, name=name, config=config, **options)
        unknown = set(controls) - set(KNOWN_CONTROLS)
        if unknown:
            known = ", ".join(KNOWN_CONTROLS)
            raise ValueError(f"Unknown controls: {', '.join(sorted(unknown))}; there are {known}.")
        if isinstance(log_every, bool) or not isinstance(log_every, int) or log_every < 1:
            raise ValueError(f"log_every must be an integer of at least 1, got {log_every!r}.")
        self.trainer: Trainer | None = None
        self.before_failure: Callable[[], object] = lambda: None
        self.project = project
        self.name = name
        self.config = dict(config or {})
        self.log_every = log_every
        self._controls = tuple(controls)
        self._options = dict(options)
        self._archive_name = archive
        self._archive: Archive | None = None
        self._clip: FrameworkClip | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # A copy is one that trains nothing yet: the training that is under way has one record.
        given = (self.project, self.name, self.config, self._controls, self.log_every)
        return type(self), (*given, self._archive_name, self._options)

    def begin(self, project: str, name: str, config: Mapping[str, Any]) -> Trainer:
        """Open the run. Collective, as `launchhelm.torch.init` is, which says what it raises."""
        if self.trainer is not None:
            self.fail("error", "the training was started anew before its end")
        trainer = init(project, name=name, config={**config, **self.config}, **self._options)
        self.trainer = trainer
        if trainer.is_coordinator:
            self._archive = Archive(trainer.run, self._archive_name)
        _endings.at_end(self._left)
        return trainer

    def watch(
        self, model: Any, optimizer: Any, scheduler: Any, clip: FrameworkClip, checkpoint: Control
    ) -> None:
        """Offer the controls: a trainer's own, and those two that only the framework can carry out.

        Args:
            clip: Stands for the trainer's `grad_clip`.
            checkpoint: Stands for the trainer's `checkpoint`.
        """
        trainer = self.trainer
        assert trainer is not None, "begin() comes first"
        own: dict[str, Control] = {"grad_clip": clip, "checkpoint": checkpoint}
        trainer.watch(
            model,
            optimizer,
            scheduler,
            log_every=self.log_every,
            controls=[name for name in self._controls if name not in own],
        )
        for name, control in own.items():
            if name in self._controls:
                trainer._offer(control)
        trainer._note_values()
        self._clip = clip

    def observe(self, parameters: Any) -> None:
        """Look at gradients that the framework has clipped, and not put away yet. Never raises."""
        if self.trainer is not None and self._clip is not None:
            try:
                self._clip.observe(parameters)
            except Exception as error:  # Gradients of any kind; a proof less is no harm.
                self.trainer.run.fault("grad_clip", error)

    def keep(self, path: str | Path, *, step: int) -> None:
        """Copy a checkpoint into the run, beside the training; on the coordinator only."""
        if self._archive is not None:
            self._archive.keep(Path(path).resolve(), step=step)

    def finish(self) -> None:
        """End the run well."""
        trainer = self.trainer
        if trainer is None:
            return
        self._close()
        trainer.finish(timeout=END_S)

    def fail(self, state: str, reason: str) -> None:
        """End the run as it went. It stays open, for an attempt that resumes it."""
        trainer = self.trainer
        if trainer is None:
            return
        try:
            self.before_failure()
        except Exception as error:  # Protects the record of the end.
            trainer.run.fault("checkpoints", error)
        self._close()
        trainer._reason = reason or state
        trainer.run.finish(close_run=False, state=state, reason=reason)

    def _left(self, state: str, reason: str) -> None:
        """The process ends. That is no good end of a training that did not come to its own."""
        if state == "finished":
            state, reason = "error", "the training was left before its end, and the script went on"
        self.fail(state, reason)

    def _close(self) -> None:
        self.trainer = self._archive = self._clip = None
        _endings.forget(self._left)


def plain(value: Any) -> Any:
    """Return settings as a run's config takes them: without None, and with texts for objects."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
