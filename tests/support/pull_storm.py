"""Commands of a server for a job, while syncer, ranks and server are killed at random moments.

with Storm(tmp_path, seed=1) as storm:
    storm.rage({"syncer": 50, "rank 0": 50, "any rank": 50, "server": 50})
    print(storm.check())        # what happened, how often; whatever must be true is asserted
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from launchhelm.records import TRAINING_SAFE_POINT
from launchhelm.store.layout import parse_writer
from syncer import status
from syncer.api import wire
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.naming import CAPABILITY_LABEL, RUN_LABEL, WRITER_LABEL
from tests.support import v1_server
from tests.support.commanding import ENDED, is_final, wait
from tests.support.killed_job import CONTROL, PROJECT, QUICK, KilledJob, Raised, TorchrunJob
from tests.support.pull_ledger import Truth
from tests.support.sync_command import SyncCommand
from tests.support.v1_server import V1Server, v1_process

SERVER = "from syncer.server import lifecycle\nlifecycle.LEASE_S = 6.0\n"
"""A lease is shorter than in life, as the other waits are; see `killed_job.quicken`."""

CALM_S = 300.0
MOMENTS = ("given", "intent", "delivered", "taken", "begun", "later")
"""When something is killed: what a command under way has come to."""


class Commander(threading.Thread):
    """Whoever gives commands, without a rest, whatever the server and the run are doing."""

    def __init__(self, server: V1Server, run_id: str, chance: random.Random) -> None:
        super().__init__(name="commander", daemon=True)
        self.given: list[dict[str, Any]] = []
        self.refused: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._client = server.client()
        self._run_id = run_id
        self._run: dict[str, Any] = {}
        self._chance = chance
        self._is_over = threading.Event()

    def end(self) -> None:
        """Give no more; return when the one in hand is known to be given or not."""
        self._is_over.set()
        self.join(CALM_S)
        assert not self.is_alive() and self.failure is None, self.failure

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def run(self) -> None:
        """Give one after the other; some while others are under way, some that soon expire."""
        try:
            while not self._is_over.is_set():
                self._give()
                patience_s = self._chance.choice((0.0, 0.3, 2.0, 10.0))
                until = time.monotonic() + patience_s
                while time.monotonic() < until and not self._is_over.wait(0.1):
                    if self._execution(self.given[-1]) in ENDED:
                        break
        except BaseException as error:
            self.failure = error

    def _give(self) -> None:
        value = float(len(self.given) + 1)
        valid_s = self._chance.choice((1.0, 3600.0, 3600.0, 3600.0, 3600.0))
        while True:
            try:
                body = self._order(value, valid_s)
            except ApiError:
                body = None
            if body is None:
                if self._is_over.wait(0.2):
                    return
                continue
            made = self._submitted(body)
            if made is not None:
                self.given.append(made)
                return
            time.sleep(0.1)

    def _submitted(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Submit under one key until the server's answer is known; None when it refuses."""
        key = uuid.uuid4().hex
        while True:
            try:
                return self._client.submit(body, key)
            except ApiError as error:
                if error.status and error.status < 500:
                    self.refused[error.message.split(" is ")[0]] += 1
                    return None
                time.sleep(0.1)  # Nothing is known: only the same again may follow.

    def _order(self, value: float, valid_s: float) -> dict[str, Any] | None:
        """Order a value of the newest coordinator; None when nobody can be commanded now."""
        self._run = self._run or self._found()
        if not self._run:
            return None
        project = self._run["scope"]["project_id"]
        leaders = []
        for it in self._client.list_documents("participant", project, self._run["id"]):
            writer = parse_writer(it["spec"]["labels"].get(WRITER_LABEL, ""))
            if writer is not None and writer.rank == 0:
                leaders.append((writer.attempt, it["id"]))
        leader = max(leaders, default=(0, ""))[1]
        offers = [
            it
            for it in self._client.list_documents("capability", project, self._run["id"])
            if it["spec"]["participant_id"] == leader
            and it["spec"]["name"] == CONTROL
            and CAPABILITY_LABEL in it["spec"]["labels"]
        ]
        if not offers:
            return None
        session = self._client.session(leader)
        return {
            "scope": offers[-1]["scope"],
            "capability": {"id": offers[-1]["id"], "kind": "capability", "revision": "1"},
            "participant_id": leader,
            "epoch": session["epoch"],
            "expected_state_revision": session["state_revision"],
            "targets": [],
            "input": {"lr": value},
            "safe_point": TRAINING_SAFE_POINT,
            "expires_at": wire.timestamp(time.time() + valid_s),
            "reason": "a storm",
        }

    def _found(self) -> dict[str, Any]:
        runs = self._client.list_documents("run")
        mine = (it for it in runs if it["spec"]["labels"].get(RUN_LABEL) == self._run_id)
        return next(mine, {})

    def _execution(self, command: Mapping[str, Any]) -> str:
        try:
            return str(self._client.get_command(command["id"])["execution"])
        except ApiError:
            return ""


class Storm:
    """A server, a job, a syncer, a commander, and what is done to them.

    Args:
        seed: Of every choice.
        thread: Whether rank 0 has a syncer of its own.
        service: Whether there is a syncer beside the job.
        ranks: How many.
        torchrun: Whether that is the launcher; else one of ours, which is quicker.
    """

    def __init__(
        self,
        path: Path,
        *,
        seed: int,
        thread: bool = False,
        service: bool = True,
        ranks: int = 2,
        torchrun: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._path = path
        self._chance = random.Random(seed)
        self._service = service
        self._thread = thread
        self._size = ranks
        self._torchrun = torchrun
        self._stack = contextlib.ExitStack()
        self._log = (path / "syncer.log").open("wb")
        self._syncer: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(self._log.close)
            self.server = stack.enter_context(v1_process(self._path / "far", change=SERVER))
            environment = {
                "LAUNCHHELM_URL": self.server.url,
                "LAUNCHHELM_API_KEY": self.server.key,
                "LAUNCHHELM_PROJECT": PROJECT,
                "LAUNCHHELM_STATE_DIR": str(self._path / "state"),
            }
            self.sync = SyncCommand(
                self._path, self.server.url, self.server.key, environment, change=QUICK
            )
            options: Any = {"sync": self._thread, "environment": environment}
            self.job = stack.enter_context(
                TorchrunJob(self._path, self._size, **options)
                if self._torchrun
                else KilledJob(self._path, self._size, chance=self._chance, **options)
            )
            stack.callback(self._end_syncer, signal.SIGKILL)
            if self._service:
                self._start_syncer()
            self.directory = wait(lambda: self.job.directory, "a run", CALM_S)
            chance = random.Random(self._chance.random())
            self.commander = Commander(self.server, self.directory.name, chance)
            stack.callback(self.commander.close)
            self.commander.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: *Raised) -> None:
        self._stack.__exit__(*error)

    def rage(self, kills: Mapping[str, int]) -> None:
        """Kill each so often, in a random order, each time with a command under way."""
        order = [victim for victim, count in kills.items() for _ in range(count)]
        self._chance.shuffle(order)
        for victim in order:
            moment = self._await_moment()
            self.counts[f"killed: {victim}"] += 1
            self.counts[f"when: {moment}"] += 1
            getattr(self, f"_kill_{victim.replace(' ', '_')}")()
            assert self.commander.failure is None, self.commander.failure

    def _await_moment(self) -> str:
        """Wait for a new command to come as far as chance wants it, as far as that is seen."""
        if self._chance.random() < 0.8:
            noted = self.job.noted
            wait(lambda: self.job.noted > noted, "a command to be applied again", CALM_S)
        had, noted = len(self.commander.given), self.job.noted
        wait(lambda: len(self.commander.given) > had, "a command to be given", CALM_S)
        moment = self._chance.choice(MOMENTS)
        control = self.directory / "control"
        signs: dict[str, Callable[[], object]] = {
            "given": lambda: True,
            "intent": lambda: list(control.glob(".srv.*")),
            "delivered": lambda: list(control.glob("new.*")),
            "taken": lambda: list(control.glob("got.*")),
            "begun": lambda: self.job.noted > noted,
            "later": lambda: False,
        }
        until = time.monotonic() + self._chance.uniform(0.5, 1.5)
        while not signs[moment]():
            if time.monotonic() > until:
                return "later"
            time.sleep(0.001)
        return moment

    # --- what is killed ---------------------------------------------------------------------------

    def _kill_syncer(self) -> None:
        self._end_syncer(signal.SIGKILL)
        time.sleep(self._chance.uniform(0.0, 0.5))
        self._start_syncer()

    def _kill_rank_0(self) -> None:
        self.job.kill(0)

    def _kill_any_rank(self) -> None:
        self.job.kill(self._chance.randrange(self._size))

    def _kill_server(self) -> None:
        v1_server.kill(self.server)
        time.sleep(self._chance.uniform(0.0, 1.0))
        v1_server.start(self.server)

    def _kill_holder(self) -> None:
        """Kill whoever speaks for the run, so that the other takes over: thread or service."""
        assert self._syncer is not None
        holder = self._holder()
        if holder == self._syncer.pid:
            self.counts["handed over: service to thread"] += 1
            self._end_syncer(signal.SIGKILL)
            time.sleep(self._chance.uniform(0.0, 3.0))
            self._start_syncer()
        else:
            self.counts["handed over: thread to service"] += holder == self.job.pid(0)
            self.job.kill(0)

    def _kill_service_cleanly(self) -> None:
        """Let the service end as it likes, which frees its lease while a claim may be parked."""
        self._end_syncer(signal.SIGTERM)
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._start_syncer()

    def _kill_sleeping_service(self) -> None:
        """Stop the service for longer than its lease; it wakes and finds itself replaced."""
        assert self._syncer is not None
        had_lease = self._holder() == self._syncer.pid
        self._syncer.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 10.0
        while self._holder() == self._syncer.pid and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(self._chance.uniform(0.0, 1.0))
        self.counts["handed over: asleep"] += had_lease and self._holder() != self._syncer.pid
        self._syncer.send_signal(signal.SIGCONT)

    def _holder(self) -> int:
        places = [it.parent for it in self.directory.glob("sync/*/lease.*")]
        found = status.holder(places[0]) if places else None
        return found.pid if found is not None else 0

    def _start_syncer(self) -> None:
        self._syncer = self.sync.start("--watch", self._path / "runs", output=self._log)

    def _end_syncer(self, number: int) -> None:
        if self._syncer is not None:
            self._syncer.send_signal(number)
            self._syncer.wait(60.0)
            self._syncer = None

    # --- the end ----------------------------------------------------------------------------------

    def check(self) -> dict[str, int]:
        """Let everything be well again and come to its end; then assert what must be true."""
        self.commander.end()
        given = self.commander.given
        with self.server.client() as client:
            run = self.commander._run["id"]

            def open_now() -> list[dict[str, Any]]:
                return [it for it in client.run_commands(run) if not is_final(it)]

            started = time.monotonic()
            while (open_ones := open_now()) and time.monotonic() - started < CALM_S:
                time.sleep(0.5)
            self.counts["calm after s"] = round(time.monotonic() - started)
            self.job.end()
            if self._service:
                assert self._syncer is not None and self._syncer.poll() is None
            self._end_syncer(signal.SIGTERM)
            assert self.sync.once(self._path / "runs").code == 0
            assert not open_ones, open_ones
            commands = list(client.run_commands(run))
            flags = contradictions(client)
        assert sorted(it["id"] for it in commands) == sorted(it["id"] for it in given)
        truth = Truth.of(self.directory, self.job)
        self.counts += truth.compare(commands)
        assert not flags, flags
        left = [it.name for it in (self.directory / "control").iterdir()]
        # What a process killed while it wrote leaves begins with its own dot; nobody looks at it.
        self.counts["half-written files"] = sum(it.startswith("..") for it in left)
        assert all(it.startswith("..") for it in left), left
        self.counts["commands"] = len(given)
        self.counts["refused at submit"] = self.commander.refused.total()
        self.counts["attempts"] = self.job.attempt
        return dict(sorted(self.counts.items()))


def contradictions(client: Client) -> list[dict[str, Any]]:
    """Return what the server was told of a command and could not believe."""
    found, cursor = [], "0"
    while items := client.events(cursor, 1000)["items"]:
        found += [it for it in items if it["kind"] == "command_contradiction"]
        cursor = items[-1]["id"]
    return found
