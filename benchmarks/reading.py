"""What reading costs: `python -m benchmarks.reading [--scale F] [--directory DIR]`, as Markdown.

`cold` is a new process that has read nothing yet (the files are in the page cache all the same);
`warm` is a further look of the same view after every rank has beaten once more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import generate
from launchhelm import views

SHOW = """
import sys, time
began = time.perf_counter()
from pathlib import Path
from launchhelm import views
view = views.open_run(Path(sys.argv[1]))
rows = len(view.participants), len(view.commands), len(view.capabilities), view.latest("loss")
print(time.perf_counter() - began)
"""

Row = tuple[str, str, str]


def timed(call: Callable[[], object], *, repeat: int = 3) -> float:
    """Return the best of some runs, in seconds."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def fresh(script: str, *arguments: str) -> float:
    """Run a script in a new process; returns the seconds that it prints."""
    found = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return float(found.stdout)


def processes(root: Path, scale: float) -> list[Row]:
    """`show` of 512 ranks with live heartbeats."""
    ranks = max(2, int(512 * scale))
    root.mkdir()
    writers = generate.many_ranks(root, ranks, steps=int(15_000 * scale))
    directory = next(root.iterdir())
    cold = min(fresh(SHOW, str(directory)) for _ in range(3))
    view = views.open_run(directory)
    assert len(view.participants) == ranks
    times = []
    for number in range(42, 45):
        for writer in writers:
            generate.beat(writer, number, number * 75)
            writer.flush()
        times.append(timed(view.refresh, repeat=1))
    idle = timed(view.refresh)
    return [
        (f"`show` of {ranks} ranks, new process", f"{cold:.3f} s", "1 s"),
        (f"the same, warm, all {ranks} ranks moved", f"{min(times):.3f} s", "1 s"),
        ("the same, warm, nothing moved", f"{idle:.3f} s", ""),
    ]


def runs(root: Path, scale: float) -> list[Row]:
    """`ls` of 1,000 runs."""
    count = max(2, int(1000 * scale))
    root.mkdir()
    generate.many_runs(root, count, steps=200)
    seconds = timed(lambda: views.runs(root))
    latest = timed(lambda: views.find_run(root, "latest"))
    return [
        (f"`ls` of {count:,} runs", f"{seconds:.3f} s", "2 s"),
        (f"`latest` of {count:,} runs", f"{latest:.3f} s", ""),
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

    def ask(question: Callable[[views.RunView], object], *, repeat: int = 2) -> float:
        return timed(lambda: question(views.open_run(directory)), repeat=repeat)

    last = ask(lambda run: run.history("loss"))
    more = ask(lambda run: run.history("loss", limit=10_000))
    window = ask(lambda run: run.history("loss", step_from=steps // 2))
    latest = ask(lambda run: run.latest("loss"))
    names = ask(lambda run: run.metrics())
    opened = ask(lambda run: run.state)
    every = ask(lambda run: sum(1 for _ in run.points("loss")), repeat=1)
    poll = ask(lambda run: run.reader().poll(), repeat=1)
    return [
        (f"`history`, last 1,000 of {of}", f"{last:.3f} s", "1 s"),
        (f"`history`, last 10,000 of {of}", f"{more:.3f} s", "1 s"),
        (f"`history`, 1,000 from the middle of {of}", f"{window:.3f} s", "1 s"),
        (f"`latest` of {of}", f"{latest:.3f} s", ""),
        (f"`metrics` of {of}", f"{names:.3f} s", ""),
        (f"`open_run` of {of}", f"{opened:.3f} s", ""),
        (f"all points of one metric of {of}", f"{steps / every:,.0f} points/s", ""),
        (f"`Reader.poll`, all of {of}", f"{steps / poll:,.0f} records/s", ""),
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
    print("| what | measured | must be below |")
    print("| --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
