"""`init`: check the arguments on every rank, meet the others, open one run, return a Trainer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch.distributed as dist

from launchhelm import _endings, system
from launchhelm._run_open import Ask
from launchhelm.errors import Unavailable
from launchhelm.run import Run
from launchhelm.system.sampler import checked_interval
from launchhelm.torch._collective import Links, make_links
from launchhelm.torch._participant import RankFacts, rank_facts, require_member
from launchhelm.torch._signals import StopSignals
from launchhelm.torch._trainer import Trainer

LOGGING_RANKS: Final = ("zero", "all")
REACTIONS: Final = ("raise", "continue")
DIVERGENCE: Final = ("warn", "raise", "ignore")
CONTROL: Final = ("auto", "required", "off")
STOPS: Final = ("stop", "checkpoint")


def init(
    project: str,
    *,
    name: str = "",
    config: Mapping[str, Any] | None = None,
    group: str = "",
    tags: Sequence[str] = (),
    notes: str = "",
    overflow: str = "block",
    state_dir: str | os.PathLike[str] | None = None,
    resume: str = "",
    log_ranks: str = "zero",
    system_metrics: bool = False,
    system_interval: float = 15.0,
    control_every: int = 1,
    process_group: dist.ProcessGroup | None = None,
    on_partial_failure: str = "raise",
    client: object = None,
    organization: str = "",
    project_id: str = "",
    collective_timeout_s: float = 1800.0,
    control: str = "auto",
    on_divergence: str = "warn",
    handle_signals: bool | str = False,
    sync: bool = False,
    reapply: bool = False,
) -> Trainer:
    """Start recording a training job, offline; every rank of the group calls it. Collective.

    Rank 0 of the group, the coordinator, creates or resumes the run; the others learn id and
    directory from it. A job restarted by its launcher goes on with its run, as a new attempt.
    Without an initialised process group, or with one rank, everything is local.

    Args:
        project, name, config, group, tags, notes, overflow, state_dir, resume, client,
            organization, project_id: As for `launchhelm.init`. All but `overflow` count on the
            coordinator only.
        log_ranks: "zero": the coordinator logs; "all": every rank logs, under its own name.
        system_metrics: Sample CPU, memory, disk, network and GPUs on one rank of each host.
        system_interval: Seconds between samples, above 0 and at most 3600.
        control_every: At most one exchange between ranks in so many calls of `step`.
        process_group: The ranks that train together; default: all.
        on_partial_failure: What happens when a command ends differently on some rank: "raise"
            DivergedStateError on every rank, or warn and "continue".
        collective_timeout_s: How long a rank may be waited for.
        control: "auto": without a control group, training goes on uncontrolled, and says so;
            "required": that is an error on every rank; "off": no live control.
        on_divergence: What happens when controls are found to hold different values on different
            ranks, which is looked at about every 15 s: "warn"; "raise" DivergedStateError on every
            rank; "ignore": they are not compared, for ranks that differ by design.
        handle_signals: True: as for `launchhelm.init`, on each rank by itself. "stop": a SIGTERM or
            SIGUSR1 on any rank makes `stop_requested` true on all, at the same step, and ends no
            process; `finish` then leaves the run open for the next attempt. "checkpoint": the
            same, and all ranks save a checkpoint of that step first.
        sync: As for `launchhelm.init`; the thread runs on the coordinator only.
        reapply: Command again what a live command changed and a restart or a restored checkpoint
            has taken back; else that is only told. Counts on the coordinator.

    Raises:
        TypeError, ValueError: A wrong argument, on this rank, before anything is collective.
        ConfigError, NotFound, Conflict: The coordinator cannot open the run.
        Unavailable: On the other ranks, when the coordinator could not; on all ranks, when
            control="required" and there is no control group.
    """
    del client
    _require(log_ranks, "log_ranks", LOGGING_RANKS)
    _require(on_partial_failure, "on_partial_failure", REACTIONS)
    _require(control, "control", CONTROL)
    _require(on_divergence, "on_divergence", DIVERGENCE)
    if isinstance(control_every, bool) or not isinstance(control_every, int) or control_every < 1:
        raise ValueError(f"control_every must be an integer of at least 1, got {control_every!r}.")
    _require_seconds(collective_timeout_s, "collective_timeout_s")
    interval_s = checked_interval(system_interval)
    if not isinstance(reapply, bool):
        raise TypeError(f"reapply must be True or False, got {reapply!r}.")
    if handle_signals not in (True, False, *STOPS):
        raise ValueError(
            f'handle_signals must be True, False, "stop" or "checkpoint", got {handle_signals!r}.'
        )
    if handle_signals:
        _endings.require_main_thread()
    require_member(process_group)
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
    signals = None
    if handle_signals in STOPS:
        # Before the ranks meet: a signal that comes meanwhile is not lost, and kills none of them.
        signals = StopSignals(saves=handle_signals == "checkpoint")
    try:
        links = make_links(
            process_group, timeout_s=collective_timeout_s, required=control == "required"
        )
        facts = rank_facts(links, process_group)
        trainer = Trainer(
            _open(ask, facts, links),
            facts,
            links=links,
            log_ranks=log_ranks,
            control_every=control_every,
            on_partial_failure=on_partial_failure,
            on_divergence=on_divergence,
            control_off=control == "off",
            reapply=reapply,
        )
    except BaseException:
        if signals is not None:
            signals.let_go()
        raise
    if signals is not None:
        trainer.stop_on_signals(signals)
    elif handle_signals:
        trainer.run.handle_signals()
    if system_metrics and facts.local_rank == 0:
        system.start(trainer.run, interval=interval_s, step=lambda: trainer.global_step)
    return trainer


def _open(ask: Ask, facts: RankFacts, links: Links | None) -> Run:
    """Open the run on the coordinator, and let the others in or tell them why not."""
    if links is None:
        return Run.open(ask, facts.participant())
    if facts.is_coordinator:
        try:
            run = Run.open(ask, facts.participant())
        except BaseException as error:
            links.broadcast_json({"error": _said(error)})
            raise
        links.broadcast_json({"run": run.invitation()})
        _meet(links, run)
        return run
    answer = links.broadcast_json()
    if "error" in answer:
        raise Unavailable(
            f"The coordinator, rank {facts.coordinator}, could not open the run.",
            kept=f"It said: {answer['error']}",
        )
    try:
        run = Run.attach(answer["run"], facts.participant(), overflow=ask.overflow)
    except Exception as error:
        _tell(links, _said(error))
        raise
    _meet(links, run)
    return run


def _meet(links: Links, run: Run) -> None:
    """Make sure that every rank holds the run before any of them trains.

    Raises:
        Unavailable: Some rank could not write it.
    """
    answers = _tell(links, "")
    missing = [f"rank {rank} said: {text}" for rank, text in enumerate(answers) if text]
    if missing:
        run.finish(close_run=False, state="error", reason="another rank could not write the run")
        raise Unavailable(
            f"{len(missing)} of {links.size} ranks cannot write {run.directory}.",
            kept="; ".join(missing[:4]),
        )


def _tell(links: Links, text: str) -> list[str]:
    # Without groups there is nothing to tell it by; the rank that failed raises alone then.
    return [str(each) for each in links.gather_json(text)] if links.on else []


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _require(value: object, what: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(allowed)}, got {value!r}.")


def _require_seconds(value: object, what: str) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ValueError(f"{what} must be a number of seconds above 0, got {value!r}.")
