"""Measure what the idle control point costs per step, beside the blocking scheme, in one run.

    python -m benchmarks.control_point [--ranks 2,4,8] [--steps 600] [--step-ms 5] [--free]

Both schemes run on the same gloo ranks, in turns of 200 steps, so that a noisy machine hurts both.
A step is a sleep of --step-ms and one small all-reduce, as the gradients of DDP have it, neither
of them counted; --free leaves the all-reduce out, and the control point then pays for how far the
ranks have drifted apart since the last exchange. "Blocking" is the hosted scheme: two pickled
broadcasts (size, then bytes) at every step. The last line is of one call alone where nothing is
due.
"""

from __future__ import annotations

import argparse
import io
import pickle
import statistics
import time
from typing import Any

from tests.support.ranks import run_ranks
from tests.support.scripted import ScriptedDesk, ScriptedPlant, Shown

_TURN = 200
_SETTLE = 500


def measure(
    rank: int, size: int, tell: Any, steps: int, step_s: float, free: bool
) -> dict[str, list[float]]:
    """Run both schemes in turns on this rank and return microseconds per step of each."""
    import torch
    import torch.distributed as dist

    from launchhelm.torch._collective import make_links
    from launchhelm.torch._exchange import Exchange

    exchange = Exchange(
        links=make_links(),
        desk=ScriptedDesk([]) if rank == 0 else None,
        plant=ScriptedPlant(rank),
        progress=Shown(),
        notice=print,
    )
    group = dist.new_group(list(range(size)), backend="gloo")
    spent: dict[str, list[float]] = {"blocking": [], "ours": []}

    def blocking(step: int) -> None:
        flag = io.BytesIO()
        pickle.dump(("idle", step), flag)
        length = torch.tensor([flag.tell()])
        dist.broadcast(length, 0, group=group)
        data = torch.frombuffer(bytearray(flag.getvalue()), dtype=torch.uint8)
        data = data if rank == 0 else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(data, 0, group=group)
        pickle.loads(data.numpy().tobytes())  # Our own bytes.

    gradient = torch.zeros(8)

    def train() -> None:
        time.sleep(step_s)
        if not free:
            dist.all_reduce(gradient)

    schemes = {"blocking": blocking, "ours": exchange.on_call}
    for turn in range(2 * -(-steps // _TURN)):
        name = ("blocking", "ours")[turn % 2]
        # Not counted: to the pace, the other scheme's turn was one very slow step.
        for step in range(-_SETTLE if name == "ours" else -10, _TURN):
            train()
            start = time.perf_counter()
            schemes[name](turn * (_TURN + _SETTLE) + step)
            if step >= 0:
                spent[name].append((time.perf_counter() - start) * 1e6)
    exchange.finish()
    return spent


def bare_call_us() -> float:
    """Return microseconds of one `on_call` where nothing is due, back to back."""
    from launchhelm.torch._exchange import Exchange

    exchange = Exchange(
        links=None, desk=None, plant=ScriptedPlant(0), progress=Shown(), notice=print,
        control_every=10**9,
    )  # fmt: skip
    count = 200_000
    start = time.perf_counter()
    for step in range(count):
        exchange.on_call(step)
    return (time.perf_counter() - start) / count * 1e6


def main() -> None:
    """Print a table for docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--free", action="store_true")
    options = parser.parse_args()
    print("| ranks | blocking median us | mean us | ours median us | mean us | mean ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in map(int, options.ranks.split(",")):
        ended = run_ranks(
            measure, size, deadline_s=600.0,
            steps=options.steps, step_s=options.step_ms / 1e3, free=options.free,
        )  # fmt: skip
        row: list[float] = []
        for name in ("blocking", "ours"):
            values = [value for one in ended for value in one.value[name]]
            row += [statistics.median(values), statistics.fmean(values)]
        ratio = row[1] / row[3]
        print(f"| {size} | " + " | ".join(f"{value:,.1f}" for value in row) + f" | {ratio:.0f} |")
    print(f"\nOne call where nothing is due, back to back: {bare_call_us():.2f} us.")


if __name__ == "__main__":
    main()
