"""Change the learning rate of a plain loop while it runs, without PyTorch.

Look at the line that appears when you type this into another terminal, in the same folder:

    launchhelm control latest set_lr lr=0.01

The command acts between two steps, where the loop calls `sync`, and its outcome is part of the run:
`launchhelm control log latest` shows it.
"""

import argparse
import time

import launchhelm


class Loop:
    """What the loop needs, with one control."""

    lr = 0.1
    loss = 1.0

    def set_lr(self, lr: float) -> dict[str, float]:
        """Take the new rate; what is returned is recorded as the command's result."""
        self.lr = lr
        return {"lr": lr}


parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=20.0)
seconds = parser.parse_args().seconds

with launchhelm.init("quickstart", name="live-run") as run:
    loop = Loop()
    run.command("after_step")(loop.set_lr)
    started = time.monotonic()
    step = 0
    while time.monotonic() - started < seconds:
        loop.loss *= 1 - loop.lr / 10
        run.log({"loss": loop.loss, "lr": loop.lr}, step=step)
        if run.sync("after_step", step=step):
            print(f"step {step}: lr is now {loop.lr}")
        step += 1
        time.sleep(0.02)
