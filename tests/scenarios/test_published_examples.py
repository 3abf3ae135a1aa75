"""The official SDK's published examples, unchanged, with our packages and without a network.

They are fetched when the test runs. What each has to leave in its run directory is what the same
script leaves on the hosted service.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launchhelm.records import Command
from launchhelm.store import inbox
from launchhelm.store.manifest import load_manifest
from launchhelm.store.media import path_of
from tests.support.jobs import Job
from tests.support.journals import final_outcomes, only_run, records, series, wait_until
from tests.support.off_network import why_not
from tests.support.published import Unavailable, published_examples, run_script

DUMMIES = {
    "LAUNCHHELM_API_KEY": "dummy-key-that-must-not-be-stored",
    "LAUNCHHELM_URL": "https://launchhelm.example.com",
    "LAUNCHHELM_ORGANIZATION": "11111111-1111-4111-8111-111111111111",
}
RICH = {
    "notes": "text",
    "frames": "media",
    "gallery": "media",
    "sweep": "table",
    "gradients": "histogram",
    "precomputed": "histogram",
}
LONG_S = 60.0


LISTER = """
import os, sys
import launchhelm

project, run, name = sys.argv[1:]
words = "URL", "API_KEY", "ORGANIZATION"
with launchhelm.Client(*(os.environ["LAUNCHHELM_" + word] for word in words)) as client:
    page = client.list_documents(kind="stream", project_id=project, run_id=run)
print(*(it["id"] for it in page["items"] if it["spec"]["name"] == name))
"""


class Script:
    """One published script, its folder of work, and what became of it."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = path
        self.directory = directory
        self.job = Job(0, "")

    def run(self, *arguments: str, **options: object) -> Job:
        self.job = run_script(self.path, self.directory, *arguments, **options)  # type: ignore[arg-type]
        assert self.job.code == 0, self.job.said
        return self.job

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    def counts(self, *names: str, rank: int | None = None) -> list[int]:
        run = only_run(self.runs)
        return [len(series(run, name, rank=rank)) for name in names]

    def name(self) -> str:
        return load_manifest(only_run(self.runs)).name

    def is_closed(self) -> bool:
        (close,) = records(only_run(self.runs), "close", rank=0)
        return close.body["state"] == "finished" and close.body["close_run"]

    def offers(self) -> set[str]:
        return {str(it.body["name"]) for it in records(only_run(self.runs), "cap")} - {"ping"}


def log_run(script: Script) -> None:
    script.run()
    assert script.counts("loss", "lr") == [8, 8]
    assert [step for step, _ in series(only_run(script.runs), "loss")] == list(range(8))
    assert script.name() == "first-run" and script.is_closed()
    query_points(script)


def query_points(script: Script) -> None:
    """Query a stream of the run that the same folder holds."""
    run = load_manifest(only_run(script.runs))
    lister = script.directory / "lister.py"
    lister.write_text(LISTER)
    listed = run_script(
        lister, script.directory, run.project_id, run.run_id, "loss", environment=DUMMIES
    )
    assert listed.code == 0, listed.said
    done = run_script(
        script.path.with_name("query_points.py"),
        script.directory,
        listed.said.strip(),
        environment=DUMMIES,
    )
    assert done.code == 0, done.said
    assert len(done.said.splitlines()) == 8, done.said


def change_learning_rate(script: Script) -> None:
    """Command it while it runs. It sleeps for 30 s in all, which is cut to a fifth."""
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(script.run, haste=5.0)
        wait_until(
            lambda: (
                running.done() or (script.runs.exists() and list(script.runs.glob("*/run.json")))
            ),
            "the run",
            timeout_s=LONG_S,
        )
        run = only_run(script.runs)
        inbox.send(run, Command("half", "set_lr", {"lr": 0.5}))
        running.result()
    (outcome,) = final_outcomes(run)["half"]
    assert outcome.state == "applied", outcome
    landed = int(outcome.applied_at["step"])
    assert script.counts("loss", "lr") == [60, 60] and script.offers() == {"set_lr"}
    assert all((rate == 0.5) == (step > landed) for step, rate in series(run, "lr"))


def experiment(script: Script) -> None:
    script.run()
    assert script.counts("loss", "lr", "layers") == [8, 8, 8]
    assert script.offers() == {"set_schedule", "duplicate_layer"}


def placeholder_trainer(script: Script) -> None:
    script.run()
    assert script.counts("loss", "lr", "layers") == [8, 8, 8]
    assert records(only_run(script.runs), "keep")


def artifact_upload(script: Script) -> None:
    assert "sha256 match: True" in script.run().said
    run = only_run(script.runs)
    (art,) = records(run, "art")
    assert [value for _, value in series(run, "weights")] == [art.body["id"]]
    assert path_of(run, str(art.body["sha256"])).stat().st_size == 262_144


def system_metrics(script: Script) -> None:
    script.run()
    assert script.counts("loss") == [8]
    assert [value for _, value in series(only_run(script.runs), "system/collector")] == ["ok"]
    for name in ("cpu_percent", "memory_used_bytes", "memory_available_bytes", "process_rss_bytes"):
        assert script.counts(f"system/{name}")[0] >= 1, name


def rich_values(script: Script) -> None:
    """The script reads some of what it wrote back through its `Client`, and prints that."""
    said = script.run(environment=DUMMIES).said
    for name, renderer in RICH.items():
        if name not in ("gallery", "precomputed"):
            assert f"{name}: 1 points (renderer {renderer}, complete True)" in said, said
    run = only_run(script.runs)
    recorded = {str(it.body["name"]): it.body for it in records(run, "rich")}
    assert {name: body["renderer"] for name, body in recorded.items()} == RICH
    assert len(records(run, "rich")) == len(RICH)
    (item,) = recorded["frames"]["value"]["items"]
    assert path_of(run, item["source"]["artifact"]["id"].removeprefix("pending:")).exists()


def torch_quickstart(script: Script) -> None:
    script.run()
    names = "train/loss", "optim/grad_norm", "optim/lr/group0", "optim/weight_decay/group0"
    assert script.counts(*names, "perf/step_time_s") == [20, 20, 20, 20, 19]
    built_in = {"lr", "weight_decay", "grad_clip", "dropout", "checkpoint"}
    assert script.offers() == built_in | {"set_dropout_p"}


def torch_checkpoint(script: Script) -> None:
    said = script.run().said
    assert "checkpoint artifact: " in said and "restored at step: 4" in said, said
    assert "extra payload: {}" in said
    run = only_run(script.runs)
    assert [step for step, _ in series(run, "train/loss")] == list(range(10))
    assert script.counts("checkpoint") == [1]
    assert {it.writer.attempt for it in records(run, "m")} == {1, 2}


def torch_ddp(script: Script) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    script.run(launcher=[*launcher, "--master_addr=127.0.0.1", "--master_port=29500"])
    names = "train/loss", "optim/lr/group0", "optim/weight_decay/group0"
    counted = script.counts(*names, "perf/step_time_s", "system/collector", rank=0)
    assert counted == [20, 20, 20, 19, 1]
    run = only_run(script.runs)
    assert records(run, "m", "sys", rank=1) == [] and records(run, "hb", "close", rank=1)


def hf_trainer(script: Script) -> None:
    script.run()
    assert script.name() == "hf-example" and script.is_closed()
    assert script.counts("loss", "grad_norm", "learning_rate") == [4, 4, 4]
    run = only_run(script.runs)
    assert [step for step, _ in series(run, "epoch")] == [1, 2, 3, 4, 4]
    assert script.counts("train_loss", "train_runtime", "total_flos") == [1, 1, 1]
    groups = [f"optim/{what}/group{i}" for what in ("lr", "weight_decay") for i in (0, 1)]
    assert script.counts(*groups, "perf/step_time_s") == [4, 4, 4, 4, 3]
    assert load_manifest(run).config["training_args"]["run_name"] == "hf-example"


def lightning_trainer(script: Script) -> None:
    script.run()
    groups = "optim/lr/group0", "optim/weight_decay/group0"
    assert script.counts("train_loss", *groups, "perf/step_time_s") == [4, 4, 4, 3]
    run = only_run(script.runs)
    (art,) = records(run, "art")
    assert [value for _, value in series(run, "lightning_checkpoint")] == [art.body["id"]]
    assert path_of(run, str(art.body["sha256"])).exists() and script.is_closed()


# The long ones first: they run two at a time.
CHECKS: tuple[Callable[[Script], None], ...] = (
    change_learning_rate,
    torch_ddp,
    hf_trainer,
    system_metrics,
    lightning_trainer,
    torch_checkpoint,
    torch_quickstart,
    rich_values,
    log_run,
    experiment,
    placeholder_trainer,
    artifact_upload,
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_published_examples_run_unchanged_and_offline(tmp_path: Path) -> None:
    cannot = why_not()
    if cannot:
        pytest.skip(f"THE PUBLISHED EXAMPLES DID NOT RUN: this machine has no namespaces: {cannot}")
    try:
        examples = published_examples(tmp_path)
    except Unavailable as error:
        pytest.skip(f"THE PUBLISHED EXAMPLES DID NOT RUN: their archive cannot be fetched: {error}")
    known = {check.__name__ for check in CHECKS} | {"query_points", "__init__"}
    assert {path.stem for path in examples.glob("*.py")} == known

    def checked(check: Callable[[Script], None]) -> str:
        name = check.__name__
        try:
            check(Script(examples / f"{name}.py", tmp_path / name))
        except Exception:
            return f"{name}:\n{traceback.format_exc()}"
        return ""

    with ThreadPoolExecutor(3) as pool:
        failures = [text for text in pool.map(checked, CHECKS) if text]
    assert not failures, "\n".join(failures)
