"""A termination signal asks the loop to stop: what one rank alone does with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import launchhelm.torch as lht
from launchhelm import views
from launchhelm.torch._checkpoint_vault import Vault
from tests.support.journals import records, wait_until


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """The script's own handlers: what they heard."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    heard: list[int] = []
    for number in before:
        signal.signal(number, lambda number, frame: heard.append(number))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def trainer(root: Path, mode: str, control: str = "auto") -> lht.Trainer:
    tr = lht.init("one", state_dir=root, handle_signals=mode, control=control)
    model = torch.nn.Linear(1, 1)
    tr.watch(model, torch.optim.SGD(model.parameters(), lr=1))
    tr.step()
    return tr


def stops(tr: lht.Trainer) -> bool:
    tr.step()
    return tr.stop_requested


@pytest.mark.parametrize("control", ["auto", "off"])
@pytest.mark.parametrize("mode", ["stop", "checkpoint"])
def test_a_signal_asks_the_loop_to_stop_and_ends_nothing(
    mode: str, control: str, tmp_path: Path, heard: list[int]
) -> None:
    tr = trainer(tmp_path, mode, control)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: stops(tr), "the stop")
    # What the script had for this signal still runs, also when the last of a volley is late.
    assert heard == [signal.SIGTERM]
    tr.finish()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2
    (close,) = (it.body for it in records(tr.run.directory, "close"))
    assert (close["state"], close["reason"]) == ("terminated", "SIGTERM on rank 0")
    saved = [it.step for it in records(tr.run.directory, "art")]
    assert saved == ([tr.global_step] if mode == "checkpoint" else [])


def test_a_signal_is_on_record_before_the_loop_comes_to_its_next_step(tmp_path: Path) -> None:
    tr = trainer(tmp_path, "checkpoint")
    os.kill(os.getpid(), signal.SIGUSR1)

    def said() -> bool:
        return any(it.body.get("ending") for it in records(tr.run.directory, "hb"))

    wait_until(said, "the heartbeat that says so")
    view = views.open_run(tr.run.directory)
    assert view.state.word == "running"  # It was told to end, and has not.
    tr.finish()


def test_a_checkpoint_that_cannot_be_saved_keeps_no_loop_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(vault: Vault, payload: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Vault, "write", full)
    tr = trainer(tmp_path, "checkpoint")
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: stops(tr), "the stop")
    tr.finish()
    assert records(tr.run.directory, "art") == []
    faults = [it.body for it in records(tr.run.directory, "ev") if it.body["type"] == "fault"]
    assert [(it["component"], "No space left" in it["error"]) for it in faults] == [
        ("checkpoint", True)
    ]


def test_a_loop_that_ends_by_itself_gives_the_signals_back(
    tmp_path: Path, heard: list[int]
) -> None:
    own = signal.getsignal(signal.SIGTERM)
    tr = trainer(tmp_path, "checkpoint")
    assert signal.getsignal(signal.SIGTERM) != own
    tr.finish()
    assert signal.getsignal(signal.SIGTERM) == own


def test_handlers_that_were_left_behind_do_what_the_signal_did_before(
    tmp_path: Path, heard: list[int]
) -> None:
    own = signal.getsignal(signal.SIGTERM)
    tr = trainer(tmp_path, "stop")
    tr.run.finish()  # Not by way of the trainer.
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == own


@pytest.mark.parametrize("given", ["exit", 2, None])
def test_other_ways_to_handle_signals_are_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='True, False, "stop" or "checkpoint"'):
        lht.init("one", state_dir=tmp_path, handle_signals=given)
    assert list(tmp_path.iterdir()) == []
