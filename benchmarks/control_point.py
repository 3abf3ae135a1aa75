"""Measure what the control point costs, idle and for a command, beside the blocking scheme.

    python -m benchmarks.control_point [--ranks 2,4,8] [--step-ms 0,0.5,5] [--steps 600] [--free]
    python -m benchmarks.control_point --ranks 64 --step-ms 50 --steps 20 --commands 3 --free

Both schemes run on the same gloo ranks, in turns of 200 steps, so that a noisy machine hurts both.
A step is a sleep of --step-ms and one small all-reduce, as the gradients of DDP have it, neither
of them counted; --free leaves the all-reduce out, and the control point then pays for how far the
ranks have drifted apart since the last exchange. "Blocking" is the hosted scheme: two pickled
broadcasts (size, then bytes) at every step.

"A command" is the time that all calls from the first that heard of it to the one that applied it
took together, on the rank that it cost most. CPU is of the whole process, per step and per command.
The last lines say what a command would cost on many more ranks, from the latency of one hop.
"""

from __future__ import annotations

import argparse
import io
import math
import pickle
import statistics
import time
from typing import Any

from tests.support.ranks import run_ranks
from tests.support.scripted import ScriptedDesk, ScriptedPlant, Shown, command

_TURN = 200
_SETTLE = 500
_WINDOW_S = 0.2
"""A command travels in less time than this, and in fewer than 40 calls."""
_ASSUMED_HOP_US = 50.0
"""One message between two hosts by TCP, both sides awake."""
_ASSUMED_ROW_US = 10.0
"""What rank 0 spends on one row that comes in."""
_ASSUMED_BYTES_PER_US = 1000.0
"""Of a TCP connection."""


def measure(
    rank: int, size: int, tell: Any, steps: int, step_s: float, free: bool, commands: int
) -> dict[str, Any]:
    """Run both schemes in turns on this rank, then commands; microseconds of each call."""
    import torch
    import torch.distributed as dist

    from launchhelm.torch._collective import make_links
    from launchhelm.torch._exchange import Exchange

    began = time.perf_counter()
    desk = ScriptedDesk([])
    desk.upcoming = lambda step: None  # type: ignore[method-assign]  # None is for a later step.
    exchange = Exchange(
        links=make_links(),
        desk=desk if rank == 0 else None,
        plant=ScriptedPlant(rank),
        progress=Shown(),
        notice=print,
    )
    init_s = time.perf_counter() - began
    group = dist.new_group(list(range(size)), backend="gloo")
    spent: dict[str, list[float]] = {"blocking": [], "ours": []}
    cpu_us: dict[str, float] = {"blocking": 0.0, "ours": 0.0}

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

    turn_steps = min(_TURN, steps)
    settle = min(_SETTLE, steps)
    schemes = {"blocking": blocking, "ours": exchange.on_call}
    for turn in range(2 * -(-steps // turn_steps)):
        name = ("blocking", "ours")[turn % 2]
        # Not counted: to the pace, the other scheme's turn was one very slow step.
        for step in range(-settle if name == "ours" else -10, turn_steps):
            train()
            start, cpu = time.perf_counter(), time.process_time()
            schemes[name](step)
            if step >= 0:
                spent[name].append((time.perf_counter() - start) * 1e6)
                cpu_us[name] += (time.process_time() - cpu) * 1e6

    # Every rank passes the same number of calls; rank 0 alone has commands to take.
    first = 10**6
    interval = torch.tensor([exchange.status.calls_per_exchange])
    dist.broadcast(interval, 0)
    pause = 2 * window_of(step_s) + 2 * int(interval)
    desk.waiting = [command("x", first + pause * each, value=each) for each in range(commands)]
    calls: list[float] = []
    cpu = time.process_time()
    for step in range(first, first + pause * (commands + 1)):
        train()
        start = time.perf_counter()
        exchange.on_call(step)
        calls.append((time.perf_counter() - start) * 1e3)
    applied_at = [one.applied_at["step"] - first for one in desk.outcomes]
    exchange.finish()
    return {"spent": spent, "calls_ms": calls, "applied_at": applied_at, "init_s": init_s,
            "cpu_us": {name: cpu_us[name] / len(spent[name]) for name in spent}}  # fmt: skip


def window_of(step_s: float) -> int:
    """Return in how many calls a command surely comes and goes."""
    return max(8, min(40, int(_WINDOW_S / max(step_s, 1e-9))))


def hop_us(rank: int, size: int, tell: Any, rounds: int) -> float:
    """Return half the median of one gather between two ranks that are both awake: one hop."""
    from launchhelm.torch._collective import make_links
    from launchhelm.torch._wire import ROW_BYTES

    links = make_links()
    assert links is not None
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        links.gather(bytes(ROW_BYTES))
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times) / 2  # There, and back.


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


def modelled(ranks: int, hop: float) -> tuple[float, float]:
    """Return milliseconds of an idle exchange and of a command on so many ranks.

    A packet is one broadcast, which gloo does in a binomial tree; a command is two packets and two
    gathers: a row of every rank to rank 0, and all rows back by a broadcast.
    """
    depth, row_bytes = math.ceil(math.log2(ranks)), 296
    packet = depth * hop
    back = depth * (hop + ranks * row_bytes / _ASSUMED_BYTES_PER_US)
    gather = hop + (ranks - 1) * _ASSUMED_ROW_US + back
    return packet / 1e3, 2 * (packet + gather) / 1e3


def row_of(size: int, step_ms: float, ended: list[Any]) -> str:
    """Return one line of the table."""
    cells: list[float] = []
    for name in ("blocking", "ours"):
        values = [value for one in ended for value in one.value["spent"][name]]
        cells += [statistics.median(values), statistics.fmean(values)]
    ratio = cells[1] / cells[3]
    cpu = [statistics.fmean(one.value["cpu_us"][name] for one in ended) for name in ("ours",)]
    window = window_of(step_ms / 1e3)
    costs = [
        max(sum(one.value["calls_ms"][max(0, at - window) : at + 1]) for one in ended)
        for at in ended[0].value["applied_at"]
    ]
    shown = " | ".join(f"{value:,.1f}" for value in cells)
    most = max(costs, default=math.nan)
    return (
        f"| {size} | {step_ms:g} | {shown} | {ratio:.0f} | {cpu[0]:,.1f} | "
        f"{statistics.median(costs or [math.nan]):.1f} / {most:.1f} ({len(costs)}) |"
    )


def main() -> None:
    """Print tables for docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--step-ms", default="0,0.5,5")
    parser.add_argument("--commands", type=int, default=10)
    parser.add_argument("--free", action="store_true")
    options = parser.parse_args()
    print(
        "| ranks | step ms | blocking median us | mean us | ours median us | mean us | mean ratio "
        "| CPU us a step | a command, ms: median / most (of) |"
    )
    print("| --- " * 9 + "|")
    for size in map(int, options.ranks.split(",")):
        for step_ms in map(float, options.step_ms.split(",")):
            ended = run_ranks(
                measure, size, deadline_s=900.0,
                steps=options.steps, step_s=step_ms / 1e3, free=options.free,
                commands=options.commands,
            )  # fmt: skip
            print(row_of(size, step_ms, ended), flush=True)
        slowest = max(one.value["init_s"] for one in ended)
        print(f"<!-- {size} ranks: links made in {slowest:.1f} s -->", flush=True)
    print(f"\nOne call where nothing is due, back to back: {bare_call_us():.2f} us.")
    measured = statistics.median(one.value for one in run_ranks(hop_us, 2, rounds=2000))
    print(f"One hop between two processes here: {measured:.0f} us.\n")
    print("| ranks | hop us | an exchange, ms | share of 0.5 s | a command, ms |")
    print("| --- | --- | --- | --- | --- |")
    for ranks in (64, 512, 4096):
        for hop in (measured, _ASSUMED_HOP_US):
            idle, one = modelled(ranks, hop)
            print(f"| {ranks:,} | {hop:.0f} | {idle:.2f} | {idle / 5:.2f} % | {one:.1f} |")


if __name__ == "__main__":
    main()
