"""Snapshots of runs that write and seal meanwhile; snapshots that are killed, or have no room."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launchhelm import snapshot
from launchhelm.cli import Exit
from launchhelm.errors import StorageError
from launchhelm.records import WriterId
from launchhelm.store import media
from launchhelm.store.layout import DATA, MEDIA, SUMS
from launchhelm.store.reader import Reader
from launchhelm.store.segment import seal
from tests.support.cli_runs import MadeRun
from tests.support.pushing import (
    WrittenRun,
    assert_same,
    local_points,
    push_all,
    pushing,
    server_points,
)
from tests.support.reading import as_nobody, tree
from tests.support.runs import until
from tests.support.storage import FaultyOs, stored_records
from tests.support.v1_server import v1_process

WRITER = """
import itertools, os, sys, time
from pathlib import Path
from launchhelm._recorder import Recorder
from launchhelm.records import WriterId
from launchhelm.store import media

run, rank = Path(sys.argv[1]), int(sys.argv[2])
recorder = Recorder(
    run, WriterId(rank, 1, f"{rank:08x}"), {"rank": rank, "world": 2}, flush_s=0.005,
    segment_bytes=100_000, max_segment_bytes=100_000,
)
recorder.start()
for step in itertools.count():
    recorder.append("m", {"loss": step * 0.5, "text": "x" * 50}, step=step)
    time.sleep(0.0002)  # So that the number of files stays sane.
    if step % 200 == 0:
        stored = media.put(run, [b"%d of %d" % (step, rank)])
        body = {"id": f"{rank}-{step}", "sha256": stored.sha256, "size": stored.size}
        recorder.append("art", body, step=step)
        recorder.flush(20)
        os.write(1, b"%d\\n" % step)
"""


@contextmanager
def writing(run: Path, *ranks: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let processes write as fast as they can, seal often, and keep artifacts."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run), str(rank)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for rank in ranks
    ]
    try:
        for child in children:
            assert promised(child) == 0
        yield children
    finally:
        for child in children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()


def promised(child: subprocess.Popen[bytes]) -> int:
    """Wait for the next step that the child calls durable."""
    assert child.stdout is not None
    return int(child.stdout.readline())


def assert_consistent(copy: Path) -> dict[WriterId, int]:
    """Check that a copy is a beginning of each process's records, with all that they name."""
    counts = {}
    for writer, records in stored_records(copy).items():
        assert [record.seq for record in records] == list(range(len(records)))
        for record in records:
            if record.kind == "art":
                assert media.read(copy, record.body["sha256"])
        counts[writer] = sum(record.kind == "m" for record in records)
    reader = Reader(copy)
    reader.poll()
    assert (reader.problems, reader.holes, reader.gaps) == ([], {}, [])
    return counts


def test_copies_of_a_run_that_writes_and_seals_are_each_a_beginning_without_a_hole(
    tmp_path: Path,
) -> None:
    run = MadeRun(tmp_path / "runs", ranks=0).path
    newest = 0
    with writing(run, 0, 1) as children:
        for number in range(6):
            copy = tmp_path / f"copy-{number}"
            step = promised(children[0])
            made = snapshot.take(run, copy)
            assert made.problems == ()
            counts = assert_consistent(copy)
            own = counts[WriterId(0, 1, "00000000")]
            assert own > step and own >= newest, "what was durable before is not in the copy"
            newest = own
        assert any((run / DATA).glob("*.db")), "nothing was sealed meanwhile"


def test_a_snapshot_that_is_killed_anywhere_is_gone_on_with_and_complete(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs").train()
    for number in range(40):
        stored = media.put(run.path, [bytes([number]) * 400_000])
        run.journals[0].add("art", {"id": str(number), "sha256": stored.sha256, "size": 400_000})
    run.end()
    before = tree(run.path)
    copy, staging = tmp_path / "copy", tmp_path / ".copy.snapshot"
    command = [sys.executable, "-m", "launchhelm", "snapshot", str(run.path), str(copy)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    for wanted in (1, 12, 30):
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

        def is_far(wanted: int = wanted, child: subprocess.Popen[bytes] = child) -> bool:
            names = os.listdir(staging / MEDIA) if (staging / MEDIA).exists() else []
            return len(names) >= wanted or child.poll() is not None

        until(is_far)
        child.send_signal(signal.SIGKILL)
        if child.wait() == Exit.DONE:
            break  # It was faster than we.
        assert not copy.exists()
    if not copy.exists():
        made = snapshot.take(run.path, copy)
        assert made.kept > 0 and made.problems == ()
    assert tree(run.path) == before
    assert not staging.exists()
    assert len(list((copy / MEDIA).iterdir())) == 40
    assert_consistent(copy)


def test_a_full_disk_leaves_no_copy_and_the_same_call_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(tmp_path / "runs").train().end()
    for number in range(3):
        media.put(run.path, [bytes([number]) * 3_000_000])
    faults = FaultyOs()
    monkeypatch.setattr(snapshot, "os", faults)
    faults.hooks["write"] = lambda: (
        faults.fail("write", errno.ENOSPC, times=None) if faults.calls["write"] == 6 else None
    )
    copy = tmp_path / "copy"
    with pytest.raises(StorageError, match="No space left") as caught:
        snapshot.take(run.path, copy)
    assert "goes on from there" in caught.value.remedy
    assert not copy.exists()
    faults.heal()
    made = snapshot.take(run.path, copy)
    assert made.kept > 0
    assert_consistent(copy)


def test_bytes_that_do_not_read_back_as_they_were_written_are_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MadeRun(tmp_path / "runs").train().end()
    faults = FaultyOs()
    monkeypatch.setattr(snapshot, "os", faults)

    def damage() -> None:
        (staged,) = (tmp_path / ".copy.snapshot" / DATA).iterdir()
        staged.write_bytes(b"x" + staged.read_bytes()[1:])
        faults.heal()

    faults.hooks["fwalk"] = damage
    with pytest.raises(StorageError, match="does not read back"):
        snapshot.take(run.path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert snapshot.take(run.path, tmp_path / "copy").problems == ()
    assert_consistent(tmp_path / "copy")


def test_a_line_that_is_being_written_again_is_waited_for(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs").train()
    (journal,) = (run.path / DATA).iterdir()
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40] + bytes(39) + b"\n")
    made = snapshot.take(
        run.path, tmp_path / "copy", sleep=lambda seconds: void(journal.write_bytes(whole))
    )
    assert made.problems == ()
    assert (tmp_path / "copy" / DATA / journal.name).read_bytes() == whole


def test_a_journal_that_is_sealed_after_the_listing_is_copied_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.log(range(5))
    (journal,) = (run.directory / DATA).iterdir()
    original = snapshot._Copy._segment

    def sealed_first(copy: snapshot._Copy, folder: int, name: str) -> bool:
        if journal.exists():
            seal(journal)
        return original(copy, folder, name)

    monkeypatch.setattr(snapshot._Copy, "_segment", sealed_first)
    assert snapshot.take(run.directory, tmp_path / "copy").problems == ()
    (name,) = os.listdir(tmp_path / "copy" / DATA)
    assert name == journal.with_suffix(".db").name
    assert_consistent(tmp_path / "copy")


def void(value: object) -> None:
    del value


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_read_only_run_of_another_user_is_copied_and_stays_as_it_is(public: Path) -> None:
    run = MadeRun(public / "runs").train().end()
    stored = media.put(run.path, [b"weights"])
    mine = public / "mine"
    mine.mkdir()
    mine.chmod(0o777)
    for path in (run.path, *run.path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (public / "runs").chmod(0o555)
    before = tree(public / "runs")

    def copied() -> dict[str, object]:
        made = snapshot.take(run.path, mine / "copy")
        return {"files": made.files, "problems": list(made.problems)}

    assert as_nobody(copied) == {"files": 4, "problems": []}
    assert tree(public / "runs") == before
    assert (mine / "copy" / MEDIA / stored.sha256).read_bytes() == b"weights"
    # Whoever owns the copy can go on in it, and throw it away.
    shutil.rmtree(mine / "copy")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_what_may_not_be_read_makes_no_copy(public: Path) -> None:
    run = MadeRun(public / "runs", ranks=2).train()
    for path in (public / "runs", run.path, *run.path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    hidden = next(path for path in (run.path / DATA).iterdir() if path.name.startswith("r00001"))
    hidden.chmod(0o600)
    mine = public / "mine"
    mine.mkdir()
    mine.chmod(0o777)

    def refused() -> dict[str, object]:
        try:
            snapshot.take(run.path, mine / "copy")
        except StorageError as error:
            return {"said": error.message}
        return {}

    assert hidden.name in str(as_nobody(refused)["said"])
    assert not (mine / "copy").exists()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_copy_and_its_run_are_one_run_of_which_a_server_gets_nothing_twice(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "runs", ranks=2)
    run.log(range(300))
    with v1_process(tmp_path / "far") as server, server.client() as client:
        with pushing(run.directory, client) as push:
            push_all(push)
        run.log(range(300, 500))
        copy = tmp_path / "copy"
        snapshot.take(run.directory, copy)
        run.log(range(500, 600))
        run.log(range(200), rank=1)
        for directory in (copy, run.directory, copy):
            with pushing(directory, client, lease_s=0.05) as push:
                until(push.acquire)
                push_all(push)
            expected = local_points(copy) | server_points(client, run.run_id)
            assert_same(expected, server_points(client, run.run_id))
        assert_same(run.points(), server_points(client, run.run_id))


def test_the_digests_are_those_of_the_files(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "runs").train().end()
    snapshot.take(run.path, tmp_path / "copy")
    for line in (tmp_path / "copy" / SUMS).read_text().splitlines():
        digest, path = line.split("  ")
        found = hashlib.sha256((tmp_path / "copy" / path).read_bytes()).hexdigest()
        assert found == digest
