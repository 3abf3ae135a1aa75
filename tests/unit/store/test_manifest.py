"""Who a run is, on disk: made once, whole or not at all, and readable by later versions."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launchhelm._ids import new_run_id
from launchhelm.errors import ConfigError, Conflict, StorageError
from launchhelm.store import manifest as module
from launchhelm.store import mount
from launchhelm.store.manifest import (
    Attempt,
    Manifest,
    attempts,
    create_run,
    load_manifest,
    self_test,
    take_attempt,
    write_durably,
)
from tests.support.storage import FaultyOs


def a_manifest(**changes: object) -> Manifest:
    values = {
        "run_id": new_run_id(),
        "name": "Gauß 🚀",
        "project": "demo",
        "project_id": "p",
        "created_at": 1.5,
        "created_by": "ada",
        "host": "node-1",
        "config": {"lr": 0.1, "layers": [1, 2]},
        "extra": {"world_size": 2, "tags": ["a"]},
    }
    return Manifest(**{**values, **changes})  # type: ignore[arg-type]


def an_attempt() -> Attempt:
    return Attempt(0, 0, {"slurm": "17"}, 2.5, 2, "node-1", {"queue": "gpu"})


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_run_is_complete_on_return(tmp_path: Path) -> None:
    manifest = a_manifest()
    run = create_run(tmp_path / "deep" / "runs", manifest)
    assert run == tmp_path / "deep" / "runs" / manifest.run_id
    assert sorted(path.name for path in run.iterdir()) == [
        "attempts",
        "control",
        "data",
        "run.json",
        "sync",
    ]
    assert load_manifest(run) == manifest


def test_two_processes_cannot_make_the_same_run(tmp_path: Path) -> None:
    manifest = a_manifest()
    create_run(tmp_path, manifest)
    with pytest.raises(Conflict):
        create_run(tmp_path, manifest)


def test_a_private_root_makes_private_runs(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    assert mode_of(run) == 0o700
    assert mode_of(run / "control") == 0o700
    assert mode_of(run / "run.json") == 0o640


def test_a_root_that_passes_on_its_group_makes_shared_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    run = create_run(tmp_path, a_manifest())
    assert mode_of(run) == 0o2770
    assert mode_of(run / "control") == 0o2770


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_root_that_takes_nothing_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    faulty = FaultyOs()
    faulty.fail("write", number, times=None)
    monkeypatch.setattr(module, "os", faulty)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        create_run(tmp_path, a_manifest())
    assert not list(tmp_path.rglob("run.json"))


def test_a_root_below_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        create_run(tmp_path / "file" / "runs", a_manifest())


def test_fields_of_a_newer_minor_version_are_kept(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    value = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**value, "colour": "green"}))
    assert load_manifest(run).extra["colour"] == "green"
    assert load_manifest(run).wire()["colour"] == "green"


def test_a_newer_format_is_named_and_left_alone(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    value = json.loads((run / "run.json").read_text())
    text = json.dumps({**value, "format": 2})
    (run / "run.json").write_text(text)
    with pytest.raises(StorageError, match="format 2, newer than 1"):
        load_manifest(run)
    assert (run / "run.json").read_text() == text


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', '{"format": "x"}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    run = create_run(tmp_path, a_manifest())
    (run / "run.json").write_text(text)
    with pytest.raises(StorageError, match=r"run\.json"):
        load_manifest(run)


def test_config_values_that_json_has_not_are_kept_as_text_or_tagged(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest(config={"x": float("nan"), "path": Path("a")}))
    assert load_manifest(run).config == {"x": {"$number": "NaN"}, "path": "a"}


def test_a_moved_run_is_the_same_run(tmp_path: Path) -> None:
    manifest = a_manifest()
    run = create_run(tmp_path, manifest)
    shutil.move(run, tmp_path / "elsewhere")
    assert load_manifest(tmp_path / "elsewhere") == manifest
    assert str(tmp_path) not in (tmp_path / "elsewhere" / "run.json").read_text()


def test_attempts_count_from_one(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    taken = [take_attempt(run, an_attempt()) for _ in range(3)]
    assert [attempt.number for attempt in taken] == [1, 2, 3]
    assert attempts(run) == taken


def test_no_attempt_number_is_taken_twice(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: take_attempt(run, an_attempt()).number, range(40)))
    assert sorted(taken) == list(range(1, 41))


def test_an_attempt_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    run = create_run(tmp_path, a_manifest())
    (run / "attempts" / "00001.json").touch()
    taken = take_attempt(run, an_attempt())
    assert taken.number == 2
    assert attempts(run) == [taken]


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_durably(path, b"old")
    for call in ("open", "write", "fchmod", "fsync", "rename"):
        faulty = FaultyOs()
        faulty.fail(call, errno.ENOSPC)
        monkeypatch.setattr(module, "os", faulty)
        with pytest.raises(OSError, match="No space"):
            write_durably(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_cannot_be_synced_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyOs()
    faulty.fail("fsync", 0)
    faulty.fail("fsync", errno.EINVAL)
    monkeypatch.setattr(module, "os", faulty)
    write_durably(tmp_path / "state.json", b"new")
    assert (tmp_path / "state.json").read_bytes() == b"new"


def test_the_self_test_leaves_nothing_behind(tmp_path: Path) -> None:
    assert self_test(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def lockf(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(mount.fcntl, "lockf", lockf)
    (warning,) = self_test(tmp_path)
    assert "without file locks" in warning


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename", "scandir", "unlink"])
def test_the_self_test_names_what_a_directory_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    faulty = FaultyOs()
    faulty.fail(call, errno.EPERM)
    monkeypatch.setattr(mount, "os", faulty)
    with pytest.raises(ConfigError, match="cannot hold a run"):
        self_test(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "network"),
    [
        ("/dev/sda / ext4 rw 0 0\n", False),
        ("/dev/sda / ext4 rw 0 0\nsrv:/x {0} nfs4 rw 0 0\n", True),
        ("/dev/sda / ext4 rw 0 0\nsrv:/x {0}/runs lustre rw 0 0\n", True),
        ("srv:/x / nfs rw 0 0\n/dev/sdb {0} xfs rw 0 0\n", False),
        ("srv:/x {0} nfs rw 0 0\n/dev/sdb {0} xfs rw 0 0\n", False),
        ("srv:/x {0}/runs-of-others nfs rw 0 0\n", False),
        ("x {0} fuse.sshfs rw 0 0\n", True),
        ("broken\n", False),
    ],
)
def test_the_mount_table_says_whether_other_hosts_may_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, network: bool
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(table.format(tmp_path))
    monkeypatch.setattr(mount, "_MOUNTS", mounts)
    assert mount.is_network(tmp_path / "runs") is network
