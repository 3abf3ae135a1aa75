"""What the dashboard costs: first view, zoom, list, processes page, and an idle page.

python -m benchmarks.dashboard [--steps 500000] [--runs 2000] [--ranks 512] [--keep DIR]

A run of 20 metrics with three spikes of one point each, many runs under one root, and one run of
many ranks, all as the real writer makes them. Every figure is the whole request through the socket
of a server of its own, read and unpacked.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import generate

METRICS = 20
SPIKES = (0.123, 0.5, 0.877)
"""Where the spikes are, as parts of the run."""

SPIKE = 1000.0
CHARTS = 12
PX = 600


class Client:
    """Asks one server."""

    def __init__(self, facts: dict[str, Any]) -> None:
        address, _, self._token = facts["address"].partition("/#token=")
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
        self.bytes = 0

    def get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "gzip"}
        self._connection.request("GET", f"/api/1/{path}", headers=headers)
        answer = self._connection.getresponse()
        data = answer.read()
        self.bytes += len(data)
        if answer.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        assert answer.status < 300, (answer.status, data)
        return json.loads(data) if data else None


class Server:
    """`launchhelm ui` on a root."""

    def __init__(self, root: Path) -> None:
        words = ["ui", str(root), "--json", "--read-only"]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launchhelm", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self._process.stdout.readline())
        self.start_s = time.perf_counter() - started

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def cpu_s(self) -> float:
        """Return the time on a processor so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return the most memory so far."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def spent(server: Server, ask: Any) -> tuple[str, Any]:
    """Return seconds, and seconds of the server on a processor, as text; and the answer."""
    before = server.cpu_s()
    took, answer = timed(ask)
    return f"{took:.2f} s ({server.cpu_s() - before:.2f} s of a core)", answer


def timed(ask: Any) -> tuple[float, Any]:
    """Return seconds and answer."""
    start = time.perf_counter()
    answer = ask()
    return time.perf_counter() - start, answer


def spiky_run(root: Path, steps: int) -> Path:
    """One rank, 20 metrics, three spikes in the first; everything but the end is sealed."""
    directory = generate.make_run(root, name="spikes")
    writer = generate.make_writer(directory, 0, 1)
    at = {int(steps * part) for part in SPIKES}
    names = [f"metric/{index}" for index in range(METRICS - 1)]
    for step in range(steps):
        values = {name: (step * 7919 + index) % 1000 / 999 for index, name in enumerate(names)}
        values["train/loss"] = SPIKE if step in at else 1.0 + (step * 104_729 % 1000) / 5e3
        writer.append("m", values, step=step, at=1_796_000_000 + step * 0.005)
        if step % 3000 == 2999:
            generate.beat(writer, step // 3000, step)
        if step % 2000 == 0:
            writer.flush()
            if writer.is_full:
                journal = writer.rotate()
                if journal is not None:
                    generate.seal(journal)
    writer.flush()
    return directory


def curves(root: Path, steps: int) -> None:
    """First view and zoom of a long run."""
    with Server(root) as server:
        client = Client(server.facts)
        id_ = client.get("runs")["runs"][0]["id"]

        def first_view() -> list[str]:
            client.get(f"runs/{id_}")
            names = [each["name"] for each in client.get(f"runs/{id_}/metrics")["metrics"]]
            shown = ["train/loss", *(name for name in names if name != "train/loss")][:CHARTS]
            asked = "&".join(f"name={name}" for name in shown)
            client.get(f"runs/{id_}/series?{asked}&px={PX}")
            return names

        client.bytes = 0
        took, names = spent(server, first_view)
        print(f"first view, {CHARTS} charts: {took}, {client.bytes / 1e3:,.0f} kB")
        again, _ = spent(server, first_view)
        print(f"the same again: {again}")
        every = "&".join(f"name={name}" for name in names)
        client.bytes = 0
        took, answer = spent(server, lambda: client.get(f"runs/{id_}/series?{every}&px={PX}"))
        print(f"all {len(names)} curves: {took}, {client.bytes / 1e3:,.0f} kB")
        loss = next(each for each in answer["series"] if each["name"] == "train/loss")
        spikes = [x for x, y in zip(loss["x"], loss["y"], strict=True) if y == SPIKE]
        wanted = sorted(int(steps * part) for part in SPIKES)
        print(
            f"spikes seen: {spikes} of {wanted}; {loss['points']:,} points, {len(loss['x'])} sent"
        )
        for share in (2, 4, 8, 32, 1000):
            times = []
            before = server.cpu_s()
            for turn in range(5):
                low = int(steps * (0.1 + turn / 10))
                bounds = f"from={low}&to={low + steps // share}"
                path = f"runs/{id_}/series?name=train/loss&px={PX}&{bounds}"
                times.append(timed(lambda path=path: client.get(path))[0] * 1e3)
            core = (server.cpu_s() - before) / 5 * 1e3
            said = f"median {median(times):.0f} ms, most {max(times):.0f}"
            print(f"zoom to 1/{share}: {said}, {core:.0f} ms of a core each")
        low = int(steps * 0.3)
        asked = "&".join(f"name={name}" for name in names[:CHARTS])
        path = f"runs/{id_}/series?{asked}&px={PX}&from={low}&to={low + steps // 4}"
        took, _ = spent(server, lambda: client.get(path))
        print(f"zoom of {CHARTS} charts to 1/4: {took}")
        print(f"server ready in {server.start_s:.2f} s, memory at most {server.memory_mb():.0f} MB")


def lists(root: Path, count: int) -> None:
    """The list of many runs."""
    with Server(root) as server:
        client = Client(server.facts)
        start = time.perf_counter()
        answer = client.get("runs")
        first_s, first = time.perf_counter() - start, answer["scanned"]
        while answer["scanned"] < answer["expected"]:
            answer = client.get("runs")
        print(
            f"{count:,} runs: first {first:,} rows {first_s:.2f} s after the server said it is up, "
            f"all {time.perf_counter() - start:.2f} s"
        )
        times = []
        for _ in range(5):
            times.append(timed(lambda: client.get("runs"))[0])
        print(f"list warm: median {median(times):.3f} s, most {max(times):.3f} s")
        print(f"server ready in {server.start_s:.2f} s, memory at most {server.memory_mb():.0f} MB")


def ranks(root: Path, count: int, idle_s: float) -> None:
    """The processes page of a run of many ranks, and what an idle page costs."""
    with Server(root) as server:
        client = Client(server.facts)
        id_ = client.get("runs")["runs"][0]["id"]
        took, answer = timed(lambda: client.get(f"runs/{id_}/processes"))
        print(f"{count} ranks: processes page {took * 1e3:.0f} ms, {len(answer['rows'])} rows")
        times = []
        for _ in range(5):
            time.sleep(0.6)
            times.append(timed(lambda: client.get(f"runs/{id_}/processes"))[0])
        print(f"update: median {median(times) * 1e3:.0f} ms, most {max(times) * 1e3:.0f} ms")
        client.bytes = 0
        took, _ = timed(
            lambda: client.get(f"runs/{id_}/skew?measure=late&columns=240&rows={count}")
        )
        print(f"strip: {took * 1e3:.0f} ms, {client.bytes / 1e3:.0f} kB")
        cursor = ""
        before, until = server.cpu_s(), time.monotonic() + idle_s
        while time.monotonic() < until:
            answer = client.get(f"changes?watch={id_}&cursor={cursor}")
            cursor = answer["cursor"] if answer else cursor
            time.sleep(2)
        share = (server.cpu_s() - before) / idle_s
        print(f"idle page for {idle_s:g} s: {share:.2%} of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--idle", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="make and keep the runs here; used when there")
    parser.add_argument("--only", choices=("curves", "lists", "ranks"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        base = arguments.keep or Path(scratch)
        parts = {
            "curves": (lambda root: spiky_run(root, arguments.steps), arguments.steps),
            "lists": (
                lambda root: generate.many_runs(root, arguments.runs, steps=50),
                arguments.runs,
            ),
            "ranks": (
                lambda root: generate.many_ranks(root, arguments.ranks, steps=2000),
                arguments.ranks,
            ),
        }
        for name, (make, size) in parts.items():
            if arguments.only not in (None, name):
                continue
            root = base / f"{name}-{size}"
            if not root.exists():
                root.mkdir(parents=True)
                took, _ = timed(lambda make=make, root=root: make(root))
                print(f"{name}: made in {took:.0f} s")
            if name == "curves":
                curves(root, size)
            elif name == "lists":
                lists(root, size)
            else:
                ranks(root, size, arguments.idle)


if __name__ == "__main__":
    main()
