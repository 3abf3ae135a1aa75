"""Commands at a safe point of the script's own, until one of them halts it."""

from __future__ import annotations

import sys
import time

from spoken import say, wait

import launchhelm
from launchhelm.models import number_field_schema, opaque_schema

SAFE_POINT = "after_step"
DEADLINE = time.monotonic() + 60

if sys.argv[1:2] == ["again"]:
    run = launchhelm.init("contract", resume=sys.argv[2])
    say("resumed", epoch=run.runtime.session["epoch"])
    wait()
    run.finish()
    sys.exit()

run = launchhelm.init("contract", name="commanded")
run.keep({})  # So that a resume is the same participant, which has the journal.
state = {"lr": 0.1, "halt": False}


@run.command(SAFE_POINT)
def set_lr(lr: float, context: launchhelm.CommandContext) -> dict[str, object]:
    state["lr"] = lr
    return {"lr": lr, "step": next(c["value"] for c in context.coordinates if c["axis"] == "step")}


@run.command(SAFE_POINT)
def set_schedule(schedule: launchhelm.Schedule, names: list[str], note: str | None = None) -> None:
    state["schedule"] = schedule


@run.command(SAFE_POINT)
def fail(message: str) -> None:
    raise RuntimeError(message)


@run.command(SAFE_POINT)
def hang() -> None:
    say("hanging")
    wait()


@run.command(SAFE_POINT)
def halt() -> None:
    state["halt"] = True


def refuse(payload: object) -> None:
    raise ValueError("not today")


def capability(name: str, *, requires_approval: bool) -> launchhelm.Capability:
    return launchhelm.Capability(
        name=name,
        provider="script",
        version="1.0.0",
        input_schema=number_field_schema("value"),
        output_schema=opaque_schema(),
        safe_points=(SAFE_POINT,),
        requires_approval=requires_approval,
    )


run.runtime.register(
    capability("picky", requires_approval=False), lambda payload, context: {}, validate=refuse
)
run.runtime.register(
    capability("guarded", requires_approval=True), lambda payload, context: dict(payload)
)

say("ready", run_id=run.run_id, participant=run.runtime.participant.id)
step = 0
while not state["halt"] and time.monotonic() < DEADLINE:
    step += 1
    run.log({"lr": state["lr"]}, step=step)
    run.sync(SAFE_POINT, step=step, phase=1)
    time.sleep(0.02)
run.finish()
say("finished", lr=state["lr"], schedule=state.get("schedule"))
