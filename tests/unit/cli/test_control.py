"""`launchhelm control`: nothing is written before the check; every way out says what happened."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from launchhelm.cli import _control_send
from launchhelm.cli.control import arranged
from launchhelm.cli.output import Output
from launchhelm.controls import schema
from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from launchhelm.store.layout import CommandName
from launchhelm.views import open_run
from tests.support.cli_runs import Coordinator, MadeRun, commands_in
from tests.unit.cli.conftest import Cli

TEXT = schema.record([schema.field("text", schema.text())])


def applied(command: Command) -> Outcome:
    return Outcome(
        command.id,
        "applied",
        applied_at={"step": 412},
        applied_on=2,
        of=2,
        changes={"lr": {"old": [0.01, 0.01], "new": [0.005, 0.005]}},
    )


@pytest.fixture
def run(root: Path) -> MadeRun:
    return MadeRun(root, "ddp-run", ranks=2).train()


def test_an_applied_command_is_answered_with_a_sentence_and_0(run: MadeRun, cli: Cli) -> None:
    with Coordinator(run, applied) as coordinator:
        ran = cli("control", "ddp-run", "lr", "scale=0.5", "--reason", "noisy since 9k")
    assert ran.code == 0
    assert ran.out == ("Applied at step 412 on all 2 processes, lr 0.01 -> 0.005 in 2 groups\n")
    preview, when, written, picked_up = ran.err.splitlines()
    assert preview == "lr 0.01 -> 0.005 in 2 groups; if there is a schedule, it goes on from there"
    assert when.startswith("at about step ") and when.endswith("on 2 processes.")
    assert written.startswith("written ") and picked_up.startswith("picked up ")
    (command,) = coordinator.taken
    assert command.payload == {"scale": 0.5}
    assert command.reason == "noisy since 9k"
    assert command.issued_by


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome("", "rejected", code="not_permitted"), 6),
        (Outcome("", "expired"), 6),
        (Outcome("", "cancelled"), 6),
        (Outcome("", "outcome_unknown", applied_on=1, of=2), 7),
        (Outcome("", "a_word_of_the_future"), 8),
    ],
)
def test_each_outcome_has_its_exit_code(
    run: MadeRun, cli: Cli, outcome: Outcome, code: int
) -> None:
    with Coordinator(run, lambda command: outcome):
        ran = cli("control", "ddp-run", "lr", "lr=0.1", "--timeout", "1")
    assert ran.code == code
    assert ran.out


@pytest.mark.parametrize(
    "fields",
    [
        ("scale=0.5", "lr=1"),
        ("lr=-1",),
        ("lr=fast",),
        ("lr=nan",),
        ("rate=1",),
        ("lr=1", "group=2"),
        ("lr",),
        (),
    ],
)
def test_a_field_that_does_not_fit_is_usage_and_nothing_is_written(
    run: MadeRun, cli: Cli, fields: tuple[str, ...]
) -> None:
    ran = cli("control", "ddp-run", "lr", *fields)
    assert ran.code == 2
    assert "lr" in ran.err and "scale" in ran.err
    assert commands_in(run.path) == []


def test_a_group_written_as_it_is_shown_is_answered_with_its_number(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "lr=1", "group=group1")
    assert ran.code == 2
    assert "Write group=1." in ran.err


@pytest.mark.parametrize(
    ("reason", "told"),
    [("x" * 70_000, "65,536 are allowed"), ("\udcff", "text in UTF-8")],
)
def test_a_reason_that_cannot_be_written_is_usage(
    run: MadeRun, cli: Cli, reason: str, told: str
) -> None:
    ran = cli("control", "ddp-run", "lr", "lr=1", "--reason", reason)
    assert ran.code == 2 and told in ran.err
    assert commands_in(run.path) == []


def test_an_unknown_control_names_those_there_are(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "momentum", "value=1")
    assert ran.code == 2
    assert "lr, set_kl" in ran.err


@pytest.mark.parametrize("words", [("send",), ("send", "scale=0.5")])
def test_send_without_the_name_of_a_control_says_what_is_missing(
    run: MadeRun, cli: Cli, words: tuple[str, ...]
) -> None:
    ran = cli("control", "ddp-run", *words)
    assert ran.code == 2
    assert "send takes the name of a control" in ran.err and "lr, set_kl" in ran.err
    assert "no control" not in ran.err


def test_check_says_what_would_change_and_writes_nothing(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "set_kl", "value=0.1", "--check")
    assert ran.code == 0
    assert ran.out.startswith("set_kl 0.5 -> 0.1\n")
    document = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--json").document
    assert document["changes"] == {"lr": {"old": [0.01, 0.01], "new": [0.005, 0.005]}}
    assert document["sent"] is False
    assert commands_in(run.path) == []


def test_what_changes_nothing_says_so(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=1", "--check")
    assert ran.out.startswith("lr unchanged at 0.01 in 2 groups\n")


def test_a_last_step_that_has_passed_is_told_once(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--last-step=9")
    assert ran.out.splitlines()[1:] == [
        "note: step 9 has passed (the run is at 400); it would expire at once"
    ]
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--last-step=401", "--json")
    (warning,) = ran.document["warnings"]
    assert warning.startswith("it could act at about step ")
    assert warning.endswith("past its last step 401")


@pytest.mark.parametrize("levels", [31, 2000, 100_000])
@pytest.mark.parametrize("control", ["ping", "plan"])
def test_a_field_that_is_nested_too_deep_is_usage(
    run: MadeRun, cli: Cli, levels: int, control: str
) -> None:
    """Nobody could read such a command; 30 levels are allowed."""
    takes = {
        "ping": schema.field("echo", schema.opaque(), optional=True),
        "plan": schema.field("echo", schema.listing(schema.opaque())),
    }
    fields = schema.record([takes[control]])
    run.journals[0].add("cap", {"name": control, "safe_points": ["lht"], "input_schema": fields})
    deep = f"echo={'[' * levels}1{']' * levels}"
    ran = cli("control", "ddp-run", control, deep, "--no-wait")
    assert ran.code == 2 and "nested deeper than 30 levels" in ran.err, ran.err
    assert cli("control", "ddp-run", "lr", "lr=1", "--expect", f"lr{deep[4:]}").code in (2, 6)
    assert commands_in(run.path) == []
    allowed = f"echo={'[' * 30}1{']' * 30}"
    assert cli("control", "ddp-run", control, allowed, "--no-wait").code == 0


def test_of_a_run_that_is_paused_no_step_and_no_time_is_foreseen(run: MadeRun, cli: Cli) -> None:
    for journal in run.journals:
        journal.beat(400, 2, step_time_ms=5.0, phase="paused")
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--check")
    assert ran.out.splitlines()[-1] == "at the next control point, on 2 processes."
    now = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--at-step=400")
    assert "has passed" not in now.out  # The ranks wait in that step, and commands act there.
    past = cli("control", "ddp-run", "lr", "scale=0.5", "--check", "--at-step=399")
    assert "step 399 has passed (the run is at 400)" in past.out
    for ran in (now, past):
        assert ran.out.splitlines()[-1] == "at the next control point, on 2 processes."
    assert "paused at step 400" in cli("show", "ddp-run").out
    assert "paused at step 400" in cli("ls").out


@pytest.mark.parametrize("state", ["finished", "error", "terminated"])
def test_a_run_that_has_ended_takes_no_command(root: Path, cli: Cli, state: str) -> None:
    run = MadeRun(root, "over").train().end(state)
    ran = cli("control", "over", "lr", "scale=0.5")
    assert ran.code == 6
    assert "has ended" in ran.err and "nothing changed" in ran.err
    assert commands_in(run.path) == []


def test_a_run_without_controls_or_with_control_off_says_so(root: Path, cli: Cli) -> None:
    bare = MadeRun(root, "bare")
    bare.journals[0].beat(3)
    ran = cli("control", "bare", "lr", "scale=0.5")
    assert ran.code == 6 and "declares no controls" in ran.err
    off = MadeRun(root, "off").train()
    off.report({"lr": [0.01]}, step=401, control="off", why="rank 1 left at step 300")
    ran = cli("control", "off", "lr", "scale=0.5")
    assert ran.code == 6 and "rank 1 left at step 300" in ran.err
    assert commands_in(bare.path) == commands_in(off.path) == []


def test_the_list_begins_with_why_control_is_off_and_says_it_once(root: Path, cli: Cli) -> None:
    run = MadeRun(root, "off").train()
    assert "control is off" not in cli("control", "off", "list").out
    run.report({"lr": [0.01]}, step=401, control="off", why="rank 1 left at step 300")
    ran = cli("control", "off", "list")
    first, head, *_ = ran.out.splitlines()
    assert (first, head.split()) == (
        "control is off: rank 1 left at step 300",
        ["CONTROL", "NOW", "TAKES"],
    )
    assert (ran.code, ran.err) == (0, "")
    run.end("finished")
    assert "has ended" in cli("control", "off", "list").err


def test_waiting_ends_with_8_and_the_command_stays(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--timeout", "0.2s")
    assert ran.code == 8
    assert ran.out.startswith("Waiting")
    (command,) = commands_in(run.path)
    assert command["cmd"] in ran.err


def test_no_wait_prints_the_id_and_leaves(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--no-wait", "--at-step", "500")
    assert ran.code == 0
    (command,) = commands_in(run.path)
    assert ran.out.strip() == command["cmd"]
    assert command["first_step"] == 500
    (line,) = cli("control", "ddp-run", "log", "--json").lines
    assert line["id"] == command["cmd"] and line["state"] == "waiting"
    assert line["text"].startswith("Scheduled for step 500")


def test_a_command_is_expected_to_meet_the_values_that_were_seen(run: MadeRun, cli: Cli) -> None:
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--expect", "lr=0.02", "--no-wait")
    assert ran.code == 6 and "lr is 0.01 now, not 0.02" in ran.err
    assert commands_in(run.path) == []
    cli("control", "ddp-run", "lr", "scale=0.5", "--expect", "lr=0.01", "--no-wait")
    (command,) = commands_in(run.path)
    assert command["expected"] == {"lr": [0.01, 0.01]}


class Terminal(io.StringIO):
    """A standard input at which a person sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code", "sent"), [("n\n", 6, 0), ("", 6, 0), ("y\n", 8, 1)])
def test_only_a_terminal_is_asked_and_no_is_the_default(
    run: MadeRun,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    sent: int,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--timeout", "0.1")
    assert "Send? [y/N]" in ran.err
    assert ran.code == code
    assert len(commands_in(run.path)) == sent


def test_yes_answers_the_question(run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--yes", "--no-wait")
    assert ran.code == 0 and "Send?" not in ran.err


def test_an_interrupt_leaves_the_command_and_names_it(
    run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_control_send.time, "sleep", interrupted)
    ran = cli("control", "ddp-run", "lr", "scale=0.5")
    assert ran.code == 130
    (command,) = commands_in(run.path)
    assert command["cmd"] in ran.err and "may still be applied" in ran.err


def test_a_command_that_ends_while_a_second_interrupt_is_waited_for_is_told_as_it_is(
    run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        if seconds != _control_send.AGAIN_S:
            raise KeyboardInterrupt
        (sent,) = commands_in(run.path)
        command = Command(sent["cmd"], "lr", sent["args"])
        run.conclude(command, applied(command))

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr(_control_send.time, "sleep", sleep)
    ran = cli("control", "ddp-run", "lr", "scale=0.5")
    assert ran.code == 130
    assert ran.out.startswith("Applied at step 412 on all 2 processes")
    assert "may still be applied" not in ran.err


def test_the_same_word_is_not_said_twice(
    run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_control_send, "WORD_EVERY_S", 0.05)
    for journal in run.journals:
        journal.beat(400, 2, step_time_ms=None)
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--at-step=1000000", "--timeout=1")
    assert ran.code == 8
    assert ran.err.count("Scheduled for step 1,000,000") == 1, ran.err


def test_what_was_said_while_waiting_is_not_said_again_at_the_end(
    run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where words and data come together; data alone has its line in any case."""
    monkeypatch.setattr(_control_send, "WORD_EVERY_S", 0.05)
    for journal in run.journals:
        journal.beat(400, 2, step_time_ms=None)
    command = Command("c1", "lr", {"scale": 0.5}, first_step=10**6)
    inbox.send(run.path, command)
    for name, counts in (("out", [1, 1]), ("words", [1, 1])):
        files = [tmp_path / "out", tmp_path / name]
        with files[0].open("w") as out, files[1].open("a") as words:
            code = _control_send.wait(open_run(run.path), command, 0.5, Output(out, words))
        said = [each.read_text().count("Scheduled for step 1,000,000") for each in files]
        assert (code, said) == (8, counts)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_second_interrupt_takes_the_command_back(
    run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A third one leaves, and whoever sits at no terminal is not kept waiting for a second."""
    sleep, count = time.sleep, 0

    def interrupted(seconds: float) -> None:
        nonlocal count
        count += 1
        if count <= (1 if is_late else 2):
            raise KeyboardInterrupt
        if is_late:
            assert seconds == _control_send.AGAIN_S
            return
        (order,) = (each for each in commands_in(run.path) if each["kind"] == "run:cancel")
        (sent,) = (each for each in commands_in(run.path) if each["kind"] == "lr")
        assert order["args"] == {"id": sent["cmd"]} and "first_step" not in order
        for id_, kind, state in (
            (sent["cmd"], "lr", "cancelled"),
            (order["cmd"], "run:cancel", "applied"),
        ):
            run.conclude(Command(id_, kind, {}), Outcome(id_, state))
        sleep(0)

    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    monkeypatch.setattr(_control_send.time, "sleep", interrupted)
    ran = cli("control", "ddp-run", "lr", "scale=0.5", "--at-step", "500")
    assert ran.code == 130
    assert "Ctrl-C again within 2 s takes it back, if it has not begun." in ran.err
    assert ran.out.startswith("Cancelled") is not is_late
    assert len(commands_in(run.path)) == (1 if is_late else 2)


def test_an_inbox_that_may_not_be_written_is_5(
    run: MadeRun, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launchhelm.store import inbox

    def refused(path: Path, data: bytes, **mode: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(inbox, "write_durably", refused)
    ran = cli("control", "ddp-run", "lr", "scale=0.5")
    assert ran.code == 5
    assert "may not control" in ran.err


def test_list_and_log_are_understood_in_both_orders(run: MadeRun, cli: Cli) -> None:
    listed = cli("control", "ddp-run", "list")
    assert listed.out == cli("control", "list", "ddp-run").out == cli("control", "list").out
    assert "set_kl" in listed.out and "a number from 0" in listed.out
    assert cli("control", "ddp-run", "log").code == cli("control", "log", "ddp-run").code == 0
    assert arranged(["list", "log"]) == ("list", "log", [])


def test_a_command_of_the_script_that_is_called_like_a_verb_is_reached_by_send(
    run: MadeRun, cli: Cli
) -> None:
    for name in ("log", "cancel", "send"):
        run.journals[0].add("cap", {"name": name, "safe_points": ["lht"], "input_schema": TEXT})
    ran = cli("control", "ddp-run", "log")
    assert ran.code == 0 and "control RUN send log" in ran.err
    refused = cli("control", "ddp-run", "log", "text=x")
    assert refused.code == 2 and "control RUN send log" in refused.err
    for words in (("send", "log", "text=x"), ("send", "cancel", "text=x"), ("send", "text=x")):
        assert cli("control", "ddp-run", *words, "--no-wait").code == 0
    sent = sorted(each["kind"] for each in commands_in(run.path))
    assert sent == ["cancel", "log", "send"]


def test_a_list_has_one_line_for_each_field(run: MadeRun, cli: Cli) -> None:
    head, rate, target, *_ = cli("control", "ddp-run", "list").out.splitlines()
    assert head == "CONTROL  NOW   TAKES"
    assert rate == "lr       0.01  scale: a number above 0, optional"
    assert target == "               lr: a number above 0, optional"


def test_options_may_stand_anywhere(run: MadeRun, cli: Cli) -> None:
    cli("control", "--no-wait", "ddp-run", "--reason", "a", "lr", "--yes", "scale=0.5", "group=1")
    (command,) = commands_in(run.path)
    assert command["args"] == {"scale": 0.5, "group": 1}


def test_json_is_one_document_with_the_outcome(run: MadeRun, cli: Cli) -> None:
    with Coordinator(run, applied):
        document = cli("control", "ddp-run", "lr", "scale=0.5", "--json").document
    assert document["sent"] is True and document["state"] == "applied"
    assert (document["applied_on"], document["of"]) == (2, 2)
    assert document["text"].startswith("Applied at step 412 on all 2 processes")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("2h", 7200), ("0.5s", 0.5)]
)
def test_a_timeout_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert _control_send.seconds_of(text) == seconds


def test_a_claimed_command_says_for_which_step_it_is_scheduled(run: MadeRun, cli: Cli) -> None:
    claimed = Outcome(
        "c1",
        "claimed",
        name="lr",
        payload={"scale": 0.5},
        first_step=100_000_000,
        last_step=2 * 10**8,
    )
    run.journals[0].add("oc", claimed.body(), step=400)
    writer = run.journals[0].writer
    (run.path / "control" / str(CommandName(0, "c1", writer))).write_text("{}")
    (line,) = cli("control", "ddp-run", "log", "--json").lines
    assert (line["first_step"], line["last_step"]) == (100_000_000, 200_000_000)
    assert line["text"] == "Scheduled for step 100,000,000: about 5 d at the present pace"
    assert "Scheduled for step 100,000,000" in cli("show").out
    assert "◆ 1" in cli("ls").out
    (row,) = cli("ls", "--json").lines
    assert (row["pending"], row["waiting"]) == (1, 0)
