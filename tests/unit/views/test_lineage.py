"""Which commands of a run led to its last state: over restarts, restored states and reverts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

import launchhelm.torch as lht
from launchhelm import views
from launchhelm._wording import outcome_text
from launchhelm.cli import documents
from launchhelm.records import REAPPLY, Command, Outcome
from launchhelm.store import inbox
from launchhelm.views.around import around_of
from launchhelm.views.lineage import places
from launchhelm.views.plan import command_for
from launchhelm.views.replay import Choice, Entry, replay_documents, replay_of, told_by, told_in
from tests.support.journals import final_outcomes, wait_until
from tests.support.one_rank import on_disk

_open: list[lht.Trainer] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """End every training of a test."""
    yield
    while _open:
        _open.pop().finish()


class Job:
    """One attempt of a script that restores nothing, or what it loads by hand."""

    def __init__(
        self,
        root: Path,
        resume: str = "",
        *,
        step: int = 0,
        reapply: bool = False,
        schedule: bool = True,
    ) -> None:
        self.trainer = lht.init("line", state_dir=root, resume=resume, reapply=reapply)
        self.optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        scheduler = LambdaLR(self.optimizer, lambda step: 1.0) if schedule else None
        controls = ("lr", "weight_decay", "stop")
        self.trainer.watch(torch.nn.Linear(1, 1), self.optimizer, scheduler, controls=controls)
        self.step = step
        self.sent = 0
        self.rates = {0.1}
        _open.append(self.trainer)

    def move(self) -> None:
        self.step += 1
        self.optimizer.step()
        self.trainer.step(self.step, loss=1.0)
        self.rates.add(round(self.rate, 6))

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def send(self, name: str = "lr", *, reverts: str = "", **payload: Any) -> Outcome:
        self.sent += 1
        id_ = f"a{self.trainer.run.attempt.number}-{self.sent}"
        inbox.send(self.trainer.run.directory, Command(id_, name, payload, reverts=reverts))
        return self.wait_for(id_)

    def wait_for(self, id_: str) -> Outcome:
        def done() -> list[Outcome] | None:
            self.move()
            return final_outcomes(self.trainer.run.directory).get(id_)

        (outcome,) = wait_until(done, f"the outcome of {id_}")
        assert outcome.state == "applied", outcome
        return outcome  # type: ignore[no-any-return]

    def own(self, count: int = 1) -> list[Outcome]:
        """Train until the run has commanded so many things by itself."""

        def done() -> list[Outcome] | None:
            self.move()
            ended = final_outcomes(self.trainer.run.directory).values()
            found = [each for outcomes in ended for each in outcomes if each.issued_by == REAPPLY]
            return found if len(found) >= count else None

        return wait_until(done, f"{count} commands of the run's own")  # type: ignore[no-any-return]

    def end(self) -> str:
        self.trainer.finish(close_run=False)
        return self.trainer.run.run_id

    def view(self) -> views.RunView:
        return views.open_run(on_disk(self.trainer))


def at(outcome: Outcome) -> int:
    return int(outcome.applied_at["step"])


def plan_of(job: Job, new: Job) -> dict[str, Entry]:
    entries = replay_of(new.view(), told_by(job.view()), Choice(offset=100_000))
    return {each.source.partition("/")[2]: each for each in entries}


def replayed(job: Job, root: Path) -> tuple[dict[str, Entry], Job]:
    """Replay a run on a new one, of which all that is given is applied."""
    new = Job(root)
    new.move()
    plan = plan_of(job, new)
    new.step = 99_999
    given = {f"new-{id_}": each for id_, each in plan.items() if not each.why}
    for id_, each in given.items():
        command = command_for(each.name, each.payload, first_step=each.step, id=id_)
        inbox.send(new.trainer.run.directory, command)
    for id_ in given:
        new.wait_for(id_)
    return plan, new


def test_what_the_run_commanded_again_is_not_replayed_and_its_revert_is(tmp_path: Path) -> None:
    first = Job(tmp_path)
    one = first.send(scale=0.5)
    job = Job(tmp_path, first.end(), step=first.step, reapply=True)
    (again,) = job.own()
    assert job.rate == 0.05
    view = job.view()
    (said,) = (
        str(outcome_text(each, around_of(view, command=each)))
        for each in view.commands
        if each.id == one.command
    )
    assert said == (
        f"Applied at step {at(one):,}: reverted by restore or restart, "
        f"step {first.step + 1} of attempt 2, and brought back by command {again.command}"
    )
    undone = job.send(reverts=again.command, scale=2.0)
    assert job.rate == 0.1
    plan, new = replayed(job, tmp_path / "new")
    assert {id_: each.why for id_, each in plan.items()} == {
        one.command: "",
        again.command: f"with it the run brought {one.command} back (reapply=True)",
        undone.command: "",
    }
    assert new.rates == {0.1, 0.05} and new.rate == 0.1


def test_what_was_trained_again_is_replayed_where_the_run_brought_it_back(tmp_path: Path) -> None:
    first = Job(tmp_path)
    one = first.send(scale=0.5)
    saved = first.step
    two = first.send(scale=0.5)
    job = Job(tmp_path, first.end(), step=saved, reapply=True)
    (again,) = job.own()
    three = job.send(scale=0.1)
    assert job.rate == pytest.approx(0.0025)
    found = places(job.view())
    assert {id_: each.step for id_, each in found.items() if not each.why} == {
        one.command: at(one),
        two.command: at(again),
        three.command: at(three),
    }
    plan, new = replayed(job, tmp_path / "new")
    assert [each.why for each in plan.values()].count("") == 3
    assert new.rates == {0.1, 0.05, 0.025, 0.0025}


def test_what_was_trained_again_without_it_is_left_out(tmp_path: Path) -> None:
    """The checkpoint holds the first command; of the second nothing is left, nor of its revert."""
    first = Job(tmp_path, schedule=False)
    one = first.send(scale=0.5)
    saved, state = first.step, first.optimizer.state_dict()
    two = first.send(scale=0.5)
    undone = first.send(reverts=two.command, lr=0.05)
    three = first.send(scale=0.2)
    job = Job(tmp_path, first.end(), step=saved, schedule=False)
    job.optimizer.load_state_dict(state)
    job.optimizer.param_groups[0]["lr"] = 0.05
    job.move()
    found = {id_: each.why for id_, each in places(job.view()).items()}
    again = f"attempt 2 began again at step {saved + 1:,}"
    assert found == {
        one.command: "",
        two.command: again,
        undone.command: again,
        three.command: again,
    }
    assert saved + 1 <= at(two)


def test_what_a_restart_lost_for_good_is_left_out_and_what_was_given_again_is_not(
    tmp_path: Path,
) -> None:
    first = Job(tmp_path)
    lost = first.send(scale=0.5)
    job = Job(tmp_path, first.end(), step=first.step)
    given = job.send(scale=0.5)
    plan, new = replayed(job, tmp_path / "new")
    why = f"a restore or restart has undone it, step {first.step + 1} of attempt 2"
    assert {id_: each.why for id_, each in plan.items()} == {lost.command: why, given.command: ""}
    assert new.rates == {0.1, 0.05}


def test_a_stop_after_which_the_run_went_on_is_left_out(tmp_path: Path) -> None:
    first = Job(tmp_path)
    one = first.send("stop")
    assert places(first.view())[one.command].why == ""
    job = Job(tmp_path, first.end(), step=first.step)
    job.move()
    assert places(job.view())[one.command].why == "attempt 2 went on after it"


def test_a_file_of_the_ledger_is_planned_like_the_run(tmp_path: Path) -> None:
    first = Job(tmp_path)
    first.send(scale=0.5)
    saved = first.step
    first.send(scale=0.5)
    job = Job(tmp_path, first.end(), step=saved, reapply=True)
    (again,) = job.own()
    job.send(reverts=again.command, scale=4.0)
    view, lines = job.view(), []
    replays = replay_documents(view)
    for each in view.commands:
        document = documents.command_document(each, around_of(view, command=each))
        lines.append(json.dumps({**document, "run": view.run_id, "replay": replays.get(each.id)}))
    assert told_in("\n".join(lines)) == told_by(view)
    # One of before says less, and not that something is to be given twice.
    old = [{**json.loads(line), "replay": None} for line in lines]
    whys = [each.why for each in told_in("\n".join(map(json.dumps, old)))]
    assert [bool(why) for why in whys] == [False, False, True, False]
