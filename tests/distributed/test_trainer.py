"""Trainers on real gloo ranks: one run, one step for every command, honest ends."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm import views
from launchhelm.cli import main
from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from launchhelm.store.manifest import attempts
from tests.support.jobs import run_job
from tests.support.journals import final_outcomes, only_run, records, series, wait_until
from tests.support.ranks import Ranks, run_ranks
from tests.support.storm import storm

CUDA = os.path.exists("/dev/nvidiactl")
Tell = Callable[[str], None]


def make_optimizer(*rates: float) -> Any:
    import torch

    return torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in rates]
    )


def late(rank: int, size: int, tell: Tell, root: str) -> str:
    """Come and go at another moment than the others, and tear down in another order."""
    import torch.distributed as dist

    import launchhelm.torch as lht

    time.sleep((0.6, 0.0, 0.3, 0.1)[rank])
    tr = lht.init("late", state_dir=root)
    for _ in range(3):
        tr.step(loss=rank)
    time.sleep((0.0, 0.3, 1.2, 0.6)[rank])
    if rank == 1:
        dist.destroy_process_group()
    tr.finish()
    tr.step(loss=9)  # What comes after the end has no effect, whoever still trains.
    tr.log_reduced({"late": 1})
    tr.finish()
    if rank == 2:
        dist.destroy_process_group()
    return tr.run.run_id


def test_ranks_that_come_and_go_at_different_moments_write_one_run(tmp_path: Path) -> None:
    ended = run_ranks(late, 4, root=str(tmp_path))
    run = only_run(tmp_path)
    assert not any("Traceback" in one.stderr for one in ended)
    for rank in range(4):
        (close,) = records(run, "close", rank=rank)
        assert close.body["state"] == "finished"
    assert {one.value for one in ended} == {run.name}
    lines = [line for one in ended for line in (one.stdout + one.stderr).splitlines()]
    assert len([line for line in lines if run.name in line]) == 1
    assert len({record.writer for record in records(run)}) == 4
    assert series(run, "train/loss") == [(1, 0), (2, 0), (3, 0)]


def participate(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    from dataclasses import asdict

    import launchhelm.torch as lht

    tr = lht.init("facts", state_dir=root, log_ranks="all")
    tr.step(loss=rank)
    tr.finish()
    facts = asdict(tr.control)
    return {**facts, "is_coordinator": tr.control.is_coordinator}


def test_every_rank_says_where_it_stands(tmp_path: Path) -> None:
    ended = run_ranks(
        participate, 2, root=str(tmp_path), environment={"TORCHELASTIC_RESTART_COUNT": "0"}
    )
    for rank, one in enumerate(ended):
        assert one.value == {
            "rank": rank,
            "group_rank": rank,
            "world_size": 2,
            "local_rank": rank,
            "coordinator": 0,
            "hostname": os.uname().nodename,
            "distributed": True,
            "is_coordinator": rank == 0,
        }
    run = only_run(tmp_path)
    assert series(run, "train/loss", rank=1) == [(1, 1)]
    for rank, seen in enumerate(views.open_run(run).participants):
        assert (seen.name, seen.role, seen.rank) == (f"rank-{rank}", "trainer", rank)
        assert seen.labels == {
            "launchhelm.rank": str(rank),
            "launchhelm.group_rank": str(rank),
            "launchhelm.world_size": "2",
            "launchhelm.local_rank": str(rank),
            "launchhelm.node": os.uname().nodename,
            "launchhelm.elastic.restart_count": "0",
        }


def controlled(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    import torch

    import launchhelm.torch as lht

    optimizer = make_optimizer(0.1, 0.2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    tr = lht.init("controlled", state_dir=root)
    tr.watch(torch.nn.Linear(1, 1), optimizer, scheduler)
    stop = tr.tunable("stop", False)
    rates = []
    while not stop.value:
        optimizer.step()
        scheduler.step()
        tr.step(loss=1.0)
        rates.append([group["lr"] for group in optimizer.param_groups])
        if tr.global_step == 3:
            tell("training")
        time.sleep(0.002)
    tr.finish()
    return {"rates": rates, "capabilities": sorted(tr.capabilities)}


def send(run: Path, id_: str, name: str, **payload: Any) -> Outcome:
    """Send a command from outside and wait for its outcome."""
    inbox.send(run, Command(id_, name, payload, issued_by="a test"))
    outcomes = wait_until(lambda: final_outcomes(run).get(id_), f"the outcome of {id_}")
    return outcomes[0]  # type: ignore[no-any-return]


def test_a_command_lands_on_every_rank_at_one_step(tmp_path: Path) -> None:
    with Ranks(controlled, 2, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        halved = send(run, "halve", "lr", scale=0.5)
        refused = send(run, "refuse", "lr", scale=0.5, lr=0.1)
        send(run, "stop", "set_stop", value=True)
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[0].value["rates"] == ended[1].value["rates"]
    assert {"lr", "ping", "set_stop"} <= set(ended[0].value["capabilities"])
    assert ended[1].value["capabilities"] == []

    assert halved.state == "applied", halved
    assert (halved.applied_on, halved.of) == (2, 2)
    at = halved.applied_at["step"]
    rates = ended[0].value["rates"]
    for step in range(1, len(rates) + 1):
        factor = 0.5 if step >= at else 1.0
        scheduled = 1.0 / (1 + step)
        assert rates[step - 1] == [0.1 * scheduled * factor, 0.2 * scheduled * factor]
    old = [0.1 * (1.0 / (1 + at)), 0.2 * (1.0 / (1 + at))]
    new = [rate * 0.5 for rate in old]
    assert halved.changes["lr"] == {"old": old, "new": new, "factors": [0.5, 0.5]}
    assert halved.result == {"lr": [rate * 0.5 for rate in old]}

    # What the rate came to after the scheduler moved once more, and that it is logged at once.
    (effect,) = (one for one in records(run, "effect") if one.body["cmd"] == "halve")
    assert effect.body["step"] == at + 1
    assert effect.body["values"] == {"lr": rates[at]} and "not_effective" not in effect.body
    logged = dict(series(run, "optim/lr/group0"))
    assert logged[at] == old[0] and logged[at + 1] == rates[at][0]

    assert (refused.state, refused.code) == ("rejected", "local_validation")
    shown = [record.body for record in records(run, "ctl")]
    assert shown[0]["control"] == "on"
    assert any(each["step"] == at for each in shown)


def test_what_was_commanded_is_taken_back_on_every_rank_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def revert(id_: str) -> tuple[int, str, str]:
        words = ("control", "latest", "revert", id_, "--timeout", "60", "--json")
        code = main(["--root", str(tmp_path), *words])
        return code, *capsys.readouterr()

    with Ranks(controlled, 2, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        first = send(run, "first", "lr", lr=0.05)
        send(run, "second", "lr", scale=0.5, group=1)
        said = [revert(id_) for id_ in ("first", "second", "first")]
        send(run, "stop", "set_stop", value=True)
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[0].value["rates"] == ended[1].value["rates"]
    assert [code for code, _, _ in said] == [6, 0, 0], said
    assert "command second has changed it since; undo that one first" in said[0][2]
    undone = [json.loads(out) for _, out, _ in said[1:]]
    assert undone[0]["payload"] == {"scale": 2.0, "group": 1}
    assert list(undone[1]["payload"]) == ["scales"]
    assert [each["applied_on"] for each in undone] == [2, 2]
    rates = ended[0].value["rates"]
    for step in range(1, len(rates) + 1):
        scheduled = [0.1 * (1.0 / (1 + step)), 0.2 * (1.0 / (1 + step))]
        is_as_scheduled = rates[step - 1] == scheduled
        changed = range(first.applied_at["step"], undone[1]["applied_at"]["step"])
        assert is_as_scheduled != (step in changed), step


def unlucky(rank: int, size: int, tell: Tell, root: str, reaction: str) -> dict[str, Any]:
    import warnings

    import launchhelm.torch as lht
    from launchhelm.torch import Tunable

    if rank == 1:
        take = Tunable.take

        def fail(self: Tunable, value: object) -> None:
            take(self, value)
            if value == 0.25:
                raise RuntimeError("this rank had bad luck")

        Tunable.take = fail  # type: ignore[method-assign]
    tr = lht.init("unlucky", state_dir=root, on_partial_failure=reaction)
    tr.watch(None, make_optimizer(0.1))  # type: ignore[arg-type]
    gain = tr.tunable("gain", 0.5)
    raised: list[Any] = []
    warned = []
    deadline = time.monotonic() + 40
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while not raised and not warned and time.monotonic() < deadline:
            try:
                tr.step(loss=1.0)
            except lht.DivergedStateError as error:
                raised.append([error.capability, error.failures, error.applied_on, error.of])
                raised.append([error.rolled_back, error.state_consistent])
            warned = [str(each.message) for each in caught if each.category is RuntimeWarning]
            if tr.global_step == 3:
                tell("training")
            time.sleep(0.002)
    again = 0
    try:
        tr.step(loss=1.0)
    except lht.DivergedStateError:
        again = 1
    value = gain.value
    tr.finish()
    tr.step(loss=1.0)
    return {"raised": raised, "warned": len(warned), "again": again, "value": value}


@pytest.mark.parametrize("reaction", ["raise", "continue"])
def test_a_rank_that_fails_is_named_on_every_rank_and_all_roll_back(
    reaction: str, tmp_path: Path
) -> None:
    with Ranks(unlucky, 2, root=str(tmp_path), reaction=reaction) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        outcome = send(run, "gain", "set_gain", value=0.25)
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    for one in ended:
        assert one.value["value"] == 0.5
        if reaction == "raise":
            (capability, failures, applied_on, of), (rolled_back, consistent) = one.value["raised"]
            assert (capability, applied_on, of) == ("set_gain", 1, 2)
            assert failures == [[1, "RuntimeError: this rank had bad luck"]]
            assert rolled_back is not False and consistent is not False
            assert one.value["again"] == 1
        else:
            assert one.value["warned"] == 1 and one.value["again"] == 0
    assert (outcome.state, outcome.code) == ("outcome_unknown", "DivergedStateError")
    assert (outcome.applied_on, outcome.of, outcome.rolled_back) == (1, 2, True)
    for rank in (0, 1):
        (close,) = records(run, "close", rank=rank)
        assert close.body["state"] == "finished"


def not_writable(rank: int, size: int, tell: Tell, root: str) -> str:
    import launchhelm.torch as lht
    from launchhelm.errors import LaunchHelmError

    try:
        lht.init("x", state_dir=root)
    except LaunchHelmError as error:
        return f"{type(error).__name__} {error.code}"
    return "no error"


def test_a_coordinator_that_cannot_open_the_run_tells_its_peers(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a directory")
    ended = run_ranks(not_writable, 2, root=str(occupied / "runs"))
    assert [one.value for one in ended] == ["ConfigError config", "Unavailable unavailable"]


def lonely(rank: int, size: int, tell: Tell, root: str) -> str:
    import launchhelm.torch as lht
    from launchhelm.errors import ConfigError, LaunchHelmError
    from launchhelm.run import Run

    if rank == 1:

        def refuse(*_: Any, **__: Any) -> Run:
            raise ConfigError("not writable from this host")

        Run.attach = refuse  # type: ignore[method-assign]
    try:
        lht.init("x", state_dir=root)
    except LaunchHelmError as error:
        return f"{type(error).__name__} {error.code}"
    return "no error"


def test_a_rank_that_cannot_write_the_run_ends_init_on_every_rank(tmp_path: Path) -> None:
    ended = run_ranks(lonely, 2, root=str(tmp_path))
    assert [one.value for one in ended] == ["Unavailable unavailable", "ConfigError config"]
    (close,) = records(only_run(tmp_path), "close", rank=0)
    assert close.body["state"] == "error"


def reduce(rank: int, size: int, tell: Tell, root: str) -> None:
    import torch

    import launchhelm.torch as lht

    tr = lht.init("reduce", state_dir=root)
    tr.step()
    tr.log_reduced({"mean": rank, "array": torch.tensor([1.0, 3.0]) * rank})
    tr.log_reduced({"sum": 2 * rank + 1}, op="sum", step=7)
    tr.log_reduced({"max": rank, "min": -rank}, op="max")
    with pytest.raises(ValueError):
        tr.log_reduced({"x": 1}, op="median")
    tr.finish()
    tr.log_reduced({"late": 1})


def test_reduced_metrics_are_logged_once_by_the_coordinator(tmp_path: Path) -> None:
    run_ranks(reduce, 2, root=str(tmp_path))
    run = only_run(tmp_path)
    assert series(run, "mean") == [(1, 0.5)]
    assert series(run, "array") == [(1, 1.0)]
    assert series(run, "sum") == [(7, 4.0)]
    assert series(run, "max") == [(1, 1.0)] and series(run, "min") == [(1, 0.0)]
    assert series(run, "late") == []


def in_pairs(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    import torch.distributed as dist

    import launchhelm.torch as lht

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    tr = lht.init(
        "pairs", state_dir=root, name=f"pair-{rank // 2}", process_group=groups[rank // 2]
    )
    for _ in range(5):
        tr.step(loss=rank)
    with pytest.raises(ValueError):
        lht.init("pairs", state_dir=root, process_group=groups[1 - rank // 2])
    tr.finish()
    return {"run": tr.run.run_id, "group_rank": tr.control.group_rank, "rank": tr.control.rank}


def test_two_groups_of_one_job_write_two_runs(tmp_path: Path) -> None:
    ended = run_ranks(in_pairs, 4, root=str(tmp_path))
    runs = [one.value["run"] for one in ended]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    assert [one.value["group_rank"] for one in ended] == [0, 1, 0, 1]
    assert [one.value["rank"] for one in ended] == [0, 1, 2, 3]
    assert series(tmp_path / runs[2], "train/loss") == [(step, 2) for step in range(1, 6)]


def sampled(rank: int, size: int, tell: Tell, root: str) -> None:
    import launchhelm.torch as lht

    tr = lht.init("sampled", state_dir=root, system_metrics=True, system_interval=0.05)
    tr.step(step=41)
    tr.step()
    time.sleep(0.3)
    tr.finish()


def test_one_rank_of_a_node_samples_the_host_at_its_own_step(tmp_path: Path) -> None:
    run_ranks(sampled, 2, root=str(tmp_path))
    run = only_run(tmp_path)
    assert series(run, "system/collector", rank=0)
    assert (42, "system/process_rss_bytes") in [
        (record.step, name) for record in records(run, "m", "sys", rank=0) for name in record.body
    ]
    assert not [
        name
        for record in records(run, "m", "sys", rank=1)
        for name in record.body
        if name.startswith("system/")
    ]


def on_devices(rank: int, size: int, tell: Tell, root: str) -> int:
    import torch
    import torch.distributed as dist

    import launchhelm.torch as lht

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    tr = lht.init("devices", state_dir=root, control="required")
    tr.watch(None, torch.optim.SGD([parameter], lr=torch.tensor(0.1, device="cuda")))  # type: ignore[arg-type]
    for _ in range(20):
        tr.step(loss=(parameter * 2).sum())
    tr.finish()
    dist.destroy_process_group()
    return tr.control.world_size


@pytest.mark.skipif(not CUDA, reason="NCCL needs an NVIDIA device; not covered here")
def test_a_job_that_trains_with_nccl_is_controlled_by_gloo(tmp_path: Path) -> None:
    ended = run_ranks(on_devices, 1, group=False, root=str(tmp_path))
    assert ended[0].value == 1
    run = only_run(tmp_path)
    assert [value for _, value in series(run, "train/loss")] == [4.0] * 20


ELASTIC = """
import os
import torch.distributed as dist
import launchhelm.torch as lht

dist.init_process_group("gloo")
tr = lht.init("elastic", name="restarted")
for step in range(10):
    tr.step(step=step, loss=1.0)
    if step == 5 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        tr.run.flush(delivered=False)
        dist.barrier()
        raise RuntimeError("first try")
tr.finish()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_restart_by_torchrun_is_another_attempt_of_the_same_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ELASTIC)
    job = run_job(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node=2", "--max-restarts=2", str(script)),
        ],
        tmp_path,
        # Torch 2.13 otherwise gives a restarted gloo job the store of its predecessor, with the
        # addresses of dead processes in it; no script gets beyond init_process_group then.
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )
    assert job.code == 0, job.said
    run = only_run(tmp_path / "runs")
    found = attempts(run)
    assert [(one.number, one.restart_count) for one in found] == [(1, 0), (2, 1)]
    steps = {number: [] for number in (1, 2)}  # type: dict[int, list[int | None]]
    for record in records(run, "m", rank=0):
        steps[record.writer.attempt].append(record.step)
    assert steps == {1: list(range(6)), 2: list(range(10))}


def test_a_few_commands_in_a_storm_leave_four_ranks_identical(tmp_path: Path) -> None:
    storm(tmp_path, ranks=4, count=12, seed=7, deadline_s=90.0).check()
