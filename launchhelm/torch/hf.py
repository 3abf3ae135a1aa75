"""Record a training of transformers' Trainer, and change it live.

    from launchhelm.torch.hf import LaunchHelmCallback

    Trainer(..., callbacks=[LaunchHelmCallback("my-project")]).train()

docs/callbacks.md says what is logged, which controls there are and what they do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from launchhelm import _optional
from launchhelm.controls import schema
from launchhelm.torch._callback import DEFAULT_CONTROLS, Recording, plain
from launchhelm.torch._callback_clip import FrameworkClip
from launchhelm.torch._controls import Payload, no_fields
from launchhelm.torch._trainer import Trainer

__all__ = ["LaunchHelmCallback"]

transformers: Any = _optional.require("transformers")

_SETTING: Final = "TrainingArguments.max_grad_norm"
_OTHER_RANKS_S: Final = 2.0


class LaunchHelmCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Records one run per `Trainer.train()`; the run is as long as the training.

    Args:
        project: Default: the name of the run.
        name: Of the run; default: `args.run_name`, else "hf".
        config: Recorded beside the training arguments.
        controls: All that may be changed live, in the place of the default. `grad_clip` sets
            `args.max_grad_norm`; `checkpoint` lets the Trainer save; `stop` ends the training as
            `should_training_stop` does.
        log_every: Log rates, weight decay and step time at steps that this divides.
        log_ranks, control_every, system_metrics, system_interval, init_kwargs: As for
            `launchhelm.torch.init`.

    Raises:
        TypeError: An argument that `launchhelm.torch.init` does not have.
        ValueError: An unknown control, or log_every below 1.
    """

    def __init__(
        self,
        project: str | None = None,
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
        options = {
            "log_ranks": log_ranks,
            "control_every": control_every,
            "system_metrics": system_metrics,
            "system_interval": system_interval,
            **init_kwargs,
        }
        self._recording = Recording(
            project, name, config, controls, log_every, "hf_checkpoint", options
        )
        self._checkpoint = _Checkpoint()
        self._saved: dict[Path, int] = {}

    @property
    def trainer(self) -> Trainer | None:
        """The handle of the run while `train()` is under way, else None."""
        return self._recording.trainer

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **kwargs: Any,
    ) -> None:
        """Open the run, with all training arguments, and watch what is trained."""
        recording = self._recording
        name = args.run_name or recording.name or "hf"
        recording.begin(
            recording.project or name,
            recording.name or name,
            {"training_args": plain(args.to_dict())},
        )
        self._saved.clear()
        recording.before_failure = self._keep_saved
        self._checkpoint = _Checkpoint()
        if model is not None and optimizer is not None:
            recording.watch(model, optimizer, lr_scheduler, _clip(args), self._checkpoint)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Look once after each `grad_clip` whether the Trainer has clipped."""
        if model is not None:
            self._recording.observe(model.parameters())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """End one optimizer step, and let a waiting command land."""
        trainer = self.trainer
        if trainer is None:
            return control
        self._keep_saved()
        trainer.step(state.global_step)
        if trainer.stop_requested:
            control.should_training_stop = True
        if self._checkpoint.is_wanted:
            self._checkpoint.is_wanted = False
            control.should_save = True
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Log what the Trainer logs, by its own names."""
        if self.trainer is not None:
            self._keep_saved()
            self.trainer.log(dict(_scalars(logs or {})), step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the checkpoint. It is taken at the next event: until then other ranks may write."""
        if self.trainer is not None and self.trainer.is_coordinator:
            directory = Path(args.output_dir, f"checkpoint-{state.global_step}")
            self._saved[directory] = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the last checkpoint and end the run."""
        if self.trainer is not None:
            _await_ranks(list(self._saved), self.trainer.control.world_size)
            self._keep_saved()
            self._recording.finish()

    def _keep_saved(self) -> None:
        while self._saved:
            directory, step = self._saved.popitem()
            if directory.is_dir():
                self._recording.keep(directory, step=step)


class _Checkpoint:
    """`checkpoint`: have the Trainer save at the end of this step, as it saves by itself."""

    name: str = "checkpoint"
    input_schema: Mapping[str, Any] = no_fields()

    def __init__(self) -> None:
        self.is_wanted = False

    def problem(self, payload: Payload) -> str:
        """Judge by the schema."""
        return schema.check(self.input_schema, payload)

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Ask for it; the Trainer saves when all callbacks have seen the step."""
        self.is_wanted = True
        return {}


def _clip(args: Any) -> FrameworkClip:
    def limit() -> float | None:
        now = args.max_grad_norm
        return float(now) if now and now > 0 else None

    def put(value: float | None) -> None:
        args.max_grad_norm = 0.0 if value is None else value

    def obstacle() -> str:
        kind = getattr(args.distributed_state, "distributed_type", None)
        engine = str(getattr(kind, "value", kind))
        if engine not in ("DEEPSPEED", "MEGATRON_LM"):
            return ""
        return f"{engine} clips by its own configuration, which {_SETTING} does not reach any more."

    return FrameworkClip(limit, put, obstacle, _SETTING)


def _scalars(logs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what can be logged; of mappings inside, one level as key/inner."""
    found: list[tuple[str, Any]] = []
    for key, value in logs.items():
        if isinstance(value, Mapping):
            found += [(f"{key}/{inner}", each) for inner, each in value.items()]
        else:
            found.append((key, value))
    return [(str(key), each) for key, each in found if isinstance(each, bool | int | float | str)]


def _await_ranks(directories: Sequence[Path], world_size: int) -> None:
    """Give other ranks the moment that they may need to write their part of the last checkpoint."""
    deadline = time.monotonic() + _OTHER_RANKS_S
    for directory in directories:
        while world_size > 1 and time.monotonic() < deadline:
            if len(list(directory.glob("rng_state_*.pth"))) in (0, world_size):
                break
            time.sleep(0.02)
