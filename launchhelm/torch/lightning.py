"""Record a training of Lightning's Trainer, and change it live.

    from launchhelm.torch.lightning import LaunchHelmCallback

    Trainer(..., callbacks=[LaunchHelmCallback("my-project")]).fit(model)

docs/callbacks.md says what is logged, which controls there are and what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from launchhelm import _endings, _optional
from launchhelm.controls import schema
from launchhelm.torch._callback import DEFAULT_CONTROLS, Recording
from launchhelm.torch._callback_clip import FrameworkClip
from launchhelm.torch._controls import Payload, no_fields
from launchhelm.torch._trainer import Trainer

__all__ = ["LaunchHelmCallback"]

_SETTING: Final = "Trainer.gradient_clip_val"


def _lightning() -> Any:
    """Import Lightning under its present or its former name."""
    try:
        return _optional.require("lightning").pytorch
    except ImportError as missing:
        former = _optional.find("pytorch_lightning")
        if former is None:
            raise missing
        return former


pl: Any = _lightning()


class LaunchHelmCallback(pl.Callback):  # type: ignore[misc]
    """Records one run per `Trainer.fit()`; the run is as long as the training.

    With several optimizers, rate and weight decay of the first are logged and controlled.

    Args:
        project: As for `launchhelm.torch.init`.
        name: Of the run; default: the project.
        controls: All that may be changed live, in the place of the default. `grad_clip` sets
            `trainer.gradient_clip_val`; `checkpoint` is a `trainer.save_checkpoint`; `stop` sets
            `trainer.should_stop`.
        log_every: Log at steps that this divides.
        config, log_ranks, control_every, system_metrics, system_interval, init_kwargs: As for
            `launchhelm.torch.init`.

    Raises:
        TypeError: An argument that `launchhelm.torch.init` does not have.
        ValueError: An unknown control, or log_every below 1.
    """

    def __init__(
        self,
        project: str,
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        log_ranks: str = "zero",
        control_every: int = 1,
        controls: Sequence[str] = DEFAULT_CONTROLS,
        system_metrics: bool = False,
        system_interval: float = 15.0,
        log_every: int = 1,
        **init_kwargs: Any,
    ) -> None:
        super().__init__()
        options = {
            "log_ranks": log_ranks,
            "control_every": control_every,
            "system_metrics": system_metrics,
            "system_interval": system_interval,
            **init_kwargs,
        }
        self._project = project
        self._recording = Recording(
            project, name, config, controls, log_every, "lightning_checkpoint", options
        )
        self._step = 0
        self._seen: dict[str, torch.Tensor] = {}

    @property
    def trainer_lht(self) -> Trainer | None:
        """The handle of the run while `fit()` trains, else None."""
        return self._recording.trainer

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run and watch what is trained."""
        recording = self._recording
        recording.begin(self._project, recording.name or self._project, {})
        self._step = trainer.global_step
        self._seen.clear()
        if trainer.optimizers:
            schedules = trainer.lr_scheduler_configs
            recording.watch(
                pl_module,
                trainer.optimizers[0],
                schedules[0].scheduler if schedules else None,
                _clip(trainer, pl_module),
                _Checkpoint(trainer, lambda path: recording.keep(path, step=trainer.global_step)),
            )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End one optimizer step, and let a waiting command land.

        A batch that only accumulates ends none. With manual optimization every batch counts: the
        ranks must agree on the number of calls, and how often a module steps is its own affair.
        """
        handle, step = self.trainer_lht, trainer.global_step
        if handle is None or (step == self._step and pl_module.automatic_optimization):
            return
        self._step = step
        if trainer.optimizers:
            # Lightning puts gradients away at the next batch.
            self._recording.observe(
                parameter
                for group in trainer.optimizers[0].param_groups
                for parameter in group["params"]
            )
        is_due = step % self._recording.log_every == 0
        handle.step(step, metrics=self._fresh(trainer.callback_metrics) if is_due else None)
        if handle.stop_requested:
            trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Log what the epoch before came to."""
        self._log(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what the validation found."""
        self._log(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the last epoch, take the best and the last checkpoint, and end the run."""
        if self.trainer_lht is None:
            return
        self._log(trainer)
        of_callback = getattr(trainer, "checkpoint_callback", None)
        paths = [getattr(of_callback, word, "") for word in ("best_model_path", "last_model_path")]
        for path in dict.fromkeys(Path(path).resolve() for path in paths if path):
            if path.exists():
                self._recording.keep(path, step=trainer.global_step)
        self._recording.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run as the training ended."""
        state, reason = _endings.describe(exception)
        if type(exception).__name__ == "SIGTERMException":
            state, reason = "terminated", "SIGTERM"
        self._recording.fail(state, reason)

    def _log(self, trainer: Any) -> None:
        handle = self.trainer_lht
        if handle is not None:
            # Every rank asks: a value of an epoch may be reduced over all of them just here.
            fresh = self._fresh(trainer.callback_metrics)
            if fresh:
                handle.log(fresh, step=trainer.global_step)

    def _fresh(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics that were logged by the module since they were looked at last.

        Lightning keeps the newest value of each for ever, in memory that it does not use again
        while it is held here. Comparing where that is waits for no device.
        """
        fresh = {}
        for name, value in metrics.items():
            seen = self._seen.get(name)
            if (
                seen is None
                or seen.data_ptr() != value.data_ptr()
                or seen._version != value._version
            ):
                self._seen[name] = value
                fresh[name] = value
        return fresh


class _Checkpoint:
    """`checkpoint`: have Lightning save, beside the checkpoints that it saves by itself."""

    name: str = "checkpoint"
    input_schema: Mapping[str, Any] = no_fields()

    def __init__(self, trainer: Any, saved: Callable[[Path], object]) -> None:
        self._trainer = trainer
        self._saved = saved

    def problem(self, payload: Payload) -> str:
        """Judge by the schema."""
        return schema.check(self.input_schema, payload)

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Save. Every rank calls it at one step; whatever Lightning raises leaves here."""
        trainer = self._trainer
        directory = getattr(trainer.checkpoint_callback, "dirpath", None)
        path = Path(directory or Path(trainer.default_root_dir, "checkpoints"))
        path /= f"launchhelm-step={trainer.global_step}.ckpt"
        try:
            trainer.save_checkpoint(path)
        except Exception:
            # Lightning ends a save with a barrier, where the other ranks wait for this one.
            trainer.strategy.barrier("launchhelm")
            raise
        self._saved(path)
        return {"path": str(path)}


def _clip(trainer: Any, module: Any) -> FrameworkClip:
    def limit() -> float | None:
        now = trainer.gradient_clip_val
        return float(now) if now and now > 0 else None

    def put(value: float | None) -> None:
        trainer.gradient_clip_val = value

    def obstacle() -> str:
        precision = trainer.precision_plugin
        kind = type(precision).__name__
        algorithm = trainer.gradient_clip_algorithm
        if not module.automatic_optimization:
            return "With manual optimization Lightning does not clip: the module does it itself."
        if algorithm is not None and str(getattr(algorithm, "value", algorithm)) != "norm":
            return f"This Trainer clips by {algorithm}, and max_norm would be taken for that."
        if kind in ("FSDPPrecision", "DeepSpeedPrecision"):
            return f"Lightning's {kind} does not clip by {_SETTING}."
        handles_scaling = getattr(trainer.optimizers[0], "_step_supports_amp_scaling", False)
        if getattr(precision, "scaler", None) is not None and handles_scaling:
            return "A fused optimizer unscales gradients by itself, after Lightning would clip."
        return ""

    return FrameworkClip(limit, put, obstacle, _SETTING)
