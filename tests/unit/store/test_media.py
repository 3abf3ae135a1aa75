"""Bytes under their digest: whole or not there, once, and never confused."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchhelm.errors import LaunchHelmError, StorageError
from launchhelm.store import media

DATA = b"0123456789abcdef" * 4096
DIGEST = hashlib.sha256(DATA).hexdigest()


def names(run_directory: Path) -> list[str]:
    return sorted(path.name for path in (run_directory / "media").iterdir())


def test_bytes_are_read_only_under_their_digest(tmp_path: Path) -> None:
    stored = media.put(tmp_path, [DATA[:100], DATA[100:]])
    assert (stored.sha256, stored.size) == (DIGEST, len(DATA))
    path = media.path_of(tmp_path, DIGEST)
    assert path.read_bytes() == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o440
    assert media.read(tmp_path, DIGEST) == DATA


def test_the_same_bytes_are_stored_once(tmp_path: Path) -> None:
    assert media.put(tmp_path, [DATA]) == media.put(tmp_path, [DATA])
    assert names(tmp_path) == [DIGEST]


def test_storing_again_heals_a_damaged_file(tmp_path: Path) -> None:
    media.put(tmp_path, [DATA])
    path = media.path_of(tmp_path, DIGEST)
    path.chmod(0o600)
    path.write_bytes(DATA[:-1] + b"x")
    with pytest.raises(StorageError, match="damaged"):
        media.read(tmp_path, DIGEST)
    media.put(tmp_path, [DATA])
    assert media.read(tmp_path, DIGEST) == DATA


def test_many_writers_of_the_same_bytes_leave_one_whole_file(tmp_path: Path) -> None:
    threads = [threading.Thread(target=media.put, args=(tmp_path, [DATA])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == [DIGEST]
    assert media.read(tmp_path, DIGEST) == DATA


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space"):
        media.put(tmp_path, [DATA])
    assert names(tmp_path) == []


def test_a_source_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield DATA
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        media.put(tmp_path, chunks())
    assert names(tmp_path) == []


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: write(descriptor, data[:1000]))
    media.put(tmp_path, [DATA])
    monkeypatch.undo()
    assert media.read(tmp_path, DIGEST) == DATA


def test_a_process_killed_while_it_copies_leaves_no_visible_file(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from launchhelm.store import media\n"
        "def chunks():\n"
        "    yield b'x' * 100000\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "media.put(Path(sys.argv[1]), chunks())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False)
    assert [name for name in names(tmp_path) if not name.startswith(".")] == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.pt"
    source.write_bytes(b"a" * (media.CHUNK_BYTES + 1))
    chunks = media.file_chunks(source)
    next(chunks)
    with source.open("ab") as file:
        file.write(b"more")
    with pytest.raises(LaunchHelmError) as caught:
        list(chunks)
    assert caught.value.code == "source_changed"


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_what_is_no_file_is_an_os_error_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "directory":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(OSError):
        next(media.file_chunks(path))


@pytest.mark.parametrize("text", ["", "../run.json", "/etc/passwd", "A" * 64, "a" * 63, "a" * 65])
def test_nothing_but_a_digest_names_a_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(StorageError, match="no SHA-256"):
        media.read(tmp_path, text)


def test_bytes_that_are_gone_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        media.read(tmp_path, DIGEST)
