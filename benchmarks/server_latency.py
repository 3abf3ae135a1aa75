"""From a command given on the server to its end being visible there: how long does it take?

    python -m benchmarks.server_latency
    python -m benchmarks.server_latency --commands 20 --ranks 2 --root /shared/somewhere

Trains four gloo ranks under torchrun beside `launchhelm serve` and `launchhelm sync --watch`, all
on one machine; halves and doubles the learning rate from the server at random moments, and prints
a markdown table. Submitted: before the request. Applied: the time of the outcome's record, which
rank 0 writes when every rank has changed and read back the value. Visible: when whoever asks the
server every 30 ms reads `applied`, with the number of ranks.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._from_server import client_of, offers, sent, watching
from benchmarks.command_latency import p99_of, row, training
from benchmarks.sync import hosted
from launchhelm.records import TRAINING_SAFE_POINT
from launchhelm.views import RunView
from syncer.api.client import Client

MEDIAN_S = 1.5
P99_S = 3.0
_START_S = 120.0


def one(
    client: Client, view: RunView, offer: dict[str, object], scale: float, ranks: int
) -> tuple[float, float]:
    """Give one command; return seconds until applied, and visible."""
    submitted_at = time.time()
    command, seen_s = sent(client, offer, {"scale": scale}, TRAINING_SAFE_POINT)
    if command["execution"] != "applied" or command["applied_on"] != {"count": ranks, "of": ranks}:
        raise SystemExit(f"not applied on all ranks: {command}")
    view.refresh()
    found = view.command(command["id"])
    assert found is not None and found.outcome is not None and found.outcome.is_final
    return found.states[-1].at - submitted_at, seen_s


def offered(client: Client) -> dict[str, object]:
    """Wait until the learning rate can be commanded on the server."""
    deadline = time.monotonic() + _START_S
    while not (found := offers(client, "lr")):
        if time.monotonic() > deadline:
            raise SystemExit("the run was not on the server in time")
        time.sleep(0.1)
    return found[0]


def main() -> int:
    """Run the benchmark; exit 1 when the median or the 99th percentile is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--commands", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--root", type=Path, help="for the run; default: a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, hosted(Path(folder) / "server") as server:
        root = (options.root or Path(folder) / "runs").absolute()
        root.mkdir(parents=True, exist_ok=True)
        with (
            training(root, options.ranks, options.step_ms) as view,
            watching(server, root),
            client_of(server) as client,
        ):
            offer = offered(client)
            applied, seen = [], []
            for number in range(options.commands):
                # At a random moment of the exchange's and the inbox's intervals.
                time.sleep(random.uniform(0.1, 0.9))
                took = one(client, view, offer, [0.5, 2.0][number % 2], options.ranks)
                applied.append(took[0])
                seen.append(took[1])
    print(f"{options.ranks} ranks, {options.step_ms:g} ms steps; seconds.\n")
    print("| what | commands | median | p99 | most | required |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(row("submitted to applied on all ranks", applied, ""))
    required = f"median < {MEDIAN_S:g}, p99 < {P99_S:g}"
    print(row("submitted to `applied` visible on the server", seen, required))
    return 0 if statistics.median(seen) < MEDIAN_S and p99_of(seen) < P99_S else 1


if __name__ == "__main__":
    sys.exit(main())
