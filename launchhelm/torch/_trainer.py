"""The handle of a training loop: logs, and lands a live command on every rank at one step.

Everything here runs on the thread that trains. A call of `step` with nothing due costs a few
microseconds: it appends at most one record and looks at the control exchange.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

import torch

from launchhelm import _endings
from launchhelm._commands import Validate
from launchhelm.commands import Handler
from launchhelm.models import Capability, Document
from launchhelm.records import STOP_COMMAND, Command
from launchhelm.run import Run
from launchhelm.torch._beats import Beats
from launchhelm.torch._built_in import DEFAULT_CONTROLS, BuiltIn, require_watchable
from launchhelm.torch._checkpoint import LATEST, CheckpointError, Checkpoints
from launchhelm.torch._clipping import Clipping
from launchhelm.torch._collective import Links
from launchhelm.torch._controls import Control
from launchhelm.torch._controls_past import kept
from launchhelm.torch._custom import Custom
from launchhelm.torch._desk import Panel, TrainingDesk
from launchhelm.torch._errors import DivergedStateError
from launchhelm.torch._exchange import Exchange
from launchhelm.torch._flow import HOLD_S, FlowControl, FlowHolder, Ping, TrainingStopped
from launchhelm.torch._metrics import Series, as_float64, taken
from launchhelm.torch._participant import RankFacts
from launchhelm.torch._plant import Plant
from launchhelm.torch._roles import ControlStatus
from launchhelm.torch._signals import StopSignals
from launchhelm.torch._standing import Standing
from launchhelm.torch._tunables import Tunable, TunableControl, TunableValue

REDUCTIONS: Final = ("mean", "sum", "min", "max")

_log = logging.getLogger("launchhelm")


class Trainer:
    """One rank's handle; made by `launchhelm.torch.init`, on every rank alike.

    `step` and `log_reduced` are collective: every rank calls them, in the same order. The rest is
    local. After `finish` every call is harmless and does nothing worth noticing.

    Attributes:
        run: This rank's `Run`; `run.run_id` is the same on all ranks.
        control: Where this rank stands in the group.
        log_ranks: "zero" or "all": who logs.
        control_every: Calls of `step` between exchanges, at least.
        on_partial_failure: "raise" or "continue".
        capabilities: What may be commanded, by name; on the coordinator only.
    """

    def __init__(
        self,
        run: Run,
        control: RankFacts,
        *,
        links: Links | None,
        log_ranks: str = "zero",
        control_every: int = 1,
        on_partial_failure: str = "raise",
        on_divergence: str = "warn",
        control_off: bool = False,
        reapply: bool = False,
    ) -> None:
        self.run = run
        self.control = control
        self.log_ranks = log_ranks
        self.control_every = control_every
        self.on_partial_failure = on_partial_failure
        self.capabilities: dict[str, Document] = {}
        self._links = links
        if links is not None:
            links.beats = Beats(run.directory, run.attempt.number)
        self._step, limit, self._kept_tunables = kept(run.restored)
        self._tunables: dict[str, Tunable] = {}
        self._plant = Plant()
        self._desk: TrainingDesk | None = None
        if control.is_coordinator and not control_off:
            self._desk = TrainingDesk(run.desk)
            run.desk.values = self._plant.values
        self._series: Series | None = None
        if control.is_coordinator or log_ranks == "all":
            self._series = Series(self._fault)
        self._progress = run.recorder.progress
        self._exchange: Exchange | None = None
        notice = self._notice
        status = ControlStatus(on=False, why='control="off"')
        if not control_off:
            self._exchange = Exchange(
                links=links,
                desk=self._desk,
                plant=self._plant,
                progress=self._progress,
                notice=notice,
                control_every=control_every,
                on_partial_failure=on_partial_failure,
                on_divergence=on_divergence,
            )
            status = self._exchange.status
        self._panel = Panel(run, self._plant, status) if control.is_coordinator else None
        self._built_in = BuiltIn(
            offer=self._offer,
            withdraw=self._plant.remove,
            limit=limit,
            world_size=control.world_size,
            log=self._log_here,
            notice=notice,
            save=self.save_checkpoint,
        )
        self._clipping, self._flow = self._built_in.clipping, self._built_in.flow
        if self._exchange is not None:
            self._exchange.holds = lambda: self._flow.now.paused or self._flow.now.stop_requested
        self._checkpoints = Checkpoints(
            run,
            control,
            links,
            self._built_in,
            notice,
            tunables=self._tunable_values,
            take_tunables=self._take_tunables,
        )
        self._raises_stop = False
        self._knows_of_stop = False
        self._signals: StopSignals | None = None
        self._has_saved = False
        self._odd_names: set[str] = set()
        self._standing: Standing | None = None
        if control.is_coordinator:
            controlled = self._desk is not None
            self._standing = Standing(
                run, self._plant, notice, controlled=controlled, reapply=reapply
            )
            if self._desk is not None:
                self._desk.standing = self._standing
        if self._desk is not None:
            self._desk.applied = self._checkpoints.note
        self._failure: DivergedStateError | CheckpointError | None = None
        self._reason = "the process ended without finish()"
        self._has_stepped = False
        self._has_ended = False
        if not control_off:
            self._offer(Ping())
            run.service.training = self._offer_custom
            run.service.is_control = self._plant.is_control
        # However this process ends, the run's end is where the other ranks are told. Only then
        # does this one wait for what is being verified.
        run.before_finish(self._checkpoints.finish)
        run.before_finish(self._leave)

    def stop_on_signals(self, signals: StopSignals) -> None:
        """Turn SIGTERM and SIGUSR1 on any rank into one `stop` on all; called by `init`."""
        board = self._links.board if self._links is not None else None
        self._signals = signals
        rank, recorder = self.control.group_rank, self.run.recorder
        signals.begin(rank, board, recorder, lambda: self._flow.now.stop_requested)
        if self._desk is not None:
            self._desk.urgent = signals.command
        self._built_in.always = frozenset(("stop",))
        self._offer(FlowControl("stop", self._flow))

    @property
    def global_step(self) -> int:
        """The number of the newest step."""
        return self._step

    @property
    def grad_clip(self) -> float | None:
        """The limit that `clip_grad_norm_` uses when it is given none."""
        return self._clipping.limit

    @property
    def stop_requested(self) -> bool:
        """Whether a `stop` command has landed; true on every rank from the same step on."""
        # A loop that never learns of it ends by itself, and its run reads so.
        self._knows_of_stop |= self._flow.now.stop_requested
        return self._flow.now.stop_requested

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0 of the training group."""
        return self.control.is_coordinator

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        scheduler: Any = None,
        *,
        scaler: Any = None,
        log_every: int = 1,
        controls: Iterable[str] = DEFAULT_CONTROLS,
        eval_fn: Callable[[], Any] | None = None,
        on_stop: str = "flag",
    ) -> None:
        """Log these objects and make them controllable. Every rank calls it; not collective.

        A second call replaces the objects. The model may be wrapped or sharded in any way.

        Args:
            model: What is trained; no hook is put on it.
            optimizer: Whatever has torch's `param_groups`.
            scheduler: The outermost scheduler; its `step` keeps commanded rates in proportion.
            scaler: A gradient scaler, logged as `loss_scale`; `clip_grad_norm_` then unscales.
            log_every: Log at steps that this divides.
            controls: Which controls to offer.
            eval_fn: What the `eval` control calls on every rank; it is offered when this is given.
            on_stop: What a `stop` command does: "flag" makes `stop_requested` true, "raise" also
                raises TrainingStopped in `step`, on every rank.

        Raises:
            ValueError: An unknown control or `on_stop`, `eval` without eval_fn, log_every below 1,
                or a control that is called as a command of the script.
            TypeError: The optimizer has no param_groups, the scheduler no step, the scaler no
                get_scale, or eval_fn is no function.
        """
        wanted = tuple(controls)
        require_watchable(optimizer, scheduler, scaler, wanted, eval_fn, on_stop)
        if isinstance(log_every, bool) or not isinstance(log_every, int) or log_every < 1:
            raise ValueError(f"log_every must be an integer of at least 1, got {log_every!r}.")
        # Clipping is part of training and goes on after the end of the run.
        self._clipping.watch(model, optimizer, scaler)
        if self._has_ended:
            return
        self._checkpoints.watch(model, optimizer, scheduler, scaler)
        for name in sorted(self._built_in.names(wanted, eval_fn)):
            self.run.service.require_free(name)
        self._raises_stop = on_stop == "raise"
        try:
            self._built_in.watch(model, optimizer, scheduler, wanted, eval_fn)
            if self._standing is not None:
                self._standing.watch(optimizer)
            if self._series is not None:
                self._series.watch(optimizer, scaler, log_every)
            self._note_values()
        except Exception as error:
            self._fault("watch", error)

    def step(
        self,
        step: int | None = None,
        *,
        loss: Any = None,
        samples: float | None = None,
        tokens: float | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """End one optimizer step: log it, then let a waiting command land. Collective.

        Metrics of a step are logged before a command lands at it, so a new rate shows at the next.

        Args:
            step: Its number; default: one more than the last.
            loss: A number or a tensor on any device; it is neither kept nor waited for.
            samples: How many samples this rank's step saw. As for every value, what is no number is
                left out, counted, and warned of once.
            tokens: How many tokens this rank's step saw.
            metrics: More values to log.

        Raises:
            DivergedStateError: A command ended differently on some rank; raised on every rank, and
                again by each later call, unless on_partial_failure="continue".
            TrainingStopped: A `stop` command has landed; with watch(on_stop="raise") only.
            TypeError: The step is no int, metrics no mapping, or a metric's name no string.
        """
        if self._has_ended:
            return
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if step is None:
            number = self._step + 1
        elif isinstance(step, int) and not isinstance(step, bool):
            number = int(step)
        else:
            raise TypeError(f"step must be an int, got {type(step).__name__}; use int(step).")
        if metrics is not None and not hasattr(metrics, "items"):
            got = type(metrics).__name__
            raise TypeError(f"metrics must be a mapping of names to values, got {got}.")
        self._step = number
        if self._standing is not None and self._standing.is_due:
            lost = self._standing.look(number)
            if self._desk is not None:
                self._desk.forget(lost)
            self._note_values()
        now = time.monotonic()
        if self._desk is not None and self._desk.landed:
            self._log_effects(self._desk.landed, number)
        if self._series is not None:
            self._log_step(self._series, number, now, loss, samples, tokens, metrics)
        self._progress.step = number
        if not self._has_stepped:
            self._has_stepped = True
            self._progress.phase = "training"
            self._progress.phase_since = now
        if self._signals is not None:
            self._heed(self._signals)
        if self._exchange is not None:
            try:
                self._exchange.on_call(number)
                if self._flow.now.paused:
                    self._hold(self._exchange, number)
            except DivergedStateError as error:
                self._failure = error
                self._note_values()
                raise
        if self._flow.now.saves and not self._has_saved:
            self._save_at_the_end(number)
        if self._panel is not None:
            self._look(self._panel, number, now)
        if self._raises_stop and self._flow.now.stop_requested:
            self._knows_of_stop = True
            raise TrainingStopped(f"A stop command landed at step {number}.")

    def _heed(self, signals: StopSignals) -> None:
        """Let the others know of a signal; without control this rank can only stop alone."""
        if self._exchange is not None and self._exchange.status.on:
            signals.tell()
        elif signals.heard:
            saves = signals.saves and not self.control.distributed
            self._flow.now = replace(self._flow.now, stop_requested=True, saves=saves)

    def _save_at_the_end(self, number: int) -> None:
        """Save before the loop learns that it should stop, on every rank at this call.

        Whatever comes of it, the loop is told to stop: there may be little time.
        """
        self._has_saved = True
        try:
            self._checkpoints.save(number, None, None)
        except CheckpointError as error:
            self._fault("checkpoint", error)

    def _hold(self, exchange: Exchange, number: int) -> None:
        """Wait at this step, on every rank alike, until a command or the loss of control ends it.

        The ranks go from exchange to exchange meanwhile, so none waits long in a collective.
        """
        before, since = self._progress.phase, time.monotonic()
        self._progress.phase, self._progress.phase_since = "paused", since
        self.run.recorder.beat_soon()
        if self._desk is not None:
            self._desk.paused = True
        try:
            while self._flow.now.paused and exchange.status.on and not self._has_ended:
                if self._panel is not None:
                    self._look(self._panel, number, time.monotonic())
                if self._signals is not None:
                    self._heed(self._signals)
                exchange.idle(number, HOLD_S)
        finally:
            if self._desk is not None:
                self._desk.paused = False
            now = time.monotonic()
            self._progress.phase, self._progress.phase_since = before, now
            if self._series is not None:
                self._series.leave_out(now - since)
            self.run.recorder.beat_soon()
            # Without control nobody could resume.
            self._flow.now = replace(self._flow.now, paused=False)

    def _look(self, panel: Panel, number: int, now: float) -> None:
        try:
            if self._desk is not None and self._desk.landed:
                panel.note(number)
            panel.look(number, now)
        except Exception as error:
            self._fault("control values", error)

    def _log_step(
        self,
        series: Series,
        number: int,
        now: float,
        loss: Any,
        samples: float | None,
        tokens: float | None,
        metrics: Mapping[str, Any] | None,
    ) -> None:
        try:
            body = series.at_step(
                number, now, loss=loss, samples=samples, tokens=tokens, metrics=metrics
            )
        except Exception as error:  # An odd value is lost and counted; training goes on.
            self._fault("metrics", error)
            return
        if body:
            self.run.log(body, step=number)

    def _log_effects(self, landed: list[tuple[Command, Mapping[str, Any]]], number: int) -> None:
        """Record what commands came to, now that optimizer and scheduler have moved once."""
        newest: set[str] = set()
        while landed:
            command, changes = landed.pop()
            try:
                values = self._plant.values_of(command.name)
                body = {"cmd": command.id, "step": number, "values": values}
                # Of several since the last step, only the newest can still be in effect.
                lost = ""
                if command.name not in newest:
                    lost = self._plant.look_again(command.name, changes)
                newest.add(command.name)
                if lost:
                    body["not_effective"] = lost
                    self._notice(lost)
                if values:
                    self.run.recorder.append("effect", body, step=number)
            except Exception as error:
                self._fault("effect", error)

    def _log_here(self, values: Mapping[str, Any]) -> None:
        if self._series is not None:
            self.run.log(values, step=self._step)

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> bool:
        """Log values at one step; a rank that does not log returns True at once.

        Args:
            metrics: Name to value, as for `launchhelm.Run.log`; a tensor becomes its mean.
            step: Default: the trainer's, which is the last finished step. Before `step(step=i)`
                that is not i yet: give step=i here, or the values to `step(metrics=...)`.

        Raises:
            TypeError: The step is no int, or a metric's name no string.
        """
        if self._series is None:
            return True
        number = self._step if step is None else step
        try:
            body = {name: taken(value) for name, value in metrics.items()}
        except RuntimeError as error:  # A tensor that cannot be read; the rest is kept.
            self._fault("metrics", error)
            body = {name: v for name, v in metrics.items() if not isinstance(v, torch.Tensor)}
        return self.run.log(body, step=number)

    def log_reduced(
        self, metrics: Mapping[str, Any], op: str = "mean", step: int | None = None
    ) -> None:
        """Combine values over all ranks and log them on the coordinator. Collective.

        Every rank gives the same names in the same order, and tensors of the same size. Tensors
        are reduced element by element and logged as the mean of the result. It costs one
        all-reduce of float64 on the CPU, on a group of our own, and waits for the slowest rank.

        For a value that is no number, None for example, this rank contributes NaN, because the
        others wait for it; so NaN is logged. The first one of each name is warned of.

        Args:
            metrics: Name to number or tensor, on any device.
            op: mean, sum, min or max.
            step: Default: the trainer's, which is the last finished step, as for `log`.

        Raises:
            ValueError: `op` is none of mean, sum, min, max.
        """
        if op not in REDUCTIONS:
            raise ValueError(f"op must be one of {', '.join(REDUCTIONS)}, got {op!r}.")
        if self._has_ended:
            return
        try:
            reduced = self._reduced(metrics, op)
        except Exception as error:  # A rank has left; its point is lost, and training goes on.
            self._fault("log_reduced", error)
            return
        if self.is_coordinator and reduced:
            self.run.log(reduced, step=self._step if step is None else step)

    def _reduced(self, metrics: Mapping[str, Any], op: str) -> dict[str, Any]:
        parts = []
        for name, value in metrics.items():
            part, why = as_float64(value)
            parts.append(part)
            if why:
                self._warn_of_nan(str(name), why)
        if not parts:
            return {}
        flat = torch.cat(parts)
        if self._links is not None:
            flat = self._links.all_reduce(flat, "sum" if op == "mean" else op)
            if op == "mean":
                flat = flat / self._links.size
        pieces = torch.split(flat, [part.numel() for part in parts])
        return {name: piece.mean().item() for name, piece in zip(metrics, pieces, strict=True)}

    def _warn_of_nan(self, name: str, why: str) -> None:
        if name in self._odd_names:
            return
        self._odd_names.add(name)
        rank = self.control.group_rank
        text = f"{name[:200]!r} on rank {rank} went into log_reduced() as NaN: {why}."
        _log.warning("launchhelm: %s", text)
        self.run.notice(text, about="values")

    def tunable(
        self,
        name: str,
        default: TunableValue,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
        choices: Sequence[str] | None = None,
    ) -> Tunable:
        """Declare a value that may be changed live. Every rank calls it; not collective.

        Returns:
            An object whose `value` is always the current one, the same on all ranks as long as
            every rank declares the same default; that is not checked. On a resume, the value of
            the last checkpoint, or one that the script kept by
            `run.keep({"tunables": {name: value}})`, beats the default. A live change alone is not
            kept: an attempt that starts without it says so.

        Raises:
            ValueError: A bad or repeated name, one of a command of the script, or limits that do
                not fit the default.
            TypeError: The default is no bool, int, float or str.
        """
        made = Tunable(name, default, minimum=minimum, maximum=maximum, choices=choices)
        if self._has_ended:
            return made
        if name in self._tunables:
            raise ValueError(f"There is a tunable {name!r} already.")
        self.run.service.require_free(f"set_{name}")
        self._tunables[name] = made
        if name in self._kept_tunables:
            self._take_kept(made)
        try:
            self._offer(TunableControl(made))
            self._note_values()
        except Exception as error:
            self._fault("tunable", error)
        return made

    def _tunable_values(self) -> dict[str, Any]:
        """Return the value of each tunable, also of those that are still to be declared."""
        return {
            **self._kept_tunables,
            **{name: each.value for name, each in self._tunables.items()},
        }

    def _take_tunables(self, values: Mapping[str, Any]) -> None:
        """Give tunables the values of a checkpoint; later ones get theirs when declared."""
        plain = {name: each for name, each in values.items() if isinstance(each, TunableValue)}
        self._kept_tunables = {**self._kept_tunables, **plain}
        for name in plain:
            if name in self._tunables:
                self._take_kept(self._tunables[name])

    def _take_kept(self, tunable: Tunable) -> None:
        value = self._kept_tunables[tunable.name]
        problem = tunable.problem(value)
        if problem:
            _log.warning("The kept value of a tunable does not fit any more: %s", problem)
        else:
            tunable.take(value)

    def save_checkpoint(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
        sharded: bool = False,
    ) -> str | None:
        """Save the state of this training on all ranks as one checkpoint. Collective.

        Saved are model, optimizer, scheduler and scaler as watched, the random states of every
        rank, step, tunables, and what commands changed. The file stands in the run directory and is
        the artifact itself. Every rank waits until it is written, for about as long as `torch.save`
        takes; that it is durable, has a digest and loads back is made sure on a thread of the
        coordinator, which then records it. A sharded model is gathered on the coordinator.

        Args:
            path: Also put a copy here, whole when this returns. It is yours. Links are followed;
                what is there and is no regular file is refused.
            extra: More to save: a dict that loads with `weights_only=True`. The coordinator's
                counts.
            sharded: For a model that does not fit one host: each rank writes its shards into
                checkpoints/ of the run directory, which all ranks must see, and waits until they
                are durable. The artifact holds all else, and names them. They are not synced.

        Returns:
            The artifact's id on the coordinator, None elsewhere, and after `finish`.

        Raises:
            CheckpointError: On every rank, when any of them failed or is gone. Nothing is saved
                then, and training can go on.
        """
        if self._has_ended:
            _log.warning("launchhelm: save_checkpoint() after finish() saves nothing.")
            return None
        return self._checkpoints.save(self._step, path, extra, sharded=sharded)

    def load_checkpoint(
        self, path_or_latest: str | os.PathLike[str] = LATEST, map_location: Any = None
    ) -> dict[str, Any]:
        """Restore the state of a checkpoint on all ranks, after `watch`. Collective.

        Files of the hosted SDK load too. Tunables that are declared later get their value then.
        With another number of ranks the random states are not restored, which is told.

        Args:
            path_or_latest: "latest": the newest of this run, of any attempt; the id of one, alike
                on every rank; or a file that every rank sees. One that is still being verified by
                this process is waited for.
            map_location: As for `torch.load`; default: the CPU.

        Returns:
            `extra` as it was saved; {} when it was no dict.

        Raises:
            NotFound: "latest" or an id, and there is none; on every rank.
            CheckpointError: On every rank, when any of them could not read or restore it. Where
                that was found out too late to leave the training as it was, `step` raises it again.
        """
        if self._has_ended:
            raise CheckpointError("load_checkpoint() after finish() would restore nothing.")
        try:
            step, extra = self._checkpoints.load(path_or_latest, map_location)
        finally:
            if isinstance(self._failure, CheckpointError | None):
                self._failure = self._checkpoints.failure
        self._step = self._progress.step = step
        self._note_values()
        return extra

    def clip_grad_norm_(self, max_norm: float | None = None) -> float:
        """Clip the gradients of the watched optimizer, or only measure them without a limit.

        With a watched scaler they are unscaled first, unless the script did that. Gradients that
        are sharded by torch are clipped to the norm of all shards; every rank calls it then.

        Args:
            max_norm: The limit; default: `grad_clip`, else none.

        Returns:
            The norm before clipping, logged at the next `step`; that of a step which the scaler
            skips is not logged but counted. Waits for the device.

        Raises:
            RuntimeError: Nothing is watched yet, the gradients are sharded in a way that is not
                known, or the scaler was stepped already.
            ValueError: The limit is negative or NaN.
        """
        if not self._clipping.is_ready:
            if self._has_ended:
                return math.nan
            raise RuntimeError("clip_grad_norm_() needs watch(model, optimizer) first.")
        norm = self._clipping.clip(max_norm)
        if self._series is not None:
            self._series.grad_norm = self._clipping.norm
            if self._clipping.has_scaler:
                self._series.skipped_steps = self._clipping.skipped
        return norm

    def register_dropout(
        self, name: str, *, get: Callable[[], float], set: Callable[[float], object]
    ) -> None:
        """Let the `dropout` control reach a dropout that is no module of torch's dropout classes.

        Every rank calls it; not collective. One of the same name is replaced.

        Args:
            name: For people.
            get: Returns the probability now.
            set: Takes another one; `get` must return it then.

        Raises:
            TypeError: The name is no string, or `get` or `set` no function.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, got {type(name).__name__}.")
        if not callable(get) or not callable(set):
            raise TypeError("get and set must be functions: get() -> p, set(p).")
        if not self._has_ended:
            self._built_in.sites.register(name, get, set)

    def finish(self, *, close_run: bool = True, timeout: float = 30.0) -> None:
        """End this rank's part of the run. Not collective; idempotent; never raises.

        Args:
            close_run: False leaves the run open for a resume.
            timeout: Seconds to wait for storage, 10 at most.
        """
        heard = self._signals.heard if self._signals is not None else ""
        if heard or self._flow.now.saves:
            # Its launcher may start it again: the run stays open for that attempt.
            self._reason = heard or f"{STOP_COMMAND} after a checkpoint"
            self.run.finish(
                close_run=False, timeout=timeout, state="terminated", reason=self._reason
            )
        else:
            told = STOP_COMMAND if self._knows_of_stop else ""
            self._reason = told or "finished"
            self.run.finish(close_run=close_run, timeout=timeout, reason=told)
        self._let_signals_go()

    def _let_signals_go(self) -> None:
        # Not earlier: a signal must not end the process before its end is on record.
        if self._signals is not None:
            self._signals.let_go()

    def _leave(self) -> None:
        """Let go of the other ranks, at the start of the run's end."""
        self._has_ended = True
        self._built_in.let_go()
        if self._exchange is not None:
            self._exchange.finish(self._reason)
        elif self._links is not None:
            self._links.leave(self._step, 0, self._reason)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
            return
        state, reason = _endings.describe(error)
        self._reason = reason or state
        self.run.finish(close_run=False, state=state, reason=reason)
        self._let_signals_go()

    def __reduce__(self) -> tuple[object, ...]:
        # A copy, in this process or another, must not log what the original logs.
        return _inert, (type(self), self.control, self.log_ranks, self._step, self.run)

    def _offer(self, control: Control) -> None:
        self._plant.add(control)
        if self._standing is not None:
            self._standing.offered(control.name)
        if self._desk is not None:
            self.capabilities[control.name] = self._desk.register(control)

    def _offer_custom(
        self,
        document: Document,
        capability: Capability,
        handler: Handler,
        validate: Validate | None,
    ) -> None:
        if self._desk is not None:
            self.capabilities[capability.name] = document
        notice = self._notice if self.is_coordinator else None
        service, step = self.run.service, lambda: self._step
        self._plant.add(Custom(capability, handler, validate, service, step, notice))

    def _notice(self, text: str) -> None:
        """Tell people something: every rank records it, one says it."""
        speaks = self.is_coordinator if self._exchange is None else self._exchange.speaks
        self.run.notice(text)
        _log.log(logging.WARNING if speaks else logging.INFO, "launchhelm: %s", text)

    def _note_values(self) -> None:
        if self._panel is not None:
            try:
                self._panel.note(self._step)
            except Exception as error:
                self._fault("control values", error)

    def _fault(self, component: str, error: Exception) -> None:
        self.run.fault(component, error)


def _inert(kind: type[Trainer], control: RankFacts, log_ranks: str, step: int, run: Run) -> Trainer:
    """Make a copy of a handle: it knows its run and does nothing."""
    copy = kind.__new__(kind)
    copy.run = run
    copy.control = control
    copy.log_ranks = log_ranks
    copy.control_every = 1
    copy.on_partial_failure = "raise"
    copy.capabilities = {}
    copy._step = step
    copy._clipping, copy._flow = Clipping(None, 1), FlowHolder()
    copy._series = copy._panel = copy._signals = copy._standing = None
    copy._has_ended, copy._knows_of_stop = True, False
    return copy
