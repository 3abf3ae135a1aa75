"""Train on two processes and change the learning rate of both from another terminal.

    torchrun --standalone --nproc_per_node=2 examples/ddp.py

The first line says where the run is written. While it runs, look at it and halve the rate:

    launchhelm show latest
    launchhelm control latest lr scale=0.5

The answer names the step at which the change landed: the same on both ranks. Try the tunable too,
`launchhelm control latest set_noise value=0`, and see train/loss fall to nearly nothing.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import launchhelm.torch as lht

PAUSE_S = 0.005  # Stands for the work of a real step.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0, help="about how long to train")
    steps = max(2, int(parser.parse_args().seconds / (PAUSE_S * 1.4)))

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    target = torch.linspace(-1.0, 1.0, 8).unsqueeze(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=1e-4)

    tr = lht.init("quickstart", name="ddp-run", config={"lr": 0.01}, system_metrics=True)
    tr.watch(model, optimizer, scheduler)
    noise = tr.tunable("noise", 0.3, minimum=0.0, maximum=1.0)

    for step in range(1, steps + 1):
        inputs = torch.randn(32, 8)
        wanted = inputs @ target.T + noise.value * torch.randn(32, 1)
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(PAUSE_S)
        tr.step(step=step, loss=loss, samples=len(inputs))

    tr.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
