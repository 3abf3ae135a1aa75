"""`init` and `Run`: what a training script holds while it is recorded.

Everything is written to the run directory by one background thread; no call here waits for the
network, and only `init`, `flush`, `keep` and `finish` wait for the disk. `log` and whatever is
called in the loop may be called from any thread. `_lock` guards the step counter, the counters of
console lines and the end of the run; it is reentrant, so that a signal handler may log.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from launchhelm import _attach, _endings, _settings
from launchhelm import _run_metadata as metadata
from launchhelm._clock import SYSTEM_CLOCK, Clock
from launchhelm._commands import CommandDesk
from launchhelm._console import STREAMS, Capture, split_line
from launchhelm._faults import Faults
from launchhelm._ids import new_id, new_token
from launchhelm._recorder import Recorder
from launchhelm._run_artifacts import Artifacts
from launchhelm._run_control import Controls
from launchhelm._run_describe import Describes
from launchhelm._run_facts import first_line, look_for_manifest, opening, say, start_facts
from launchhelm._run_inert import NoRecorder
from launchhelm._run_metrics import INT64, Metrics, as_dict
from launchhelm._run_open import Ask, Opened, open_run
from launchhelm._run_reading import Reads
from launchhelm._run_rich import Rich, take_rich
from launchhelm._run_service import Service
from launchhelm._run_shelf import Shelf
from launchhelm.errors import BufferFull
from launchhelm.models import NIL, Document, Scope
from launchhelm.records import Participant, WriterId
from launchhelm.runtime import Runtime
from launchhelm.store.claims import Ledger
from launchhelm.store.inbox import Inbox
from launchhelm.store.manifest import Attempt
from launchhelm.store.mount import is_network
from launchhelm.values import axes_text, check_step
from launchhelm.values.coordinates import MAX_STEP

FINISH_BUDGET_S: Final = 10.0
SIGNAL_BUDGET_S: Final = 2.0
LOCAL_POLL_S: Final = 0.5
NETWORK_POLL_S: Final = 1.0
UNSEEN_MANIFEST_S: Final = 60.0
MEDIA_SPOOL_BYTES: Final = 268_435_456
"""The hosted SDK's limit of what waits for an upload. Here the disk is the limit."""

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
    media_spool_bytes: int = MEDIA_SPOOL_BYTES,
    resume: str = "",
    project_id: str = "",
    participant_name: str = "",
    participant_role: str = "logger",
    participant_labels: Mapping[str, str] | None = None,
    handle_signals: bool = False,
    sync: bool = False,
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
        media_spool_bytes: Less than the default limits the bytes of media that this process keeps;
            further ones are dropped and counted.
        client, organization, project_id: Accepted as the hosted SDK has them; hints for a later
            sync.
        participant_name, participant_role, participant_labels: How this process is called.
        handle_signals: On SIGTERM, write everything and the end `terminated` within 2 s, then let
            the signal do what it did before. For the main thread only.
        sync: Upload while the run goes on, by one thread beside it, to LAUNCHHELM_URL; needs
            `launchhelm-offline[sync]`. LAUNCHHELM_SYNC=1 says the same.

    Raises:
        TypeError, ValueError: A wrong argument.
        ConfigError: The root cannot be written, or the hosted SDK is installed beside this one.
        NotFound, Conflict: There is no one run to resume, or it is closed.
    """
    del client
    if handle_signals:
        _endings.require_main_thread()
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
        sync=sync,
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
    run = Run.open(ask, participant)
    if media_spool_bytes < MEDIA_SPOOL_BYTES:
        run._shelf.limit_bytes = media_spool_bytes
    if handle_signals:
        run.handle_signals()
    return run


class Run(Reads, Controls, Describes, Artifacts, Rich):
    """One process's hold on a run. Made by `init`, never directly.

    Attributes:
        run_id, project_id, name, config, group, tags, notes, git, host, python, argv: As recorded.
        restored: State kept by an earlier attempt, {} for a new run.
        kept_state: The state kept last, by whichever attempt.
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
        self.syncer: _attach.Attached | None = None
        self._opened = opened
        self._clock = clock
        self._lock = threading.RLock()
        self._next_step = past.next_step
        self._is_over = isinstance(recorder, NoRecorder)
        self._is_ending = False
        self._finish_by = float("inf")
        self.kept_state: dict[str, Any] = dict(past.state)
        self._faults = Faults(self._note_fault)
        self._faults.counts = recorder.faults  # The heartbeat shows them together.
        self._metrics = Metrics(self._warn_of_value)
        self._plain = self._metrics.plain
        self._definitions = {name: dict(body) for name, body in past.definitions.items()}
        for body in past.definitions.values():
            self._metrics.define(body)
        # A Trainer sets the heartbeat's step itself; a plain loop has no other mark of progress.
        self._progress = recorder.progress if participant.role != "trainer" else None
        reduced = {name for name, body in past.definitions.items() if body.get("summary")}
        self._set_by_hand = set(past.summary) - reduced
        self._console_lines = 0
        self._artifacts_by_key: dict[str, Document] = {}
        self._shelf = Shelf(self.directory)
        self._capture = Capture(self._captured, lambda error: self.fault("console", error))
        self._before_finish: list[Callable[[], object]] = []
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
        config = ask.config if opened.attempt.resumed_from is None else None
        run = cls._recording(opened, participant, ask.overflow, config, True, clock)
        for warning in opened.warnings:
            _log.warning(warning)
            run.notice(warning, about="storage")
        if ask.sync:
            tell = functools.partial(setattr, run.recorder.progress, "sync")
            run.syncer = _attach.attach(run.directory, run.fault, tell=tell, clock=clock)
        say(first_line(run))
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
            opening(opened, participant),
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
        recorder.append("ev", {"type": "start", **start_facts(opened, participant)})
        if is_coordinator:
            recorder.every(LOCAL_POLL_S, run.desk.poll)
        else:
            notice = functools.partial(run.notice, about="storage")
            recorder.every(UNSEEN_MANIFEST_S, functools.partial(look_for_manifest, opened, notice))
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
                rich values, and lists of media, which wait for the disk as `image` does. What
                cannot be kept is left out, counted, and warned of once.
            step: Default: the counter, which a call at step s moves to at least s + 1.
            axes: Further coordinates.

        Returns:
            False when something of this call was dropped.

        Raises:
            TypeError, ValueError: A name that is not a string, a bad step or axis.
            BufferFull: overflow="raise", and storage accepts no writes.
        """
        given: dict[Any, Any] = metrics if type(metrics) is dict else as_dict(metrics)
        if not given:
            return True
        if step is not None and (type(step) is not int or not -MAX_STEP < step < MAX_STEP):
            step = check_step(step)
        places = axes_text(axes) if axes else None
        if self._is_over:
            # Counted as late. After a fork no lock of ours may be waited for.
            return self.recorder.append("m", given, step=step, axes=places)
        # The copy is what is recorded, so that a later change of the caller's dict is not.
        body: dict[str, Any] = given.copy()
        is_whole = True
        rich: dict[Any, Any] = {}
        plain = self._plain
        for name, value in body.items():
            kind = type(value)
            is_plain = kind is float or kind is bool or (kind is int and -INT64 <= value < INT64)
            if is_plain and name in plain:
                continue
            rich = take_rich(body)
            body, is_whole = self._metrics.admit(body, rich)
            break
        with self._lock:
            if step is None:
                step = self._next_step
            if step >= self._next_step:
                self._next_step = step + 1
        if rich:
            is_whole = self._record_some(rich, step, places) and is_whole
        if not body:
            return bool(rich) and is_whole
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

    def flush(self, *, delivered: bool = True, timeout: float = 30.0) -> None:
        """Wait until everything recorded so far is durable.

        Args:
            delivered: Also wait until the server has it, where the sync thread is attached and
                its server can be reached; else it is local durability plus one warning.

        Raises:
            TimeoutError: Storage did not accept it in time; nothing is lost, it is tried again.
                With LAUNCHHELM_STRICT_DELIVERY=1 also when `delivered` cannot be promised.
        """
        deadline = self._clock.monotonic() + timeout
        self.recorder.flush(timeout)
        if not delivered:
            return
        why = "no server is attached to have it"
        if self.syncer is not None:
            why = self.syncer.deliver(max(0.0, deadline - self._clock.monotonic()))
            if not why:
                return
        if _settings.STRICT_DELIVERY.read() == "1":
            raise TimeoutError(
                f"Everything is durable in the run directory, but no server has it all: {why}, "
                "and LAUNCHHELM_STRICT_DELIVERY=1 asks for that."
            )
        self._faults.warn("offline", f"flush() made everything durable on disk; {why}.")

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
            if self._is_ending or self._is_over:
                return
            self._is_ending = True
        deadline = self._clock.monotonic() + min(max(timeout, 0.0), FINISH_BUDGET_S)
        self._finish_by = deadline
        try:
            # These may still log.
            for callback in reversed(self._before_finish):
                self._faults.guard("finish", callback)
            self._faults.guard("finish", self._capture.stop)
            self._is_over = True
            for action in (self._reduce, self._report_left_out, self.desk.close):
                self._faults.guard("finish", action)
            self._close(state, reason, close_run, deadline)
            if self.syncer is not None:
                self._faults.guard("syncer", lambda: self._let_sync_finish(state, deadline))
            _endings.forget(self._ending)
        except Exception as error:  # Protects the end of a good training.
            self.fault("finish", error)
        except BaseException:
            # An interrupt: the exit hook, or whoever asks again, brings it to its end.
            self._is_over = self._is_ending = False
            raise

    def before_finish(self, callback: Callable[[], object]) -> None:
        """Call back once when `finish` begins, the latest first; its errors are only counted."""
        self._before_finish.append(callback)

    @property
    def finish_left_s(self) -> float:
        """Seconds that `finish`, once it began, has left."""
        return self._finish_by - self._clock.monotonic()

    def handle_signals(self) -> None:
        """From now on, a SIGTERM ends this run in time; see `init`. On the main thread only."""
        self.before_finish(_endings.on_signals(self._terminated))

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
        """Whether this handle records nothing any more: it ended, or it is a copy."""
        return self._is_over

    def notice(self, text: str, *, about: str = "control") -> None:
        """Record something that people should know; never raises."""
        self._append("ev", {"type": "notice", "about": about, "text": text})

    def fault(self, component: str, error: Exception) -> None:
        """Count a failure of ours; the first of a component is logged with its traceback."""
        self._faults.report(component, error)

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
            report=self._faults.report,
            clock=clock,
        )

    def _close(self, state: str, reason: str, close_run: bool, deadline: float) -> None:
        left_s = max(0.0, deadline - self._clock.monotonic())
        if self.recorder.close(state, reason, left_s, close_run=close_run):
            self.desk.sweep()
            return
        self._faults.warn(
            "finish",
            f"{self.recorder.pending:,} records did not reach {self.directory} in time and are "
            "lost with this process: it accepts no writes "
            f"({self.recorder.last_error or 'it hangs'}).",
        )

    def _let_sync_finish(self, state: str, deadline: float) -> None:
        syncer, self.syncer = self.syncer, None
        if syncer is None:
            return
        # Whoever is terminated has no time for a server.
        left_s = 0.0 if state == "terminated" else deadline - self._clock.monotonic()
        pending = syncer.finish(max(0.0, left_s))
        if pending:
            why = f": {syncer.reason.rstrip('.')}" if syncer.reason else ""
            say(
                f"launchhelm: {pending:,} records of {self.name!r} are not on {syncer.url} yet"
                f"{why}; send them with: launchhelm sync {self.directory}"
            )

    def _append(self, kind: str, body: Mapping[str, Any], *, step: int | None = None) -> None:
        try:
            self.recorder.append(kind, body, step=step)
        except BufferFull:
            raise
        except Exception as error:  # Protects training.
            self.fault("recorder", error)

    def _captured(self, text: str, stream: str) -> None:
        with self._lock:
            line = self._console_lines
            self._console_lines += 1
        body = {"text": text, "stream": STREAMS.index(stream), "line": line}
        self._append("con", body, step=self._next_step)

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

    def _note_fault(self, component: str, error: str, count: int) -> None:
        body = {"type": "fault", "component": component, "error": error[:1000], "count": count}
        # The recorder itself may be what is broken.
        with contextlib.suppress(Exception):
            self.recorder.append("ev", body)

    def _ending(self, state: str, reason: str) -> None:
        self.finish(close_run=False, state=state, reason=reason)

    def _terminated(self, state: str, reason: str) -> None:
        self.finish(close_run=False, timeout=SIGNAL_BUDGET_S, state=state, reason=reason)

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._is_over = True
        self.syncer = None  # Its thread stayed in the parent.

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


_runs: Final[weakref.WeakSet[Run]] = weakref.WeakSet()


def _after_fork() -> None:
    for run in tuple(_runs):
        run._after_fork()


os.register_at_fork(after_in_child=_after_fork)
