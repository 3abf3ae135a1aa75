"""The Hugging Face callback: what it logs, that commands reach the Trainer, and how a run ends."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import sys
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launchhelm import _endings
from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.store.manifest import load_manifest
from launchhelm.store.media import read
from launchhelm.torch import _callback
from tests.support.journals import final_outcomes, only_run, records, series

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    from launchhelm.torch.hf import LaunchHelmCallback, _clip

pytestmark = pytest.mark.filterwarnings("ignore")

LIMIT = 1e-3


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.drop = torch.nn.Dropout(0.1)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.last(self.drop(self.norm(self.first(x))))
        return {"loss": (out - labels).square().mean(), "logits": out}


class Watcher(transformers.TrainerCallback):  # type: ignore[misc]
    """Looks at what the Trainer is about to use, and may act at a step."""

    def __init__(self, act: Callable[[int], object]) -> None:
        self.act = act
        self.norms: dict[int, float] = {}
        self.rates: dict[int, list[float]] = {}
        self.decays: dict[int, list[float]] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        step = state.global_step + 1
        grads = [each.grad.norm() for each in given["model"].parameters()]
        self.norms[step] = float(torch.stack(grads).norm())
        groups = given["optimizer"].param_groups
        self.rates[step] = [group["lr"] for group in groups]
        self.decays[step] = [group["weight_decay"] for group in groups]

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.act(state.global_step)


def trained(
    folder: Path,
    callback: LaunchHelmCallback,
    act: Callable[[int], object] = lambda step: None,
    *,
    resume_from: str | None = None,
    **arguments: Any,
) -> Watcher:
    watcher = Watcher(act)
    torch.manual_seed(0)
    rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]
    settings = {"max_steps": 4, "logging_steps": 1, "save_strategy": "no", **arguments}
    trainer = transformers.Trainer(
        Net(),
        transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            per_device_train_batch_size=2,
            **settings,
        ),
        train_dataset=rows,
        callbacks=[callback, watcher],
    )
    trainer.train(resume_from_checkpoint=resume_from)
    return watcher


def tars(run: Path) -> list[list[str]]:
    found = []
    for record in records(run, "art"):
        with tarfile.open(fileobj=io.BytesIO(read(run, str(record.body["sha256"])))) as tar:
            state = next(name for name in tar.getnames() if name.endswith("trainer_state.json"))
            content = tar.extractfile(state)
            assert content is not None and json.load(content)["global_step"] == record.step
            found.append(tar.getnames())
    return found


def test_commands_reach_what_the_trainer_uses(tmp_path: Path) -> None:
    """All are given at once, in a training that accumulates gradients and clips at 1.0."""
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
        if step == 3:
            for number, (name, payload) in enumerate(orders):
                inbox.send(only_run(root), Command(f"{number}-{name}", name, payload))

    callback = LaunchHelmCallback(
        "demo",
        name="toy",
        state_dir=root,
        config={"mine": 1},
        controls=(*_callback.DEFAULT_CONTROLS, "stop"),
    )
    watcher = trained(tmp_path, callback, act, max_steps=50_000, gradient_accumulation_steps=2)
    assert callback.trainer is None
    run = only_run(root)
    outcomes = [final_outcomes(run)[f"{i}-{name}"][0] for i, (name, _) in enumerate(orders)]
    assert [it.state for it in outcomes] == ["applied"] * len(orders), outcomes
    clip, lr, decay, dropout, saved, off, stop = (int(it.applied_at["step"]) for it in outcomes)

    norms = watcher.norms
    assert max(norms[step] for step in range(clip + 1, off + 1)) <= LIMIT * 1.001
    assert min(norms[step] for step in range(1, clip + 1)) > 10 * LIMIT
    assert outcomes[0].changes["grad_clip"] == {"old": 1.0, "new": LIMIT}
    assert off == stop or norms[off + 1] > 10 * LIMIT

    total = 50_000
    assert watcher.rates[lr] == pytest.approx([5e-5 * (1 - (lr - 1) / total)] * 2)
    if stop > lr + 1:
        assert watcher.rates[lr + 2] == pytest.approx([2.5e-5 * (1 - (lr + 1) / total)] * 2)
    assert decay == stop or watcher.decays[decay + 1] == [0.25, 0.25]
    assert outcomes[3].result["modules"] == 1 and dropout <= stop

    # One call of the safe point for each optimizer step, whatever it accumulates.
    steps = [step for step, _ in series(run, "optim/lr/group0")]
    assert steps == list(range(1, stop + 1))
    assert (tmp_path / "out" / f"checkpoint-{saved}" / "trainer_state.json").exists()
    assert [step for step, _ in series(run, "hf_checkpoint")] == [saved]
    assert len(tars(run)) == 1
    effects = [it.body for it in records(run, "effect") if "not_effective" in it.body]
    assert effects == []
    manifest = load_manifest(run)
    assert (manifest.name, manifest.project) == ("toy", "demo")
    assert manifest.config["mine"] == 1
    assert manifest.config["training_args"]["gradient_accumulation_steps"] == 2
    (close,) = records(run, "close")
    assert close.body["state"] == "finished" and close.body["close_run"]


def test_no_rotation_takes_a_checkpoint_before_it_is_copied(tmp_path: Path) -> None:
    """Each save removes the one before it at once, faster than anything could be copied."""
    callback = LaunchHelmCallback(state_dir=tmp_path / "runs")
    trained(tmp_path, callback, save_strategy="steps", save_steps=1, save_total_limit=1)
    left = list((tmp_path / "out").glob("checkpoint-*"))
    assert [path.name for path in left] == ["checkpoint-4"]
    run = only_run(tmp_path / "runs")
    assert [step for step, _ in series(run, "hf_checkpoint")] == [1, 2, 3, 4]
    for step, names in enumerate(tars(run), 1):
        assert f"checkpoint-{step}/optimizer.pt" in names and len(names) >= 5


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ValueError("a bad batch"), "error", "ValueError: a bad batch"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (None, "error", "the training was left before its end, and the script went on"),
    ],
    ids=["an exception", "Ctrl-C", "an exception that the script caught"],
)
def test_a_training_that_fails_leaves_a_run_that_says_so(
    error: BaseException | None,
    state: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Trainer tells nobody of an exception, so what counts is how the process ends."""
    monkeypatch.setattr(_endings, "_endings", [])

    def act(step: int) -> None:
        if step == 2:
            raise error or RuntimeError("caught")

    with pytest.raises(type(error or RuntimeError())):
        callback = LaunchHelmCallback(state_dir=tmp_path / "runs")
        trained(tmp_path, callback, act, save_strategy="steps", save_steps=1)
    run = only_run(tmp_path / "runs")
    assert records(run, "close") == []
    for ending in reversed(list(_endings._endings)):
        ending(*(_endings.describe(error) if error is not None else ("finished", "")))
    (close,) = records(run, "close")
    assert (close.body["state"], close.body["reason"]) == (state, reason)
    assert not close.body["close_run"]
    assert len(tars(run)) == 2  # The exit waited for what was saved.
    assert not any(it.body.get("about") == "checkpoints" for it in records(run, "ev"))


def test_a_resumed_training_goes_on_at_its_step_in_another_attempt(tmp_path: Path) -> None:
    def act(step: int) -> None:
        if step == 3:
            raise ValueError("lost")

    root = tmp_path / "runs"
    saving = {"save_strategy": "steps", "save_steps": 1}
    with pytest.raises(ValueError, match="lost"):
        callback = LaunchHelmCallback(name="toy", state_dir=root)
        trained(tmp_path, callback, act, **saving)
    callback._recording.fail("error", "lost")
    again = LaunchHelmCallback(name="toy", state_dir=root, resume="toy")
    trained(tmp_path, again, resume_from=str(tmp_path / "out" / "checkpoint-3"), **saving)
    found = [
        (it.writer.attempt, it.step) for it in records(only_run(root), "m") if "loss" in it.body
    ]
    assert found == [(1, 1), (1, 2), (1, 3), (2, 4)]


def test_a_training_that_starts_anew_ends_the_run_before(tmp_path: Path) -> None:
    """As the Trainer does when it looks for a batch size that fits."""
    callback = LaunchHelmCallback(name="toy", state_dir=tmp_path)
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    state = transformers.TrainerState()
    runs = []
    for _ in range(2):
        callback.on_train_begin(args, state, None)
        assert callback.trainer is not None
        runs.append(callback.trainer.run.directory)
    callback.on_train_end(args, state, None)
    callback.on_train_end(args, state, None)
    states = [record.body["state"] for run in runs for record in records(run, "close")]
    assert states == ["error", "finished"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_made_in_mid_training_records_a_training_of_its_own(
    duplicate: Callable[[Any], Any], tmp_path: Path
) -> None:
    callback = LaunchHelmCallback(name="toy", state_dir=tmp_path / "runs", log_every=2)
    copies = []

    def act(step: int) -> None:
        if step == 2:
            copies.append(duplicate(callback))

    trained(tmp_path, callback, act)
    (run,) = (tmp_path / "runs").iterdir()
    assert copies[0].trainer is None
    trained(tmp_path, copies[0])
    (other,) = set((tmp_path / "runs").iterdir()) - {run}
    for each in (run, other):
        assert [step for step, _ in series(each, "optim/lr/group0")] == [1, 2, 3, 4]
        assert [step for step, _ in series(each, "optim/weight_decay/group0")] == [1, 2, 4]
        assert [record.body["state"] for record in records(each, "close")] == ["finished"]


def test_scalars_of_one_nested_level_are_logged_by_their_names(tmp_path: Path) -> None:
    callback = LaunchHelmCallback(state_dir=tmp_path)
    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    state = transformers.TrainerState(global_step=3)
    callback.on_train_begin(args, state, None)
    callback.on_log(args, state, None, logs={"a": 1, "eval": {"b": 0.5, "c": [1]}, "d": None})
    callback.on_train_end(args, state, None)
    callback.on_log(args, state, None, logs={"late": 1})
    (record,) = records(only_run(tmp_path), "m")
    assert (record.step, record.body) == (3, {"a": 1, "eval/b": 0.5})


@pytest.mark.parametrize("engine", ["DEEPSPEED", "MEGATRON_LM"])
def test_a_limit_is_refused_where_another_engine_clips(engine: str) -> None:
    args = SimpleNamespace(
        max_grad_norm=1.0, distributed_state=SimpleNamespace(distributed_type=engine)
    )
    clip = _clip(args)
    assert engine in clip.problem({"max_norm": 0.5}) and engine in clip.problem({})
    args.distributed_state.distributed_type = "MULTI_GPU"
    assert clip.problem({"max_norm": 0.5}) == ""
    assert "above 0" in clip.problem({"max_norm": 0})


def test_wrong_arguments_are_refused_when_the_callback_is_made() -> None:
    with pytest.raises(TypeError, match="colour"):
        LaunchHelmCallback(colour="red")
    with pytest.raises(ValueError, match="Unknown controls: speed"):
        LaunchHelmCallback(controls=("lr", "speed"))
    with pytest.raises(ValueError, match="log_every"):
        LaunchHelmCallback(log_every=0)


def test_importing_without_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "launchhelm.torch.hf")
    with pytest.raises(ImportError, match=r"pip install 'launchhelm-offline\[hf\]'"):
        import launchhelm.torch.hf  # noqa: F401
