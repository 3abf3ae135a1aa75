"""Every built-in control on two gloo ranks: alike at every step, or taken back and told."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, only_run, records, series, wait_until
from tests.support.ranks import Ranks, run_ranks

Tell = Callable[[str], None]

DEADLINE_S = 150.0
"""For machines that do much else; the tests themselves take seconds."""

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def send(run: Path, **commands: tuple[str, dict[str, Any]]) -> dict[str, Outcome]:
    """Send commands from outside, by their ids, and wait for their outcomes."""
    for id_, (name, payload) in commands.items():
        inbox.send(run, Command(id_, name, payload, issued_by="a test"))
    wait_until(
        lambda: commands.keys() <= final_outcomes(run).keys(),
        f"{list(commands)} to end",
        timeout_s=DEADLINE_S,
    )
    return {id_: final_outcomes(run)[id_][0] for id_ in commands}


class Job:
    """A small DDP training, the same on all ranks but for its data."""

    def __init__(self, rank: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(1)
        self.linear, self.dropout = torch.nn.Linear(4, 2), torch.nn.Dropout(0.25)
        self.model = DistributedDataParallel(torch.nn.Sequential(self.linear, self.dropout))
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [self.linear.weight], "lr": 0.01, "weight_decay": 0.1},
                {"params": [self.linear.bias], "lr": 0.02, "weight_decay": 0.0},
            ]
        )
        torch.manual_seed(rank)

    def train(self, tr: Any) -> Any:
        import torch

        loss = self.model(torch.randn(3, 4)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        tr.clip_grad_norm_()
        self.optimizer.step()
        return loss

    def held(self, tr: Any) -> dict[str, Any]:
        """Return what this rank holds, read from the things themselves."""
        weights = b"".join(p.detach().numpy().tobytes() for p in self.linear.parameters())
        groups = self.optimizer.param_groups
        return {
            "weights": hashlib.sha256(weights).hexdigest()[:16],
            "lr": [group["lr"] for group in groups],
            "weight_decay": [group["weight_decay"] for group in groups],
            "grad_clip": tr.grad_clip,
            "dropout": self.dropout.p,
            "stop_requested": tr.stop_requested,
            "training": self.dropout.training,
        }


def steered(rank: int, size: int, tell: Tell, root: str) -> list[dict[str, Any]]:
    import torch.distributed as dist

    import launchhelm.torch as lht

    job = Job(rank)

    def evaluate() -> dict[str, float]:
        import torch

        job.model.eval()
        mine = torch.tensor(float(rank))
        dist.all_reduce(mine)  # An evaluation may use collectives of its own.
        return {"ranks": float(mine)}

    tr = lht.init("steered", state_dir=root, collective_timeout_s=5.0)
    controls = ("lr", "weight_decay", "grad_clip", "dropout", "stop", "pause")
    tr.watch(job.model, job.optimizer, controls=controls, eval_fn=evaluate)
    held = []
    while not tr.stop_requested:
        tr.step(loss=job.train(tr))
        held.append(job.held(tr))
        if tr.global_step == 3:
            tell("training")
        time.sleep(0.002)
    tr.finish()
    return held


def test_each_control_acts_at_one_step_on_both_ranks_and_replicas_stay_equal(
    tmp_path: Path,
) -> None:
    """Also through a pause that is longer than ranks may be waited for."""
    with Ranks(steered, 2, deadline_s=DEADLINE_S, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        done = send(
            run,
            decay=("weight_decay", {"value": 0.05}),
            scaled=("weight_decay", {"scale": 0.5, "group": 0}),
            clip=("grad_clip", {"max_norm": 0.01}),
            dropout=("dropout", {"p": 0.5}),
            eval=("eval", {}),
            ping=("ping", {"echo": "hello"}),
        )
        ahead = int(done["ping"].applied_at["step"]) + 400
        inbox.send(run, Command("ahead", "lr", {"lr": 0.03, "group": 1}, first_step=ahead))
        wait_until(lambda: "ahead" in final_outcomes(run), "it to end", timeout_s=DEADLINE_S)
        done["ahead"] = final_outcomes(run)["ahead"][0]
        done |= send(run, pause=("pause", {}))
        paused_at = time.monotonic()
        done |= send(run, meanwhile=("lr", {"scale": 0.5}))
        wait_until(lambda: time.monotonic() - paused_at > 5.5, "a long pause")
        done |= send(run, resume=("resume", {}), stop=("stop", {}))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    ours, theirs = (one.value for one in ended)
    assert ours == theirs
    for name, outcome in done.items():
        assert outcome.state == "applied", (name, outcome)
        assert (outcome.applied_on, outcome.of) == (2, 2), (name, outcome)

    def at(name: str) -> int:
        return int(done[name].applied_at["step"])

    def before_and_after(name: str, value: str) -> tuple[Any, Any]:
        return ours[at(name) - 2][value], ours[at(name) - 1][value]

    assert before_and_after("decay", "weight_decay") == ([0.1, 0.0], [0.05, 0.05])
    assert before_and_after("scaled", "weight_decay") == ([0.05, 0.05], [0.025, 0.05])
    assert before_and_after("clip", "grad_clip") == (None, 0.01)
    assert before_and_after("dropout", "dropout") == (0.25, 0.5)
    # Steps rise by one per call, and it was known long before: it acts just then.
    assert at("ahead") == ahead
    assert before_and_after("ahead", "lr") == ([0.01, 0.02], [0.01, 0.03])
    assert before_and_after("meanwhile", "lr") == ([0.01, 0.03], [0.005, 0.015])
    assert all(each["training"] for each in ours)
    assert done["eval"].result == {"eval/ranks": 1.0}
    assert series(run, "eval/ranks") == [(at("eval"), 1.0)]
    assert done["ping"].result == {"echo": "hello"}
    # Ranks that wait take commands at the step where they wait, and stop where they are told to.
    assert at("pause") == at("meanwhile") == at("resume") < at("stop") == len(ours)
    lost = [it.body for it in records(run, "effect") if "not_effective" in it.body]
    assert lost == []


MOODS = {111: "refuses", 222: "fails", 333: "drifts"}
"""What the second rank does with these values: the digits of the payload's number."""


def moody(control: Any) -> None:
    """Make a control of this rank refuse, fail half way, or set another value than it was told."""
    problem, apply = control.problem, control.apply

    def mood(payload: dict[str, Any]) -> str:
        numbers = [value for value in payload.values() if isinstance(value, float)]
        return MOODS.get(round(numbers[0] * 1000), "") if numbers else ""

    def moody_problem(payload: dict[str, Any]) -> str:
        return "not here" if mood(payload) == "refuses" else problem(payload)

    def moody_apply(payload: dict[str, Any]) -> Any:
        if mood(payload) == "drifts":
            payload = {word: value + 0.1 for word, value in payload.items()}
        result = apply(payload)
        if mood(payload) == "fails":
            raise RuntimeError("bad luck")
        return result

    control.problem, control.apply = moody_problem, moody_apply


def troubled(rank: int, size: int, tell: Tell, root: str) -> list[dict[str, Any]]:
    import warnings

    import launchhelm.torch as lht

    job = Job(rank)

    def evaluate() -> dict[str, float]:
        job.model.eval()
        if rank == 1:
            raise OSError("no data here")
        return {"loss": 1.0}

    tr = lht.init("troubled", state_dir=root, on_partial_failure="continue")
    controls = ("weight_decay", "grad_clip", "dropout", "stop")
    tr.watch(job.model, job.optimizer, controls=controls, eval_fn=evaluate)
    if rank == 1:
        for name in controls[:3]:
            moody(tr._plant._controls[name])
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        while not tr.stop_requested:
            # A schedule of the script, on every rank.
            for group in job.optimizer.param_groups:
                if group["weight_decay"] == 0.444:
                    group["weight_decay"] = 0.1
            tr.step(loss=job.train(tr))
            held.append(job.held(tr))
            if tr.global_step == 3:
                tell("training")
            time.sleep(0.002)
    tr.finish()
    return held


def test_a_rank_that_refuses_fails_or_drifts_changes_no_rank_and_is_named(tmp_path: Path) -> None:
    words = {"weight_decay": "value", "grad_clip": "max_norm", "dropout": "p"}
    with Ranks(troubled, 2, deadline_s=DEADLINE_S, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        outcomes = send(
            run,
            **{
                f"{name}-{mood}": (name, {word: digits / 1000})
                for name, word in words.items()
                for digits, mood in MOODS.items()
            },
            overwritten=("weight_decay", {"value": 0.444}),
            evaluated=("eval", {}),
            stop=("stop", {}),
        )
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    ours, theirs = (one.value for one in ended)
    assert ours == theirs

    overwritten, evaluated = outcomes.pop("overwritten"), outcomes.pop("evaluated")
    assert outcomes.pop("stop").state == "applied"
    for name, outcome in outcomes.items():
        mood = name.partition("-")[2]
        if mood == "refuses":
            assert (outcome.state, outcome.code) == ("rejected", "local_validation"), name
            assert outcome.message == "rank 1: not here"
            continue
        assert (outcome.state, outcome.code) == ("outcome_unknown", "DivergedStateError"), name
        assert (outcome.applied_on, outcome.of, outcome.rolled_back) == (1, 2, True), name
        ((rank, _, text),) = outcome.failures
        assert rank == 1
        assert text.startswith("RuntimeError: bad luck" if mood == "fails" else "ReadBack: holds")
    for step in ours:
        assert step["weight_decay"] in ([0.1, 0.0], [0.444, 0.444], [0.1, 0.1])
        assert (step["grad_clip"], step["dropout"]) == (None, 0.25)
        assert step["training"]

    # A value that the script writes back is applied, then not in effect; both are told.
    assert overwritten.state == "applied" and overwritten.applied_on == 2
    (effect,) = (it.body for it in records(run, "effect") if it.body["cmd"] == "overwritten")
    assert effect["values"] == {"weight_decay": [0.1, 0.1]}
    assert "0.1 in group 0" in effect["not_effective"]

    assert (evaluated.state, evaluated.applied_on, evaluated.of) == ("outcome_unknown", 1, 2)
    ((rank, _, text),) = evaluated.failures
    assert (rank, text) == (1, "OSError: no data here")
    assert evaluated.rolled_back is False


def leaves_while_paused(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    import signal

    import launchhelm.torch as lht

    job = Job(rank)
    tr = lht.init("left", state_dir=root)
    tr.watch(job.model, job.optimizer, controls=("pause",))
    if rank == 1:
        # Ctrl-C reaches one rank only.
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
    steps_without_peers = 0
    with contextlib.suppress(KeyboardInterrupt):
        while steps_without_peers < 3:
            if tr.global_step < 5 or tr._exchange.status.on:  # type: ignore[union-attr]
                job.train(tr)
            else:
                steps_without_peers += 1
            tr.step()
            if tr.global_step == 3:
                tell("training")
            time.sleep(0.002)
    tr.finish()
    return {"step": tr.global_step, "phase": tr._progress.phase}


def test_a_rank_that_leaves_a_pause_ends_it_for_the_others(tmp_path: Path) -> None:
    import signal

    with Ranks(leaves_while_paused, 2, deadline_s=DEADLINE_S, root=str(tmp_path)) as ranks:
        ranks.wait_for(0, "training")
        run = only_run(tmp_path)
        paused = send(run, pause=("pause", {}))["pause"]
        ranks.kill(1, signal.SIGUSR1)
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], ended
    at = paused.applied_at["step"]
    assert (ended[1].value["step"], ended[0].value["step"]) == (at, at + 3)
    said = [it.body["text"] for it in records(run, "ev", rank=0) if it.body["type"] == "notice"]
    assert any("rank 1" in text and "Training goes on" in text for text in said), said


KINDS = ("whole", "fsdp1", "fsdp2", "mixed")


def shard(kind: str, model: Any) -> Any:
    """Return a model that is sharded in one of these ways."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if kind == "fsdp1":
        cpu = torch.device("cpu")
        return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True)
    if kind in ("fsdp2", "mixed"):
        fully_shard(model[0])
    if kind == "fsdp2":
        fully_shard(model)
    return model


def clipped(rank: int, size: int, tell: Tell, root: str) -> dict[str, Any]:
    """Clip one step of the same model on the same data, whole and sharded."""
    import copy

    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    import launchhelm.torch as lht

    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    inputs = torch.randn(5, 8)
    tr = lht.init("sharded", state_dir=root)
    found: dict[str, Any] = {}
    for kind in KINDS:
        model = shard(kind, copy.deepcopy(first))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tr.watch(model, optimizer)
        assert tr._plant.check("grad_clip", {"max_norm": 1.0}, 1) is None
        (model(inputs).square().sum() * 100).backward()
        norms = [tr.clip_grad_norm_()]
        tr._plant.apply("grad_clip", {"max_norm": 1.0}, 1)
        norms.append(tr.clip_grad_norm_())
        tr._plant.apply("grad_clip", {}, 1)
        norms.append(tr.clip_grad_norm_())
        optimizer.step()
        gathered: Any = contextlib.nullcontext()
        if kind == "fsdp1":
            gathered = FullyShardedDataParallel.summon_full_params(model)
        with gathered:
            after = [
                whole.detach().flatten().clone()
                for p in model.parameters()
                for whole in [p.full_tensor() if hasattr(p, "full_tensor") else p]
            ]
        found[kind] = {"norms": norms, "after": torch.cat(after).tolist()}
    tr.finish()
    return found


def test_a_sharded_model_is_clipped_by_the_norm_of_all_shards(tmp_path: Path) -> None:
    ours, theirs = (
        one.value for one in run_ranks(clipped, 2, deadline_s=DEADLINE_S, root=str(tmp_path))
    )
    assert ours == theirs
    whole = ours["whole"]
    assert whole["norms"] == [whole["norms"][0], whole["norms"][0], pytest.approx(1.0, rel=1e-5)]
    assert whole["norms"][0] > 10.0
    for kind in KINDS[1:]:
        assert ours[kind]["norms"] == pytest.approx(whole["norms"], rel=1e-5), kind
        assert ours[kind]["after"] == pytest.approx(whole["after"], abs=1e-5), kind


def resumed(rank: int, size: int, tell: Tell, root: str, run_id: str) -> str:
    import launchhelm.torch as lht

    job = Job(rank)
    tr = lht.init("sizes", state_dir=root, resume=run_id)
    tr.watch(job.model, job.optimizer)
    while job.optimizer.param_groups[0]["weight_decay"] == 0.1:
        tr.step(loss=job.train(tr))
        time.sleep(0.002)
        if not run_id:
            break  # The first attempt ends before anybody commands it.
    tr.finish(close_run=False)
    return tr.run.run_id


@pytest.mark.slow
def test_attempts_may_have_any_world_size_and_a_command_between_them_lands_once(
    tmp_path: Path,
) -> None:
    run_id = run_ranks(resumed, 2, deadline_s=DEADLINE_S, root=str(tmp_path), run_id="")[0].value
    run = only_run(tmp_path)
    for size, command in ((1, "one"), (3, "three")):
        inbox.send(run, Command(command, "weight_decay", {"value": 0.3}))
        run_ranks(resumed, size, deadline_s=DEADLINE_S, root=str(tmp_path), run_id=run_id)
    found = final_outcomes(run)
    ended = {id_: [(it.state, it.applied_on, it.of) for it in all_] for id_, all_ in found.items()}
    assert ended == {"one": [("applied", 1, 1)], "three": [("applied", 3, 3)]}
    writers = {(record.writer.attempt, record.writer.rank) for record in records(run)}
    assert writers == {(1, 0), (1, 1), (2, 0), (3, 0), (3, 1), (3, 2)}
