"""Commands of the script at the training point, in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import launchhelm.torch as lht
from launchhelm import Capability, CommandContext, Schedule
from launchhelm.commands import command_capability
from tests.support.one_rank import commanded


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[lht.Trainer]:
    made = lht.init("quickstart", state_dir=tmp_path)
    yield made
    made.finish()


def test_it_runs_in_step_with_its_input_and_returns_its_result(trainer: lht.Trainer) -> None:
    seen: list[Any] = []

    @trainer.run.command("lht")
    def decay(plan: Schedule, context: CommandContext) -> dict[str, int]:
        seen.append((plan, context.coordinates))
        return {"points": len(plan["points"])}

    plan = {"points": [{"at": "0", "value": "1"}, {"at": "10", "value": "0.5"}]}
    assert trainer.capabilities["decay"].spec["safe_points"] == ["lht"]
    outcome = commanded(trainer, "decay", {"plan": plan})
    assert (outcome.state, outcome.applied_on, outcome.of) == ("applied", 1, 1)
    assert outcome.result == {"points": 2}
    step = str(outcome.applied_at["step"])
    assert seen == [(plan, ({"axis": "step", "value": step},))]


@pytest.mark.parametrize(
    "plan", [{"points": [{"at": 0, "value": 1}]}, {"points": [{"at": "0"}]}, {"points": 3}, "0"]
)
def test_a_schedule_that_is_none_reaches_no_handler(trainer: lht.Trainer, plan: Any) -> None:
    @trainer.run.command("lht")
    def decay(plan: Schedule) -> None:
        raise AssertionError

    outcome = commanded(trainer, "decay", {"plan": plan})
    assert (outcome.state, outcome.code) == ("rejected", "local_validation")


def test_the_script_s_own_check_may_refuse(trainer: lht.Trainer) -> None:
    def grow(layers: int) -> None:
        raise AssertionError

    def few(payload: Mapping[str, Any]) -> None:
        if payload["layers"] > 8:
            raise ValueError("at most 8 layers")

    capability: Capability = command_capability(grow, "lht")
    trainer.run.runtime.register(capability, lambda payload, context: None, validate=few)
    outcome = commanded(trainer, "grow", {"layers": 9})
    assert (outcome.state, outcome.message) == ("rejected", "at most 8 layers")
    assert commanded(trainer, "grow", {"layers": 8}).state == "applied"


def test_who_reports_fewer_than_all_has_not_applied_it(
    trainer: lht.Trainer,
) -> None:
    reports: list[tuple[int, int]] = [(4, 4)]

    @trainer.run.command("lht")
    def ask() -> None:
        trainer.run.runtime.report_applied_on(*reports.pop())

    assert commanded(trainer, "ask").state == "applied"
    with pytest.raises(RuntimeError):
        trainer.run.runtime.report_applied_on(1, 1)
    reports.append((3, 4))
    with pytest.raises(lht.DivergedStateError, match="reported 3 of 4"):
        commanded(trainer, "ask")


def test_what_is_returned_never_undoes_that_the_command_was_applied(trainer: lht.Trainer) -> None:
    returned: list[object] = [{"loss": torch.ones(3).mean(), "nan": math.nan}, object()]

    @trainer.run.command("lht")
    def odd() -> object:
        return returned.pop()

    outcome = commanded(trainer, "odd")
    assert (outcome.state, outcome.result or {}) == ("applied", {})
    assert "result was dropped" in outcome.message
    outcome = commanded(trainer, "odd")
    assert (outcome.state, outcome.message) == ("applied", "")
    assert outcome.result == {"loss": 1.0, "nan": {"$number": "nonfinite", "value": "nan"}}


def test_a_command_and_a_control_of_one_name_are_refused_whichever_comes_second(
    trainer: lht.Trainer,
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def command(name: str, safe_point: str = "lht") -> None:
        trainer.run.command(safe_point, name=name)(lambda: {"by": "script"})

    command("lr")
    command("dropout")
    with pytest.raises(ValueError, match="command 'dropout' already"):
        trainer.watch(model, optimizer, controls=("dropout",))
    trainer.watch(model, optimizer, controls=("weight_decay",))
    # What watch does not offer is free for the script, and stays its own.
    assert commanded(trainer, "lr").result == {"by": "script"}
    command("set_depth", "after_step")
    with pytest.raises(ValueError, match="command 'set_depth' already"):
        trainer.tunable("depth", 3)
    trainer.tunable("width", 3)
    for name in ("weight_decay", "set_width", "ping"):
        with pytest.raises(ValueError, match=f"control '{name}' already"):
            command(name, "after_step")
    assert commanded(trainer, "set_width", {"value": 4}).state == "applied"
