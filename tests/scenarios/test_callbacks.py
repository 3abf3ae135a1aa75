"""Both callbacks on two ranks: commanded from the command line, alike on both, to a good end."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from launchhelm.cli import main
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.store.media import path_of
from tests.support.journals import final_outcomes, only_run, records, series, wait_until
from tests.support.ranks import Ranks

LIMIT = 1e-3
RATE = 1e-4
ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "1-clip": ("grad_clip", {"max_norm": LIMIT}),
    "2-saved": ("checkpoint", {}),
    "3-off": ("grad_clip", {}),
    "4-stop": ("stop", {}),
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.net(x) - 1).square().mean() * 100}


def norm(model: torch.nn.Module) -> float:
    grads = [each.grad.norm() for each in model.parameters() if each.grad is not None]
    return float(torch.stack(grads).norm())


def train_hf(rank: int, size: int, tell: Any, root: str) -> list[list[float]]:
    """Train until told to stop; returns step, rate and gradient norm of each optimizer step."""
    import transformers

    from launchhelm.torch.hf import LaunchHelmCallback

    rows: list[list[float]] = []

    class Notes(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            rate = given["optimizer"].param_groups[0]["lr"]
            rows.append([state.global_step + 1, rate, norm(given["model"])])
            if len(rows) == 5:
                tell("ready")

    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=f"{root}/out",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        lr_scheduler_type="constant",
        learning_rate=RATE,
        max_steps=200_000,
    )
    callback = LaunchHelmCallback(
        "demo", state_dir=f"{root}/runs", controls=("lr", "grad_clip", "checkpoint", "stop")
    )
    data = [{"x": each} for each in torch.randn(64, 4)]
    transformers.Trainer(
        Net(), arguments, train_dataset=data, callbacks=[callback, Notes()]
    ).train()
    return rows


def train_lightning(rank: int, size: int, tell: Any, root: str) -> list[list[float]]:
    """The same with Lightning, accumulating, with a metric that is reduced over the ranks."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    from launchhelm.torch.lightning import LaunchHelmCallback

    rows: list[list[float]] = []

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.inner(batch)["loss"]
            self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            return loss  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

        def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any) -> None:
            rate = optimizer.param_groups[0]["lr"]
            step = self.global_step + 1
            optimizer.step(closure=closure)
            rows.append([step, rate, norm(self)])
            if len(rows) == 5:
                tell("ready")

    torch.manual_seed(0)
    callback = LaunchHelmCallback(
        "demo", state_dir=f"{root}/runs", controls=("lr", "grad_clip", "checkpoint", "stop")
    )
    pl.Trainer(
        default_root_dir=root,
        accelerator="cpu",
        devices=size,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        max_steps=200_000,
        callbacks=[callback],
    ).fit(Module(), DataLoader(torch.randn(64, 4), batch_size=4))
    return rows


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("body", [train_hf, train_lightning], ids=["hugging face", "lightning"])
def test_two_ranks_take_each_command_at_one_step_and_end_well(body: Any, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with Ranks(body, 2, root=str(tmp_path), deadline_s=240.0) as ranks:
        for rank in range(2):
            ranks.wait_for(rank, "ready")
        run = only_run(root)
        wait_until(
            lambda: "stop" in {it.body["name"] for it in records(run, "cap")}, "the controls"
        )
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            words = ["control", "latest", "lr", "scale=0.5", "--timeout=90", "--json"]
            assert main(["--root", str(root), *words]) == 0
        said = json.loads(out.getvalue())
        for name, (control, payload) in ORDERS.items():
            inbox.send(run, Command(name, control, payload))
        ended = ranks.wait()
    assert [one.code for one in ended] == [0, 0], "\n".join(one.stderr for one in ended)
    outcomes = {name: final_outcomes(run)[name][0] for name in ORDERS}
    assert {it.applied_on for it in outcomes.values()} | {said["applied_on"]} == {2}, outcomes
    at = {name: int(it.applied_at["step"]) for name, it in outcomes.items()}
    at["lr"] = int(said["applied_at"]["step"])

    # Gradients are the mean over both ranks, so all that either of them saw is equal.
    rows = ended[0].value
    assert rows == ended[1].value
    assert [int(step) for step, _, _ in rows] == list(range(1, at["4-stop"] + 1))
    assert all(rate == (RATE if step <= at["lr"] else RATE / 2) for step, rate, _ in rows)
    clipped = [norm for step, _, norm in rows if at["1-clip"] < step <= at["3-off"]]
    assert clipped and max(clipped) <= LIMIT * 1.001
    assert min(norm for step, _, norm in rows if step <= at["1-clip"]) > 10 * LIMIT

    (art,) = records(run, "art")
    assert art.step == at["2-saved"]
    if body is train_hf:
        assert [step for step, _ in series(run, "hf_checkpoint")] == [at["2-saved"]]
        with tarfile.open(path_of(run, str(art.body["sha256"]))) as tar:
            names = {Path(name).name for name in tar.getnames()}
        assert {"optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"} <= names
    else:
        found = torch.load(path_of(run, str(art.body["sha256"])), weights_only=False)
        assert found["global_step"] == at["2-saved"]
        assert [step for step, _ in series(run, "loss_step", rank=0)] == [s for s, _, _ in rows]
    for rank in range(2):
        (close,) = records(run, "close", rank=rank)
        assert close.body["state"] == "finished"
    assert [it.body for it in records(run, "effect") if "not_effective" in it.body] == []
