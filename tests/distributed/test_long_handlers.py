"""A handler may take as long as it takes: what ranks wait for is a sign of life, not a time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launchhelm.records import Command
from launchhelm.store import inbox
from tests.distributed.test_exchange import Loop, diverged, fields, states
from tests.support.journals import final_outcomes, only_run, records, wait_until
from tests.support.ranks import Ranks, run_ranks
from tests.support.scripted import command


def works_long(rank: int, size: int, tell: Any, lives: bool, stays: bool = True) -> Any:
    """Run a handler that takes 5 s on rank 1 with a timeout of 1.5 s.

    Ranks that have raised stay until all have, or are gone before rank 1 is back.
    """
    from launchhelm.torch import _peers
    from launchhelm.torch._beats import Beat
    from launchhelm.torch._errors import DivergedStateError

    _peers._PATIENCE_S = 0.5  # type: ignore[misc]
    numbers = itertools.count(1)

    def beats(ranks: Sequence[int]) -> dict[int, Beat]:
        number = next(numbers) if lives else 1
        return {each: Beat(number, "in job", 3) for each in ranks}

    loop = Loop(
        [fields(command("job", 3, value=0.05, slow=1, by=5.0)), fields(command("x", 4, value=2.0))],
        timeout_s=1.5,
    )
    assert loop.links is not None
    loop.links.beats = beats
    began = time.monotonic()
    try:
        loop.until(lambda: loop.plant.held["x"] == 2.0, 1)
    except DivergedStateError as error:
        loop.exchange.finish()
        tell("raised")
        deadline = time.monotonic() + 60.0
        while stays and not tell.told("raised", size) and time.monotonic() < deadline:
            time.sleep(0.05)
        return loop.report(error=diverged(error), took_s=time.monotonic() - began)
    loop.exchange.finish()
    return loop.report(jobs=loop.plant.jobs)


def test_a_handler_may_outlast_the_timeout_while_its_rank_beats_and_the_next_command_waits() -> (
    None
):
    ended = run_ranks(works_long, 3, lives=True)
    assert states(ended[0]) == {"job-3": "applied", "x-4": "applied"}
    (jobs,) = {tuple(one.value["jobs"]) for one in ended}
    assert len(jobs) == 1
    (last,) = {max(map(int, one.value["seen"])) for one in ended}
    # The next one follows as soon as it is due, after the handler.
    assert jobs[0] <= last <= jobs[0] + 1
    assert list(states(ended[0])) == ["job-3", "x-4"]
    for one in ended:
        assert "in job" in one.value["phases"]
        if one.rank != 1:
            assert any(phase.startswith("waiting at step") for phase in one.value["phases"])


def test_a_rank_without_a_heartbeat_in_its_handler_is_given_up_and_named() -> None:
    ended = run_ranks(works_long, 3, lives=False)
    for one in ended:
        assert one.value["error"]["failures"][0][0] == 1
        assert "rank 1" in one.value["error"]["failures"][0][1]
    assert "last heard of at step 3, in job" in ended[0].value["error"]["failures"][0][1]
    (outcome, *_) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["applied_on"], outcome["of"]) == ("outcome_unknown", 2, 3)


def test_a_rank_that_comes_back_from_its_handler_when_all_others_are_gone_raises_too() -> None:
    ended = run_ranks(works_long, 3, lives=False, stays=False)
    for one in ended:
        assert one.value["error"]["failures"]
    assert ended[0].value["error"]["failures"][0][0] == 1
    assert states(ended[0])["job-3"] == "outcome_unknown"


def evaluates(rank: int, size: int, tell: Callable[[str], None], root: str) -> Any:
    import torch

    import launchhelm.torch as lht
    from launchhelm._recorder import Recorder

    assert Recorder.__init__.__kwdefaults__ is not None
    Recorder.__init__.__kwdefaults__["heartbeat_s"] = 0.3
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def evaluate() -> dict[str, float]:
        tell("evaluates")
        time.sleep(3.0 * rank)
        return {"loss": 0.5}

    tr = lht.init("long", state_dir=root, collective_timeout_s=1.0)
    tr.watch(None, optimizer, eval_fn=evaluate)  # type: ignore[arg-type]
    stop = tr.tunable("stop", False)
    rates = []
    while not stop.value:
        tr.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if tr.global_step == 3:
            tell("training")
        time.sleep(0.002)
    tr.finish()
    return rates


def test_an_evaluation_beats_with_its_phase_and_a_command_sent_meanwhile_is_applied_after_it(
    tmp_path: Path,
) -> None:
    with Ranks(evaluates, 2, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        inbox.send(run, Command("eval", "eval", {}))
        ranks.wait_for(1, "evaluates")
        inbox.send(run, Command("halve", "lr", {"scale": 0.5}))
        wait_until(lambda: final_outcomes(run).get("halve"), "the second outcome")
        inbox.send(run, Command("stop", "set_stop", {"value": True}))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    outcomes = {id_: each for id_, (each,) in final_outcomes(run).items()}
    assert {id_: each.state for id_, each in outcomes.items()} == {
        "eval": "applied", "halve": "applied", "stop": "applied",
    }  # fmt: skip
    assert outcomes["halve"].applied_at["step"] > outcomes["eval"].applied_at["step"]
    assert ended[0].value == ended[1].value
    beats = [record.body for record in records(run, "hb", rank=1)]
    evaluating = [beat for beat in beats if beat["phase"] == "in eval"]
    assert len(evaluating) >= 4, [beat["phase"] for beat in beats]
    assert evaluating[-1]["phase_s"] > evaluating[0]["phase_s"]
