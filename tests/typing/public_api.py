"""The public API as a user's code uses it: type-checked strictly, never run."""

from __future__ import annotations

from typing import assert_type

import torch

import launchhelm
import launchhelm.torch as lht
from launchhelm import Capability, CommandContext, Document, LaunchHelmError, Run


def log_a_run() -> str:
    with launchhelm.init("project", name="name", config={"lr": 0.1}, tags=("a", "b")) as run:
        assert_type(run, Run)
        run.define("loss", "number", unit="nats", summary="min")
        assert_type(run.log({"loss": 0.5, "ok": True, "note": "text"}, step=1, epoch=2), bool)
        run.console("line", stream="stderr")
        run.summary({"best": 0.1, "gone": None})
        run.describe(notes="more", tags=["c"])
        run.keep({"position": 3})
        run.flush(delivered=False, timeout=5.0)
        return run.run_id


def read_a_run(run: Run) -> None:
    for point in run.history("loss", limit=10, step_from=0, step_to=9):
        print(point["value"], point["coordinates"]["step"])
    newest = run.latest("loss")
    if newest is not None:
        print(newest["observed_at"])
    names: list[str] = run.metrics()
    print(names, run.config["lr"], run.tags[0], run.summary_values)


def show(run: Run, pixels: torch.Tensor) -> None:
    assert_type(run.image("frames", pixels, step=3, caption="c", fold=1), bool)
    assert_type(run.histogram("weights", pixels, bins=8), bool)
    run.rows("eval", [{"task": "a", "score": 0.5}])
    run.log_table("table", [("a", "integer")], [[1], [None]])
    run.histogram_counts("counts", [0.0, 1.0], [2], total=2.0)
    item = run.upload_media("sound.wav", caption="c")
    run.media("gallery", [item, run.media_url("https://example.org/x.png", "image/png")])
    run.log({"grid": [launchhelm.Image(pixels)], "t": launchhelm.Text("x"), "loss": 0.5})
    data: bytes = run.fetch("frames")
    print(len(data), launchhelm.Histogram([1, 2.0]).value())


def take_commands(run: Run) -> None:
    @run.command("after_step")
    def set_lr(lr: float, context: CommandContext) -> dict[str, float]:
        return {"lr": lr}

    assert_type(set_lr(0.1, CommandContext("id", (), "1", ())), dict[str, float])
    if run.pending("after_step"):
        assert_type(run.sync("after_step", step=3), int)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with lht.init("project", name="name", log_ranks="all", system_metrics=True) as trainer:
        assert_type(trainer, lht.Trainer)
        trainer.watch(model, optimizer)
        noise = trainer.tunable("noise", 0.1, minimum=0.0, maximum=1.0)
        loss = model(torch.ones(1, 8)).sum() * noise.value
        loss.backward()
        norm: float = trainer.clip_grad_norm_(1.0)
        trainer.step(loss=loss, metrics={"norm": norm})
        trainer.log_reduced({"accuracy": torch.tensor(0.5)}, op="mean")
        if trainer.is_coordinator:
            documents: dict[str, Document] = trainer.capabilities
            print(documents, trainer.run.run_id, trainer.global_step)


def tolerate(capability: Capability) -> None:
    try:
        train(torch.nn.Linear(8, 1), torch.optim.SGD([torch.zeros(1)], lr=0.1))
    except LaunchHelmError as error:
        print(error.code, error.retryable, capability.name)
    except lht.DivergedStateError as error:
        print(error)
