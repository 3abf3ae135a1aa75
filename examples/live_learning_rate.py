"""Change the learning rate of a loop of your own, from another terminal, without PyTorch.

    python examples/live_learning_rate.py

`set_lr` is an ordinary method; its annotation says what a command may carry. While the loop runs:

    launchhelm control latest set_lr lr=0.5
    launchhelm tail latest

Look at `lr` and at `loss` from that step on: the next step already uses the new rate.
"""

from __future__ import annotations

import argparse
import time

import launchhelm


class Loop:
    """Walks down a parabola."""

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.position = 10.0

    def set_lr(self, lr: float) -> None:
        if not 0 < lr < 1:
            raise ValueError("this parabola needs a rate between 0 and 1")
        self.lr = lr

    def train(self) -> float:
        self.position -= self.lr * 2 * self.position
        return self.position**2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long to train")
    seconds = parser.parse_args().seconds

    loop = Loop(lr=0.001)
    with launchhelm.init("quickstart", name="live-lr", config={"lr": loop.lr}) as run:
        run.command("after_step")(loop.set_lr)
        for step in range(int(seconds * 20)):
            run.log({"loss": loop.train(), "lr": loop.lr}, step=step)
            run.sync("after_step", step=step)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
