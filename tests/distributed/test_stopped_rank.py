"""A rank that is stopped, not ended, is the one that is named; nobody who waits for it is."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchhelm import views
from launchhelm.controls.preview import trouble_text
from launchhelm.views.plan import command_for, plan_of
from launchhelm.views.scene import findings_of
from tests.support.journals import only_run
from tests.support.ranks import Ranks


def trains(rank: int, size: int, tell: Callable[[str], None], root: str) -> None:
    import torch

    import launchhelm.torch as lht

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tr = lht.init("stopped", state_dir=root)
    tr.watch(model, optimizer)
    while not tr.stop_requested:
        time.sleep(0.01)
        tr.step()
        if tr.global_step == 300:  # The heartbeats of the first 3 s have been written.
            tell("training")


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_late_after_20_s_and_the_one_that_waits_for_it_never_blamed(
    tmp_path: Path, stopped: int
) -> None:
    seen: set[str] = set()
    with Ranks(trains, 2, deadline_s=120.0, root=str(tmp_path)) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "training")
        ranks.kill(stopped, signal.SIGSTOP)
        begun = time.monotonic()
        view = views.open_run(only_run(tmp_path))
        while time.monotonic() < begun + 40.0:
            view.refresh()
            states = [row.state for row in view.participants]
            assert states[1 - stopped] == "ok"
            seen.add(states[stopped])
            if states[stopped] == "late":
                break
            time.sleep(0.5)
        # `behind` would be a guess: it may have been where the other one waits.
        assert seen == {"ok", "late"}
        assert view.participants[stopped].age.seconds < 30.0
        (summary,) = views.runs(tmp_path)
        assert summary.state.text == view.state.text == "running, 1 rank late"
        (finding,) = findings_of(view)
        assert f"Rank {1 - stopped} waits for it." in finding.text
        plan = plan_of(view, command_for("lr", {"scale": 0.5}))
        assert plan.trouble == trouble_text({stopped: "late"}) and plan.when.in_s is None
