"""Files that are no checkpoint, or not any more, or meant to harm: refused, and nothing else.

Whatever is given to `load_checkpoint`, it raises CheckpointError, runs nothing of it, and leaves
model, optimizer, random state and step as they were.
"""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies

import launchhelm.torch as lht
from tests.support.journals import records

Payload = dict[str, Any]


def plain(value: Any) -> Any:
    """Return a state as numbers, so that two can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class Job:
    """A training of one process, a good file of it, and what it looks like."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(0)
        self.good = root / "good.pt"
        self.bad = root / "bad.pt"
        self.marker = root / "was-run"
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.trainer = lht.init("hostile", state_dir=root)
        self.trainer.watch(self.model, self.optimizer, self.scheduler)
        self.train(2)
        self.trainer.save_checkpoint(self.good, extra={"epoch": 1})
        self.train(1)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(2, 3)).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.trainer.step()

    def seen(self) -> object:
        """Return everything that a load may change."""
        states = [part.state_dict() for part in (self.model, self.optimizer, self.scheduler)]
        random_states = (random.getstate(), torch.get_rng_state().tolist())
        return plain((states, random_states, self.trainer.global_step))

    def refuses(self, path: Path) -> str:
        """Load a file, which must be refused without a trace, and return what was said."""
        before = self.seen()
        with pytest.raises(lht.CheckpointError) as refused:
            self.trainer.load_checkpoint(path)
        assert self.seen() == before
        assert not self.marker.exists(), "code in the file was run"
        self.trainer.step(self.trainer.global_step)  # The training goes on.
        return str(refused.value)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("hostile"))
    yield made
    made.trainer.load_checkpoint(made.good)  # After all that, a good file still loads.
    assert made.trainer.global_step == 2
    made.trainer.finish()


class Runs:
    """A pickle of this runs a command where it is loaded carelessly."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self._marker}",)


def _in_torch(job: Job) -> None:
    torch.save({**torch.load(job.good, weights_only=True), "extra": Runs(job.marker)}, job.bad)


def _plain_pickle(job: Job) -> None:
    job.bad.write_bytes(pickle.dumps(Runs(job.marker)))


def _old_torch(job: Job) -> None:
    payload = {"format": "launchhelm.torch.checkpoint/1", "extra": Runs(job.marker)}
    torch.save(payload, job.bad, _use_new_zipfile_serialization=False)


def _in_a_tensor(job: Job) -> None:
    """The archive is right, and its pickle asks for a function of the system."""
    with zipfile.ZipFile(job.good) as good, zipfile.ZipFile(job.bad, "w") as bad:
        for entry in good.infolist():
            data = good.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = pickle.dumps(Runs(job.marker), protocol=2)
            bad.writestr(entry.filename, data)


def _scripted(job: Job) -> None:
    module = torch.jit.trace(job.model, torch.ones(1, 3), check_trace=False)  # type: ignore[no-untyped-call]
    module.save(str(job.bad))


def _compressed(job: Job) -> None:
    with (
        zipfile.ZipFile(job.good) as good,
        zipfile.ZipFile(job.bad, "w", compression=zipfile.ZIP_DEFLATED) as bad,
    ):
        for entry in good.infolist():
            bad.writestr(entry.filename, good.read(entry))


@pytest.mark.parametrize(
    "make", [_in_torch, _plain_pickle, _old_torch, _in_a_tensor, _scripted, _compressed]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_file_with_code_runs_nothing(job: Job, make: Callable[[Job], object]) -> None:
    make(job)
    job.refuses(job.bad)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 5000, b"PK\x03\x04", b"hello", b"\x80\x02.", os.urandom(4096)],
    ids=["empty", "zeros", "zip head", "text", "empty pickle", "noise"],
)
def test_a_file_of_something_else_is_refused(job: Job, content: bytes) -> None:
    job.bad.write_bytes(content)
    assert str(job.bad) in job.refuses(job.bad)


@pytest.mark.parametrize("name", ["missing.pt", "folder"])
def test_what_is_no_file_is_refused(job: Job, name: str) -> None:
    job.good.with_name("folder").mkdir(exist_ok=True)
    job.refuses(job.good.with_name(name))


def test_a_file_that_was_cut_anywhere_is_refused(job: Job) -> None:
    whole = job.good.read_bytes()
    for length in sorted({0, 1, len(whole) - 1, *range(0, len(whole), len(whole) // 24)}):
        job.bad.write_bytes(whole[:length])
        job.refuses(job.bad)


def test_a_bit_that_flipped_in_a_weight_is_found(job: Job) -> None:
    """Torch itself does not look at the sums, and would load another weight."""
    whole = bytearray(job.good.read_bytes())
    weight = torch.load(job.good, weights_only=True)["model"]["weight"].numpy().tobytes()
    whole[whole.index(weight) + 5] ^= 0x10
    job.bad.write_bytes(whole)
    assert not torch.equal(
        torch.load(job.bad, weights_only=True)["model"]["weight"],
        torch.load(job.good, weights_only=True)["model"]["weight"],
    )
    assert "damaged" in job.refuses(job.bad)


@hypothesis.settings(max_examples=40)
@hypothesis.given(place=strategies.floats(0, 1, exclude_max=True), bit=strategies.integers(0, 7))
def test_a_bit_that_flipped_anywhere_does_no_harm(job: Job, place: float, bit: int) -> None:
    """It is found, or it was where nothing is said: then the very same state loads."""
    whole = bytearray(job.good.read_bytes())
    whole[int(place * len(whole))] ^= 1 << bit
    job.bad.write_bytes(whole)
    before = job.seen()
    try:
        job.trainer.load_checkpoint(job.bad)
    except lht.CheckpointError:
        assert job.seen() == before
        return
    loaded = job.seen()
    job.trainer.load_checkpoint(job.good)
    assert job.seen() == loaded


def _without(name: str) -> Callable[[Payload], object]:
    return lambda payload: payload.pop(name)


def _with(**entries: Any) -> Callable[[Payload], object]:
    return lambda payload: payload.update(entries)


def _random(**entries: Any) -> Callable[[Payload], object]:
    return lambda payload: payload["rng"].update(entries)


MANY = "launchhelm.torch.checkpoint/2"

ODD: dict[str, Callable[[Payload], object]] = {
    "no format": _without("format"),
    "another format": _with(format="launchhelm.torch.checkpoint/3"),
    "no step": _without("step"),
    "a step that is a bool": _with(step=True),
    "a step beyond all numbers": _with(step=1 << 70),
    "a step that is a tensor": _with(step=torch.ones(1)),
    "a model that is a list": _with(model=[1]),
    "a model of other names": _with(model={"other": torch.ones(1)}),
    "a model of numbers": lambda p: p["model"].update(weight=1.0),
    "a model of another shape": lambda p: p["model"].update(weight=torch.ones(9)),
    "an optimizer without groups": _with(optimizer={"state": {}}),
    "an optimizer of more groups": lambda p: p["optimizer"]["param_groups"].append({}),
    "an optimizer whose state is text": lambda p: p["optimizer"].update(state="x"),
    "controls that are text": _with(control="lr"),
    "a negative clip": _with(control={"grad_clip": -1.0}),
    "a history that is a number": _with(control={"lr_history": 3}),
    "tunables that are a list": _with(tunables=["x"]),
    "no random states": _without("rng"),
    "random states of another kind": _with(rng=[1]),
    "short random states of torch": _random(torch_cpu=torch.zeros(3, dtype=torch.uint8)),
    "random states of floats": _random(torch_cpu=torch.zeros(5056)),
    "short random states of Python": _random(python=[3, [1, 2], None]),
    "odd random states of Python": _random(python=[3, ["x"] * 625, None]),
    "many ranks without their states": _with(format=MANY, world_size=2),
    "more ranks than states": _with(format=MANY, world_size=3, rng_by_rank=[{}] * 2),
    "a rank twice": _with(
        format=MANY, world_size=2, rng_by_rank=[{"rank": 0, "group_rank": 0, "rng": {}}] * 2
    ),
    "multipliers that are text": _with(**{"launchhelm.offline": {"rates": "x"}}),
    "multipliers of nothing": _with(**{"launchhelm.offline": {"rates": {"slots": [{}]}}}),
    "a multiplier of zero": _with(
        **{
            "launchhelm.offline": {
                "rates": {
                    "slots": [{"multiplier": 0.0, "scheduled": None, "held": False}],
                    "groups": [{}],
                    "scheduler": {},
                }
            }
        }
    ),
    "dropout that is no probability": _with(**{"launchhelm.offline": {"dropout": {"x": "y"}}}),
}


@pytest.mark.parametrize("change", ODD)
def test_a_file_that_says_odd_things_is_refused_before_anything_changes(
    job: Job, change: str
) -> None:
    payload = torch.load(job.good, weights_only=True)
    ODD[change](payload)
    torch.save(payload, job.bad)
    job.refuses(job.bad)


def test_latest_is_refused_once_its_file_was_changed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.trainer.load_checkpoint()
    (file,) = (job.trainer.run.directory / "media").iterdir()
    file.chmod(0o600)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(lht.CheckpointError, match="digest"):
        job.trainer.load_checkpoint("latest")
    file.unlink()
    with pytest.raises(lht.CheckpointError, match=file.name):
        job.trainer.load_checkpoint("latest")
    job.trainer.finish()


def test_a_damaged_newest_names_the_last_good_one_which_loads(tmp_path: Path) -> None:
    job = Job(tmp_path)
    trainer, step = job.trainer, job.trainer.global_step
    ids = [str(trainer.save_checkpoint(extra={"epoch": epoch})) for epoch in (2, 3, 4)]
    trainer.finish(close_run=False)
    media = trainer.run.directory / "media"
    digests = {body["id"]: body["sha256"] for body in artifacts(trainer)}
    os.truncate(media / digests[ids[2]], 1000)
    (media / digests[ids[1]]).unlink()
    again = lht.init("hostile", state_dir=tmp_path, resume=trainer.run.run_id)
    again.watch(job.model, job.optimizer, job.scheduler)
    for damaged in ("latest", ids[2], ids[1]):
        with pytest.raises(lht.CheckpointError) as refused:
            again.load_checkpoint(damaged)
        assert f'the last good one loads with load_checkpoint("{ids[0]}")' in str(refused.value)
    assert again.load_checkpoint(ids[0]) == {"epoch": 2}
    assert again.global_step == step
    for digest in digests.values():
        (media / digest).unlink(missing_ok=True)
    with pytest.raises(lht.CheckpointError, match="no other of this run is whole"):
        again.load_checkpoint()
    again.finish()


def artifacts(trainer: lht.Trainer) -> list[dict[str, Any]]:
    return [record.body for record in records(trainer.run.directory, "art")]
