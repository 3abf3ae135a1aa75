"""Train on two processes, halve the learning rate from a server, and read back what happened.

    make demo

This starts a LaunchHelm server on this machine, trains `examples/ddp.py` under torchrun without a
word about any server, and lets `launchhelm sync --watch` carry the run there and commands back, as
a login node would for a cluster without a network. Then the real `launchhelm control --server`
halves the learning rate. You see: who was asked when (`status`), the processes, the ledger of the
run, loss and learning rate around the change, and what the server holds. It ends with 0 only if the
run directory says that the change landed on both ranks at one step, the server says the same, and
the server holds every point.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from launchhelm import views
from launchhelm._settings import DIRECTORY
from launchhelm.store.layout import default_root
from launchhelm.store.reader import Reader
from syncer.api.client import Client

DDP = Path(__file__).resolve().parent / "ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
LAUNCHHELM = [sys.executable, "-m", "launchhelm"]
PATIENCE_S = 60.0
T = TypeVar("T")
SETTLED_STEP = 100  # The first steps fall so fast that a change would not be seen beside them.


def main() -> int:
    root = default_root(DIRECTORY.read())
    before = {run.run_id for run in views.runs(root)} if root.exists() else set()
    with serving() as server, training() as job:
        url, client = server.url, server.client
        key = {"LAUNCHHELM_URL": url, "LAUNCHHELM_API_KEY": server.key}
        run = wait_for_run(job, root, before)
        say("A syncer, the only one here that knows the server:")
        with syncing(root, run, key) as syncer:
            wait(job, lambda: is_on(client, run), "the server knows the run and its controls")
            say("From the server, through the syncer, into the run and back:")
            words = ("control", "--server", url, run.run_id, "lr", "scale=0.5")
            launchhelm(root, *words, "--reason", "the demo", environment=key)
            launchhelm(root, "status", run.run_id)
            job.wait(PATIENCE_S)
            wait(syncer, lambda: document_of(client, run)["spec"]["state"] == "closed", "the end")
        run.refresh()

        say("The run directory, which is all there is:")
        print(run.directory)
        say("The processes:")
        launchhelm(root, "show", run.run_id, "--ranks")
        say("The ledger:")
        launchhelm(root, "control", run.run_id, "log")
        problems = judge(run) + compare(run, client)
        say("Look at it in a browser:")
        print(f"{shlex.join(LAUNCHHELM)} ui {shlex.quote(str(run.directory))}")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    return 1 if problems else 0


@dataclasses.dataclass
class Server:
    """Where it is, and a key that may do everything there."""

    url: str
    key: str
    client: Client


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Start a server with a fresh key, whose data are gone in the end."""
    say("A server of your own, with a fresh key:")
    with tempfile.TemporaryDirectory() as data:
        print("$ launchhelm serve --data DIR", flush=True)
        serve = [*LAUNCHHELM, "serve", "--data", data, "--json"]
        made = json.loads(subprocess.check_output([*serve, "init", "--project", "quickstart"]))
        process = subprocess.Popen([*serve, "--port", "0"], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            print(url)
            with Client(url, made["organization_id"], made["token"]) as client:
                yield Server(url, made["token"], client)
        finally:
            process.terminate()
            process.communicate()


@contextlib.contextmanager
def training() -> Iterator[subprocess.Popen[bytes]]:
    """Train on two processes that know no server."""
    say("A training on two processes, which knows no server:")
    words = [*TORCHRUN, str(DDP), "--seconds", "16"]
    process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def syncing(
    root: Path, run: views.RunView, key: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Carry the run to the server and commands back, and show in the end what was said."""
    print(f"$ launchhelm sync --watch {run.run_id}", flush=True)
    words = [*LAUNCHHELM, "--root", str(root), "sync", "--watch", run.run_id]
    process = subprocess.Popen(
        words, env={**os.environ, **key}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.terminate()
        say("The syncer, when it is told to stop:")
        print(process.communicate()[0].decode(), end="", flush=True)


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


def wait(process: subprocess.Popen[bytes], condition: Callable[[], T | None], what: str) -> T:
    """Ask until the answer is true, while the process lives."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        if process.poll() is not None:
            said = f"a process ended with status {process.returncode}"
            raise SystemExit(f"demo: {said} before {what}")
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


def document_of(client: Client, run: views.RunView) -> dict[str, Any]:
    """Return what the server knows of the run; {} before it does."""
    return next((it for it in client.list_documents("run") if it["spec"]["name"] == run.name), {})


def is_on(client: Client, run: views.RunView) -> bool:
    """Whether the server could take a command for the run."""
    document = document_of(client, run)
    if not document:
        return False
    offers = client.list_documents("capability", document["scope"]["project_id"], document["id"])
    return any(offer["spec"]["name"] == "lr" for offer in offers)


def compare(run: views.RunView, client: Client) -> list[str]:
    """Show what the server holds of the run, and say what is not as in the run directory."""
    here = sum(len(record.body) for record in Reader(run.directory, kinds={"m", "sys"}).poll())
    document, names = document_of(client, run), collections.Counter[str]()
    project = document["scope"]["project_id"]
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
    problems = [] if there == here else [f"the server holds {there} points, not {here}"]
    for command in client.run_commands(document["id"]):
        on = command.get("applied_on") or {}
        print(f"  a command, {command['execution']} on {on.get('count')} of {on.get('of')} ranks")
        outcome = run.commands[0].outcome
        step = outcome.applied_at.get("step") if outcome is not None else None
        places = [place["value"] for place in command.get("applied_at", ())]
        if on != {"count": 2, "of": 2} or places != [str(step)]:
            problems.append(f"the server says {on} at {places}, not 2 of 2 at step {step}")
    return problems


def launchhelm(root: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """Run the command as a person would, and show what was typed."""
    print(f"$ launchhelm {shlex.join(words)}", flush=True)
    command = [*LAUNCHHELM, "--root", str(root), *words]
    subprocess.run(command, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})


def say(text: str) -> None:
    print(f"\n{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
