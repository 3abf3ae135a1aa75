"""A run from init to finish, and what it and its successor read back."""

from __future__ import annotations

import math

from spoken import say

import launchhelm

STEPS = 60
CONFIG = {"lr": 0.0003, "nested": {"a": [1, 2]}, "flag": True, "name": "long " * 300}

with launchhelm.init(
    "contract", name="first", config=CONFIG, group="g", tags=("a", "b"), notes="n"
) as run:
    run.define("val", "number", "fold", unit="nats", summary="min")
    for step in range(STEPS):
        run.log({"loss": 1 / (step + 1), "lr": 0.1, "word": f"w{step}", "even": step % 2 == 0})
        run.log({"val": 3.0 - step / 100}, step=step, fold=1)
    run.log({"loss": math.nan, "count": 2**60, "tags\u00e4": "\u2028 \U0001f600"}, step=STEPS)
    run.console("hello")
    run.flush()
    run.summary({"final": 1.5})
    run.describe(tags=("a", "c"))
    say(
        "read",
        run_id=run.run_id,
        project_id=run.project_id,
        history=run.history("loss"),
        window=run.history("loss", step_from=10, step_to=12),
        latest=run.latest("loss"),
        folds=len(run.history("val", fold=1)),
        count=run.latest("count")["value"],
        metrics=run.metrics(),
        metric=run.metric("val"),
        table=run.table("loss", "lr"),
        about=run.about(),
        runs=run.runs(),
    )

with launchhelm.init("contract", name="second", group="g") as run:
    say(
        "read again",
        about=run.about("first"),
        statuses=run.statuses(),
        history=run.history("loss", run="first"),
        project_id=run.project_id,
    )

try:
    launchhelm.init("contract", resume="first")
except launchhelm.LaunchHelmError as error:
    say("refused", code=error.code)
