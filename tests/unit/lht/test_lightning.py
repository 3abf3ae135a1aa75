"""The Lightning callback: what it logs, that commands reach the Trainer, and how a run ends."""

from __future__ import annotations

import copy
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.store.media import path_of
from tests.support.journals import final_outcomes, only_run, records, series

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch")
    from launchhelm.torch.lightning import LaunchHelmCallback, _Checkpoint, _clip

pytestmark = pytest.mark.filterwarnings("ignore")

LIMIT = 1e-3


class Module(pl.LightningModule):  # type: ignore[misc]
    """Acts at the start of a batch, and notes what the optimizer is about to use."""

    def __init__(self, act: Callable[[int], object], *, automatic: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = automatic
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1))
        self.act = act
        self.norms: dict[int, float] = {}
        self.rates: dict[int, float] = {}

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.act(self.global_step)
        loss: torch.Tensor = self.net(batch).square().mean() * 100
        self.log("often", loss, on_step=True, on_epoch=True, prog_bar=True)
        if self.global_step % 2 == 0:
            self.log("rare", loss)
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val", self.net(batch).mean())

    def configure_optimizers(self) -> Any:
        if not self.automatic_optimization:
            return [torch.optim.SGD(self.parameters(), lr=1e-4) for _ in range(2)], []
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-4)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=1_000)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any) -> None:
        step = self.global_step + 1
        optimizer.step(closure=closure)
        # Between the framework's clipping and the next batch gradients are as they were used.
        grads = [each.grad.norm() for each in self.parameters()]
        self.norms[step] = float(torch.stack(grads).norm())
        self.rates[step] = optimizer.param_groups[0]["lr"]


def trained(
    folder: Path,
    callback: LaunchHelmCallback,
    act: Callable[[int], object] = lambda step: None,
    *,
    automatic: bool = True,
    validates: bool = False,
    ckpt_path: str | None = None,
    saver: Any = None,
    **arguments: Any,
) -> Module:
    torch.manual_seed(0)
    module = Module(act, automatic=automatic)
    data = DataLoader(torch.randn(16, 4), batch_size=2)
    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, *([saver] if saver else [])],
        enable_checkpointing=saver is not None,
        **{"max_steps": 4, **arguments},
    )
    trainer.fit(module, data, data if validates else None, ckpt_path=ckpt_path)
    return module


def test_commands_reach_what_the_trainer_uses(tmp_path: Path) -> None:
    """All are given at once, in a training that accumulates gradients and does not clip."""
    orders: list[tuple[str, dict[str, Any]]] = [
        ("grad_clip", {"max_norm": LIMIT}),
        ("lr", {"scale": 0.5}),
        ("weight_decay", {"value": 0.25}),
        ("dropout", {"p": 0.5}),
        ("checkpoint", {}),
        ("grad_clip", {}),
        ("stop", {}),
    ]
    root = tmp_path / "runs"

    def act(step: int) -> None:
        if step == 3 and not list((only_run(root) / "control").glob("*order*")):
            for number, (name, payload) in enumerate(orders):
                inbox.send(only_run(root), Command(f"order{number}", name, payload))

    callback = LaunchHelmCallback(
        "demo",
        name="toy",
        state_dir=root,
        controls=("lr", "weight_decay", "grad_clip", "dropout", "checkpoint", "stop"),
    )
    module = trained(tmp_path, callback, act, max_steps=50_000, accumulate_grad_batches=2)
    assert callback.trainer_lht is None
    run = only_run(root)
    outcomes = [final_outcomes(run)[f"order{number}"][0] for number in range(len(orders))]
    assert [it.state for it in outcomes] == ["applied"] * len(orders), outcomes
    clip, lr, _, dropout, saved, off, stop = (int(it.applied_at["step"]) for it in outcomes)

    norms = module.norms
    assert max(norms[step] for step in range(clip + 1, off + 1)) <= LIMIT * 1.001
    assert min(norms[step] for step in range(1, clip + 1)) > 10 * LIMIT
    assert outcomes[0].changes["grad_clip"] == {"old": None, "new": LIMIT}

    def scheduled(step: int) -> float:
        return 1e-4 * (1 - min(step - 1, 1_000) / 2_000)

    assert module.rates[lr] == pytest.approx(scheduled(lr))
    if stop > lr + 1:
        assert module.rates[lr + 2] == pytest.approx(scheduled(lr + 2) / 2)
    assert outcomes[3].result["modules"] == 1 and dropout <= stop

    # One call of the safe point for each optimizer step, whatever it accumulates.
    steps = [step for step, _ in series(run, "optim/lr/group0")]
    assert steps == list(range(1, stop + 1))
    # Two batches an epoch's end may not fill are a step too; each step has its loss.
    assert [step for step, _ in series(run, "often_step")] == steps
    path = Path(outcomes[4].result["path"])
    assert torch.load(path, weights_only=False)["global_step"] == saved
    (art,) = records(run, "art")
    assert art.step == saved and path_of(run, art.body["sha256"]).read_bytes() == path.read_bytes()
    assert [it.body for it in records(run, "effect") if "not_effective" in it.body] == []
    (close,) = records(run, "close")
    assert close.body["state"] == "finished"


def test_each_value_is_logged_once_at_the_step_where_it_came_up(tmp_path: Path) -> None:
    """8 steps an epoch, 2 epochs, a validation after each; a value not logged anew is no point."""
    trained(
        tmp_path, LaunchHelmCallback("demo", state_dir=tmp_path / "runs"), validates=True,
        max_steps=-1, max_epochs=2, num_sanity_val_steps=1,
    )  # fmt: skip
    run = only_run(tmp_path / "runs")
    assert [step for step, _ in series(run, "often_step")] == list(range(1, 17))
    assert [step for step, _ in series(run, "rare")] == list(range(1, 17, 2))
    assert [step for step, _ in series(run, "val")] == [8, 16]
    assert [step for step, _ in series(run, "often_epoch")] == [8, 16]
    often = [value for _, value in series(run, "often_step")]
    ((_, mean), _) = series(run, "often_epoch")
    assert mean == pytest.approx(sum(often[:8]) / 8)


def test_no_value_is_waited_for_where_the_batch_ends(tmp_path: Path) -> None:
    """Of a tensor on the meta device nothing can be read: whoever waits for it gets an error."""
    callback = LaunchHelmCallback("demo", state_dir=tmp_path)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    trainer = SimpleNamespace(
        global_step=0,
        optimizers=[optimizer],
        lr_scheduler_configs=[],
        callback_metrics={},
        gradient_clip_val=None,
        should_stop=False,
    )
    module = SimpleNamespace(automatic_optimization=True)
    callback.on_train_start(trainer, module)
    tr = callback.trainer_lht
    assert tr is not None
    trainer.global_step, trainer.callback_metrics = 1, {"x": torch.ones((), device="meta")}
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert tr.global_step == 1 and tr.run.recorder.faults == {}
    callback.on_exception(trainer, module, ValueError("enough"))


def test_the_best_and_the_last_checkpoint_are_kept_once_if_equal(tmp_path: Path) -> None:
    for name, last in (("equal", False), ("two", True)):
        saver = pl.callbacks.ModelCheckpoint(
            tmp_path / name, monitor="often", mode="max", save_last=last, every_n_train_steps=1
        )
        root = tmp_path / f"{name}-runs"
        trained(tmp_path, LaunchHelmCallback("demo", state_dir=root), saver=saver)
        run = only_run(root)
        kept = [path_of(run, it.body["sha256"]).read_bytes() for it in records(run, "art")]
        paths = [saver.best_model_path, saver.last_model_path][: 1 + last]
        assert kept == [Path(path).read_bytes() for path in paths]
        ids = [it.body["id"] for it in records(run, "art")]
        assert series(run, "lightning_checkpoint") == [(4, id_) for id_ in ids]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ValueError("a bad batch"), "error", "ValueError: a bad batch"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        ("SIGTERM", "terminated", "SIGTERM"),
    ],
    ids=["an exception", "Ctrl-C", "SIGTERM"],
)
def test_a_training_that_fails_leaves_a_run_that_says_so(
    error: Any, state: str, reason: str, tmp_path: Path
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def act(step: int) -> None:
        if step == 2 and error == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif step == 2:
            raise error

    try:
        with pytest.raises((ValueError, SystemExit)):
            trained(tmp_path, LaunchHelmCallback("demo", state_dir=tmp_path / "runs"), act)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    (close,) = records(only_run(tmp_path / "runs"), "close")
    assert (close.body["state"], close.body["reason"]) == (state, reason)
    assert not close.body["close_run"]


def test_a_copy_made_in_mid_training_records_nothing(tmp_path: Path) -> None:
    callback = LaunchHelmCallback("demo", state_dir=tmp_path / "runs")
    copies = []

    def act(step: int) -> None:
        if step == 2:
            copies.append(copy.deepcopy(callback))

    trained(tmp_path, callback, act)
    assert copies[0].trainer_lht is None
    copies[0].on_exception(None, None, ValueError("not its own"))
    (close,) = records(only_run(tmp_path / "runs"), "close")
    assert close.body["state"] == "finished"


def test_a_resumed_training_goes_on_at_its_step_in_another_attempt(tmp_path: Path) -> None:
    def act(step: int) -> None:
        if step == 3:
            raise ValueError("lost")

    root = tmp_path / "runs"
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2)
    with pytest.raises(ValueError, match="lost"):
        trained(tmp_path, LaunchHelmCallback("demo", state_dir=root), act, saver=saver)
    again = LaunchHelmCallback("demo", name="demo", state_dir=root, resume="demo")
    trained(tmp_path, again, ckpt_path=saver.best_model_path)
    steps = [
        (it.writer.attempt, it.step)
        for it in records(only_run(root), "m")
        if "often_step" in it.body
    ]
    assert steps == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)]


def test_with_manual_optimization_every_batch_counts_and_no_limit_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "runs"

    def act(step: int) -> None:
        if step == 2:
            inbox.send(only_run(root), Command("clip", "grad_clip", {"max_norm": 1.0}))

    callback = LaunchHelmCallback("demo", state_dir=root, controls=("grad_clip", "stop"))

    def also_stops(step: int) -> None:
        act(step)
        if step > 2 and "clip" in final_outcomes(only_run(root)):
            inbox.send(only_run(root), Command("stop", "stop", {}))

    trained(tmp_path, callback, also_stops, automatic=False, max_steps=100_000)
    run = only_run(root)
    (outcome,) = final_outcomes(run)["clip"]
    assert outcome.state == "rejected" and "manual optimization" in outcome.message
    # Two optimizers step in each batch.
    steps = [step for step, _ in series(run, "optim/lr/group0")]
    assert steps == list(range(2, 2 * len(steps) + 1, 2))


def test_a_limit_is_refused_where_lightning_would_not_clip_to_a_norm() -> None:
    module = SimpleNamespace(automatic_optimization=True)
    trainer = SimpleNamespace(
        gradient_clip_val=None,
        gradient_clip_algorithm=None,
        precision_plugin=SimpleNamespace(),
        optimizers=[SimpleNamespace()],
    )
    clip = _clip(trainer, module)
    wanted = {"max_norm": 0.5}
    assert clip.problem(wanted) == "" and clip.apply(wanted) == wanted
    assert trainer.gradient_clip_val == 0.5
    clip.restore(clip.snapshot())
    assert clip.apply({}) == {"max_norm": None} and trainer.gradient_clip_val is None
    trainer.precision_plugin = type("FSDPPrecision", (), {})()
    assert "FSDPPrecision" in clip.problem(wanted)
    trainer.precision_plugin = SimpleNamespace(scaler=object())
    assert clip.problem(wanted) == ""
    trainer.optimizers[0]._step_supports_amp_scaling = True
    assert "fused" in clip.problem(wanted)
    trainer.gradient_clip_algorithm = "value"
    assert "clips by value" in clip.problem(wanted)
    module.automatic_optimization = False
    assert "manual optimization" in clip.problem(wanted)


def test_a_rank_that_cannot_save_leaves_no_other_at_the_barrier() -> None:
    met: list[str] = []

    def fails(path: Path) -> None:
        raise OSError("the disk is full")

    trainer = SimpleNamespace(
        checkpoint_callback=None,
        default_root_dir="somewhere",
        global_step=3,
        save_checkpoint=fails,
        strategy=SimpleNamespace(barrier=met.append),
    )
    with pytest.raises(OSError, match="full"):
        _Checkpoint(trainer, lambda path: met.append("kept")).apply({})
    assert met == ["launchhelm"]


def test_wrong_arguments_are_refused_when_the_callback_is_made() -> None:
    with pytest.raises(TypeError, match="project"):
        LaunchHelmCallback()
    with pytest.raises(TypeError, match="colour"):
        LaunchHelmCallback("demo", colour="red")


def test_the_former_package_serves_and_without_both_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "launchhelm.torch.lightning")
    monkeypatch.setitem(sys.modules, "lightning", None)
    former = type(sys)("pytorch_lightning")
    former.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytorch_lightning", former)
    import launchhelm.torch.lightning as ours

    assert issubclass(ours.LaunchHelmCallback, former.Callback)  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "launchhelm.torch.lightning")
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ImportError, match=r"pip install 'launchhelm-offline\[lightning\]'"):
        import launchhelm.torch.lightning  # noqa: F401
