"""`launchhelm clean`: which runs it leaves alone, and that a removed run is gone whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launchhelm.cli import Exit, clean
from launchhelm.store import media
from launchhelm.store.reader import Reader
from syncer import status
from syncer.lease import Lease
from syncer.state import find_place, open_journal
from tests.support.cli_runs import MadeRun, add_shards, with_two_attempts
from tests.support.v1_server import v1_server
from tests.unit.cli.conftest import Cli

HOUR = 3600.0
DAY = 24 * HOUR
SERVER = "https://lan.example"
ORG = "11111111-1111-4111-8111-111111111111"

Old = Callable[..., MadeRun]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def old(root: Path, monkeypatch: pytest.MonkeyPatch) -> Old:
    """Make a run that was started, and last heard of, so many seconds ago."""

    def make(name: str, seconds: float = 3 * DAY, *, ends: bool = True, ranks: int = 1) -> MadeRun:
        at = time.time() - seconds
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: at)
            run = MadeRun(root, name, ranks=ranks).train()
            if ends:
                run.end()
        touched(run, at)
        return run

    return make


def touched(run: MadeRun, at: float) -> None:
    """Set the times of all files."""
    for path in (run.path, *run.path.rglob("*")):
        os.utime(path, (at, at))


def sent(run: MadeRun, *, all_of_it: bool = True) -> None:
    """Note as a syncer does that everything, or nothing, of a run is on a server."""
    place = find_place(run.path, run.run_id, SERVER, ORG, state_root=status.state_root())
    journal = open_journal(place, 1, run_id=run.run_id, origin=SERVER, org=ORG)
    if all_of_it:
        reader = Reader(run.path)
        reader.poll()
        journal.write({"cursors": {status.EVERYTHING: reader.cursor.text()}})
    journal.close()


def actions(cli: Cli, *words: str) -> dict[str, str]:
    """Return what is done with each run, by its title."""
    return {it["name"]: it["action"] for it in cli("clean", "--json", *words).lines}


def test_of_a_live_an_unsynced_a_damaged_and_a_synced_run_only_the_last_is_removed(
    cli: Cli, root: Path, old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = old("synced")
    with v1_server(tmp_path / "far") as server:
        monkeypatch.setenv("LAUNCHHELM_URL", server.url)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
        monkeypatch.setenv("LAUNCHHELM_PROJECT", server.project)
        assert cli("sync", str(synced.path)).code == Exit.DONE
    live, unsynced, damaged = old("live", ends=False), old("unsynced"), old("damaged")
    live.journals[0].beat(401, counter=2)
    (damaged.path / "run.json").write_text("{", "utf-8")

    ran = cli("clean", "--age", "1h", "--delete", "--json")

    assert {it["name"]: it["action"] for it in ran.lines} == {
        "synced": "removed",
        "live": "keep",
        "unsynced": "keep",
    }
    assert ran.code == Exit.IN_PART and str(damaged.path) in ran.err
    assert sorted(os.listdir(root)) == sorted([live.run_id, unsynced.run_id, damaged.run_id])


def test_nothing_is_removed_unless_told_to(cli: Cli, old: Old) -> None:
    run = old("synced")
    sent(run)
    assert actions(cli, "--age", "1h") == {"synced": "remove"}
    assert run.path.exists()
    said = cli("clean", "--age", "1h")
    assert "--delete" in said.err and "remove" in said.out
    assert actions(cli, "--age", "1h", "--delete") == {"synced": "removed"}
    assert not run.path.exists()


def test_age_counts_from_the_last_heartbeat_by_the_youngest_clue(cli: Cli, old: Old) -> None:
    by_record, by_file, by_both = old("record", ends=False), old("file"), old("both", 90 * DAY)
    for run in (by_record, by_file, by_both):
        sent(run)
    by_record.journals[0].beat(401, counter=2)
    touched(by_record, time.time() - 3 * DAY)
    os.utime(next((by_file.path / "data").iterdir()))
    found = {it["name"]: it for it in cli("clean", "--json", "--age", "2h").lines}
    assert {name: it["action"] for name, it in found.items()} == {
        "record": "keep",
        "file": "keep",
        "both": "remove",
    }
    assert found["both"]["silent_s"] == pytest.approx(90 * DAY, abs=60)
    assert "last heartbeat" in found["record"]["why"]


def test_a_month_is_the_default(cli: Cli, old: Old) -> None:
    for name, days in (("young", 29), ("aged", 31)):
        sent(old(name, days * DAY))
    assert actions(cli) == {"young": "keep", "aged": "remove"}


def test_a_run_without_an_end_is_left_alone_for_a_day_whatever_age_is_asked_for(
    cli: Cli, old: Old
) -> None:
    young, aged = old("young", 5 * HOUR, ends=False), old("aged", 25 * HOUR, ends=False)
    sent(young)
    sent(aged)
    assert actions(cli, "--age", "1h") == {"young": "keep", "aged": "remove"}
    assert actions(cli, "--age", "0") == {"young": "keep", "aged": "remove"}


def test_a_run_whose_other_ranks_left_no_end_is_not_taken_for_over(cli: Cli, old: Old) -> None:
    run = old("half", 5 * HOUR, ends=False, ranks=2)
    with_end = run.journals[0]
    with_end.add("close", {"state": "finished", "close_run": True}, at=time.time() - 5 * HOUR)
    touched(run, time.time() - 5 * HOUR)
    sent(run)
    assert actions(cli, "--age", "1h") == {"half": "keep"}


def test_what_a_known_server_lacks_keeps_a_run_even_where_unsynced_ones_may_go(
    cli: Cli, old: Old
) -> None:
    never, in_part = old("never"), old("in part")
    sent(in_part, all_of_it=False)
    assert actions(cli, "--age", "1h") == {"never": "keep", "in part": "keep"}
    found = {it["name"]: it for it in cli("clean", "--json", "--age", "1h", "--unsynced").lines}
    assert found["never"]["action"] == "remove"
    assert found["in part"]["action"] == "keep" and SERVER in found["in part"]["why"]
    assert never.path.exists()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("media/.checkpoint-7.1a2b3c4d", "never made ready, and is on no server"),
        ("checkpoints/step-7/0.distcp", f"checkpoints/step-7 in it holds what is not on {SERVER}"),
    ],
)
def test_what_no_syncer_sends_keeps_a_run_that_is_on_a_server(
    cli: Cli, old: Old, what: str, why: str
) -> None:
    run = old("synced")
    sent(run)
    assert actions(cli, "--age", "1h") == {"synced": "remove"}
    path = run.path / what
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    touched(run, time.time() - 3 * DAY)
    (found,) = cli("clean", "--json", "--age", "1h").lines
    assert found["action"] == "keep" and why in found["why"]


def test_shards_that_are_on_the_server_keep_no_run_and_those_that_are_not_do(
    cli: Cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_two_attempts(root)
    parts = add_shards(run)
    (parts / "__7_0.distcp").touch()  # Of a rank that had nothing to save.
    with v1_server(tmp_path / "far") as server:
        monkeypatch.setenv("LAUNCHHELM_URL", server.url)
        monkeypatch.setenv("LAUNCHHELM_API_KEY", server.key)
        monkeypatch.setenv("LAUNCHHELM_PROJECT", server.project)
        # Whoever sends a part of a run leaves shards behind.
        assert cli("sync", str(run.path), "--only", "metrics").code == Exit.DONE
        assert actions(cli, "--age", "0s") == {"resumed": "keep"}
        assert cli("sync", str(run.path)).code == Exit.DONE
    assert actions(cli, "--age", "0s") == {"resumed": "remove"}
    shutil.copytree(parts, parts.with_name("another"))
    assert actions(cli, "--age", "0s") == {"resumed": "keep"}
    assert "checkpoints/another in it holds what is not on" in cli("clean", "--age", "0s").out
    shutil.rmtree(parts.with_name("another"))
    (parts / "notes").write_text("mine")
    assert actions(cli, "--age", "0s", "--delete") == {"resumed": "keep"}
    (parts / "notes").unlink()
    assert actions(cli, "--age", "0s", "--delete") == {"resumed": "removed"}


def test_a_snapshot_is_judged_by_what_it_holds_itself_and_a_half_one_is_nobody_s(
    cli: Cli, old: Old, root: Path
) -> None:
    run = old("synced")
    sent(run)
    assert cli("snapshot", str(run.path), str(root / "copy")).code == Exit.DONE
    shutil.copytree(root / "copy", root / ".half.snapshot")
    touched(run, time.time() - 3 * DAY)
    for path in (root / "copy", *(root / "copy").rglob("*")):
        os.utime(path, (time.time() - 3 * DAY,) * 2)
    found = {Path(it["directory"]).name: it for it in cli("clean", "--json", "--age", "1h").lines}
    assert {name: it["action"] for name, it in found.items()} == {
        run.path.name: "remove",
        "copy": "keep",
    }


def test_values_that_a_server_did_not_take_keep_a_run(cli: Cli, old: Old) -> None:
    run = old("giant")
    sent(run)
    place = find_place(run.path, run.run_id, SERVER, ORG, state_root=status.state_root())
    journal = open_journal(place, 2, run_id=run.run_id, origin=SERVER, org=ORG)
    journal.write({"streams": [["r0 string - step note", "", ""]]})
    journal.write({"aside": [[0, 5, 200_000, "too large"]]})
    journal.close()
    (found,) = cli("clean", "--json", "--age", "1h").lines
    assert found["action"] == "keep" and "only here" in found["why"]


def test_a_run_in_the_hands_of_a_syncer_is_left_alone(cli: Cli, old: Old) -> None:
    run = old("held")
    sent(run)
    place = find_place(run.path, run.run_id, SERVER, ORG, state_root=status.state_root())
    lease = Lease(place)
    assert lease.try_acquire()
    assert actions(cli, "--age", "1h") == {"held": "keep"}
    lease.release()
    assert actions(cli, "--age", "1h") == {"held": "remove"}


@pytest.mark.parametrize("how", ["state", "segment", "newer"])
def test_whatever_is_damaged_or_of_a_newer_format_is_left_alone(
    how: str, cli: Cli, root: Path, old: Old
) -> None:
    run = old("odd")
    sent(run)
    if how == "state":
        (file,) = (run.path / "sync").glob("*/state.*")
        file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    elif how == "segment":
        (journal,) = (run.path / "data").iterdir()
        journal.with_name(journal.name.replace("00001.jsonl", "00002.db")).touch()
    else:
        text = (run.path / "run.json").read_text("utf-8")
        (run.path / "run.json").write_text(text.replace('"format": 1', '"format": 2'), "utf-8")
    touched(run, time.time() - 3 * DAY)
    ran = cli("clean", "--json", "--age", "1h", "--delete", "--unsynced")
    assert "removed" not in ran.out and run.path.exists()


@pytest.mark.parametrize("how", ["writer", "artifact", "cut", "shard"])
def test_a_run_that_lost_a_writer_or_a_file_is_kept(cli: Cli, root: Path, how: str) -> None:
    run = with_two_attempts(root)
    parts = add_shards(run)
    stored = media.put(run.path, [b"weights"])
    run.journals[0].add("art", {"name": "w", "sha256": stored.sha256, "size": stored.size})
    words = ("--age", "0s", "--unsynced")
    assert actions(cli, *words) == {"resumed": "remove"}
    file = media.path_of(run.path, stored.sha256)
    if how == "writer":
        (run.path / "data" / f"{run.journals[1].writer}.00001.jsonl").unlink()
    elif how == "cut":
        os.truncate(file, 3)
    else:
        {"artifact": file, "shard": parts / "__0_0.distcp"}[how].unlink()
    assert actions(cli, *words, "--delete") == {"resumed": "keep"}
    assert "damaged: " in cli("clean", *words).out


def test_a_run_whose_earlier_attempt_left_no_end_is_kept_for_a_day(cli: Cli, root: Path) -> None:
    run = with_two_attempts(root, first_ends=False)
    assert actions(cli, "--age", "0s", "--unsynced") == {"resumed": "keep"}
    for journal in run.journals:
        journal.add("close", {"state": "crashed"})
    assert actions(cli, "--age", "0s", "--unsynced") == {"resumed": "remove"}


def test_what_cannot_be_removed_is_said_and_stays_whole(
    cli: Cli, root: Path, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = old("fixed")
    sent(run)
    files = sorted(run.path.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ran = cli("clean", "--age", "1h", "--delete", "--json")
    assert ran.code == Exit.IN_PART
    assert ran.document["action"] == "failed" and "read-only" in ran.document["why"]
    assert sorted(run.path.rglob("*")) == files


def test_a_removal_that_was_cut_short_leaves_no_half_run_and_is_ended_by_the_next(
    cli: Cli, root: Path, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(old("first"))

    def cut_short(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, **_: cut_short(path))
        patched.setattr(clean, "_left_behind", lambda roots: [])
        assert actions(cli, "--age", "1h", "--delete") == {"first": "failed"}
    assert len(os.listdir(root)) == 1
    assert cli("ls", "--json").lines == []
    old("second")
    assert actions(cli, "--age", "1h", "--delete") == {"second": "keep"}
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_where_there_is_no_run_it_says_so(cli: Cli) -> None:
    assert cli("clean").code == Exit.NO_SUCH_RUN
