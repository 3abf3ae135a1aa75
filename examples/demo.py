"""Train on two processes, halve the learning rate from a third, and read back what happened.

    make demo

This starts `examples/ddp.py` under torchrun, waits until it trains, runs the real
`launchhelm control` command beside it, and then shows: where the run directory is, the processes,
the ledger, and loss and learning rate around the change. Then it starts a LaunchHelm server on this
machine, sends the run to it, and shows what the server holds. It ends with 0 only if the run
directory says that the change landed on both ranks at one step, and the server holds every point.
"""

from __future__ import annotations

import collections
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from launchhelm import views
from launchhelm._settings import DIRECTORY
from launchhelm.store.layout import default_root
from launchhelm.store.reader import Reader
from syncer.api.client import Client

DDP = Path(__file__).resolve().parent / "ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
PATIENCE_S = 60.0
T = TypeVar("T")
SETTLED_STEP = 100  # The first steps fall so fast that a change would not be seen beside them.


def main() -> int:
    root = default_root(DIRECTORY.read())
    before = {run.run_id for run in views.runs(root)} if root.exists() else set()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    training = subprocess.Popen([*TORCHRUN, str(DDP), "--seconds", "8"], env=environment)
    try:
        run = wait_for_run(training, root, before)
        say("From a third process:")
        launchhelm(root, "control", run.run_id, "lr", "scale=0.5", "--reason", "the demo")
        training.wait(PATIENCE_S)
    finally:
        training.terminate()
        training.wait()
    run.refresh()

    say("The run directory, which is all there is:")
    print(run.directory)
    say("The processes:")
    launchhelm(root, "show", run.run_id, "--ranks")
    say("The ledger:")
    launchhelm(root, "control", run.run_id, "log")
    problems = judge(run) + serve_and_sync(root, run)
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


def wait_for_run(training: subprocess.Popen[bytes], root: Path, before: set[str]) -> views.RunView:
    """Return the new run once both of its ranks train and it can be controlled."""

    def found() -> views.RunView | None:
        new = [run for run in views.runs(root) if run.run_id not in before] if root.exists() else []
        return views.open_run(new[0].directory) if new else None

    run = wait(training, found, "the run appears")

    def trains() -> bool:
        run.refresh()
        ready = len(run.participants) == 2 and "lr" in run.capabilities
        newest = run.latest("train/loss")
        return ready and newest is not None and (newest.step or 0) >= SETTLED_STEP

    wait(training, trains, "both ranks train")
    return run


def wait(training: subprocess.Popen[bytes], condition: Callable[[], T | None], what: str) -> T:
    """Ask until the answer is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        if training.poll() is not None:
            raise SystemExit(
                f"demo: training ended with status {training.returncode} before {what}"
            )
        if time.monotonic() > deadline:
            raise SystemExit(f"demo: waited {PATIENCE_S:.0f} s, but not until {what}")
        time.sleep(0.1)
    return answer


def judge(run: views.RunView) -> list[str]:
    """Show the change and say what of it is not as it should be, from the run directory alone."""
    if len(run.commands) != 1 or run.commands[0].outcome is None:
        return [f"expected one command with an outcome, found {run.commands}"]
    outcome = run.commands[0].outcome
    step = outcome.applied_at.get("step")
    if outcome.state != "applied" or not isinstance(step, int):
        return [f"the command was not applied: {outcome.state} {outcome.message}"]

    problems = []
    if (outcome.applied_on, outcome.of) != (2, 2):
        problems.append(f"applied on {outcome.applied_on} of {outcome.of} ranks, not 2 of 2")
    change = outcome.changes["lr"]
    for old, new in zip(change["old"], change["new"], strict=True):
        if not math.isclose(new, old / 2):
            problems.append(f"the rate went from {old} to {new}, which is not half")

    say(f"Loss and learning rate around step {step}:")
    window = {"step_from": step - 3, "step_to": step + 3}
    losses = {point.step: point.value for point in run.history("train/loss", **window)}
    rates = {point.step: point.value for point in run.history("optim/lr/group0", **window)}
    for at in sorted(losses.keys() & rates.keys()):
        mark = "  <- applied here" if at == step else ""
        print(f"  step {at:>5}   loss {losses[at]:.4f}   lr {rates[at]:.6f}{mark}")
    try:
        if not rates[step + 1] < 0.51 * rates[step]:
            problems.append(f"the rate logged after step {step} is not half of the one before")
    except KeyError as missing:
        problems.append(f"no rate was logged at step {missing}")
    return problems


def serve_and_sync(root: Path, run: views.RunView) -> list[str]:
    """Start a server with a fresh key, send the run to it, and compare what both hold."""
    say("A server of your own, with a fresh key, and the run sent to it:")
    with tempfile.TemporaryDirectory() as data:
        print("$ launchhelm serve --data DIR", flush=True)
        serve = [sys.executable, "-m", "launchhelm", "serve", "--data", data, "--json"]
        made = json.loads(subprocess.check_output([*serve, "init", "--project", "quickstart"]))
        server = subprocess.Popen([*serve, "--port", "0"], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            key = {"LAUNCHHELM_URL": url, "LAUNCHHELM_API_KEY": made["token"]}
            launchhelm(root, "sync", run.run_id, environment=key)
            launchhelm(root, "status", run.run_id)
            with Client(url, made["organization_id"], made["token"]) as client:
                return compare(run, client, made["project_id"])
        finally:
            server.terminate()
            server.communicate()


def compare(run: views.RunView, client: Client, project: str) -> list[str]:
    """Show what the server holds of the run, and say what is not as in the run directory."""
    here = sum(len(record.body) for record in Reader(run.directory, kinds={"m", "sys"}).poll())
    documents = list(client.list_documents("run", project_id=project))
    if len(documents) != 1:
        return [f"the server holds {len(documents)} runs, not one"]
    document, names = documents[0], collections.Counter[str]()
    for stream in client.list_documents("stream", project_id=project, run_id=document["id"]):
        name = stream["spec"]["name"]
        names[name] += sum(1 for _ in client.all_points(stream["id"]))
    there = sum(count for name, count in names.items() if not name.startswith("launchhelm/"))
    ranks = list(client.list_documents("participant", project_id=project, run_id=document["id"]))
    say("The server holds:")
    spec = document["spec"]
    print(f"  run {spec['name']!r}, {spec['state']}, {len(ranks)} processes")
    for name, count in sorted(names.items()):
        print(f"  {name:<32} {count:>6,} points")
    print(f"  {there:,} values; the run directory holds {here:,}")
    return [] if there == here else [f"the server holds {there} points, not {here}"]


def launchhelm(root: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """Run the command as a person would, and show what was typed."""
    print(f"$ launchhelm {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "launchhelm", "--root", str(root), *words]
    subprocess.run(command, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
