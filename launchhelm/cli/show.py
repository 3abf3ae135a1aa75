"""`launchhelm show`: one run on a page: state, processes, controls, commands, losses."""

from __future__ import annotations

import argparse
import fnmatch
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from launchhelm import _wording, views
from launchhelm.cli import documents, selection
from launchhelm.cli._exit import Exit
from launchhelm.cli._sections import (
    NOTHING,
    PROCESS_HEAD,
    PROCESS_RIGHT,
    RANK_TONES,
    RUN_TONES,
    print_command,
    print_controls,
    print_freeze,
    print_off,
    process_cells,
)
from launchhelm.cli.output import Output
from launchhelm.views.around import around_of, diverged_of
from launchhelm.views.plan import values_of
from launchhelm.views.scene import findings_of

DESCRIPTION = """Show one run. Without a section option: header, processes, controls, last commands
and losses. With some: header and these sections in full."""

_ROWS_UNFOLDED: Final = 16
"""Up to this many processes are listed one by one; beyond, those in order are folded by state."""

_UNHEARD: Final = frozenset({"late", "silent", "host_silent"})
"""Findings of which a look without any before it is enough."""

_LAST_COMMANDS: Final = 5
_OBSERVE_EVERY_S: Final = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `show` takes."""
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help=selection.RUN_HELP)
    parser.add_argument(
        "--metrics",
        nargs="?",
        const="*",
        metavar="PATTERN",
        help="metrics with their newest value; PATTERN as in the shell, default all",
    )
    parser.add_argument("--ranks", action="store_true", help="every process, one row each")
    parser.add_argument("--controls", action="store_true", help="controls, and all commands")
    parser.add_argument("--attempts", action="store_true", help="each launch of the run")
    parser.add_argument("--config", action="store_true", help="the configuration as given")
    parser.add_argument(
        "--observe",
        type=float,
        default=0.0,
        metavar="S",
        help="watch for S seconds first, so that ages are our own",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the run."""
    view = selection.select(arguments)
    _observe(view, arguments.observe)
    problems = list(view.problems)
    for problem in problems:
        output.say(f"launchhelm: {_wording.plain(problem)}")
    if output.json:
        output.document(document_of(view, arguments.metrics))
    else:
        _print(view, arguments, output)
    return Exit.IN_PART if problems or view.state.word == "unreadable" else Exit.DONE


def _observe(view: views.RunView, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_OBSERVE_EVERY_S, left))
        view.refresh()


def document_of(view: views.RunView, pattern: str | None) -> documents.Document:
    """Gather all sections, and the metrics where asked for."""
    around = around_of(view)
    values, frozen = values_of(view), documents.freeze_document(view)
    document = {
        **documents.header_document(view),
        "config": view.config,
        "group": view.group,
        "tags": list(view.tags),
        "notes": view.notes,
        "summary": view.summary,
        "attempts": documents.attempt_documents(view),
        "processes": [documents.process_document(each) for each in view.participants],
        "controlling": view.controls.get("control"),
        "controlling_why": view.controls.get("why", ""),
        "frozen": frozen,
        "diverged": diverged_of(view),
        "controls": [
            documents.control_document(each, values, frozen) for each in view.capabilities.values()
        ],
        "commands": [documents.command_document(each, around) for each in view.commands],
        "losses": documents.losses_document(view),
    }
    if pattern is not None:
        document["metrics"] = [
            documents.metric_document(name, view) for name in _matching(view, pattern)
        ]
    return document


def _print(view: views.RunView, arguments: argparse.Namespace, output: Output) -> None:
    _print_header(view, output)
    chosen = arguments.ranks or arguments.controls or arguments.attempts or arguments.config
    if not chosen and arguments.metrics is None:
        _print_processes(view, output, fold=True)
        _print_controls(view, output, every=False)
        _print_commands(view, output, last=_LAST_COMMANDS)
        _print_files(view, output)
        _print_losses(view, output)
        return
    if arguments.ranks:
        _print_processes(view, output, fold=False)
    if arguments.controls:
        _print_controls(view, output, every=True)
        _print_commands(view, output, last=None)
    if arguments.attempts:
        _print_attempts(view, output)
    if arguments.config:
        _print_config(view.config, output)
    if arguments.metrics is not None:
        _print_metrics(view, arguments.metrics, output)


def _print_header(view: views.RunView, output: Output) -> None:
    state = view.state
    parts = [
        _wording.plain(view.name),
        view.run_id,
        output.paint(state.text, RUN_TONES.get(state.word, "")),
    ]
    if view.step is not None:
        parts.append(f"step {view.step:,}")
    pace_s = around_of(view).pace_s
    if pace_s is not None and state.word == "running":
        parts.append(f"{pace_s:.3g} s/step")
    output.line("  ".join(parts))
    if state.word == "no news":
        output.line(f"  either {', or '.join(_wording.NO_NEWS_EXPLANATIONS)}")
    output.line(f"  {_wording.plain(str(view.directory))}")


def _print_processes(view: views.RunView, output: Output, *, fold: bool) -> None:
    processes = view.participants
    if not processes:
        output.line("processes: none seen yet")
        return
    shown = processes
    if fold and len(processes) > _ROWS_UNFOLDED:
        shown = [each for each in processes if each.state not in ("ok", "ended")]
    if shown:
        rows = [process_cells(each) for each in shown]
        tones = [RANK_TONES.get(each.state, "") for each in shown]
        output.table(PROCESS_HEAD, rows, right=PROCESS_RIGHT, tones=tones)
    if len(shown) < len(processes):
        rest = [each for each in processes if each.state in ("ok", "ended")]
        output.line(_folded(rest))
    if view.missing:
        output.line(output.paint(f"  missing: {_wording.ranks_text(view.missing)}", "bad"))
    if any(each.age.by_host_clock and each.state != "ended" for each in processes):
        output.line("  heartbeat ages by the host's clock; --observe 15 makes them our own")
    for finding in findings_of(view):
        if finding.rule in _UNHEARD:
            output.line(output.paint(f"  {_wording.plain(finding.text)}", "unknown"))
    if any(each.state in RANK_TONES for each in processes):
        output.line(
            "  late after 45 s without a heartbeat, or 20 s when no other rank gets further; "
            "silent after 120 s"
        )


def _folded(processes: Sequence[views.ParticipantView]) -> str:
    """Say of many ranks in order what they have in common."""
    said = []
    for state in ("ok", "ended"):
        group = [each for each in processes if each.state == state]
        if not group:
            continue
        hosts = len({each.host for each in group})
        steps = [each.step for each in group if each.step is not None]
        at = ""
        if steps:
            low, high = min(steps), max(steps)
            at = f", step {low:,}" if low == high else f", steps {low:,} to {high:,}"
        oldest = max(each.age.seconds for each in group)
        beat = f", heartbeat at most {_wording.duration(oldest)} old" if state == "ok" else ""
        where = f"{hosts:,} {'host' if hosts == 1 else 'hosts'}"
        said.append(f"{len(group):,} ranks on {where}: {state}{at}{beat}")
    return "  " + "; ".join(said)


def _print_controls(view: views.RunView, output: Output, *, every: bool) -> None:
    values = values_of(view)
    print_off(view, output)
    print_freeze(view, output)
    for name, by_rank in diverged_of(view).items():
        output.line(output.paint(_wording.diverged_text(name, by_rank), "bad"))
    if every:
        print_controls(view, output)
        return
    if values:
        said = " · ".join(
            f"{_wording.plain(name)} {_wording.values_text(value)}"
            for name, value in values.items()
        )
        output.line(f"controls: {said}")
    elif view.capabilities:
        output.line(f"controls: {_wording.listed(view.capabilities)}")


def _print_commands(view: views.RunView, output: Output, *, last: int | None) -> None:
    commands = view.commands
    if not commands:
        return
    shown = commands if last is None else commands[-last:]
    output.line(f"commands: {len(commands):,}" if len(shown) < len(commands) else "commands:")
    for command in shown:
        print_command(command, view, output)


def _print_files(view: views.RunView, output: Output) -> None:
    count, size = view.files
    if count:
        said = "" if size is None else f", {_wording.size_text(size)}"
        output.line(f"files (artifacts and media): {count:,}{said}")


def _print_losses(view: views.RunView, output: Output) -> None:
    for each in view.losses.texts():
        output.line(output.paint(f"lost: {each}", "bad"))


def _print_attempts(view: views.RunView, output: Output) -> None:
    rows = []
    for each in documents.attempt_documents(view):
        started = each["started_at"]
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started)) if started else None
        reason = _wording.short_reason(each["reason"] or "")
        end = " ".join(part for part in (each["end"], reason) if part)
        cells = [each["attempt"], clock, each["host"], each["world_size"], each["ranks_seen"]]
        cells += [_wording.step_text(each["first_step"]), _wording.step_text(each["last_step"])]
        rows.append(
            [
                NOTHING if cell in (None, "") else _wording.plain(str(cell))
                for cell in [*cells, end, each["joins"]]
            ]
        )
    head = (
        "ATTEMPT",
        "STARTED",
        "HOST",
        "WORLD",
        "SEEN",
        "FIRST STEP",
        "LAST STEP",
        "END",
        "JOINS",
    )
    output.table(head, rows, right=head[:1] + head[3:7])


def _print_config(config: Mapping[str, Any], output: Output, indent: str = "  ") -> None:
    for name, value in config.items():
        if isinstance(value, Mapping):
            output.line(f"{indent}{_wording.plain(str(name))}:")
            _print_config(value, output, indent + "  ")
        else:
            output.line(f"{indent}{_wording.plain(str(name))}: {_wording.plain(str(value))}")


def _matching(view: views.RunView, pattern: str) -> list[str]:
    return [name for name in view.metrics() if fnmatch.fnmatchcase(name, pattern)]


def _print_metrics(view: views.RunView, pattern: str, output: Output) -> None:
    rows = []
    for name in _matching(view, pattern):
        document = documents.metric_document(name, view)
        value = document["value"]
        shown = NOTHING if value is None else _wording.value_text(value)
        unit = _wording.plain(document["unit"])
        step = document["step"]
        rows.append([_wording.plain(name), f"{shown} {unit}".strip(), _wording.step_text(step)])
    if rows:
        output.table(("METRIC", "NEWEST", "STEP"), rows, right=("NEWEST", "STEP"))
    else:
        output.line("no metrics of that name")
