"""What both sides of the checkpoint contract train; it imports torch and no SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Parts = tuple[torch.nn.Module, torch.optim.Optimizer, Any]


def parts(schedule: str) -> Parts:
    """Make a model with dropout, an optimizer of two groups, and one of several schedules."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
    )
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.05)
    make = getattr(torch.optim.lr_scheduler, schedule)
    given = {
        "CosineAnnealingLR": {"T_max": 40, "eta_min": 0.001},
        "LambdaLR": {"lr_lambda": lambda step: 1 / (1 + step)},
        "OneCycleLR": {"max_lr": [0.2, 0.1], "total_steps": 60},
    }[schedule]
    return model, optimizer, make(optimizer, **given)


def losses(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    steps: int,
    end: Callable[[float], object],
) -> list[float]:
    """Train on random data, and return the loss of each step."""
    found = []
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        found.append(loss.item())
        end(found[-1])
    return found
