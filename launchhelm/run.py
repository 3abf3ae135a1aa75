"""`init` and `Run`: what a training script holds while it is recorded.

Everything is written to the run directory by one background thread; no call here waits for the
network, and only `init`, `flush`, `keep` and `finish` wait for the disk. `log` and whatever is
called in the loop may be called from any thread. `_lock` guards the step counter, the counters of
console lines and the end of the run; it is reentrant, so that a signal handler may log.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from launchhelm import _endings, _settings
from launchhelm import _run_metadata as metadata
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._commands import CommandDesk
from launchhelm._console import STREAMS, Capture, split_line
from launchhelm._ids import new_id, new_token
from launchhelm._recorder import Recorder
from launchhelm._run_inert import NoRecorder
from launchhelm._run_metrics import INT64, REDUCTIONS, Metrics
from launchhelm._run_open import Ask, Opened, boot_id, open_run, start_time
from launchhelm._run_reading import Reads
from launchhelm._run_service import Service
from launchhelm.commands import Handler, adapt, command_capability
from launchhelm.controls.schema import as_json
from launchhelm.errors import BufferFull
from launchhelm.models import NIL, Capability, Document, Scope
from launchhelm.records import MetricValue, Participant, WriterId
from launchhelm.runtime import Runtime
from launchhelm.store import layout
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import Inbox
from launchhelm.store.line import special
from launchhelm.store.manifest import Attempt, write_durably
from launchhelm.store.mount import is_network
from launchhelm.values import axes_text, check_axis, check_step, coerce, name_problem
from launchhelm.values.coerce import KINDS, Lazy
from launchhelm.values.coordinates import MAX_STEP

FINISH_BUDGET_S: Final = 10.0
KEEP_WAIT_S: Final = 10.0
MAX_UNIT_CHARS: Final = 64
LOCAL_POLL_S: Final = 0.5
NETWORK_POLL_S: Final = 1.0
UNSEEN_MANIFEST_S: Final = 60.0

Function = TypeVar("Function", bound=Callable[..., Any])

_log = logging.getLogger("launchhelm")


def init(
    project: str,
    *,
    overflow: str = "block",
    name: str = "",
    config: Mapping[str, Any] | None = None,
    group: str = "",
    tags: Sequence[str] = (),
    notes: str = "",
    organization: str = "",
    client: object = None,
    state_dir: str | os.PathLike[str] | None = None,
    media_spool_bytes: int = 268_435_456,
    resume: str = "",
    project_id: str = "",
    participant_name: str = "",
    participant_role: str = "logger",
    participant_labels: Mapping[str, str] | None = None,
) -> Run:
    """Start recording a run of one process, offline.

    The run directory, with id, title, config and format, is on disk before this returns. No
    network is used, and no key is needed.

    Args:
        project: Name of the project, 1 to 256 characters.
        overflow: When storage accepts no writes and the memory buffer is full: "block" waits up to
            5 s in all and then gives up the oldest metric points, "drop_new" refuses the new one,
            "raise" raises BufferFull.
        name: Title; made up when empty.
        config: Hyperparameters: at most 64 entries of bool, int, float, str, dict or list. Texts
            under names like key, token or password are masked on disk.
        state_dir: Root directory for runs; default LAUNCHHELM_DIR, else ./runs.
        resume: Id or exact title of a run to go on with, as a new attempt.
        client, media_spool_bytes, organization, project_id: Accepted as the hosted SDK has them;
            hints for a later sync.
        participant_name, participant_role, participant_labels: How this process is called.

    Raises:
        TypeError, ValueError: A wrong argument.
        ConfigError: The root cannot be written, or the hosted SDK is installed beside this one.
        NotFound, Conflict: There is no one run to resume, or it is closed.
    """
    del client, media_spool_bytes
    ask = Ask.of(
        project,
        name=name,
        config=config,
        group=group,
        tags=tags,
        notes=notes,
        overflow=overflow,
        organization=organization,
        project_id=project_id,
        state_dir=state_dir,
        resume=resume,
    )
    limit = metadata.MAX_NAME_CHARS
    participant = Participant(
        id=new_id(),
        name=metadata.check_text(participant_name, "participant_name", limit)
        or f"logger-{os.getpid()}",
        role=metadata.check_text(participant_role, "participant_role", limit, may_be_empty=False),
        rank=0,
        world_size=1,
        group_rank=0,
        local_rank=0,
        host=metadata.host_name(),
        pid=os.getpid(),
        labels={
            metadata.check_text(key, "A label", limit): metadata.check_text(value, key, 1024)
            for key, value in (participant_labels or {}).items()
        },
    )
    return Run.open(ask, participant)


class Run(Reads):
    """One process's hold on a run. Made by `init`, never directly.

    Attributes:
        run_id, project_id, name, config, group, tags, notes, git, host, python, argv: As recorded.
        restored: State kept by an earlier attempt, {} for a new run.
        directory: The run directory, absolute.
        attempt: This launch of the run.
        participant: This process.
        runtime: The lower level: delivery, registration, sessions.
    """

    def __init__(
        self,
        opened: Opened,
        participant: Participant,
        recorder: Recorder | NoRecorder,
        *,
        overflow: str = "block",
        config: Mapping[str, Any] | None = None,
        is_coordinator: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        manifest, past = opened.manifest, opened.past
        described = {**manifest.extra, "name": manifest.name, **past.described}
        self.directory = opened.directory
        self.attempt: Attempt = opened.attempt
        self.participant = participant
        self.recorder = recorder
        self.run_id = manifest.run_id
        self.project = manifest.project
        self.project_id = manifest.project_id
        self.name = str(described["name"])
        self.config: dict[str, Any] = dict(manifest.config if config is None else config)
        self.restored: dict[str, Any] = dict(past.state)
        self.summary_values: dict[str, Any] = dict(past.summary)
        self.group = str(described.get("group", ""))
        self.tags = tuple(described.get("tags", ()))
        self.notes = str(described.get("notes", ""))
        self.git = str(described.get("git", ""))
        self.host = manifest.host
        self.python = str(described.get("python", ""))
        self.argv = str(described.get("argv", ""))
        self.overflow = overflow
        self.is_coordinator = is_coordinator
        self._opened = opened
        self._clock = clock
        self._lock = threading.RLock()
        self._next_step = past.next_step
        self._is_over = isinstance(recorder, NoRecorder)
        self._metrics = Metrics(self._warn_of_value)
        self._numbers = self._metrics.numbers
        self._definitions = {name: dict(body) for name, body in past.definitions.items()}
        for body in past.definitions.values():
            self._metrics.define(body)
        # A Trainer sets the heartbeat's step itself; a plain loop has no other mark of progress.
        self._progress = recorder.progress if participant.role != "trainer" else None
        reduced = {name for name, body in past.definitions.items() if body.get("summary")}
        self._set_by_hand = set(past.summary) - reduced
        self._console_lines = 0
        self._capture = Capture(self._captured, lambda error: self.fault("console", error))
        self._before_finish: list[Callable[[], object]] = []
        self._warned: set[str] = set()
        organization = str(manifest.extra.get("organization", "")) or NIL
        scope = Scope(organization, self.project_id, self.run_id)
        self.desk = self._make_desk(scope, clock)
        self._service = Service(self.desk, epoch=str(self.attempt.number), clock=clock)
        self.runtime = Runtime(self, self._service, scope)
        _runs.add(self)

    # --- coming into being ------------------------------------------------------------------------

    @classmethod
    def open(cls, ask: Ask, participant: Participant, *, clock: Clock = SYSTEM_CLOCK) -> Run:
        """Create, resume or re-enter a run, and say on stderr where it is. Coordinator only.

        Raises:
            ConfigError, NotFound, Conflict: As `init`.
        """
        opened = open_run(ask, participant, clock=clock)
        config = ask.config if not opened.past.next_step and not ask.resume else None
        run = cls._recording(opened, participant, ask.overflow, config or None, True, clock)
        for warning in opened.warnings:
            _log.warning(warning)
            run.notice(warning, about="storage")
        _say(_first_line(run))
        return run

    @classmethod
    def attach(
        cls,
        invitation: Mapping[str, Any],
        participant: Participant,
        *,
        overflow: str = "block",
        clock: Clock = SYSTEM_CLOCK,
    ) -> Run:
        """Write into the run that the coordinator opened; never waits for a file of another host.

        Raises:
            ConfigError: The directory cannot be written from here.
        """
        opened = Opened.invited(invitation)
        return cls._recording(opened, participant, overflow, None, False, clock)

    @classmethod
    def _recording(
        cls,
        opened: Opened,
        participant: Participant,
        overflow: str,
        config: Mapping[str, Any] | None,
        is_coordinator: bool,
        clock: Clock,
    ) -> Run:
        writer = WriterId(participant.rank, opened.attempt.number, new_token())
        recorder = Recorder(
            opened.directory,
            writer,
            _opening(opened, participant),
            overflow=overflow,
            clock=clock,
        )
        run = cls(
            opened,
            participant,
            recorder,
            overflow=overflow,
            config=config,
            is_coordinator=is_coordinator,
            clock=clock,
        )
        recorder.start()
        recorder.append("ev", {"type": "start", **_start_facts(opened, participant)})
        if is_coordinator:
            interval_s = NETWORK_POLL_S if is_network(opened.directory) else LOCAL_POLL_S
            recorder.every(interval_s, functools.partial(_poll, weakref.ref(run.desk)))
        else:
            recorder.every(UNSEEN_MANIFEST_S, functools.partial(_look_for_manifest, opened))
        _endings.at_end(run._ending)
        return run

    def invitation(self) -> dict[str, Any]:
        """Return what `attach` needs on the other ranks, as JSON."""
        return self._opened.invitation()

    # --- writing ----------------------------------------------------------------------------------

    def log(
        self, metrics: Mapping[str, object], *, step: int | None = None, **axes: object
    ) -> bool:
        """Record values at one step; costs a few microseconds, waits for nothing.

        Args:
            metrics: Name to value. Numbers, booleans and strings, also as NumPy and torch scalars;
                what cannot be kept is left out, counted, and warned of once.
            step: Default: the counter, which a call at step s moves to at least s + 1.
            axes: Further coordinates.

        Returns:
            False when something of this call was dropped.

        Raises:
            TypeError, ValueError: A name that is not a string, a bad step or axis.
            BufferFull: overflow="raise", and storage accepts no writes.
        """
        if type(metrics) is not dict:
            metrics = _as_dict(metrics)
        if not metrics:
            return True
        if step is not None and (type(step) is not int or not -MAX_STEP < step < MAX_STEP):
            step = check_step(step)
        places = axes_text(axes) if axes else None
        # The copy is what is recorded, so that a later change of the caller's dict is not.
        body: dict[str, Any] = metrics.copy()
        is_whole = True
        numbers = self._numbers
        for name, value in body.items():
            kind = type(value)
            if (kind is float or (kind is int and -INT64 <= value < INT64)) and name in numbers:
                continue
            body, is_whole = self._metrics.admit(body)
            break
        with self._lock:
            if step is None:
                step = self._next_step
            if step >= self._next_step:
                self._next_step = step + 1
        if not body:
            return False
        try:
            accepted = self.recorder.append("m", body, step=step, axes=places)
            progress = self._progress
            if progress is not None:
                progress.step = step
                if progress.phase == "starting":
                    progress.phase_since = self._clock.monotonic()
                    progress.phase = "training"
        except BufferFull:
            raise
        except Exception as error:  # Protects training.
            self.fault("recorder", error)
            return False
        return accepted and is_whole

    def define(
        self, name: str, kind: str = "number", *axes: str, unit: str = "", summary: str = ""
    ) -> None:
        """Declare a metric: its kind, further axes, unit, and the reduction kept at the end.

        Raises:
            TypeError: A name or unit that is not a string, or another kind than the metric has.
            ValueError: An unknown kind or reduction, a bad name, axis or unit.
        """
        if not isinstance(name, str):
            raise TypeError(f"The name of a metric must be a string, got {type(name).__name__}.")
        problem = name_problem(name)
        if problem:
            raise ValueError(f"A metric cannot have {problem}.")
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
        unit = metadata.check_text(unit, "unit", MAX_UNIT_CHARS)
        if summary and (summary not in REDUCTIONS or kind != "number"):
            raise ValueError(f"summary must be one of {', '.join(REDUCTIONS)}, of a number.")
        known = self._metrics.kind(name)
        if known not in (None, kind):
            raise TypeError(f"The metric {name!r} holds {known}s; it cannot become {kind}.")
        checked = ["step", *(check_axis(axis) for axis in axes if axis != "step")]
        if len(set(checked)) != len(checked):
            raise ValueError("An axis is given twice.")
        earlier = self._definitions.get(name, {})
        body = {
            "name": name,
            "kind": kind,
            "axes": checked,
            # What is stored stays: a unit is fixed once it is given.
            "unit": earlier.get("unit") or unit,
            "summary": summary or earlier.get("summary", ""),
        }
        self._definitions[name] = body
        self._metrics.define({**earlier, **body})
        self._append("def", body)

    def console(self, text: str, *, stream: str = "stdout") -> None:
        """Record one line of console output; a longer one becomes several.

        Raises:
            TypeError: The text is not a string.
            ValueError: Another stream than stdout or stderr.
        """
        if not isinstance(text, str):
            raise TypeError(f"A console line must be a string, got {type(text).__name__}.")
        if stream not in STREAMS:
            raise ValueError(f"stream must be stdout or stderr, got {stream!r}.")
        for piece in split_line(text):
            self._captured(piece, stream)

    def capture_console(self) -> None:
        """Record what is printed from now on, until `finish`; the terminal still gets it."""
        if not self._is_over:
            self._capture.start()

    def summary(self, metrics: Mapping[str, object]) -> None:
        """Set end-of-run values; None removes one, and gives way to its reduction again.

        Raises:
            TypeError: A name that is not a string, or a value that is not a scalar.
            ValueError: A bad name.
        """
        values: dict[str, MetricValue] = {}
        removed: list[str] = []
        for name, value in _as_dict(metrics).items():
            metadata.check_text(name, "The name of a summary value", metadata.MAX_NAME_CHARS)
            if value is None:
                removed.append(name)
                continue
            exact = coerce(value)
            values[name] = exact.resolve() if isinstance(exact, Lazy) else exact
        with self._lock:
            self.summary_values.update(values)
            self._set_by_hand.update(values)
            for name in removed:
                self.summary_values.pop(name, None)
                self._set_by_hand.discard(name)
        body: dict[str, Any] = {name: _json_value(value) for name, value in values.items()}
        self._append("sum", {**body, **dict.fromkeys(removed)})

    def describe(
        self,
        *,
        group: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
        name: str | None = None,
    ) -> None:
        """Change what the run says about itself; omitted fields stay, empty ones are removed.

        Raises:
            TypeError, ValueError: As for the same arguments of `init`; the title cannot be empty.
        """
        changed: dict[str, Any] = {}
        limit = metadata.MAX_NAME_CHARS
        if group is not None:
            changed["group"] = metadata.check_text(group, "group", limit)
        if tags is not None:
            changed["tags"] = metadata.check_tags(tags)
        if notes is not None:
            changed["notes"] = metadata.check_text(notes, "notes", metadata.MAX_NOTES_CHARS)
        if name is not None:
            changed["name"] = metadata.check_text(name, "name", limit, may_be_empty=False)
        if changed:
            for field, value in changed.items():
                setattr(self, field, value)
            self._append("desc", changed)

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep state for a resume, together with the step counter; durable on return.

        Raises:
            TypeError, ValueError: It is not a JSON object.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"keep takes a mapping, got {type(state).__name__}.")
        body = {"step": self.next_step, "state": as_json(dict(state))}
        if self._is_over:
            self._append("keep", body)
            return
        ticket = self.recorder.append_urgent("keep", body)
        if not ticket.wait(KEEP_WAIT_S):
            self._warn_once("keep", "State was kept in memory only: storage accepts no writes yet.")

    def flush(self, *, delivered: bool = True, timeout: float = 30.0) -> None:
        """Wait until everything recorded so far is durable.

        Args:
            delivered: Also wait for a server, where one is attached; else it is local durability
                plus one warning.

        Raises:
            TimeoutError: Storage did not accept it in time; nothing is lost, it is tried again.
                With LAUNCHHELM_STRICT_DELIVERY=1 also when `delivered` cannot be promised.
        """
        self.recorder.flush(timeout)
        if not delivered:
            return
        if _settings.STRICT_DELIVERY.read() == "1":
            raise TimeoutError(
                "Everything is durable in the run directory, but no server has it: nothing "
                "uploads from this process, and LAUNCHHELM_STRICT_DELIVERY=1 asks for that."
            )
        self._warn_once(
            "offline", "flush() made everything durable on disk; no server is attached to have it."
        )

    # --- live control -----------------------------------------------------------------------------

    def command(self, safe_point: str, *, name: str = "") -> Callable[[Function], Function]:
        """Offer a typed function as a command, as a decorator or called with a bound method.

        Raises:
            TypeError: A parameter whose annotation has no schema.
            ValueError: A name that does not match the rule.
        """

        def offer(function: Function) -> Function:
            capability = command_capability(function, safe_point, name=name)
            self._service.register(capability, adapt(function))
            return function

        return offer

    def on(self, safe_point: str, capability: Capability, handler: Handler) -> Document:
        """Offer a capability at one of its safe points.

        Raises:
            ValueError: The capability does not list that point, or its schemas are not semantic.
        """
        if safe_point not in capability.safe_points:
            raise ValueError(f"The capability {capability.name!r} does not list {safe_point!r}.")
        return self._service.register(capability, handler)

    def register(self, capability: Capability, handler: Handler) -> Document:
        """Offer a capability; `handler(payload, context)` runs in `sync`.

        Raises:
            ValueError: Bad names, or schemas that are not semantic.
        """
        return self._service.register(capability, handler)

    def pending(self, safe_point: str) -> bool:
        """Whether a command waits for this safe point. No I/O."""
        return not self._is_over and self.desk.pending(safe_point)

    def sync(self, safe_point: str, *, step: int | None = None, **axes: object) -> int:
        """Run at most one waiting command here, on this thread.

        Returns:
            1 when a handler ran, also when it failed; its outcome is recorded. 0 otherwise.

        Raises:
            TypeError, ValueError: A bad name, step or axis; nothing else.
        """
        step = self._next_step if step is None else check_step(step)
        return self.visit(safe_point, step, axes_text(axes) if axes else {})

    def safe_point(self, name: str, *, step: int | None = None, **axes: object) -> int:
        """Do what `sync` does."""
        return self.sync(name, step=step, **axes)

    @property
    def last_applied(self) -> dict[str, str] | None:
        """Coordinates of the last `sync` that ran a handler."""
        return self._service.last_applied

    @property
    def last_result(self) -> Any:  # Any: whatever the handler returned.
        """What that handler returned; None when the latest `sync` ran nothing."""
        return self._service.last_result

    # --- the end ----------------------------------------------------------------------------------

    def finish(
        self,
        *,
        close_run: bool = True,
        timeout: float = 30.0,
        state: str = "finished",
        reason: str = "",
    ) -> None:
        """Write everything and the end of this process; at most 10 s, idempotent, never raises.

        Args:
            close_run: False leaves the run open for a resume.
            timeout: Seconds; above 10 it means 10.
            state: finished, error, interrupted, terminated or preempted.
            reason: Why, for people.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        _endings.forget(self._ending)
        deadline = self._clock.monotonic() + min(max(timeout, 0.0), FINISH_BUDGET_S)
        for callback in reversed(self._before_finish):
            self._guarded("finish", callback)
        for action in (self._capture.stop, self._reduce, self._report_left_out, self.desk.close):
            self._guarded("finish", action)
        try:
            left_s = max(0.0, deadline - self._clock.monotonic())
            is_durable = self.recorder.close(state, reason, left_s, close_run=close_run)
            if is_durable:
                self.desk.sweep()
            else:
                self._warn_once(
                    "finish",
                    f"Not everything reached {self.directory} in time: it accepts no writes "
                    f"({self.recorder.last_error or 'it hangs'}).",
                )
        except Exception as error:  # Protects the end of a good training.
            self.fault("finish", error)

    def before_finish(self, callback: Callable[[], object]) -> None:
        """Call back once when `finish` begins, the latest first; its errors are only counted."""
        self._before_finish.append(callback)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state, reason = ("finished", "") if error is None else _endings.describe(error)
        self.finish(state=state, reason=reason)

    # --- for the parts above ----------------------------------------------------------------------

    @property
    def next_step(self) -> int:
        """The step that `log` uses next."""
        return self._next_step

    @property
    def is_finished(self) -> bool:
        """Whether `finish` was called, or this is a copy that records nothing."""
        return self._is_over

    def notice(self, text: str, *, about: str = "control") -> None:
        """Record something that people should know; never raises."""
        self._append("ev", {"type": "notice", "about": about, "text": text})

    def fault(self, component: str, error: BaseException) -> None:
        """Count a failure of ours, log the first of its kind with traceback, record it."""
        try:
            faults = self.recorder.faults
            faults[component] += 1
            if faults[component] > 1:
                return
            _log.error("launchhelm: %s failed; training goes on.", component, exc_info=error)
            body = {
                "type": "fault",
                "component": component,
                "error": f"{type(error).__name__}: {error}"[:1000],
                "count": 1,
            }
            self.recorder.append("ev", body)
        except Exception:  # Whatever is wrong here must not reach the training loop.
            pass

    # --- within -----------------------------------------------------------------------------------

    def _make_desk(self, scope: Scope, clock: Clock) -> CommandDesk:
        inbox = ledger = None
        if self.is_coordinator and isinstance(self.recorder, Recorder):
            writer = self.recorder.writer_id
            accept_uids = self._opened.manifest.extra.get("accept_uids") or ()
            inbox = Inbox(self.directory, writer, accept_uids=accept_uids, clock=clock)
            ledger = Ledger(self.directory, writer)
        return CommandDesk(
            self.recorder,
            scope=scope,
            participant_id=self.participant.id,
            attempt=self.attempt.number,
            inbox=inbox,
            ledger=ledger,
            poll_s=NETWORK_POLL_S if inbox and is_network(self.directory) else LOCAL_POLL_S,
            clock=clock,
        )

    def visit(self, safe_point: str, step: int, axes: Mapping[str, str]) -> int:
        self.desk.advertise(safe_point)
        if self._is_over:
            return 0
        try:
            return self._service.visit(safe_point, step=step, axes=axes)
        except Exception as error:  # Protects training; a handler's own error is an outcome.
            self.fault("control", error)
            return 0

    def _append(self, kind: str, body: Mapping[str, Any]) -> None:
        try:
            self.recorder.append(kind, body)
        except BufferFull:
            raise
        except Exception as error:  # Protects training.
            self.fault("recorder", error)

    def _captured(self, text: str, stream: str) -> None:
        with self._lock:
            line = self._console_lines
            self._console_lines += 1
        body = {"text": text, "stream": STREAMS.index(stream), "line": line}
        self.recorder.append("con", body, step=self._next_step)

    def _reduce(self) -> None:
        """Record the reductions asked for, where `summary` has not said something else."""
        for name, reduction in self._metrics.reductions().items():
            # The state is what a later attempt goes on from.
            self._append("def", {**self._definitions[name], "state": reduction.state()})
            if name not in self._set_by_hand:
                self.summary_values[name] = reduction.value
                self._append("sum", {name: reduction.value})

    def _report_left_out(self) -> None:
        left_out = self._metrics.left_out
        if left_out:
            worst = ", ".join(f"{name!r} {count:,}" for name, count in left_out.most_common(5))
            self.notice(
                f"{left_out.total():,} values were left out of what was logged: {worst}.",
                about="values",
            )

    def _warn_of_value(self, name: str, why: str) -> None:
        text = f"{name[:200]!r} was left out of log(): {why}. Further ones are only counted."
        _log.warning(text)
        self.notice(text, about="values")

    def _warn_once(self, cause: str, text: str) -> None:
        if cause not in self._warned:
            self._warned.add(cause)
            _log.warning(text)

    def _guarded(self, component: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # Protects training and its end.
            self.fault(component, error)

    def _ending(self, state: str, reason: str) -> None:
        self.finish(close_run=False, state=state, reason=reason)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._is_over = True

    def __reduce__(self) -> tuple[object, ...]:
        # A copy is a handle of the past: it knows the run, reads it, and records nothing.
        return _inert, (self._opened.invitation(), self.participant, self.config, self._next_step)

    def __deepcopy__(self, memo: dict[int, object]) -> Run:
        return _inert(self.invitation(), self.participant, self.config, self._next_step)

    def __repr__(self) -> str:
        return f"<Run {self.name!r} {self.run_id} in {self.directory}>"


def _inert(
    invitation: Mapping[str, Any],
    participant: Participant,
    config: Mapping[str, Any],
    next_step: int,
) -> Run:
    """Make the copy of a run that pickle and deepcopy give."""
    opened = Opened.invited(invitation)
    opened.past.next_step = next_step
    return Run(opened, participant, NoRecorder(), config=config, is_coordinator=False)


def _as_dict(metrics: object) -> dict[Any, Any]:
    """Return a mapping as a dict. Any: its keys and values are checked by the caller."""
    if isinstance(metrics, dict):
        return metrics
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"Metrics must be a mapping of name to value, got {type(metrics).__name__}."
        )
    return dict(metrics)


def _json_value(value: MetricValue) -> Any:  # Any: a tagged object, or the value.
    is_odd = isinstance(value, float) and value - value != 0
    return special(value) if is_odd and isinstance(value, float) else value


def _opening(opened: Opened, participant: Participant) -> dict[str, Any]:
    """Return the facts of this process for the first line of its segments."""
    from launchhelm import __version__

    try:
        pid_namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        pid_namespace = ""
    return {
        "run": opened.manifest.run_id,
        "rank": participant.rank,
        "world": participant.world_size,
        "attempt": opened.attempt.number,
        "host": participant.host,
        "pid": os.getpid(),
        "pidns": pid_namespace,
        "boot": boot_id(),
        "start": start_time("self"),
        "lib": f"launchhelm-offline {__version__}",
        "participant": {
            "id": participant.id,
            "name": participant.name,
            "role": participant.role,
            "labels": dict(participant.labels),
            "group_rank": participant.group_rank,
            "local_rank": participant.local_rank,
        },
    }


def _start_facts(opened: Opened, participant: Participant) -> dict[str, Any]:
    facts: dict[str, Any] = {"world_size": participant.world_size}
    if opened.attempt.resumed_from is not None:
        facts["resumed_from"] = opened.attempt.resumed_from
        facts["next_step"] = opened.past.next_step
    return facts


def _poll(desk: weakref.ref[CommandDesk]) -> float | None:
    """Look into the inbox, for as long as somebody holds the run."""
    held = desk()
    return held.poll() if held is not None else 3600.0


def _look_for_manifest(opened: Opened) -> float | None:
    """Write who the run is where this host cannot see it: the root is not shared, or slow to be."""
    wait_s = 86_400.0
    directory = opened.directory
    if layout.MANIFEST in os.listdir(directory):
        return wait_s
    nodes = directory / layout.NODES
    nodes.mkdir(exist_ok=True)
    host = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in _host())
    import json

    data = json.dumps(opened.manifest.wire(), ensure_ascii=False).encode()
    write_durably(nodes / f"{host}-{new_token()}.json", data)
    return wait_s


def _host() -> str:
    return metadata.host_name()


def _first_line(run: Run) -> str:
    """Say where the run is written, how to look at it, and that nothing is uploaded."""
    attempt = f", attempt {run.attempt.number}" if run.attempt.number > 1 else ""
    text = f"launchhelm: writing {run.name!r}{attempt} to {run.directory}"
    if _settings.API_KEY.read():
        text += "; LAUNCHHELM_API_KEY is set, but nothing is uploaded by this process"
    return f"{text}; look at it with: launchhelm show {run.directory}"


def _say(line: str) -> None:
    """Write one line to stderr; a terminal that is gone is no reason to fail."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


_runs: Final[weakref.WeakSet[Run]] = weakref.WeakSet()


def _after_fork() -> None:
    for run in tuple(_runs):
        run._after_fork()


os.register_at_fork(after_in_child=_after_fork)
