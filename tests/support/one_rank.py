"""Command a trainer of one process from within its own loop, and see what became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import launchhelm.torch as lht
from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, records, wait_until


def commanded(
    trainer: lht.Trainer,
    name: str,
    payload: dict[str, Any] | None = None,
    *,
    train: Callable[[], object] = lambda: None,
) -> Outcome:
    """Send a command, train and step until it has an outcome, and return that."""
    id_ = f"{name}-{len(final_outcomes(trainer.run.directory))}"
    inbox.send(trainer.run.directory, Command(id_, name, payload or {}))

    def step() -> list[Outcome] | None:
        train()
        trainer.step(loss=1.0)
        return final_outcomes(trainer.run.directory).get(id_)

    (outcome,) = wait_until(step, f"the outcome of {id_}", timeout_s=60.0)
    return outcome  # type: ignore[no-any-return]


def on_disk(trainer: lht.Trainer) -> Path:
    """Return the run directory with everything in it that was logged so far."""
    trainer.run.flush(delivered=False)
    return trainer.run.directory


def effects(trainer: lht.Trainer) -> list[dict[str, Any]]:
    """Return what the effect records say."""
    return [dict(record.body) for record in records(on_disk(trainer), "effect")]
