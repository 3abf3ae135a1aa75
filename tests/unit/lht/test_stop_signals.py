"""Termination signals in one process, with and without control."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import launchhelm.torch as lht
from tests.support.journals import records, wait_until


@pytest.mark.parametrize("control", ["auto", "off"])
def test_a_signal_asks_the_loop_to_stop_and_ends_nothing(control: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        tr = lht.init("one", state_dir=tmp_path, handle_signals="stop", control=control)
        tr.watch(torch.nn.Linear(1, 1), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1))
        tr.step()
        os.kill(os.getpid(), signal.SIGTERM)

        def stops() -> bool:
            tr.step()
            return tr.stop_requested

        wait_until(stops, "the stop")
        # What the script had for this signal still runs.
        assert heard == [signal.SIGTERM]
        tr.finish()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
        (close,) = (it.body for it in records(tr.run.directory, "close"))
        assert (close["state"], close["reason"]) == ("terminated", "SIGTERM on rank 0")
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("given", ["exit", 2, None])
def test_other_ways_to_handle_signals_are_refused(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='True, False or "stop"'):
        lht.init("one", state_dir=tmp_path, handle_signals=given)
    assert list(tmp_path.iterdir()) == []
