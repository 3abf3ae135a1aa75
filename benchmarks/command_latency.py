"""From a command issued to the change in effect on every rank: how long does it take?

    python -m benchmarks.command_latency
    python -m benchmarks.command_latency --commands 100 --step-ms 5 --root /shared/somewhere

Trains two gloo ranks under torchrun, halves and doubles the learning rate at random moments through
the machinery of `launchhelm control`, a few times through the real command, and prints a markdown
table. Issued: before the command file is written. Applied: the time of the outcome's record, which
rank 0 writes when every rank has changed and read back the value; both clocks are this host's.
Seen: when the waiting sender has read that record.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from launchhelm import views
from launchhelm._ids import new_run_id
from launchhelm.records import Command
from launchhelm.store import inbox

_REPOSITORY = Path(__file__).resolve().parent.parent
_RANKS = 2
_START_S = 120.0
_DECIDED_S = 30.0
_LOOK_S = 0.02
_STOP = "stop"


def train(root: Path, step_s: float) -> None:
    """Be one rank: small steps until the stop file appears, agreed on by all ranks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import launchhelm.torch as lht

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = lht.init("benchmark", name="command-latency", state_dir=str(root))
    trainer.watch(model, optimizer)
    stop = torch.zeros(1)
    while not stop.item():
        began = time.perf_counter()
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stop.fill_(float((root / _STOP).exists()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        time.sleep(max(0.0, step_s - (time.perf_counter() - began)))
        trainer.step(loss=loss)
    trainer.finish()
    dist.destroy_process_group()


@contextmanager
def training(root: Path, ranks: int, step_ms: float) -> Iterator[views.RunView]:
    """Train on so many ranks while the block runs; yields the run once it can be controlled."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc_per_node={ranks}", "--module", "benchmarks.command_latency", "--train"),
            *("--root", str(root), "--step-ms", str(step_ms)),
        ],
        cwd=_REPOSITORY,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield wait_for_training(root, process)
    finally:
        (root / _STOP).touch()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        (root / _STOP).unlink(missing_ok=True)


def wait_for_training(root: Path, process: subprocess.Popen[bytes]) -> views.RunView:
    """Open the run once it can be controlled."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the training ended with {process.returncode} before it began")
        found = views.runs(root)
        if found:
            view = views.open_run(found[0].directory)
            if "lr" in view.capabilities and view.state.word == "running":
                return view
        time.sleep(0.1)
    raise SystemExit("the training did not begin in time")


def by_the_machinery(view: views.RunView, scale: float) -> tuple[float, float]:
    """Send one command as `launchhelm control` does; return seconds until applied, and seen."""
    issued_at, began = time.time(), time.monotonic()
    command = Command(new_run_id(), "lr", {"scale": scale}, issued_at=issued_at)
    inbox.send(view.directory, command)
    while time.monotonic() - began < _DECIDED_S:
        view.refresh()
        found = view.command(command.id)
        if found is not None and found.outcome is not None and found.outcome.is_final:
            outcome = found.outcome
            if outcome.state != "applied" or outcome.applied_on != _RANKS:
                raise SystemExit(f"not applied on all ranks: {outcome}")
            return found.states[-1].at - issued_at, time.monotonic() - began
        time.sleep(_LOOK_S)
    raise SystemExit("a command was not decided in time")


def by_the_command(view: views.RunView, scale: float) -> float:
    """Run `launchhelm control` as a process; return its seconds from start to end."""
    words = ["control", str(view.directory), "lr", f"scale={scale}", "--yes"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "launchhelm", *words],
        cwd=_REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DECIDED_S,
        check=False,
    )
    if done.returncode != 0 or f"on all {_RANKS} processes" not in done.stdout:
        raise SystemExit(f"launchhelm control: {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - began


def row(name: str, seconds: Sequence[float], required: str) -> str:
    """Render one line of the table."""
    median, most = statistics.median(seconds), max(seconds)
    return (
        f"| {name} | {len(seconds)} | {median:.3f} | {p99_of(seconds):.3f} | {most:.3f} | "
        f"{required} |"
    )


def p99_of(seconds: Sequence[float]) -> float:
    """Return the time that one of a hundred exceeds."""
    return sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]


def main() -> int:
    """Run the benchmark; exit 1 when the median or the 99th percentile is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--commands", type=int, default=30)
    parser.add_argument("--processes", type=int, default=5, help="real commands besides")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--root", type=Path, help="default: a temporary directory")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.root, options.step_ms / 1000)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        root = (options.root or Path(folder)).absolute()
        root.mkdir(parents=True, exist_ok=True)
        with training(root, _RANKS, options.step_ms) as view:
            scales = [0.5, 2.0]
            applied, seen = [], []
            for number in range(options.commands):
                # At a random moment of the exchange's and the inbox's intervals.
                time.sleep(random.uniform(0.1, 0.9))
                took = by_the_machinery(view, scales[number % 2])
                applied.append(took[0])
                seen.append(took[1])
            whole = [by_the_command(view, scales[n % 2]) for n in range(options.processes)]
        view.refresh()
        print(f"2 ranks, {options.step_ms:g} ms steps, step {view.step:,} at the end; seconds.\n")
        print("| what | commands | median | p99 | most | required |")
        print("| --- | --- | --- | --- | --- | --- |")
        print(row("issued to applied on all ranks", applied, "median < 1, p99 < 2"))
        print(row("issued to outcome seen by the sender", seen, ""))
        if whole:
            print(row("`launchhelm control`, whole process", whole, ""))
        return 0 if statistics.median(applied) < 1 and p99_of(applied) < 2 else 1


if __name__ == "__main__":
    sys.exit(main())
