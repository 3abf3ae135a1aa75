"""How long does saving a checkpoint hold up the step, beside torch.save of the same state alone?

    python -m benchmarks.checkpoint [--gb 1.0] [--rounds 5] [--root DIRECTORY]

One process holds a model and its AdamW state of that size together, on the CPU. In turns, and with
the disk idle before each, it writes that state by torch.save alone into the same folder, and calls
`save_checkpoint`. Prints the seconds that each blocked and the CPU seconds that each took of the
calling thread, which other work on the machine hardly changes; their ratios; how long after
that the checkpoint was ready (synced, digest taken, loaded back), and what the process held at its
peak above what it held before: while saving, while that was made ready, and while loading.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

LARGE = 16


def peak_mb() -> float:
    """Return the most memory that this process held since the last `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def forget_peak() -> float:
    """Begin to look for a new peak; return what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def trained(size_bytes: float) -> tuple[Any, Any]:
    """Make a model and an optimizer that together hold so much, in tensors as a model has them."""
    import torch

    width = int((size_bytes / 3 / 4 / LARGE) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LARGE)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    import torch

    import launchhelm.torch as lht

    model, optimizer = trained(options.gb * 1e9)
    with tempfile.TemporaryDirectory(dir=options.root) as root:
        trainer = lht.init("checkpoint", state_dir=root)
        trainer.watch(model, optimizer)
        trainer.save_checkpoint()  # Both ways once, for code and allocator.
        trainer.load_checkpoint()
        media = trainer.run.directory / "media"
        alone_s, ours_s, ready_s, peaks = [], [], [], []
        alone_cpu_s, ours_cpu_s = [], []
        for turn in range(options.rounds):
            for way in ("alone", "ours") if turn % 2 == 0 else ("ours", "alone"):
                os.sync()
                before_mb = forget_peak()
                start, cpu = time.perf_counter(), time.thread_time()
                if way == "alone":
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save(state, media / ".alone.pt")
                    alone_s.append(time.perf_counter() - start)
                    alone_cpu_s.append(time.thread_time() - cpu)
                    (media / ".alone.pt").unlink()
                    continue
                trainer.save_checkpoint()
                ours_s.append(time.perf_counter() - start)
                ours_cpu_s.append(time.thread_time() - cpu)
                saving_mb, _ = peak_mb() - before_mb, forget_peak()
                vault = trainer._checkpoints._vault
                assert vault is not None
                vault.newest()
                ready_s.append(time.perf_counter() - start - ours_s[-1])
                peaks.append((saving_mb, peak_mb() - before_mb))
        size_mb = next(media.iterdir()).stat().st_size / 1e6
        before_mb = forget_peak()
        start = time.perf_counter()
        trainer.load_checkpoint()
        load_s, load_mb = time.perf_counter() - start, peak_mb() - before_mb
        trainer.finish()
    ratios = [ours / alone for ours, alone in zip(ours_s, alone_s, strict=True)]
    cpu_ratios = [ours / alone for ours, alone in zip(ours_cpu_s, alone_cpu_s, strict=True)]
    middle = statistics.median
    print(f"{size_mb:,.0f} MB in the file, {options.rounds} rounds, seconds as median (all)")
    print("| | seconds | |\n| --- | --- | --- |")
    for name, seconds in (
        ("`torch.save` alone", alone_s),
        ("`save_checkpoint` blocks", ours_s),
        ("ready after that", ready_s),
        ("`torch.save` alone, CPU", alone_cpu_s),
        ("`save_checkpoint`, CPU", ours_cpu_s),
    ):
        print(f"| {name} | {middle(seconds):.2f} | {' '.join(f'{each:.2f}' for each in seconds)} |")
    for name, column in (("ratio", ratios), ("ratio of CPU", cpu_ratios)):
        print(f"| {name} | {middle(column):.3f} | {' '.join(f'{each:.3f}' for each in column)} |")
    saving, ready = (max(column) for column in zip(*peaks, strict=True))
    print(f"| `load_checkpoint` | {load_s:.2f} | |")
    print(
        f"peak above before, MB: saving {saving:.0f}, made ready {ready:.0f}, loading {load_mb:.0f}"
    )


if __name__ == "__main__":
    main()
