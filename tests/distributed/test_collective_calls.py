"""What is collective, what is not, and on which thread: counted at the groups themselves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launchhelm.records import Command
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, only_run, records, series, wait_until
from tests.support.ranks import Ranks, run_ranks


def reduces_alone(rank: int, size: int, tell: Callable[[str], None], root: str) -> float:
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    tr = lht.init("alone", state_dir=root, collective_timeout_s=1.5)
    tr.step()
    if rank == 0:
        tr.log_reduced({"loss": 1.0})
    total = torch.ones(1)
    dist.all_reduce(total)  # The script's own group is none of our business.
    tr.finish()
    return total.item()


def test_a_collective_call_that_only_one_rank_makes_names_the_call_the_step_and_who_is_missing(
    tmp_path: Path,
) -> None:
    ended = run_ranks(reduces_alone, 2, root=str(tmp_path))
    assert [one.value for one in ended] == [2.0, 2.0]
    (fault,) = (
        each.body["error"]
        for each in records(only_run(tmp_path), "ev", rank=0)
        if each.body.get("component") == "log_reduced"
    )
    assert "log_reduced at step 1" in fault
    assert "rank 1 on" in fault and "did not come" in fault


def logs_its_own(rank: int, size: int, tell: Callable[[str], None], root: str) -> Any:
    import threading

    import launchhelm.torch as lht
    from launchhelm.torch import _collective

    calls: Counter[str] = Counter()
    threads: set[str] = set()
    make = _collective.make_group

    class Counting:
        """A group that notes each operation and its thread."""

        def __init__(self, group: Any) -> None:
            self._group = group

        def __getattr__(self, name: str) -> Any:
            operation = getattr(self._group, name)

            def counted(*arguments: Any) -> Any:
                calls[name] += 1
                threads.add(threading.current_thread().name)
                return operation(*arguments)

            return counted

    def counting(*arguments: Any) -> Any:
        return Counting(make(*arguments))

    _collective.make_group = counting  # type: ignore[assignment]
    tr = lht.init("own", state_dir=root, log_ranks="all", control_every=10)
    gain, stop = tr.tunable("gain", 0.0), tr.tunable("stop", False)
    calls.clear()
    gains = set()
    while not stop.value:
        step = tr.global_step + 1
        # Other names on every rank, one that logs nothing, one at every third step only.
        if rank == 1 or (rank == 2 and step % 3 == 0):
            tr.log({f"only/{rank}": step, f"text/{rank}": "x"}, step=step)
        tr.step(loss=float(step) if rank == 0 else None)
        gains.add(gain.value)
        if step == 20:
            tell("training")
        time.sleep(0.001)
    exchanges = tr._exchange.status.serial  # type: ignore[union-attr]
    tr.finish()
    return {"calls": calls, "threads": sorted(threads), "steps": tr.global_step,
            "exchanges": exchanges, "gains": sorted(gains)}  # fmt: skip


def test_logging_never_communicates_and_only_the_thread_that_trains_ever_does(
    tmp_path: Path,
) -> None:
    count = 8
    with Ranks(logs_its_own, 4, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        for index in range(count):
            inbox.send(run, Command(f"c{index}", "set_gain", {"value": float(index + 1)}))
        wait_until(lambda: len(final_outcomes(run)) == count, "all outcomes")
        inbox.send(run, Command("stop", "set_stop", {"value": True}))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0] * 4, ended
    steps = ended[0].value["steps"]
    assert steps > 30
    for one in ended:
        assert one.value["threads"] == ["MainThread"]
        assert one.value["gains"] == [float(each) for each in range(count + 1)]
        calls = one.value["calls"]
        # One packet per exchange (one may be ahead), two gathers and their answers per command, and
        # now and then a digest; nothing for what was logged.
        assert set(calls) == {"broadcast", "gather"}
        assert calls["gather"] == 2 * (count + 1)
        beside = calls["broadcast"] - one.value["exchanges"] - 2 * (count + 1)
        assert 0 <= beside <= 4, calls
        assert one.value["exchanges"] <= steps // 10
    assert {name for record in records(run, "m", rank=1) for name in record.body} >= {
        "only/1", "text/1",
    }  # fmt: skip
    assert [step for step, _ in series(run, "only/2", rank=2)] == list(range(3, steps + 1, 3))
    assert not series(run, "train/loss", rank=3)


def two_points(rank: int, size: int, tell: Callable[[str], None], root: str) -> Any:
    import launchhelm.torch as lht

    tr = lht.init("points", state_dir=root)
    gain, stop = tr.tunable("gain", 0.0), tr.tunable("stop", False)
    notes: list[str] = []

    @tr.run.command("after_validation")
    def note(text: str) -> dict[str, int]:
        notes.append(text)
        return {"length": len(text)}

    seen = []
    while not stop.value:
        tr.step()
        tr.run.sync("after_validation", step=tr.global_step)
        seen.append([gain.value, len(notes)])
        if tr.global_step == 5:
            tell("training")
        time.sleep(0.002)
    tr.finish()
    return {"seen": seen, "notes": notes}


def test_two_safe_points_in_one_loop_each_take_their_own_commands(tmp_path: Path) -> None:
    with Ranks(two_points, 2, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        for index in range(4):
            inbox.send(run, Command(f"n{index}", "note", {"text": "x" * index}))
            inbox.send(run, Command(f"g{index}", "set_gain", {"value": index / 4}))
        wait_until(lambda: len(final_outcomes(run)) == 8, "all outcomes")
        inbox.send(run, Command("stop", "set_stop", {"value": True}))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    outcomes = {id_: each for id_, (each,) in final_outcomes(run).items()}
    assert {each.state for each in outcomes.values()} == {"applied"}
    # A handler of the script runs where it was offered; a tunable changes on all ranks at one step.
    assert ended[0].value["notes"] == ["", "x", "xx", "xxx"] and not ended[1].value["notes"]
    for index in range(4):
        step = outcomes[f"g{index}"].applied_at["step"]
        for one in ended:
            assert one.value["seen"][step - 1][0] == index / 4
