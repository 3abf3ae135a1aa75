"""How much memory does a recording process take, and does it stay flat?

    python -m benchmarks.memory

Three loops of many steps in processes of their own: `step` of a Trainer that logs nothing (a silent
rank), the same that logs its loss and rates, and `log` of 10 scalars as fast as storage takes them.
Prints a markdown table of resident memory, in MB above that of the process just before its run
began, at equal parts of the loop. Sealing works beside the loop and is part of it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = 5
STEPS = 100_000
FAST_STEPS = 600_000
NAMES = [f"train/metric_{i}" for i in range(10)]
LOOPS = {
    "silent": "`Trainer.step`, nothing logged",
    "trainer": "`Trainer.step`, loss and rates logged",
    "fast": "`Run.log`, 10 scalars, without a pause",
}


def resident_mb() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def child(loop: str, root: Path) -> None:
    """Run one loop and print its memory at equal parts."""
    if loop == "fast":
        import launchhelm

        start = resident_mb()
        run = launchhelm.init("memory", state_dir=root)
        part = FAST_STEPS // PARTS
        for step in range(1, FAST_STEPS + 1):
            run.log({name: random.random() for name in NAMES}, step=step)
            if step % 20 == 0:
                time.sleep(0.0005)
            if step % part == 0:
                print(f"{resident_mb() - start:.1f}", flush=True)
        run.finish()
        return
    import torch

    import launchhelm.torch as lht

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2)).backward()
    optimizer.step()
    start = resident_mb()
    trainer = lht.init("memory", state_dir=root)
    trainer.watch(model, optimizer, log_every=1 if loop == "trainer" else 1 << 40)
    loss = torch.tensor(1.0)
    for step in range(1, STEPS + 1):
        trainer.step(step=step, loss=loss)
        if step % 20 == 0:
            time.sleep(0.0005)
        if step % (STEPS // PARTS) == 0:
            print(f"{resident_mb() - start:.1f}", flush=True)
    trainer.finish()


def main() -> None:
    """Run each loop and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    print(
        "| MB above the start | steps | " + " | ".join(f"{i}/{PARTS}" for i in range(1, 6)) + " |"
    )
    print("| --- " * (PARTS + 2) + "|")
    for loop, title in LOOPS.items():
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.memory", "--child", loop, root],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
        steps = FAST_STEPS if loop == "fast" else STEPS
        print(f"| {title} | {steps:,} | {' | '.join(done.stdout.split())} |")


if __name__ == "__main__":
    main()
