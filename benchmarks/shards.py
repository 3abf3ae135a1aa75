"""How fast a checkpoint in shards goes to a server and comes back, and how much memory that takes.

    python -m benchmarks.shards
    python -m benchmarks.shards --gb 2 --shards 4 --directory /some/disk

`launchhelm sync` of a run that holds it, then `Client.download_checkpoint`, each a process of its
own, against one `launchhelm serve` on the same machine. The directory is compared when it is back.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import psutil

from benchmarks.sync import Hosted, hosted
from syncer.api.client import Client
from tests.support.pushing import WrittenRun, runs_on
from tests.support.shards import lay_shards, shard

_ROOT: Final = Path(__file__).resolve().parent.parent
_CHUNK: Final = 8 << 20
_FETCH: Final = """
import sys, launchhelm
url, key, organization, checkpoint, into = sys.argv[1:]
with launchhelm.Client(url, key, organization) as client:
    client.download_checkpoint(checkpoint, into)
"""


def saved(root: Path, count: int, size: int) -> tuple[WrittenRun, Path]:
    """Make a run with one checkpoint in shards; return it and their directory."""
    run = WrittenRun(root)
    parts, body = lay_shards(run.directory, [1] * count)
    # Not in memory, as the helper of the tests has them.
    for rank in range(count):
        with (parts / shard(rank)).open("wb") as file:
            for _ in range(0, size, _CHUNK):
                file.write(os.urandom(_CHUNK))
    index = {
        rank: SimpleNamespace(relative_path=shard(rank), offset=0, length=size)
        for rank in range(count)
    }
    (parts / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data=index)))
    run.add("art", body, step=7)
    run.add("m", {"checkpoint": body["id"]}, step=7)
    run.end()
    return run, parts


def measured(command: list[str], environment: dict[str, str], place: Path) -> tuple[float, float]:
    """Run a command; return its seconds and the most MB that it held."""
    begun, peak = time.perf_counter(), 0
    with subprocess.Popen(command, env=environment, cwd=place) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, watched.memory_info().rss)
            except psutil.Error:
                break
            time.sleep(0.02)
        assert process.wait() == 0
    return time.perf_counter() - begun, peak / 1e6


def checkpoint_on(server: Hosted, run_id: str) -> str:
    """Return the server's id of the checkpoint."""
    with Client(server.url, server.made.organization_id, server.made.token) as client:
        (run,) = runs_on(client, run_id)
        (stream,) = [
            each
            for each in client.list_documents("stream", run["scope"]["project_id"], run["id"])
            if each["spec"]["name"] == "checkpoint"
        ]
        (point,) = client.all_points(stream["id"])
    return str(point["value"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    size = int(options.gb * 1e9 / options.shards) // _CHUNK * _CHUNK
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        run, parts = saved(place / "runs", options.shards, size)
        with hosted(place / "server") as server:
            environment = {
                **server.environment,
                "PYTHONPATH": str(_ROOT),
                "LAUNCHHELM_DIR": str(place / "nothing"),
                "LAUNCHHELM_PROJECT": "benchmark",
            }
            sync = [sys.executable, "-m", "launchhelm", "sync", str(run.directory)]
            there = measured(sync, environment, place)
            words = [server.url, server.made.token, server.made.organization_id]
            words += [checkpoint_on(server, run.run_id), str(place / "back")]
            back = measured([sys.executable, "-c", _FETCH, *words], environment, place)
        names = [path.name for path in parts.iterdir()]
        copy = place / "back" / "checkpoints" / parts.name
        assert filecmp.cmpfiles(parts, copy, names, shallow=False)[0] == names
    mb = size * options.shards / 1e6
    print("| | MB | s | MB/s | peak memory of the process, MB |\n| --- | --- | --- | --- | --- |")
    for what, (seconds, peak) in (("to the server", there), ("back", back)):
        print(f"| {what} | {mb:,.0f} | {seconds:.1f} | {mb / seconds:.0f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
