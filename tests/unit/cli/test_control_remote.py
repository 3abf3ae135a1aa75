"""`launchhelm control --server`: the same words and exit codes, by way of a server."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.cli import _control_send, _remote_send
from launchhelm.cli._remote_follow import Following
from launchhelm.cli._remote_words import changes_of, sentence_of
from syncer.api.answers import ApiError
from syncer.api.client import Client
from tests.support.cli_runs import MadeRun
from tests.support.scripted_participant import APPLIED, Participant
from tests.support.v1_server import HandClock, V1Server, v1_server
from tests.unit.cli.conftest import Cli, Ran


class Clock(HandClock):
    """Its wall time stands until a test moves it; claims still end."""

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[V1Server]:
    with v1_server(tmp_path, clock=clock) as running:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", running.key)
        for name in ("URL", "API_KEY_FILE", "ORGANIZATION", "PROJECT", "CA_BUNDLE"):
            monkeypatch.delenv(f"LAUNCHHELM_{name}", raising=False)
        yield running


@pytest.fixture
def control(server: V1Server, cli: Cli) -> Any:
    def call(*words: str) -> Ran:
        return cli("control", "--server", server.url, *words)

    return call


def commands_of(server: V1Server, participant: Participant) -> list[Any]:
    return list(server.get(f"runs/{participant.run['id']}/commands")["items"])


def test_an_applied_command_is_answered_with_a_sentence_and_0(
    server: V1Server, control: Any
) -> None:
    with Participant(server) as participant:
        ran = control("ddp-run", "lr", "scale=0.5", "--reason", "noisy since 9k", "--wait")
    assert ran.code == 0, ran.err
    assert ran.out == "Applied at step 412 on all 4 processes, lr 0.01 -> 0.005 in 2 groups\n"
    what, where, *submitted = ran.err.splitlines()
    assert what == "lr scale=0.5"
    assert where.startswith("in ddp-run, last heard of 0 s ago")
    assert submitted[0].startswith("submitted ")
    (command,) = participant.taken
    assert command["request"]["input"] == {"scale": 0.5}
    assert command["request"]["reason"] == "noisy since 9k"
    assert command["request"]["safe_point"] == "lht"


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        ({"outcome": "rejected", "failure_code": "rank_gone"}, 6, "Rejected, nothing changed: "),
        ({"outcome": "rejected", "failure_code": "expired"}, 6, "Expired, nothing changed"),
        (
            {"outcome": "rejected", "failure_code": "frozen"},
            6,
            "Rejected, nothing changed: the controls are frozen; `launchhelm control RUN unfreeze`",
        ),
        (
            {"outcome": "rejected", "failure_code": "runtime_restart"},
            6,
            "Rejected, nothing changed: rank 0, or the syncer, that had taken it is gone",
        ),
        (
            {
                "outcome": "outcome_unknown",
                "failure_code": "DivergedStateError",
                "applied_on": {"count": 3, "of": 4},
            },
            7,
            "Outcome unknown: 3 of 4 processes reported success.",
        ),
        (
            {"outcome": "applied", "result": {"lr": [0.05]}, "applied_at": []},
            0,
            "Applied, number of processes not reported",
        ),
    ],
)
def test_each_outcome_has_its_sentence_and_exit_code(
    server: V1Server, control: Any, said: dict[str, Any], code: int, sentence: str
) -> None:
    with Participant(server, answer=lambda command: said):
        ran = control("ddp-run", "lr", "lr=0.1")
    assert ran.code == code
    assert ran.out.startswith(sentence)


def test_json_has_the_fields_of_a_command_and_what_the_server_knows(
    server: V1Server, control: Any
) -> None:
    with Participant(server):
        document = control("ddp-run", "lr", "scale=0.5", "--json").document
    assert document["sent"] is True
    assert (document["name"], document["payload"]) == ("lr", {"scale": 0.5})
    assert (document["state"], document["execution"]) == ("applied", "applied")
    assert (document["applied_on"], document["of"]) == (4, 4)
    assert document["applied_at"] == {"step": 412}
    assert document["changes"] == APPLIED["result"]
    assert document["decided_by"] == "participant"
    assert [each["state"] for each in document["states"]][-1] == "applied"


def test_a_run_is_found_by_either_id_a_beginning_its_name_or_latest(
    server: V1Server, control: Any
) -> None:
    local_id = str(uuid.uuid4())
    participant = Participant(server, local_id=local_id)
    for selector in (participant.run["id"], local_id, local_id[:13], "ddp-run", "latest"):
        ran = control(selector, "list", "--json")
        assert [line["name"] for line in ran.lines] == ["lr"], ran.err
    assert control("ddp-run", "list", "--project", "quickstart").code == 0
    assert control("ddp-run", "list", "--project", "elsewhere").code == 4
    assert control("nobody", "list").code == 4
    Participant(server).client.close()
    ran = control("ddp-run", "list")
    assert ran.code == 4
    assert participant.run["id"] in ran.err
    participant.client.close()


def test_what_does_not_fit_is_refused_before_anything_is_sent(
    server: V1Server, control: Any
) -> None:
    participant = Participant(server)
    for words in (["lr", "rate=1"], ["lr"], ["lr", "lr=fast"], ["eval"], ["lr", "lr=-1"]):
        ran = control("ddp-run", *words)
        assert ran.code == 2, ran
    for option in (["--at-step", "3"], ["--last-step", "3"], ["--expect", "lr=1"]):
        ran = control("ddp-run", "lr", "scale=0.5", *option)
        assert ran.code == 2
        assert "by way of a server" in ran.err
    for words in (["freeze"], ["unfreeze"], ["revert", "c1"], ["replay", "other"]):
        ran = control("ddp-run", *words)
        assert ran.code == 2
        assert f"{words[0]} does not go by way of a server" in ran.err
    assert commands_of(server, participant) == []
    participant.client.close()


def test_check_sends_nothing(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    ran = control("ddp-run", "lr", "scale=0.5", "--check", "--json")
    assert (ran.code, ran.document["state"]) == (0, "checked")
    assert control("ddp-run", "lr", "scale=0.5", "--check").out.startswith("lr scale=0.5\n")
    assert commands_of(server, participant) == []
    participant.client.close()


def test_a_command_that_nobody_picks_up_stays_when_the_waiting_ends(
    server: V1Server, control: Any
) -> None:
    participant = Participant(server)
    ran = control("ddp-run", "lr", "scale=0.5", "--timeout", "0.3")
    assert ran.code == 8
    assert ran.out.startswith("Waiting for 0 s: nobody has picked it up")
    (command,) = commands_of(server, participant)
    assert command["id"] in ran.err
    assert command["execution"] == "queued"
    participant.client.close()


def test_no_wait_prints_the_id(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    ran = control("ddp-run", "lr", "scale=0.5", "--no-wait")
    (command,) = commands_of(server, participant)
    assert (ran.code, ran.out) == (0, command["id"] + "\n")
    participant.client.close()


def test_a_command_that_needs_approval_says_so(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    participant.offer(requires_approval=True)
    ran = control("ddp-run", "lr", "scale=0.5", "--timeout", "0.2")
    assert (ran.code, ran.out[:20]) == (8, "Waiting for approval")
    participant.client.close()


def test_a_command_for_a_run_that_is_over_is_not_sent(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    participant.end()
    ran = control("ddp-run", "lr", "scale=0.5", "--json")
    assert (ran.code, ran.document["state"]) == (6, "not_sent")
    assert "has ended its session" in ran.err
    assert commands_of(server, participant) == []
    participant.client.close()


def test_the_newest_live_offer_of_a_control_is_taken(server: V1Server, control: Any) -> None:
    with Participant(server) as participant:
        newest = participant.offer()
        dead = server.participant(participant.run, "rank-1")["id"]
        participant.offer(participant_id=dead)
        assert control("ddp-run", "lr", "scale=0.5").code == 0
    assert participant.taken[0]["request"]["capability"]["id"] == newest


def test_silence_is_said_before_and_while_waiting(
    server: V1Server, control: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Participant(server)
    clock.now += 300
    monkeypatch.setattr(_control_send, "WORD_EVERY_S", 0.0)
    ran = control("ddp-run", "lr", "scale=0.5", "--timeout", "0.5")
    assert ran.code == 8
    assert "note: not heard of for 5 min; the command may wait, and expire after 1 h" in ran.err
    assert "nobody has picked it up; the run was not heard of for 5 min" in ran.out
    assert ran.err.count("by way of whoever syncs that: `launchhelm sync DIRECTORY`") == 1
    # The validity is counted by the server's clock.
    assert "not take it" not in ran.err
    participant.client.close()


def test_another_command_in_between_is_no_refusal(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Client.submit
    before: list[str] = []

    def late(self: Client, body: Any, key: str, **rest: Any) -> Any:
        if not before:
            before.append(key)
            other = submit(self, {**body, "input": {"lr": 0.5}}, uuid.uuid4().hex)
            while self.get_command(other["id"])["execution"] != "applied":
                pass
        return submit(self, body, key, **rest)

    monkeypatch.setattr(Client, "submit", late)
    with Participant(server) as participant:
        assert control("ddp-run", "lr", "scale=0.5").code == 0
    inputs = [command["request"]["input"] for command in participant.taken]
    assert inputs == [{"lr": 0.5}, {"scale": 0.5}]


def test_a_lost_answer_makes_no_second_command(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Client.submit
    lost: list[str] = []

    def losing(self: Client, body: Any, key: str, **rest: Any) -> Any:
        answer = submit(self, body, key, **rest)
        if not lost:
            lost.append(key)
            raise ApiError("transport", "The connection was cut.", retryable=True)
        return answer

    monkeypatch.setattr(Client, "submit", losing)
    with Participant(server) as participant:
        assert control("ddp-run", "lr", "scale=0.5").code == 0
    assert len(participant.taken) == 1


def test_a_server_that_never_answers_leaves_the_outcome_unknown(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> Any:
        raise ApiError("transport", "The connection was cut.", retryable=True)

    participant = Participant(server)
    monkeypatch.setattr(Client, "submit", silent)
    monkeypatch.setattr(_remote_send, "_SUBMIT_FOR_S", 0.0)
    ran = control("ddp-run", "lr", "scale=0.5", "--json")
    assert (ran.code, ran.document["state"]) == (7, "outcome_unknown")
    assert "is not known" in ran.err
    participant.client.close()


def test_a_silence_while_waiting_is_sat_out(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, tries = Client.get_command, []

    def faltering(self: Client, command_id: str, **rest: Any) -> Any:
        tries.append(command_id)
        if len(tries) == 1:
            raise ApiError("internal", "Not now.", status=503, retryable=True, retry_after_s=0)
        return look(self, command_id, **rest)

    monkeypatch.setattr(Client, "get_command", faltering)
    with Participant(server):
        ran = control("ddp-run", "lr", "scale=0.5")
    assert ran.code == 0
    assert "The server does not answer (Not now.); asking again." in ran.err


def test_ctrl_c_leaves_the_command_and_says_so(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    participant = Participant(server)
    monkeypatch.setattr("time.sleep", interrupted)
    ran = control("ddp-run", "lr", "scale=0.5")
    (command,) = commands_of(server, participant)
    assert ran.code == 130
    assert f"Command {command['id']} stays" in ran.err
    participant.client.close()


def test_a_command_that_has_ended_by_ctrl_c_is_told_as_it_is(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_late(self: Following, id_: str, command: Any) -> int:
        while self.there.client.get_command(id_)["execution"] != "applied":
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(Following, "_wait", interrupted_late)
    with Participant(server):
        ran = control("ddp-run", "lr", "scale=0.5")
    assert ran.code == 130
    assert ran.out.startswith("Applied at step 412 on all 4 processes")
    assert "may still be applied" not in ran.err


def test_a_second_ctrl_c_takes_the_command_back(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    participant = Participant(server)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("time.sleep", interrupted)
    ran = control("ddp-run", "lr", "scale=0.5", "--yes")
    (command,) = commands_of(server, participant)
    assert (ran.code, command["execution"]) == (130, "cancelled")
    assert ran.out.startswith("Cancelled")
    participant.client.close()


def test_log_prints_every_command_with_what_became_of_it(server: V1Server, control: Any) -> None:
    with Participant(server, answer=lambda command: APPLIED) as participant:
        control("ddp-run", "lr", "scale=0.5", "--reason", "noisy")
    ran = control("ddp-run", "log")
    assert ran.code == 0
    assert "lr scale=0.5  Applied at step 412 on all 4 processes" in ran.out
    assert '"noisy"' in ran.out
    assert re.search(r"  by [^ ]+ \(key [0-9a-f]{8}\)  ", ran.out)
    (line,) = control("ddp-run", "log", "--json").lines
    assert re.fullmatch(r".+ \(key [0-9a-f]{8}\)", line["issued_by"])
    assert line["id"] == participant.taken[0]["id"]
    other = Participant(server, "quiet")
    assert "No command" in control("quiet", "log").err
    other.client.close()


def test_a_key_that_may_not_command_is_told_so_with_5(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Participant(server)
    grant = {
        "effect": "allow",
        "scope": server.scope,
        "actions": ["document.read", "document.list"],
        "kinds": ["*"],
        "resources": ["*"],
        "bounds": {},
    }
    body = {"name": "reader", "expires_at": "2100-01-01T00:00:00Z", "grants": [grant]}
    monkeypatch.setenv("LAUNCHHELM_API_KEY", server.post("keys", body)["token"])
    assert control("ddp-run", "list").code == 0
    assert control("ddp-run", "lr", "scale=0.5").code == 5
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "lhk_nobody")
    assert control("ddp-run", "list").code == 5
    participant.client.close()


def test_a_server_that_is_not_there_is_8_with_a_next_step(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "any")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        ran = cli("control", "--server", url, "--organization", str(uuid.uuid4()), "r", "list")
    assert ran.code == 8
    assert "Check --server" in ran.err


def test_options_of_a_server_without_one_are_refused(cli: Cli) -> None:
    ran = cli("control", "latest", "list", "--project", "p")
    assert ran.code == 2
    assert "--project goes with --server" in ran.err


def test_without_a_server_no_network_package_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom launchhelm.cli import main\n"
        "main(['--root', '.', 'control', 'latest', 'list'])\n"
        "print([name for name in ('httpx', 'syncer') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "result",
    [
        {"lr": {"old": 1, "new": 2}},
        {"changes": {"lr": {"old": 1, "new": 2}}},
        {"old": {"lr": 1}, "new": {"lr": 2}, "checked": True},
        {
            "old": {"lr": {"$number": "integer", "value": "1"}},
            "new": {"lr": {"$number": "integer", "value": "2"}},
        },
    ],
)
def test_old_and_new_are_read_from_a_result_that_names_them(result: Any) -> None:
    assert changes_of(result) == {"lr": {"old": 1, "new": 2}}


def test_numbers_that_json_has_not_are_read_too() -> None:
    typed = {"$number": "nonfinite", "value": "inf"}
    found = changes_of({"old": {"lr": [1, typed]}, "new": {"lr": [{"$number": "x", "value": "y"}]}})
    assert found == {"lr": {"old": [1, float("inf")], "new": [{"$number": "x", "value": "y"}]}}


@pytest.mark.parametrize("result", [None, {"lr": [0.05]}, [1], "done", {"old": 1}])
def test_a_result_of_anything_else_names_no_change(result: Any) -> None:
    assert changes_of(result) == {}


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"execution": "a word of the future"},
        {"execution": "applied", "applied_on": "all", "applied_at": "here", "result": 3},
        {"execution": "applied", "applied_at": [3, {"axis": "step"}], "applied_on": {"of": True}},
        {"execution": "failed"},
    ],
)
def test_a_strange_command_is_never_called_applied_on_all(command: Any) -> None:
    assert "on all" not in str(sentence_of(command))


# --- cancel and approve ---------------------------------------------------------------------------


def queued(server: V1Server, control: Any, participant: Participant, *words: str) -> str:
    """Give a command that nobody picks up, and return its id."""
    ran = control("ddp-run", "lr", "scale=0.5", "--no-wait", *words)
    assert ran.code == 0, ran.err
    return str(ran.out.strip())


def test_cancel_takes_back_what_nobody_has_picked_up(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    id_ = queued(server, control, participant)
    for _ in range(2):  # What is cancelled stays so.
        ran = control("ddp-run", "cancel", id_[:13])
        assert ran.code == 0, ran.err
        assert re.fullmatch(r"Cancelled by .+ \(key .{8}\), nothing changed\n", ran.out)
    document = control("ddp-run", "cancel", id_, "--json").document
    assert (document["id"], document["name"], document["state"]) == (id_, "lr", "cancelled")
    assert commands_of(server, participant)[0]["execution"] == "cancelled"
    participant.client.close()


def test_cancel_comes_too_late_for_what_was_picked_up_and_says_where_it_is(
    server: V1Server, control: Any
) -> None:
    with Participant(server) as participant:
        assert control("ddp-run", "lr", "scale=0.5").code == 0
    ran = control("ddp-run", "cancel", participant.taken[0]["id"])
    assert ran.code == 6
    assert "can be cancelled only before it is claimed" in ran.err
    assert ran.out.startswith("Applied at step 412 on all 4 processes")


def test_approve_releases_a_command_and_says_what_became_of_it(
    server: V1Server, control: Any
) -> None:
    participant = Participant(server)
    participant.offer(requires_approval=True)
    id_ = queued(server, control, participant, "--reason", "noisy")
    with participant:
        ran = control("ddp-run", "approve", id_)
    assert ran.code == 0, ran.err
    what, approved, picked_up = ran.err.splitlines()
    assert re.fullmatch(r'lr scale=0\.5  by .+ \(key .{8}\)  "noisy"', what)
    assert approved.startswith("approved ") and picked_up.startswith("picked up ")
    assert ran.out.startswith("Applied at step 412 on all 4 processes")


def test_approve_comes_too_late_for_what_was_cancelled(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    participant.offer(requires_approval=True)
    id_ = queued(server, control, participant)
    assert control("ddp-run", "cancel", id_).code == 0
    ran = control("ddp-run", "approve", id_)
    assert ran.code == 6
    assert ran.out.startswith("Cancelled by ")
    participant.client.close()


def test_a_decision_needs_one_command_of_this_run(server: V1Server, control: Any) -> None:
    participant = Participant(server)
    queued(server, control, participant)
    other = Participant(server, "other")
    foreign = control("other", "lr", "scale=0.5", "--no-wait").out.strip()
    for words, code in (
        (["cancel"], 2),
        (["approve", "a", "b"], 2),
        (["cancel", ""], 2),
        (["cancel", "zz"], 4),
        (["cancel", foreign], 4),
        (["cancel", str(uuid.uuid4())], 4),
    ):
        ran = control("ddp-run", *words)
        assert ran.code == code, (words, ran)
    assert [it["execution"] for it in commands_of(server, other)] == ["queued"]
    for it in (participant, other):
        it.client.close()


def test_a_key_that_may_not_decide_is_told_so_with_5(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Participant(server)
    id_ = queued(server, control, participant)
    actions = ["document.read", "document.list", "command.submit"]
    grant = {"effect": "allow", "scope": server.scope, "actions": actions}
    grant |= {"kinds": ["*"], "resources": ["*"], "bounds": {}}
    body = {"name": "giver", "expires_at": "2100-01-01T00:00:00Z", "grants": [grant]}
    monkeypatch.setenv("LAUNCHHELM_API_KEY", server.post("keys", body)["token"])
    for verb in ("cancel", "approve"):
        assert control("ddp-run", verb, id_).code == 5
    assert commands_of(server, participant)[0]["execution"] == "queued"
    participant.client.close()


def test_without_a_server_nothing_can_be_approved_and_that_is_said(cli: Cli, root: Path) -> None:
    MadeRun(root).train()
    ran = cli("control", "latest", "approve", "abc")
    assert ran.code == 2 and "goes with --server" in ran.err


def test_of_two_that_wait_the_second_is_warned_of_and_its_giver_told_how_to_go_on(
    server: V1Server, control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = Participant(server)
    first = queued(server, control, participant)
    submit = Client.submit

    def submit_and_wake(self: Client, *given: Any, **rest: Any) -> Any:
        answer = submit(self, *given, **rest)
        participant.__enter__()
        return answer

    monkeypatch.setattr(Client, "submit", submit_and_wake)
    ran = control("ddp-run", "lr", "scale=0.25", "--reason", "still noisy")
    participant.__exit__(None, None, None)
    assert ran.code == 6
    assert "note: 1 command is under way; if it is applied, this one is rejected" in ran.err
    assert ran.out.startswith("Rejected, nothing changed: another command was applied first")
    again = f"launchhelm control --server {server.url} {participant.run['id']} lr scale=0.25"
    assert f"To send it again: {again} --reason 'still noisy'" in ran.err
    one, two = commands_of(server, participant)
    assert (one["id"], one["execution"]) == (first, "applied")
    assert two["failure_code"] == "state_revision_moved"
    ran = control("ddp-run", "lr", "scale=0.25", "--check")
    assert "under way" not in ran.out
