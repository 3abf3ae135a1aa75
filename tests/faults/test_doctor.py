"""`launchhelm doctor` on file systems that are full, read-only, foreign, lockless, or wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launchhelm.doctor import storage, worst
from launchhelm.store import mount
from tests.support import two_hosts
from tests.support.reading import as_nobody
from tests.support.runs import TurnedClock
from tests.support.storage import FaultyOs

ROOT = Path(__file__).resolve().parents[2]

IN_A_NAMESPACE = """
import contextlib, io, json, os, subprocess, sys
sys.path.insert(0, {root!r})
from launchhelm.cli import main

def mounted(options, fill=0, files=0, readonly=False):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", "here"], check=True)
    if fill:
        with open("here/ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
    for number in range(files):
        open(f"here/{{number}}", "w").close()
    if readonly:
        subprocess.run(["mount", "-o", "remount,ro", "here"], check=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(["doctor", "--json", "here"])
    left = [name for name in os.listdir("here") if name.startswith(".")]
    subprocess.run(["umount", "here"], check=True)
    found = {{it["check"]: it for it in json.loads(said.getvalue())["findings"]}}
    return {{"code": code, "found": found, "left": left}}

os.mkdir("here")
print(json.dumps({{
    "fine": mounted("size=2g"),
    "small": mounted("size=100m"),
    "full": mounted("size=128k", fill=1),
    "few": mounted("size=2g,nr_inodes=40", files=20),
    "none": mounted("size=2g,nr_inodes=40", files=39),
    "readonly": mounted("size=2g", readonly=True),
}}))
"""


@pytest.fixture(scope="module")
def mounts() -> Iterator[dict[str, Any]]:
    """What doctor says of small file systems, in a mount namespace of their own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["unshare", "-rm", sys.executable, "-c", IN_A_NAMESPACE.format(root=str(ROOT))],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if "unshare" in done.stderr or "mount:" in done.stderr:
            pytest.skip(f"this machine lets us mount nothing: {done.stderr.strip()[:200]}")
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mount_name", "code", "checks"),
    [
        ("fine", 0, {}),
        ("small", 9, {"room": "warning"}),
        ("full", 9, {"room": "error", "full": "error"}),
        ("few", 9, {"files": "error"}),
        ("none", 9, {"files": "error", "full": "error"}),
        ("readonly", 9, {"writable": "error"}),
    ],
)
def test_room_inodes_and_a_read_only_mount_are_told(
    mounts: dict[str, Any], mount_name: str, code: int, checks: dict[str, str]
) -> None:
    said = mounts[mount_name]
    found = {name: it["level"] for name, it in said["found"].items()}
    assert {k: v for k, v in found.items() if k not in ("network", "packages")} == checks
    assert (said["code"], said["left"]) == (code, [])
    assert all(said["found"][name]["remedy"] for name in checks)


def test_a_root_of_another_user_cannot_be_written(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user is needed, and only root can become one")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)

        def look() -> dict[str, Any]:
            return {it.check: [it.level, it.remedy] for it in storage.writable(root)}

        level, remedy = as_nobody(look)["writable"]
        assert (level, "Ask its owner" in remedy) == ("error", True)
        assert os.listdir(root) == []


def test_missing_locks_and_a_quota_are_seen_on_a_real_file_system(tmp_path: Path) -> None:
    if why := two_hosts.missing():
        pytest.skip(why)
    rig = tmp_path / "rig"
    rig.mkdir()
    host = two_hosts.TwoHosts(rig, program=two_hosts.build(tmp_path), lock="none")
    try:
        (found,) = storage.writable(host.a)
        assert (found.check, found.level) == ("locks", "note")
        host.fault(f"write {two_hosts.EDQUOT}")
        (found,) = storage.writable(host.a)
        assert (found.check, "quota is used up" in found.happened) == ("full", True)
        host.fault(f"rename {two_hosts.EIO}")
        (found,) = storage.writable(host.a)
        assert (found.check, found.level) == ("writable", "error")
        host.heal()
        assert not storage.exclusive(host.a) and not storage.replaces(host.a)
        assert os.listdir(host.a) == []
    finally:
        host.down()


class Careless(FaultyOs):
    """A file system that makes names twice, or copies where it should rename."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if (name, self.fault) == ("open", "open"):
            return lambda path, flags, mode: real(path, flags & ~os.O_EXCL, mode)
        if (name, self.fault) == ("mkdir", "mkdir"):
            return lambda path, mode: os.makedirs(path, mode, exist_ok=True)
        if (name, self.fault) == ("rename", "copy"):
            return lambda new, old: Path(old).write_bytes(Path(new).read_bytes())
        if (name, self.fault) == ("rename", "nothing"):
            return lambda new, old: os.unlink(new)
        return super().__getattr__(name)


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("open", "exclusive", "O_EXCL"),
        ("mkdir", "exclusive", "mkdir"),
        ("copy", "rename", "still listed"),
        ("nothing", "rename", "old content"),
    ],
)
def test_names_made_twice_and_renames_that_are_none_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, check: str, said: str
) -> None:
    monkeypatch.setattr(storage, "os", Careless(fault))
    (found,) = [*storage.exclusive(tmp_path), *storage.replaces(tmp_path)]
    assert (found.check, found.level, said in found.evidence) == (check, "error", True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["open", "mkdir", "rename"])
def test_a_check_that_fails_itself_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    faulty = FaultyOs()
    faulty.fail(call, errno.EIO, times=None)
    monkeypatch.setattr(storage, "os", faulty)
    found = [*storage.exclusive(tmp_path), *storage.replaces(tmp_path), *storage.clock(tmp_path)]
    assert worst(found) == "error"
    assert os.listdir(tmp_path) == []


def test_a_clock_that_differs_from_the_file_servers_is_told(tmp_path: Path) -> None:
    (found,) = storage.clock(tmp_path, TurnedClock())
    assert (found.check, found.level) == ("clock", "warning")
    assert storage.clock(tmp_path) == []


def test_locks_that_fail_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_locks", lambda descriptor: False)
    assert [it.check for it in storage.writable(tmp_path)] == ["locks"]
