"""What was commanded is taken back by one command, and the values shown are those in effect."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau

import launchhelm.torch as lht
from launchhelm import views
from launchhelm.records import FREEZE, REAPPLY, Command, Outcome
from launchhelm.store import inbox
from launchhelm.views.plan import values_of
from launchhelm.views.revert import CannotUndo, undoing
from tests.support.journals import final_outcomes, wait_until
from tests.support.one_rank import on_disk

TOTAL = 100_000


def make_optimizer(*rates: float) -> AdamW:
    groups = [
        {"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate, "weight_decay": rate}
        for rate in rates
    ]
    return AdamW(groups)


_open: list[lht.Trainer] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End every training of a test."""
    yield
    while _open:
        _open.pop().finish()


class Job:
    """A training of two groups, commanded and looked at from outside."""

    def __init__(
        self, root: Path, schedule: str = "", resume: str = "", *, reapply: bool = False
    ) -> None:
        self.trainer = lht.init("reverted", state_dir=root, resume=resume, reapply=reapply)
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.1))
        self.optimizer = make_optimizer(0.1, 0.2)
        self.scheduler: LRScheduler | None = None
        if schedule == "cosine":
            self.scheduler = CosineAnnealingLR(self.optimizer, TOTAL)
        if schedule == "plateau":
            self.scheduler = ReduceLROnPlateau(self.optimizer, patience=10**9)
        self.steps = 0
        self.sent = 0
        self.trainer.watch(self.model, self.optimizer, self.scheduler)
        self.gain = self.trainer.tunable("gain", 1.0)
        _open.append(self.trainer)

    def move(self) -> None:
        self.optimizer.step()
        if isinstance(self.scheduler, CosineAnnealingLR):
            self.scheduler.step()
        self.steps += 1
        self.trainer.step(loss=1.0)

    def send(self, name: str, payload: dict[str, Any], **more: Any) -> Outcome:
        """Send a command, train until it has an outcome, and return that."""
        self.sent += 1
        id_ = f"{name.replace(':', '-')}-{self.trainer.run.attempt.number}-{self.sent}"
        inbox.send(self.trainer.run.directory, Command(id_, name, payload, **more))

        def ended() -> list[Outcome] | None:
            self.move()
            return final_outcomes(self.trainer.run.directory).get(id_)

        (outcome,) = wait_until(ended, f"the outcome of {id_}")
        return outcome  # type: ignore[no-any-return]

    def step_back(self, outcome: Outcome) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Ask for the command that undoes one, as whoever looks from outside would."""
        view = self.view()
        command = view.command(outcome.command)
        assert command is not None
        return undoing(view, command)

    def revert(self, outcome: Outcome) -> Outcome:
        """Undo a command; training goes on between the look and the command."""
        step = self.step_back(outcome)
        assert step is not None
        for _ in range(3):
            self.move()
        payload, expected = step
        done = self.send(outcome.name, payload, reverts=outcome.command, expected=expected)
        assert done.state == "applied", done
        return done

    def view(self) -> views.RunView:
        return views.open_run(on_disk(self.trainer))

    def shown(self, name: str = "lr") -> Any:
        return values_of(self.view()).get(name)

    @property
    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def scheduled(self) -> list[float]:
        """Return the rates that a training without any command has at this step."""
        optimizer = SGD([{**group, "params": [torch.ones(1)]} for group in groups()])
        schedule = CosineAnnealingLR(optimizer, TOTAL)
        for _ in range(self.steps):
            optimizer.step()
            schedule.step()
        return [group["lr"] for group in optimizer.param_groups]


def groups() -> list[dict[str, Any]]:
    return [{"lr": 0.1}, {"lr": 0.2}]


@pytest.mark.parametrize(
    "payload",
    [
        {"scale": 0.5},
        {"scale": 0.3, "group": 1},
        {"lr": 0.05},
        {"lr": 0.07, "keep_ratios": True},
        {"lr": 0.07, "group": 0},
        {"scales": [0.3, 3.0]},
        {"lrs": [0.01, 0.3]},
    ],
)
def test_under_a_schedule_it_goes_on_as_if_the_command_had_never_been(
    tmp_path: Path, payload: dict[str, Any]
) -> None:
    job = Job(tmp_path, "cosine")
    changed = job.send("lr", payload)
    assert changed.state == "applied", changed
    assert job.rates != job.scheduled()
    undone = job.revert(changed)
    assert undone.applied_on == undone.of == 1
    assert job.rates == job.scheduled()
    for _ in range(5):
        job.move()
        assert job.rates == job.scheduled()
    assert job.step_back(changed) is None


@pytest.mark.parametrize("schedule", ["", "cosine", "plateau"])
def test_after_the_newest_was_undone_the_one_before_it_may_be(
    tmp_path: Path, schedule: str
) -> None:
    job = Job(tmp_path, schedule)
    first = job.send("lr", {"scale": 0.5})
    second = job.send("lr", {"lr": 0.02})
    with pytest.raises(CannotUndo, match=f"{second.command} has changed it since"):
        job.step_back(first)
    undone = job.revert(second)
    again = job.revert(undone)  # A revert of a revert.
    with pytest.raises(CannotUndo, match="undo that one first"):
        job.step_back(first)
    job.revert(again)
    job.revert(first)
    with pytest.raises(CannotUndo, match=f"{undone.command} has undone it already"):
        job.step_back(second)
    want = job.scheduled() if schedule == "cosine" else [0.1, 0.2]
    assert job.rates == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    "payload", [{"value": 0.5}, {"scale": 3.0}, {"value": 0.0}, {"value": 0.7, "group": 1}]
)
def test_a_decay_of_several_groups_is_set_back_at_once(
    tmp_path: Path, payload: dict[str, Any]
) -> None:
    job = Job(tmp_path, "cosine")
    job.revert(job.send("weight_decay", payload))
    assert [group["weight_decay"] for group in job.optimizer.param_groups] == [0.1, 0.2]


def test_nothing_of_a_revert_is_done_where_one_group_cannot_take_it(tmp_path: Path) -> None:
    job = Job(tmp_path, "cosine")
    for payload in ({"scales": [2.0, 1e300]}, {"lrs": [0.05, 1e39]}, {"scales": [2.0]}):
        refused = job.send("lr", payload)
        assert (refused.state, refused.code) == ("rejected", "local_validation"), refused
        assert job.rates == job.scheduled()
    refused = job.send("weight_decay", {"values": [0.5, 1e300]})
    assert refused.state == "rejected"
    assert [group["weight_decay"] for group in job.optimizer.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("name", "payload", "why"),
    [
        ("lr", {"scales": 2.0}, "scales"),
        ("lr", {"scales": [2.0, 0]}, "scales must be a finite number above 0, got 0"),
        ("lr", {"lrs": [0.1, 0.2], "group": 1}, "lrs is about all groups"),
        ("lr", {"lrs": [0.1, 0.2], "scale": 1}, "exactly one of"),
        ("lr", {"lrs": [0.1, "a"]}, "lrs"),
        ("weight_decay", {"values": [0.1]}, "values takes one number per group, 2 in all"),
        ("weight_decay", {"values": [0.1, 0.2], "skip_zero": True}, "values is about all groups"),
    ],
)
def test_one_number_per_group_is_judged_before_anything_changes(
    tmp_path: Path, name: str, payload: dict[str, Any], why: str
) -> None:
    job = Job(tmp_path)
    refused = job.send(name, payload)
    assert refused.state == "rejected" and why in refused.message, refused
    assert job.rates == [0.1, 0.2]


# Restored states ----------------------------------------------------------------------------


def states(job: Job) -> Any:
    parts = [job.optimizer.state_dict()]
    if job.scheduler is not None:
        parts.append(job.scheduler.state_dict())
    return copy.deepcopy((parts, job.steps))


def load(job: Job, saved: Any) -> None:
    parts, job.steps = copy.deepcopy(saved)
    job.optimizer.load_state_dict(parts[0])
    if job.scheduler is not None:
        job.scheduler.load_state_dict(parts[1])


@pytest.mark.parametrize("schedule", ["", "cosine"])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_values_shown_after_a_restored_state_are_those_in_effect(
    tmp_path: Path, schedule: str, is_frozen: bool
) -> None:
    job = Job(tmp_path, schedule)
    before = states(job)
    job.send("lr", {"scale": 0.5})
    if is_frozen:
        assert job.send(FREEZE, {}).state == "applied"
    assert job.shown() == pytest.approx([0.05, 0.1], rel=1e-3)
    load(job, before)
    job.move()
    assert job.rates == pytest.approx([0.1, 0.2], rel=1e-3)
    assert job.shown() == pytest.approx([0.1, 0.2], rel=1e-3)
    assert bool(views.frozen(job.view().commands)) == is_frozen


@pytest.mark.parametrize("is_frozen", [False, True])
def test_what_the_script_changes_by_itself_is_shown_soon(tmp_path: Path, is_frozen: bool) -> None:
    job = Job(tmp_path)
    if is_frozen:
        job.send(FREEZE, {})
    job.move()
    job.optimizer.param_groups[1]["lr"] = 0.7
    began = time.monotonic()

    def is_shown() -> bool:
        job.move()
        time.sleep(0.01)
        return bool(job.shown() == [0.1, 0.7])

    wait_until(is_shown, "the rate of the script to be shown")
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("schedule", ["", "cosine"])
def test_what_a_restored_state_left_standing_may_be_undone_and_nothing_else(
    tmp_path: Path, schedule: str
) -> None:
    job = Job(tmp_path, schedule)
    before = states(job)
    first = job.send("lr", {"scale": 0.5})
    between = states(job)
    second = job.send("lr", {"scale": 0.1, "group": 1})
    load(job, between)
    job.move()
    with pytest.raises(CannotUndo, match="restore has undone it already"):
        job.step_back(second)
    job.revert(first)
    want = job.scheduled() if schedule else [0.1, 0.2]
    assert job.rates == want
    third = job.send("lr", {"scale": 0.25})
    load(job, before)
    job.move()
    with pytest.raises(CannotUndo, match="restore has undone it already"):
        job.step_back(third)
    fourth = job.send("lr", {"scale": 0.25})
    job.revert(fourth)
    want = job.scheduled() if schedule else [0.1, 0.2]
    assert job.rates == want


@pytest.mark.parametrize("schedule", ["", "cosine"])
def test_a_command_that_a_restored_state_brought_back_may_be_undone(
    tmp_path: Path, schedule: str
) -> None:
    job = Job(tmp_path, schedule)
    before = states(job)
    first = job.send("lr", {"scale": 0.5})
    after = states(job)
    load(job, before)
    job.move()
    view = job.view().command(first.command)
    assert view is not None and (view.effect or {}).get("reverted") == "restore"
    load(job, after)
    job.move()
    view = job.view().command(first.command)
    assert view is not None and "reverted" not in (view.effect or {})
    assert job.shown() == pytest.approx([0.05, 0.1], rel=1e-3)
    job.revert(first)
    assert job.rates == (job.scheduled() if schedule else [0.1, 0.2])


def test_an_attempt_that_has_not_said_what_it_holds_shows_nothing_of_the_one_before(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    job.send("lr", {"scale": 0.5})
    job.trainer.finish(close_run=False)
    again = lht.init("reverted", state_dir=tmp_path, resume=job.trainer.run.run_id)
    assert values_of(views.open_run(on_disk(again))) == {}
    again.watch(torch.nn.Linear(1, 1), make_optimizer(0.3, 0.4))
    assert values_of(views.open_run(on_disk(again)))["lr"] == [0.3, 0.4]
    again.finish()


def test_a_checkpoint_carries_what_may_be_undone_into_the_next_attempt(tmp_path: Path) -> None:
    job = Job(tmp_path, "cosine")
    first = job.send("lr", {"scale": 0.5, "group": 1})
    second = job.send("lr", {"lr": 0.03})
    job.trainer.save_checkpoint()
    job.trainer.finish(close_run=False)
    again = Job(tmp_path, "cosine", resume=job.trainer.run.run_id)
    again.trainer.load_checkpoint()
    again.steps = job.steps
    again.move()
    again.revert(second)
    again.revert(first)
    assert again.rates == pytest.approx(again.scheduled(), rel=1e-12)
    assert again.step_back(first) is None


# What the script changes by itself ----------------------------------------------------------


def by_hand(job: Job, name: str) -> None:
    """Change a value as a script does that knows nothing of commands."""
    if name == "dropout":
        job.model[1].p = 0.7  # type: ignore[assignment]
    else:
        for group in job.optimizer.param_groups:
            group[name] = 0.0777


CHANGED = [
    ("lr", {"scale": 0.5}),
    ("lr", {"lr": 0.3, "group": 1}),
    ("weight_decay", {"scale": 0.5}),
    ("dropout", {"p": 0.5}),
]


def now(job: Job, name: str) -> list[float]:
    return (
        [each[name] for each in job.optimizer.param_groups]
        if name != "dropout"
        else [
            job.model[1].p  # type: ignore[list-item]
        ]
    )


@pytest.mark.parametrize(("name", "payload"), CHANGED)
def test_what_the_script_has_changed_since_is_not_undone(
    tmp_path: Path, name: str, payload: dict[str, Any]
) -> None:
    job = Job(tmp_path)
    changed = job.send(name, payload)
    by_hand(job, name)
    wanted = now(job, name)

    def is_shown() -> bool:
        job.move()
        shown = job.shown(name)
        return wanted == (shown if isinstance(shown, list) else [shown])

    wait_until(is_shown, "the value of the script to be shown")
    with pytest.raises(CannotUndo, match=r"it is 0\.\d+ now, not as the command left it"):
        job.step_back(changed)


@pytest.mark.parametrize(("name", "payload"), CHANGED)
def test_a_revert_from_before_the_script_changed_the_value_is_rejected(
    tmp_path: Path, name: str, payload: dict[str, Any]
) -> None:
    job = Job(tmp_path)
    changed = job.send(name, payload)
    step = job.step_back(changed)
    assert step is not None
    by_hand(job, name)
    wanted = now(job, name)
    refused = job.send(name, step[0], reverts=changed.command, expected=step[1])
    assert (refused.state, refused.code) == ("rejected", "changed_meanwhile")
    assert now(job, name) == wanted


def test_a_rate_that_a_plateau_has_reduced_since_is_scaled_back(tmp_path: Path) -> None:
    job = Job(tmp_path, "plateau")
    changed = job.send("lr", {"lrs": [0.05, 0.3]})
    for group in job.optimizer.param_groups:
        group["lr"] *= 0.1  # What the scheduler does.
    job.revert(changed)
    assert job.rates == pytest.approx([0.01, 0.02], rel=1e-12)


# What the run brought back by itself --------------------------------------------------------


def own(job: Job, count: int) -> list[Outcome]:
    """Train until the run has commanded so many things by itself, and return how they ended."""

    def done() -> list[Outcome] | None:
        job.move()
        ended = final_outcomes(job.trainer.run.directory).values()
        found = [each for outcomes in ended for each in outcomes if each.issued_by == REAPPLY]
        return found if len(found) >= count else None

    return wait_until(done, f"{count} commands of the run's own")  # type: ignore[no-any-return]


@pytest.mark.parametrize("schedule", ["", "cosine", "plateau"])
@pytest.mark.parametrize("is_original", [True, False])
def test_what_a_restart_lost_and_the_run_brought_back_may_be_undone(
    tmp_path: Path, schedule: str, is_original: bool
) -> None:
    """By the command that somebody gave, or by the one that brought it back."""
    first = Job(tmp_path, schedule)
    given = {
        "lr": first.send("lr", {"scale": 0.5}),
        "weight_decay": first.send("weight_decay", {"scale": 3.0}),
        "dropout": first.send("dropout", {"p": 0.5}),
        "set_gain": first.send("set_gain", {"value": 4.0}),
    }
    first.trainer.finish(close_run=False)
    job = Job(tmp_path, schedule, resume=first.trainer.run.run_id, reapply=True)
    brought = {each.name: each for each in own(job, 4)}
    assert brought.keys() == given.keys()
    half = [each / 2 for each in (job.scheduled() if schedule == "cosine" else (0.1, 0.2))]
    assert job.rates == pytest.approx(half, rel=1e-12)
    for name in given:
        undone = job.revert(given[name] if is_original else brought[name])
        assert undone.state == "applied"
    want = job.scheduled() if schedule == "cosine" else [0.1, 0.2]
    assert job.rates == pytest.approx(want, rel=1e-12)
    assert [group["weight_decay"] for group in job.optimizer.param_groups] == [0.1, 0.2]
    assert (job.model[1].p, job.gain.value) == (0.1, 1.0)


@pytest.mark.parametrize("schedule", ["", "cosine"])
def test_of_two_commands_that_were_brought_back_the_newer_one_is_undone_first(
    tmp_path: Path, schedule: str
) -> None:
    first = Job(tmp_path, schedule)
    one = first.send("lr", {"scale": 0.5})
    two = first.send("lr", {"scale": 0.1, "group": 1})
    first.trainer.finish(close_run=False)
    job = Job(tmp_path, schedule, resume=first.trainer.run.run_id, reapply=True)
    own(job, 1)
    with pytest.raises(CannotUndo, match=f"{two.command} has changed it since"):
        job.step_back(one)
    undone = job.revert(two)
    job.revert(one)
    want = job.scheduled() if schedule else [0.1, 0.2]
    assert job.rates == pytest.approx(want, rel=1e-12)
    with pytest.raises(CannotUndo, match=f"{undone.command} has undone it already"):
        job.step_back(two)


@pytest.mark.parametrize("schedule", ["", "cosine"])
def test_a_command_of_an_earlier_attempt_is_undone_again_after_its_revert_was(
    tmp_path: Path, schedule: str
) -> None:
    first = Job(tmp_path, schedule)
    one = first.send("lr", {"scale": 0.5})
    first.trainer.save_checkpoint()
    first.trainer.finish(close_run=False)
    job = Job(tmp_path, schedule, resume=first.trainer.run.run_id)
    job.trainer.load_checkpoint()
    job.steps = first.steps
    job.move()
    job.revert(job.revert(one))
    job.revert(one)
    want = job.scheduled() if schedule else [0.1, 0.2]
    assert job.rates == pytest.approx(want, rel=1e-12)
