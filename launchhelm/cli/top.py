"""`launchhelm top`: one run, watched in the terminal."""

from __future__ import annotations

import argparse
import math
import shutil
import time
from typing import Final

from launchhelm import _wording, views
from launchhelm.cli import documents, selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli._frame import frame, names_of
from launchhelm.cli._screen import Screen
from launchhelm.cli.output import Output, fitted
from launchhelm.views.around import around_of
from launchhelm.views.curves import Curves
from launchhelm.views.scene import findings_of

DESCRIPTION = """Watch one run: its state, what is wrong with it, metrics, the last commands and
the processes, worst first. Keys: q quits, j and k or the arrows scroll the processes, space
pauses. Ends when the run has ended. Without a terminal it prints --count looks, one by default."""

_SHORTEST_S: Final = 0.2
_NO_LIMIT: Final = 1 << 20
_KEYS: Final = "q quit - j k scroll - space pause"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `top` takes."""
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help=selection.RUN_HELP)
    parser.add_argument(
        "--metrics",
        metavar="PATTERN",
        help="metrics to draw, as in the shell; default loss, learning rate and step time",
    )
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="seconds between looks; default 2"
    )
    parser.add_argument("--count", type=int, metavar="N", help="end after N looks")


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Look until told to end, or until the run has ended."""
    interval_s, count = arguments.interval, arguments.count
    if not (math.isfinite(interval_s) and interval_s >= _SHORTEST_S):
        raise UsageError(f"--interval: {_SHORTEST_S} seconds or more.")
    if count is not None and count < 1:
        raise UsageError("--count: 1 or more.")
    view = selection.select(arguments)
    curves = Curves(view.directory)
    on_screen = output.terminal and not output.json and not view.state.is_over
    if on_screen and not _watch(view, curves, arguments, output):
        return Exit.DONE
    for number in range(1 if on_screen else count or 1):
        if number:
            time.sleep(interval_s)
            view.refresh()
        _print(view, curves, arguments, output)
        if view.state.is_over:
            break
    return Exit.IN_PART if view.problems or view.state.word == "unreadable" else Exit.DONE


def _print(
    view: views.RunView, curves: Curves, arguments: argparse.Namespace, output: Output
) -> None:
    for problem in view.problems:
        output.say(f"launchhelm: {_wording.plain(problem)}")
    if output.json:
        output.document(_document(view, arguments.metrics))
    else:
        columns = shutil.get_terminal_size().columns if output.terminal else _NO_LIMIT
        for line in frame(view, curves, output, pattern=arguments.metrics, columns=columns):
            output.line(line)
    output.flush()


def _watch(
    view: views.RunView, curves: Curves, arguments: argparse.Namespace, output: Output
) -> bool:
    """Draw in place; return whether the run has ended, False when the person has."""
    looks, first, paused, due = 0, 0, False, 0.0
    with Screen(output) as screen:
        while True:
            now = time.monotonic()
            if now >= due and not paused:
                if looks:
                    view.refresh()
                looks, due = looks + 1, now + arguments.interval
            columns, lines = screen.size
            foot = f"{_KEYS} - paused" if paused else f"{_KEYS} - {time.strftime('%H:%M:%S')}"
            made = frame(
                view,
                curves,
                output,
                pattern=arguments.metrics,
                columns=columns,
                lines=lines - 2,
                first=first,
            )
            screen.draw([*made, output.paint(fitted(foot, columns), "dim")])
            if view.state.is_over:
                return True
            if arguments.count is not None and looks >= arguments.count:
                return False
            key = screen.key(arguments.interval if paused else max(0.0, due - time.monotonic()))
            if key == "q":
                return False
            if key == " ":
                paused = not paused
            elif key in ("j", "k"):
                last = max(0, len(view.participants) - 1)
                first = min(last, first + 1) if key == "j" else max(0, first - 1)


def _document(view: views.RunView, pattern: str | None) -> documents.Document:
    around = around_of(view)
    return {
        **documents.header_document(view),
        "findings": [
            {
                "rule": each.rule,
                "weight": each.weight,
                "ranks": list(each.ranks),
                "text": each.text,
                "evidence": dict(each.evidence),
                "look_at": list(each.look_at),
            }
            for each in findings_of(view)
        ],
        "processes": [documents.process_document(each) for each in view.participants],
        "metrics": [documents.metric_document(name, view) for name in names_of(view, pattern)],
        "commands": [documents.command_document(each, around) for each in view.commands],
    }
