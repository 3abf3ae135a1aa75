"""The control exchange between real gloo processes: agreement, refusal, loss, leaving."""

from __future__ import annotations

import gc
import random
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from launchhelm.records import Command
from tests.support.ranks import Ended, Ranks, run_ranks
from tests.support.scripted import ScriptedDesk, ScriptedPlant, Shown, command

STEP_S = 0.001


class Loop:
    """One rank's training loop: an exchange, and what every step saw."""

    def __init__(self, commands: Sequence[dict[str, Any]] = (), **options: Any) -> None:
        from launchhelm.torch._collective import make_links
        from launchhelm.torch._exchange import Exchange

        link_options = {
            name: options.pop(name)
            for name in ("process_group", "timeout_s", "agree_s", "required")
            if name in options
        }
        durable_after_s = options.pop("durable_after_s", 0.005)
        self.links = make_links(**link_options)
        rank = self.links.rank if self.links else 0
        self.desk = ScriptedDesk(
            [Command(**fields) for fields in commands], durable_after_s=durable_after_s
        )
        self.plant = ScriptedPlant(rank)
        self.shown = Shown()
        self.notices: list[str] = []
        self.seen: dict[int, list[float]] = {}
        self.exchange = Exchange(
            links=self.links,
            desk=self.desk if rank == 0 else None,
            plant=self.plant,
            progress=self.shown,
            notice=self.notices.append,
            **options,
        )

    def step(self, step: int, pause_s: float = STEP_S) -> None:
        time.sleep(pause_s)
        self.exchange.on_call(step)
        self.seen[step] = sorted(self.plant.held.values())

    def steps(self, first: int, last: int, pause_s: float = STEP_S) -> None:
        for step in range(first, last + 1):
            self.step(step, pause_s)

    def until(self, condition: Callable[[], bool], first: int, limit_s: float = 20.0) -> int:
        """Take steps until something holds; return the next step."""
        deadline = time.monotonic() + limit_s
        step = first
        while not condition():
            assert time.monotonic() < deadline, f"it never came; notices: {self.notices}"
            self.step(step, 0.005)
            step += 1
        return step

    def report(self, **more: Any) -> dict[str, Any]:
        return {
            "seen": {str(step): values for step, values in self.seen.items()},
            "outcomes": self.desk.bodies(),
            "notices": self.notices,
            "on": self.exchange.status.on,
            "phases": self.shown.phases,
            **more,
        }


def diverged(error: Any, **more: Any) -> dict[str, Any]:
    """Make JSON of a DivergedStateError."""
    return {
        "capability": error.capability,
        "failures": [list(failure) for failure in error.failures],
        "applied_on": error.applied_on,
        "of": error.of,
        "rolled_back": error.rolled_back,
        "consistent": error.state_consistent,
        **more,
    }


def fields(one: Command) -> dict[str, Any]:
    """Make JSON of a command."""
    return {"id": one.id, "name": one.name, "payload": dict(one.payload),
            "first_step": one.first_step, "last_step": one.last_step}  # fmt: skip


def assert_equal_at_every_common_step(ended: Sequence[Ended]) -> None:
    seen = [one.value["seen"] for one in ended]
    common = set.intersection(*(set(each) for each in seen))
    assert common
    for step in common:
        assert len({tuple(each[step]) for each in seen}) == 1, f"step {step}: {seen}"


def states(ended: Ended) -> dict[str, str]:
    return {outcome["cmd"]: outcome["state"] for outcome in ended.value["outcomes"]}


def _many(rank: int, size: int, tell: Any, commands: Any, steps: int) -> Any:
    warnings.simplefilter("ignore")
    loop = Loop(commands, on_partial_failure="continue")
    loop.exchange._pace.target_s = 0.02  # Many commands in a short test.
    chance = random.Random(rank)
    for step in range(1, steps + 1):
        loop.step(step, chance.random() * 2 * STEP_S)
    loop.exchange.finish()
    return loop.report()


def many_commands(count: int, steps: int, seed: int) -> tuple[list[Command], dict[str, str]]:
    """Make commands at random steps, and the state that each must end in."""
    chance = random.Random(seed)
    commands, expected = [], {}
    for first in sorted(chance.sample(range(1, steps // 2), count)):
        name = chance.choice(("lr", "x"))
        value = round(chance.random(), 6)
        kind = chance.choice(("good", "good", "invalid", "unknown", "refuse", "fail"))
        if kind == "good":
            one, state = command(name, first, value=value), "applied"
        elif kind == "invalid":
            one, state = command(name, first, value=-value), "rejected"
        elif kind == "unknown":
            one, state = command("nothing", first, value=value), "rejected"
        elif kind == "refuse":
            one, state = command(name, first, value=value, refuse=chance.randrange(4)), "rejected"
        else:
            how = chance.choice(("snapshot", "half", "odd"))
            one = command(name, first, value=value, fail=chance.randrange(4), how=how)
            state = "outcome_unknown"
        commands.append(one)
        expected[one.id] = state
    return commands, expected


def check_many(count: int, steps: int, seed: int) -> None:
    """Run many commands of all kinds on four ranks and judge every step and outcome."""
    commands, expected = many_commands(count, steps, seed)
    ended = run_ranks(_many, 4, commands=[fields(one) for one in commands], steps=steps)
    assert_equal_at_every_common_step(ended)
    assert states(ended[0]) == expected, f"seed {seed}"
    assert not any(one.value["notices"] for one in ended)
    for outcome in ended[0].value["outcomes"]:
        if outcome["state"] == "outcome_unknown":
            assert outcome["rolled_back"] is True
            assert outcome["applied_on"] == 3
            assert len(outcome["failures"]) == 1


def test_commands_of_all_kinds_leave_four_ranks_alike_at_every_step() -> None:
    check_many(14, 900, seed=2)


def _fails(rank: int, size: int, tell: Any, how: str) -> Any:
    from launchhelm.torch._errors import DivergedStateError

    loop = Loop([fields(command("lr", 3, value=0.5, fail=1, how=how))])
    try:
        loop.until(lambda: False, 1)
    except DivergedStateError as error:
        step = len(loop.seen) + 1
        try:
            loop.step(step + 1)
        except DivergedStateError as again:
            assert again.failures == error.failures
            loop.exchange.finish()
            return loop.report(error=diverged(error, at=step), values=loop.plant.held)
    raise AssertionError("no error")


@pytest.mark.parametrize("how", ["half", "stuck"])
def test_a_failure_on_one_rank_raises_on_all_at_the_same_step(how: str) -> None:
    ended = run_ranks(_fails, 3, how=how)
    (error,) = {str(one.value["error"]) for one in ended}
    fact = ended[0].value["error"]
    undone = how == "half"
    assert fact["failures"][0] == [1, "RuntimeError: half way"], error
    assert (fact["applied_on"], fact["of"]) == (2, 3)
    assert (fact["rolled_back"], fact["consistent"]) == (undone, undone)
    assert ended[0].value["values"]["lr"] == 0.1
    (outcome,) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["applied_on"]) == ("outcome_unknown", 2)
    assert outcome["rolled_back"] is undone
    assert outcome["failures"][0][0] == 1
    assert outcome["failures"][0][1], "no host"


def _every_third(rank: int, size: int, tell: Any, commands: Any) -> Any:
    loop = Loop(commands, control_every=3)
    for call in range(1, 31):
        loop.step(7 * call)  # Never mind what the steps are called: calls count.
    loop.exchange.finish()
    return loop.report()


def test_control_every_applies_at_every_third_call_whatever_the_step_numbers() -> None:
    commands = [fields(command("lr", 20, value=0.5)), fields(command("x", 70, value=2.0))]
    ended = run_ranks(_every_third, 2, commands=commands)
    assert_equal_at_every_common_step(ended)
    at = [outcome["applied_at"]["step"] for outcome in ended[0].value["outcomes"]]
    assert len(at) == 2
    assert all(step % 21 == 0 for step in at)


def _later_steps(rank: int, size: int, tell: Any) -> Any:
    paced = Loop([fields(command("lr", 200, value=0.5)), fields(command("lr", 330, value=0.6))])
    third = Loop([fields(command("lr", 200, value=0.5))], control_every=3)
    for step in range(1, 400):
        paced.step(step, 0.003)
        third.step(step, 0.0)
    paced.exchange.finish()
    third.exchange.finish()
    return [paced.report(), third.report()]


def test_a_command_for_a_later_step_lands_on_all_ranks_at_just_that_step() -> None:
    ended = run_ranks(_later_steps, 2)
    paced, third = ended[0].value
    at = [outcome["applied_at"]["step"] for outcome in paced["outcomes"] + third["outcomes"]]
    assert at == [200, 330, 201], "of every third call, the first that is not before it"
    for one in ended:
        for report, first in zip(one.value, (200, 201), strict=True):
            assert report["seen"][str(first - 1)] == [0.1, 1.0]
            assert report["seen"][str(first)] == [0.5, 1.0]


IN_A_ROW = [
    Command("a", "lr", {"value": 0.5}, first_step=200),
    Command("b", "x", {"value": 2.0}, first_step=200),
    Command("refused by one", "x", {"value": 3.0, "refuse": 1}, first_step=200),
    Command("c", "job", {"value": 0.0}, first_step=200),
    Command("d", "lr", {"value": 0.6, "note": "long" * 300}, first_step=200),
    Command("e", "lr", {"value": 0.7}, first_step=201),
    Command("f", "x", {"value": 4.0}, first_step=201),
    Command("g", "lr", {"value": 0.8}, first_step=202),
    Command("h", "lr", {"value": 0.9}, first_step=206),
]


def _in_a_row(rank: int, size: int, tell: Any, commands: Any) -> Any:
    paced, third = Loop(commands), Loop(commands, control_every=3)
    for step in range(1, 300):
        paced.step(step, 0.003)
        third.step(step, 0.0)
    paced.exchange.finish()
    third.exchange.finish()
    return [paced.report(jobs=paced.plant.jobs), third.report(jobs=third.plant.jobs)]


def test_several_commands_for_one_step_and_for_neighbouring_ones_land_at_just_those_steps() -> None:
    ended = run_ranks(_in_a_row, 2, commands=[fields(each) for each in IN_A_ROW])
    paced, third = ended[0].value
    assert [each["cmd"] for each in paced["outcomes"]] == [each.id for each in IN_A_ROW]
    for report, last in ((paced, (200, 201, 202, 206)), (third, (201, 201, 204, 207))):
        at = dict(zip((200, 201, 202, 206), last, strict=True))
        for outcome, sent in zip(report["outcomes"], IN_A_ROW, strict=True):
            if sent.id == "refused by one":
                assert (outcome["state"], outcome["failures"][0][0]) == ("rejected", 1)
            else:
                assert outcome["state"] == "applied"
                assert outcome["applied_at"] == {"step": at[sent.first_step or 0]}, outcome
    for one in ended:
        paced, third = one.value
        assert [paced["seen"][str(step)] for step in (199, 200, 201, 202, 205, 206)] == [
            [0.1, 1.0], [0.6, 2.0], [0.7, 4.0], [0.8, 4.0], [0.8, 4.0], [0.9, 4.0]
        ]  # fmt: skip
        assert (paced["jobs"], third["jobs"]) == ([200], [201])
        assert not paced["notices"] + third["notices"]


def _other_steps(rank: int, size: int, tell: Any, commands: Any) -> Any:
    loop = Loop(commands, control_every=2)
    loop.steps(1 + rank, 40 + rank)
    loop.exchange.finish()
    return loop.report()


def test_ranks_at_different_steps_refuse_commands_and_go_on() -> None:
    ended = run_ranks(_other_steps, 2, commands=[fields(command("lr", 3, value=0.5))])
    (outcome,) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["code"]) == ("rejected", "steps_differ")
    assert "rank 1 at step" in outcome["message"]
    assert all(one.value["on"] for one in ended if one.rank == 0)


def _late_record(rank: int, size: int, tell: Any) -> Any:
    from launchhelm.torch import _exchange

    _exchange.RECORD_LIMIT_S = 0.1  # type: ignore[misc]
    loop = Loop([fields(command("lr", 3, value=0.5))], durable_after_s=1e9)
    loop.steps(1, 300)
    loop.exchange.finish()
    return loop.report()


def test_a_record_that_does_not_become_durable_refuses_the_command_everywhere() -> None:
    ended = run_ranks(_late_record, 2)
    (outcome,) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["code"]) == ("rejected", "storage_unavailable")
    assert_equal_at_every_common_step(ended)
    assert ended[1].value["seen"]["300"] == [0.1, 1.0]


def _handler(rank: int, size: int, tell: Any) -> Any:
    loop = Loop([fields(command("job", 3, value=0.3)), fields(command("x", 4, value=2.0))])
    loop.steps(1, 400)
    loop.exchange.finish()
    return loop.report(jobs=loop.plant.jobs)


def test_a_handler_runs_on_every_rank_at_one_step_and_shows_its_phase() -> None:
    ended = run_ranks(_handler, 2)
    assert states(ended[0]) == {"job-3": "applied", "x-4": "applied"}
    (jobs,) = {tuple(one.value["jobs"]) for one in ended}
    assert len(jobs) == 1
    assert all("in job" in one.value["phases"] for one in ended)


def _live_on(rank: int, size: int, tell: Any, victim: int, commands: Any) -> Any:
    """Train until control goes off, and a while longer."""
    from launchhelm.torch._errors import DivergedStateError

    loop = Loop(commands)
    step = loop.until(lambda: len(loop.seen) == 20, 1)
    tell("trained")
    began = time.monotonic()
    try:
        if rank == victim:
            loop.until(lambda: False, step, limit_s=40.0)
        step = loop.until(lambda: not loop.exchange.status.on, step)
        took_s = time.monotonic() - began
        loop.until(lambda: len(loop.desk.outcomes) == len(commands) or rank != 0, step)
    except DivergedStateError as error:
        took_s = time.monotonic() - began
        loop.exchange.finish()
        return loop.report(error=diverged(error), took_s=took_s, text=str(error))
    loop.exchange.finish()
    return loop.report(took_s=took_s)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_while_idle_is_named_and_training_goes_on(victim: int) -> None:
    commands = [fields(command("lr", 10**6, value=0.5))]
    with Ranks(_live_on, 3, victim=victim, commands=commands if victim == 0 else []) as ranks:
        for rank in range(3):
            ranks.wait_for(rank, "trained")
        ranks.kill(victim)
        ended = ranks.wait(*({0, 1, 2} - {victim}))
    for one in ended:
        assert one.code == 0, one.stderr
        assert one.value["took_s"] < 10
        (notice,) = one.value["notices"]
        assert f"rank {victim}" in notice
        assert victim or "(last exchange at step " in notice, "its packets say where it was"
        assert "Traceback" not in one.stderr


def test_a_rank_killed_while_applying_is_named_in_the_error_and_the_count_is_true() -> None:
    commands = [fields(command("lr", 30, value=0.5, fail=1, how="kill"))]
    with Ranks(_live_on, 4, victim=1, commands=commands) as ranks:
        ended = ranks.wait()
    assert ended[1].code == -9
    for one in ended[:1] + ended[2:]:
        assert one.code == 0, one.stderr
        assert one.value["took_s"] < 10
        assert one.value["error"]["failures"][0][0] == 1
        assert "rank 1" in one.value["text"] and "(last exchange at step " in one.value["text"]
        assert not one.value["error"]["consistent"]
    (outcome,) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["applied_on"], outcome["of"]) == ("outcome_unknown", 3, 4)


def _leaves(rank: int, size: int, tell: Any, leaver: int, exits: bool) -> Any:
    commands = [fields(command("lr", 100, value=0.5))]
    loop = Loop(commands)
    loop.steps(1, 50, 0.002)
    if rank == leaver:
        loop.exchange.finish("its data ran out")
        if not exits:
            deadline = time.monotonic() + 20.0
            while not tell.told("others done", size - 1) and time.monotonic() < deadline:
                time.sleep(0.05)
        return loop.report()
    step = loop.until(lambda: not loop.exchange.status.on, 51)
    loop.until(lambda: max(loop.seen) > 120, step)
    loop.exchange.finish()
    tell("others done")
    return loop.report()


@pytest.mark.parametrize(("leaver", "exits"), [(0, True), (1, False)])
def test_a_rank_that_leaves_early_is_named_with_its_last_step(leaver: int, exits: bool) -> None:
    ended = run_ranks(_leaves, 3, leaver=leaver, exits=exits)
    for one in ended:
        assert "Traceback" not in one.stderr
        if one.rank != leaver:
            (notice,) = one.value["notices"]
            assert f"rank {leaver}" in notice
            assert "left after step 50 (" in notice
            assert ("its data ran out" in notice) == (leaver != 0)
    if leaver != 0:
        (outcome,) = ended[0].value["outcomes"]
        assert (outcome["state"], outcome["code"]) == ("rejected", "rank_gone")


def _tears_down(rank: int, size: int, tell: Any, order: str, stays: bool) -> Any:
    import torch.distributed as dist

    loop = Loop()
    loop.steps(1, 40 + 7 * rank, 0.002)
    if order == "destroy first":
        dist.destroy_process_group()
    loop.exchange.finish()
    if order == "finish first":
        dist.destroy_process_group()
    if stays and rank == 0:
        deadline = time.monotonic() + 20.0
        while not tell.told("gone", size - 1) and time.monotonic() < deadline:
            time.sleep(0.02)
    elif stays:
        tell("gone")
    return loop.report()


@pytest.mark.parametrize("order", ["finish first", "destroy first", "never destroyed"])
def test_unequal_step_counts_and_any_teardown_end_with_status_0(order: str) -> None:
    check_teardown(order, stays=True)


def check_teardown(order: str, *, stays: bool) -> None:
    """Let three ranks end at different steps; rank 0 may stay alive until all others are gone."""
    ended = run_ranks(_tears_down, 3, order=order, stays=stays)
    for one in ended:
        assert "Traceback" not in one.stderr
        assert "frame #" not in one.stderr


def _silent(rank: int, size: int, tell: Any) -> Any:
    loop = Loop(timeout_s=1.5)
    loop.steps(1, 20)
    if rank == 1:
        deadline = time.monotonic() + 20.0
        while not tell.told("done", size - 1) and time.monotonic() < deadline:
            time.sleep(0.05)
        return loop.report()
    loop.until(lambda: not loop.exchange.status.on, 21)
    tell("done")
    return loop.report()


def test_a_silent_rank_is_named_at_the_deadline_and_the_wait_is_shown_before() -> None:
    ended = run_ranks(_silent, 3)
    for one in (ended[0], ended[2]):
        (notice,) = one.value["notices"]
        assert "rank 1" in notice
        assert "did not come to step" in notice
        assert any(phase.startswith("waiting at step") for phase in one.value["phases"])
        assert one.value["phases"][-1] == "training"


def _sub_group(rank: int, size: int, tell: Any) -> Any:
    import torch.distributed as dist

    group = dist.new_group([1, 3])
    if rank not in (1, 3):
        deadline = time.monotonic() + 60.0
        while not tell.told("done", 2) and time.monotonic() < deadline:
            time.sleep(0.05)  # Rank 0 has the store.
        return None
    loop = Loop([fields(command("lr", 3, value=0.5))], process_group=group)
    step = loop.until(lambda: 0.5 in loop.plant.held.values(), 1)
    loop.steps(step, step + 20)
    loop.exchange.finish()
    tell("done")
    return loop.report(size=loop.links.size if loop.links else 0)


def test_a_sub_group_is_controlled_on_its_own() -> None:
    ended = run_ranks(_sub_group, 4)
    assert states(ended[1]) == {"lr-3": "applied"}
    assert ended[1].value["size"] == 2
    assert_equal_at_every_common_step([ended[1], ended[3]])


def _two_trainers(rank: int, size: int, tell: Any) -> Any:
    first = Loop([fields(command("lr", 5, value=0.5))])
    second = Loop([fields(command("lr", 5, value=0.7))])
    for step in range(1, 150):
        first.step(step)
        second.step(step)
        if step % 3 == 0:
            second.step(step + 1000)
    first.exchange.finish()
    second.steps(2001, 2050)
    second.exchange.finish()
    return [first.report(), second.report()]


def test_two_trainers_in_one_process_do_not_meet() -> None:
    ended = run_ranks(_two_trainers, 2)
    for one in ended:
        first, second = one.value
        assert first["seen"]["149"] == [0.5, 1.0]
        assert second["seen"]["149"] == [0.7, 1.0]
    assert [each["outcomes"][0]["state"] for each in ended[0].value] == ["applied", "applied"]


def _stay(tell: Any, size: int) -> None:
    """Wait until all ranks have come so far: rank 0 has the store."""
    tell("told")
    deadline = time.monotonic() + 30.0
    while not tell.told("told", size) and time.monotonic() < deadline:
        time.sleep(0.05)


def _no_group(rank: int, size: int, tell: Any, required: bool) -> Any:
    import socket
    from dataclasses import replace

    from launchhelm.errors import Unavailable
    from launchhelm.torch import _collective

    make = _collective.make_group

    def fail(*arguments: Any) -> Any:
        if rank == 1:
            raise RuntimeError("no interface")
        return make(*arguments)

    def resolve(host: str) -> str:
        if rank == 2:
            raise socket.gaierror("no such name")
        return ("192.0.2.7", "127.0.1.1")[rank]

    _collective.make_group = fail
    _collective.GLOO_SOCKET_IFNAME = replace(_collective.GLOO_SOCKET_IFNAME, name="NOT_SET_HERE")  # type: ignore[attr-defined]
    socket.gethostname = lambda: f"node-{rank}"
    socket.gethostbyname = resolve
    try:
        loop = Loop([fields(command("lr", 3, value=0.5))], agree_s=1.0, required=required)
    except Unavailable as error:
        _stay(tell, size)
        return {"error": str(error)}
    assert loop.links is not None
    loop.steps(1, 20)
    loop.exchange.finish()
    told = loop.links.broadcast_json({"run": rank})
    _stay(tell, size)
    return loop.report(why=loop.exchange.status.why, told=told)


@pytest.mark.parametrize("required", [False, True])
def test_a_group_that_one_rank_cannot_make_ends_alike_on_all_ranks(required: bool) -> None:
    """The reason names the hosts where gloo listens on loopback: by name, or for want of one."""
    ended = run_ranks(_no_group, 3, required=required)
    (why,) = {one.value["error" if required else "why"] for one in ended}
    assert "rank 1: RuntimeError: no interface" in why
    assert "on node-1, node-2 gloo listens on loopback" in why
    assert "set GLOO_SOCKET_IFNAME" in why
    for each in ("node-0 (192.0.2.7)", "node-1 (127.0.1.1)", "node-2 (not resolvable)"):
        assert each in why
    if required:
        return
    assert not any(one.value["on"] for one in ended)
    assert [one.value["told"] for one in ended] == [{"run": 0}] * 3
    (outcome,) = ended[0].value["outcomes"]
    assert (outcome["state"], outcome["code"]) == ("rejected", "control_off")


def test_however_many_ranks_fail_the_reason_stays_short_and_names_loopback() -> None:
    from launchhelm.torch._collective import _judge_groups

    errors: dict[int, str | None] = dict.fromkeys(range(512), "refused")
    facts = [{"host": f"n{rank // 8}", "address": "interface lo"} for rank in errors]
    why = _judge_groups([], errors, facts)
    assert "504 more ranks failed" in why and "n7 (interface lo) and 56 more" in why
    assert "on n0, n1, n2, n3, n4, n5, n6, n7 gloo listens on loopback" in why
    one_host = _judge_groups([1], {0: None}, facts[:2])
    assert one_host == "rank 1 did not finish making the groups; addresses: n0 (interface lo)"
    assert _judge_groups([], {0: "", 1: ""}, facts[:2]) == "on"


class Bytes(bytearray):
    """Memory whose end can be seen."""


def _lets_go(links: Any, content: bytes) -> bytes:
    """Share a tensor, and see that nothing holds its memory afterwards but who uses it."""
    import torch

    memory = Bytes(content)
    alive = weakref.ref(memory)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    links.share_tensor(tensor)
    shared = tensor.numpy().tobytes()
    del memory, tensor
    gc.collect()
    assert alive() is None
    return shared


def _data_group(rank: int, size: int, tell: Any) -> Any:
    import torch

    from launchhelm.errors import Unavailable

    loop = Loop()
    assert loop.links is not None
    total = loop.links.all_reduce(torch.tensor([float(rank + 1)], dtype=torch.float64))
    lists = loop.links.gather_json({"rank": rank, "text": "ü" * rank})
    assert _lets_go(loop.links, bytes([7 - rank])) == bytes([7])
    loop.steps(1, 30)
    loop.exchange.finish()
    if rank == 1:
        return [total.item(), lists]
    try:
        loop.links.all_reduce(torch.tensor([1.0]))
    except Unavailable as error:
        return [total.item(), lists, str(error)]
    raise AssertionError("a rank that left was not missed")


def test_the_data_group_reduces_gathers_and_names_a_rank_that_left() -> None:
    ended = run_ranks(_data_group, 2)
    expected = [{"rank": 0, "text": ""}, {"rank": 1, "text": "ü"}]
    assert all(one.value[:2] == [3.0, expected] for one in ended)
    assert "rank 1" in ended[0].value[2]


def _reduces_on(rank: int, size: int, tell: Any, dies_at: int) -> Any:
    """Train with a reduction every 50 calls and nothing else that would join the ranks."""
    import os
    import signal

    import torch

    from launchhelm.errors import Unavailable

    loop = Loop()
    assert loop.links is not None
    reduced, lost, longest_s = 0, [], 0.0
    for step in range(1, 301):
        if rank == 2 and step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 20:
            tell("trains")
        if step % 50 == 0:
            began = time.monotonic()
            try:
                loop.links.all_reduce(torch.tensor([1.0], dtype=torch.float64))
                reduced += 1
            except Unavailable as error:
                lost.append(str(error))
            longest_s = max(longest_s, time.monotonic() - began)
        loop.step(step, 0.005)
    loop.exchange.finish()
    return loop.report(reduced=reduced, lost=lost, longest_s=longest_s)


@pytest.mark.parametrize("dies_at", [100, 0])
def test_a_killed_rank_ends_reductions_and_control_on_all_others(dies_at: int) -> None:
    with Ranks(_reduces_on, 3, dies_at=dies_at) as ranks:
        if not dies_at:
            for rank in range(3):
                ranks.wait_for(rank, "trains")
            ranks.kill(2)
        ended = ranks.wait(0, 1)
    for one in ended:
        assert one.code == 0, one.stderr
        assert "300" in one.value["seen"]
        assert one.value["reduced"] + len(one.value["lost"]) == 6
        assert len(one.value["lost"]) >= 4
        assert all("rank 2" in text for text in one.value["lost"])
        assert one.value["longest_s"] < 10
        assert not one.value["on"]
        (notice,) = one.value["notices"]
        assert "rank 2" in notice


def _reduces_late(rank: int, size: int, tell: Any) -> Any:
    import torch

    from launchhelm.errors import Unavailable

    loop = Loop(timeout_s=1.5 if rank == 0 else 30.0)
    assert loop.links is not None
    lost = []
    if rank == 2:
        deadline = time.monotonic() + 20.0
        while not tell.told("lost", 2) and time.monotonic() < deadline:
            time.sleep(0.05)
    for _ in range(2):
        try:
            loop.links.all_reduce(torch.tensor([1.0]))
        except Unavailable as error:
            lost.append(str(error))
    loop.links.timeout_s = 30.0
    tell("lost")
    loop.steps(1, 30)
    report = loop.report(lost=lost)
    loop.exchange.finish()
    return report


def test_a_reduction_lost_on_one_rank_is_lost_on_all_and_control_stays_on() -> None:
    ended = run_ranks(_reduces_late, 3)
    for one in ended:
        # What the others had begun still completes for the rank that comes late.
        assert len(one.value["lost"]) == (1 if one.rank == 2 else 2)
        assert all("rank 2" in text for text in one.value["lost"]), one.value["lost"]
        assert one.value["on"], one.value["notices"]
        assert not one.value["notices"]


def _restarts(rank: int, size: int, tell: Any) -> Any:
    from launchhelm.torch import _collective

    told = []
    for number in range(4):
        _collective._made.clear()  # As in a new process; the store keeps all keys.
        loop = Loop([fields(command("lr", 3, value=0.5))])
        assert loop.links is not None
        assert loop.links.on, loop.links.why
        told.append(loop.links.broadcast_json({"run": number} if rank == 0 else None))
        told.append(loop.links.gather_json([rank, number]))
        loop.steps(1, 30)
        told.append(loop.exchange.status.on)
        told.append(loop.notices)
        if (rank + number) % 2:
            loop.exchange.finish()  # The others end as if they had been killed.
    return told


def test_an_incarnation_in_a_store_with_the_keys_of_earlier_ones_starts_afresh() -> None:
    ended = run_ranks(_restarts, 2)
    expected: list[Any] = []
    for number in range(4):
        expected += [{"run": number}, [[0, number], [1, number]], True, []]
    assert [one.value for one in ended] == [expected, expected]


def _comes_late(rank: int, size: int, tell: Any, late: int) -> Any:
    from launchhelm.errors import Unavailable
    from launchhelm.torch._collective import make_links

    if rank == late:
        deadline = time.monotonic() + 30.0
        while not tell.told("gave up", 1) and time.monotonic() < deadline:
            time.sleep(0.02)
    links = make_links(agree_s=0.5)
    assert links is not None
    tell("gave up")
    try:
        return [links.on, links.why, links.broadcast_json({"run": rank}, timeout_s=20.0)]
    except Unavailable as error:
        return [links.on, links.why, str(error)]


def test_ranks_that_gave_up_on_rank_0_still_learn_the_run_and_control_is_off_alike() -> None:
    values = [one.value for one in run_ranks(_comes_late, 3, late=0)]
    assert {why for _, why, _ in values} == {
        "rank 0 did not say within 0.5 s that all ranks are there"
    }
    assert [(on, told) for on, _, told in values] == [(False, {"run": 0})] * 3
