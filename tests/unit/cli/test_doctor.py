"""`launchhelm doctor` over runs, modes, settings and the environment: each fault is made."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm.cli import Exit
from launchhelm.doctor import environment
from launchhelm.records import Command
from launchhelm.store import inbox
from syncer import status
from syncer.lease import Lease, lease_name
from syncer.state import find_place, open_journal
from tests.support.cli_runs import Journal, MadeRun, add_shards, with_two_attempts
from tests.support.reading import tree
from tests.unit.cli.conftest import Cli

SERVER = "https://lan.example"
ORG = "11111111-1111-4111-8111-111111111111"
HOUR = 3600.0


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's settings, and a host whose name has an address."""
    for name in ("LAUNCHHELM_API_KEY", "LAUNCHHELM_API_KEY_FILE", "LAUNCHHELM_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LAUNCHHELM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def findings(cli: Cli, *words: str) -> dict[str, dict[str, Any]]:
    """Return what was found by name of the check, notes about this machine left out."""
    found = cli("doctor", "--json", *words).document["findings"]
    return {it["check"]: it for it in found if it["check"] not in ("network", "packages")}


def test_a_root_in_order_has_nothing_wrong_and_stays_as_it_is(cli: Cli, root: Path) -> None:
    MadeRun(root, "done").train().end()
    before = tree(root)
    ran = cli("doctor")
    assert ran.code == Exit.DONE
    assert "Looked at 1 run" in ran.err
    assert findings(cli) == {}
    assert tree(root) == before


def test_a_root_that_is_not_there_yet_is_no_problem_and_one_that_is_named_is(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_DIR", str(root / "later"))
    assert findings(cli)["root"]["level"] == "note"
    assert not (root / "later").exists()
    assert cli("doctor", str(root / "later")).code == Exit.NO_SUCH_RUN
    assert cli("doctor", "--root", str(root / "later")).code == Exit.NO_SUCH_RUN


def test_a_finding_says_what_was_seen_and_what_to_do_and_exits_with_9(cli: Cli, root: Path) -> None:
    root.chmod(0o777)
    ran = cli("doctor")
    assert ran.code == Exit.PROBLEMS_FOUND == 9
    lines = ran.out.splitlines()
    assert lines[0] == f"error    {root}: Any user may remove or replace the runs in it."
    assert lines[1:3] == ["         seen: Its mode is 777.", f"         do:   chmod o-w {root}"]
    assert ran.out.isascii()


def test_without_writing_no_scratch_file_is_made(cli: Cli, root: Path) -> None:
    before = root.stat().st_mtime_ns
    assert findings(cli, "--no-write") == {}
    assert root.stat().st_mtime_ns == before
    assert findings(cli) == {}
    assert root.stat().st_mtime_ns != before


# --- modes ----------------------------------------------------------------------------------------


def test_a_run_that_any_user_may_control_is_an_error(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train().end()
    (run.path / "control").chmod(0o707)
    found = findings(cli)["modes"]
    assert (found["level"], found["about"]) == ("error", str(run.path))


def test_a_run_shared_with_its_group_in_part_only_is_told(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train().end()
    (run.path / "control").chmod(0o2770)
    assert findings(cli)["sharing"]["level"] == "warning"
    for path in (run.path, *run.path.iterdir()):
        if path.is_dir():
            path.chmod(0o2770)
    assert findings(cli) == {}


def test_a_root_that_shares_nothing_though_its_group_may_write_is_noted(
    cli: Cli, root: Path
) -> None:
    root.chmod(0o770)
    assert findings(cli)["sharing"]["level"] == "note"
    root.chmod(0o2770)
    assert findings(cli) == {}
    root.chmod(0o2700)
    assert findings(cli)["sharing"]["level"] == "warning"


# --- runs -----------------------------------------------------------------------------------------


def test_damaged_and_newer_runs_are_told_apart(cli: Cli, root: Path) -> None:
    bad, new = MadeRun(root, "bad").end(), MadeRun(root, "new").end()
    (bad.path / "run.json").write_text("{")
    manifest = (new.path / "run.json").read_text().replace('"format": 1', '"format": 2')
    (new.path / "run.json").write_text(manifest)
    found = findings(cli)
    assert (found["readable"]["level"], found["readable"]["about"]) == ("error", str(bad.path))
    assert (found["format"]["level"], found["format"]["about"]) == ("warning", str(new.path))


def test_a_run_that_is_named_is_read_whole(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train()
    for step in range(5):
        run.journals[0].add("m", {"loss": step}, step=step)
    run.end()
    (path,) = (run.path / "data").iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-4] + lines[-3:]))
    assert findings(cli) == {}
    assert "2" not in findings(cli, str(run.path))["damaged"]["happened"]
    found = findings(cli, str(run.path))["damaged"]
    assert (found["level"], found["happened"]) == ("error", "Records are missing: 1.")
    assert findings(cli, "--deep")["damaged"] == found


def test_a_file_that_a_run_names_and_that_is_gone_or_changed_is_told(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    with launchhelm.init("p", state_dir=root) as run:
        gone = run.artifact(b"some bytes", name="weights").spec["sha256"]
        changed = run.artifact(b"other bytes", name="tokens").spec["sha256"]
        run.artifact(b"whole", name="whole")
    media = run.directory / "media"
    assert findings(cli, run.run_id) == {}
    (media / gone).unlink()
    (media / changed).chmod(0o600)
    (media / changed).write_bytes(b"other bites")
    found = findings(cli, run.run_id)["media"]
    assert found["happened"] == "2 of 3 files that the run names are missing or damaged."
    assert "weights': No such file" in found["evidence"]
    assert "tokens': is damaged" in found["evidence"]


def test_a_value_that_was_changed_in_a_sealed_segment_is_told(cli: Cli, root: Path) -> None:
    with launchhelm.init("p", state_dir=root) as run:
        run.log({"train/loss": 2.25})
    (segment,) = (run.directory / "data").glob("*.db")
    assert findings(cli, run.run_id) == {}
    data = segment.read_bytes()
    segment.chmod(0o600)
    segment.write_bytes(data.replace(struct.pack(">d", 2.25), struct.pack(">d", 2.5), 1))
    found = findings(cli, run.run_id)["damaged"]
    assert (found["level"], found["about"]) == ("error", str(segment))
    assert found["evidence"].endswith("sums: train/loss.")
    assert cli("doctor", run.run_id).code == Exit.PROBLEMS_FOUND


def test_an_attempt_of_which_a_process_lost_its_files_is_told(cli: Cli, root: Path) -> None:
    run = with_two_attempts(root)
    assert findings(cli, str(run.path)) == {}
    (run.path / "data" / f"{run.journals[1].writer}.00001.jsonl").unlink()
    found = findings(cli, str(run.path))["missing"]
    assert (found["level"], found["evidence"]) == ("warning", "attempt 1: no file of rank 1")
    (run.path / "data" / f"{run.journals[0].writer}.00001.jsonl").unlink()
    assert findings(cli, str(run.path))["missing"]["evidence"] == "attempt 1: no file of ranks 0-1"


def test_parts_of_a_checkpoint_that_are_gone_or_cut_short_are_told(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train()
    parts = add_shards(run)
    run.end()
    assert findings(cli, str(run.path)) == {}
    (parts / "__1_0.distcp").write_bytes(bytes(63))
    found = findings(cli, str(run.path))["media"]
    assert found["evidence"] == "checkpoints/parts/__1_0.distcp: 63 of 64 bytes"
    (parts / "__1_0.distcp").unlink()
    assert "__1_0.distcp: No such file" in findings(cli, str(run.path))["media"]["evidence"]
    for path in parts.iterdir():
        path.unlink()
    assert ".metadata: No such file" in findings(cli, str(run.path))["media"]["evidence"]


def test_jobs_that_died_are_one_note_with_their_names(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = time.time() - 3 * HOUR
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: at)
        dead = [MadeRun(root, f"dead-{number}").train() for number in range(2)]
    for run in dead:
        for path in (run.path, *run.path.rglob("*")):
            os.utime(path, (at, at))
    MadeRun(root, "alive").train()
    found = findings(cli)["left_open"]
    assert (found["level"], found["happened"][:12]) == ("note", "2 jobs ended")
    assert "dead-0" in found["evidence"] and "alive" not in found["evidence"]
    assert cli("doctor").code == Exit.DONE


def test_hosts_that_do_not_share_the_storage_are_counted(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train().end()
    (run.path / "nodes").mkdir()
    for host in ("gpu-01", "gpu-02"):
        (run.path / "nodes" / f"{host}-0a1b2c3d.json").write_text("{}")
    found = findings(cli)["not_shared"]
    assert found["happened"].startswith("Not shared: 2 hosts")
    assert found["evidence"] == "gpu-01, gpu-02"


def test_a_run_that_is_there_twice_is_told(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train().end()
    shutil.copytree(run.path, root / "copy")
    assert run.run_id in findings(cli)["copies"]["evidence"]


def test_losses_faults_and_silent_ranks_of_a_live_run_are_told(cli: Cli, root: Path) -> None:
    run = MadeRun(root, ranks=2).train()
    fault = {"type": "fault", "component": "writer", "error": "RuntimeError", "count": 3}
    run.journals[0].add("ev", fault)
    run.journals[0].beat(401, 2, lost=7, errors=2)
    found = cli("doctor", "--json").document["findings"]
    said = {it["happened"] for it in found if it["check"] in ("losses", "faults")}
    assert said == {
        "7 records were given up by their writers.",
        "Writing failed 2 times and was repeated.",
        "Something inside the tracker failed; training went on.",
    }


def test_ranks_of_different_versions_are_told(cli: Cli, root: Path) -> None:
    run = MadeRun(root, ranks=2).train()
    for rank, version in enumerate(("0.1.0", "0.2.0")):
        path = next((run.path / "data").glob(f"r0000{rank}*"))
        path.unlink()
        made = Journal(run.path, rank, world=2, lib=f"launchhelm-offline {version}")
        made.beat(5)
    found = findings(cli)["versions"]
    assert found["evidence"] == "launchhelm-offline 0.1.0: rank 0; launchhelm-offline 0.2.0: rank 1"


def test_a_command_that_nobody_will_decide_is_noted(cli: Cli, root: Path) -> None:
    run = MadeRun(root).train().end()
    inbox.send(run.path, Command("c-1", "lr", {"scale": 0.5}))
    assert findings(cli, run.run_id)["commands"]["evidence"].startswith("The run is over")


def test_a_secret_in_a_config_is_an_error_that_does_not_repeat_it(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = MadeRun(root, config={"hub_token": "abcdef"}).end()
    ran = cli("doctor", "--json")
    assert "abcdef" not in ran.out + ran.err
    (found,) = (it for it in ran.document["findings"] if it["check"] == "secrets")
    assert (found["level"], found["about"]) == ("error", str(named.path))
    shutil.rmtree(named.path)
    MadeRun(root, config={"note": "use lhk-very-secret"}).end()
    assert findings(cli) == {}
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "lhk-very-secret")
    assert "secrets" in findings(cli)
    assert "lhk-very-secret" not in cli("doctor").out


def test_what_killed_commands_left_is_noted(cli: Cli, root: Path) -> None:
    (root / ".removed-x").mkdir()
    assert findings(cli) == {}
    os.utime(root / ".removed-x", (1.0, 1.0))
    assert findings(cli)["leftovers"]["evidence"] == ".removed-x"


# --- syncing --------------------------------------------------------------------------------------


def test_a_lease_that_was_not_given_back_and_a_state_in_doubt_are_told(
    cli: Cli, root: Path
) -> None:
    run = MadeRun(root).train()
    place = find_place(run.path, run.run_id, SERVER, ORG, state_root=status.state_root())
    journal = open_journal(place, 1, run_id=run.run_id, origin=SERVER, org=ORG)
    journal.write({"cursors": {}})
    journal.write({"cursors": {}})
    journal.close()
    lease = Lease(place)
    epoch = lease.try_acquire()
    assert epoch is not None
    assert findings(cli) == {}
    path = place / lease_name(epoch)
    os.utime(path, (path.stat().st_mtime - HOUR,) * 2)
    assert findings(cli)["lease"]["level"] == "note"
    lease.release()
    assert findings(cli) == {}
    (state,) = place.glob("state.*")
    lines = state.read_bytes().splitlines(keepends=True)
    state.write_bytes(b"".join([*lines[:-2], b"#" + lines[-2][1:], lines[-1]]))
    assert findings(cli)["sync_state"]["level"] == "warning"


def test_a_key_without_a_syncer_is_told_while_a_run_is_live(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(root, "mine").train()
    assert findings(cli) == {}
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    found = findings(cli)["no_syncer"]
    assert (found["evidence"], str(root) in found["remedy"]) == ("mine", True)
    run.end()
    assert findings(cli) == {}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody will."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        yield door.getsockname()[1]


def test_a_server_is_asked_only_when_that_is_wanted(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("LAUNCHHELM_API_KEY", "k")
    monkeypatch.setenv("LAUNCHHELM_URL", f"http://127.0.0.1:{closed_port}")
    assert findings(cli) == {}
    found = findings(cli, "--online")["server"]
    assert "cannot be reached" in found["happened"]
    assert "server" in findings(cli, "--server", f"http://127.0.0.1:{closed_port}")


# --- the environment ------------------------------------------------------------------------------


def test_the_official_distribution_beside_ours_is_an_error(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "site" / "launchhelm-9.9.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: launchhelm\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = findings(cli)["distribution"]
    assert (found["level"], "launchhelm 9.9" in found["happened"]) == ("error", True)


def test_a_missing_package_is_noted_with_the_line_that_installs_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(launchhelm.__file__).parents[1])])
    monkeypatch.delitem(sys.modules, "psutil", raising=False)
    found = cli("doctor", "--json").document["findings"]
    (psutil,) = (it for it in found if it["about"] == "psutil")
    assert (psutil["level"], "launchhelm-offline[system]" in psutil["remedy"]) == ("note", True)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("no-such-host.invalid", "has no address"),
        ("192.0.2.7", "that it does not have"),
        ("localhost", "loopback"),
    ],
)
def test_a_host_name_that_gloo_cannot_use_is_told(
    host: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    (found,) = environment.network(host)
    assert said in found.happened
    assert "GLOO_SOCKET_IFNAME" in found.remedy


def test_an_interface_that_this_host_does_not_have_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    (found,) = environment.network()
    assert (found.level, "lo" in found.remedy) == ("error", True)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (found,) = environment.network()
    assert (found.level, "loopback" in found.happened) == ("note", True)


def test_key_and_authority_files_are_looked_at(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    monkeypatch.setenv("LAUNCHHELM_API_KEY_FILE", str(key))
    assert findings(cli)["settings"]["level"] == "error"
    key.write_text("k\n")
    key.chmod(0o644)
    assert findings(cli)["settings"]["remedy"] == f"chmod 600 {key}"
    key.chmod(0o600)
    assert findings(cli) == {}
    monkeypatch.setenv("LAUNCHHELM_CA_BUNDLE", str(tmp_path / "no.pem"))
    assert "no.pem" in findings(cli)["settings"]["about"]
