"""What reading costs: `python -m benchmarks.reading [--scale F] [--directory DIR]`, as Markdown.

Files are in the page cache. "New process" is a process that has read nothing yet; "warm" is a
further look of the same view. On a machine that does other work too, the CPU time says more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import generate
from launchhelm import views

SHOW = """
import sys, time
began = time.perf_counter()
from pathlib import Path
from launchhelm import views
view = views.open_run(Path(sys.argv[1]))
rows = len(view.participants), len(view.commands), len(view.capabilities), view.latest("loss")
print(time.perf_counter() - began, time.process_time())
"""

Row = tuple[str, str, str, str]


class Cost(NamedTuple):
    """Seconds of one call."""

    wall: float
    cpu: float


def timed(call: Callable[[], object], *, repeat: int = 3) -> Cost:
    """Return the best of some runs."""
    costs = []
    for _ in range(repeat):
        began = Cost(time.perf_counter(), time.process_time())
        call()
        costs.append(Cost(time.perf_counter() - began.wall, time.process_time() - began.cpu))
    return min(costs)


def fresh(script: str, *arguments: str) -> Cost:
    """Run a script in a new process; it prints its wall and CPU seconds."""
    found = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return Cost(*map(float, found.stdout.split()))


def row(what: str, cost: Cost, limit: str = "", *, count: int = 0, unit: str = "") -> Row:
    """Make a line of the table, with a rate where a count is given."""
    said = f"{cost.wall:.3f} s"
    if count:
        said += f" ({count / cost.wall:,.0f} {unit}/s)"
    return what, said, f"{cost.cpu:.3f} s", limit


def processes(root: Path, scale: float) -> list[Row]:
    """`show` of 512 ranks with live heartbeats."""
    ranks = max(2, int(512 * scale))
    root.mkdir()
    steps = int(15_000 * scale)
    writers = generate.many_ranks(root, ranks, steps=steps)
    directory = next(root.iterdir())
    cold = min(fresh(SHOW, str(directory)) for _ in range(3))
    view = views.open_run(directory)
    assert len(view.participants) == ranks
    moved = []
    for number in range(42, 45):
        for writer in writers:
            generate.beat(writer, number, steps + number)
            writer.flush()
        moved.append(timed(view.refresh, repeat=1))
    return [
        row(f"`show` of {ranks} ranks, new process", cold, "1 s"),
        row(f"the same, warm, all {ranks} ranks moved", min(moved), "1 s"),
        row("the same, warm, nothing moved", timed(view.refresh)),
    ]


def runs(root: Path, scale: float) -> list[Row]:
    """`ls` of 1,000 runs."""
    count = max(2, int(1000 * scale))
    root.mkdir()
    generate.many_runs(root, count, steps=200)
    return [
        row(f"`ls` of {count:,} runs", timed(lambda: views.runs(root)), "2 s"),
        row(f"`latest` of {count:,} runs", timed(lambda: views.find_run(root, "latest"))),
    ]


def series(root: Path, scale: float) -> list[Row]:
    """Points of a long run: one metric a step, and ten."""
    rows: list[Row] = []
    for metrics in (1, 10):
        below = root / str(metrics)
        below.mkdir(parents=True)
        steps = int(1_000_000 * scale) // metrics
        rows += questions(generate.long_run(below, steps, metrics=metrics), steps, metrics)
    return rows


def questions(directory: Path, steps: int, metrics: int) -> list[Row]:
    """Ask one run, each question with a view of its own."""
    of = f"{steps * metrics:,} points, {metrics} a record"

    def ask(question: Callable[[views.RunView], object], *, repeat: int = 2) -> Cost:
        return timed(lambda: question(views.open_run(directory)), repeat=repeat)

    last = ask(lambda run: run.history("loss"))
    more = ask(lambda run: run.history("loss", limit=10_000))
    window = ask(lambda run: run.history("loss", step_from=steps // 2))
    every = ask(lambda run: sum(1 for _ in run.points("loss")), repeat=1)
    poll = ask(lambda run: run.reader().poll(), repeat=1)
    return [
        row(f"`history`, last 1,000 of {of}", last, "1 s"),
        row(f"`history`, last 10,000 of {of}", more, "1 s"),
        row(f"`history`, 1,000 from the middle of {of}", window, "1 s"),
        row(f"`latest` of {of}", ask(lambda run: run.latest("loss"))),
        row(f"`metrics` of {of}", ask(lambda run: run.metrics())),
        row(f"`open_run` of {of}", ask(lambda run: run.state)),
        row(f"all points of one metric of {of}", every, count=steps, unit="points"),
        row(f"`Reader.poll`, all of {of}", poll, count=steps, unit="records"),
    ]


def main() -> None:
    """Make the directories, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes; default 1")
    parser.add_argument("--directory", type=Path, help="where to work; default a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        work = Path(name)
        rows = processes(work / "ranks", arguments.scale)
        rows += runs(work / "runs", arguments.scale)
        rows += series(work / "series", arguments.scale)
    print("| what | wall | CPU | must be below |")
    print("| --- | --- | --- | --- |")
    for line in rows:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
