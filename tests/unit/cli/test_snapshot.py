"""`launchhelm snapshot`: what a copy holds, what it leaves out, and where it will not go."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launchhelm.cli import Exit
from launchhelm.store import media
from launchhelm.store.layout import CONTROL, DATA, MEDIA, SUMS, SYNC, UNREADY
from tests.support.cli_runs import MadeRun, add_shards
from tests.support.reading import tree
from tests.support.runs import send
from tests.unit.cli.conftest import Cli


@pytest.fixture
def run(root: Path) -> MadeRun:
    """A run with an artifact, a large body, a waiting command and the notes of a syncer."""
    made = MadeRun(root, "full", ranks=2).train()
    artifact = media.put(made.path, [b"weights"])
    body = media.put(made.path, [b'{"type":"message","text":"long"}'])
    add = made.journals[0].add
    add("art", {"id": "a", "name": "w", "sha256": artifact.sha256, "size": artifact.size})
    add("ev", {"$file": f"media/{body.sha256}", "size": body.size})
    send(made.path, "lr", {"scale": 0.5})
    (made.path / SYNC / "acked.json").write_text("{}")
    (made.path / "run.db").write_bytes(b"derived")
    (made.path / "newer").mkdir()
    (made.path / "newer" / "thing").write_bytes(b"of a newer version")
    return made


def test_a_copy_holds_what_the_run_holds_but_commands_and_notes_of_a_syncer(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    before = tree(run.path)
    copy = tmp_path / "archive" / "copy"
    ran = cli("snapshot", "latest", str(copy), "--json")
    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert tree(run.path) == before
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert {name for name in names if "/" not in name} == {"run.json", SUMS}
    assert "newer/thing" in names
    for folder in (DATA, MEDIA, "attempts"):
        for path in (run.path / folder).iterdir():
            assert (copy / folder / path.name).read_bytes() == path.read_bytes()
    assert list((copy / CONTROL).iterdir()) == list((copy / SYNC).iterdir()) == []
    document = ran.document
    assert (document["id"], document["directory"]) == (run.run_id, str(copy))
    assert document["files"] == len(names) - 1
    assert copy.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_every_verb_reads_a_copy_and_sha256sum_checks_it(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    assert cli("snapshot", str(run.path), str(copy)).code == Exit.DONE
    shutil.rmtree(run.path)
    for words in (("show", str(copy)), ("tail", str(copy)), ("export", str(copy)), ("ls",)):
        assert cli("--root", str(tmp_path), *words).code == Exit.DONE, words
    assert cli("control", str(copy), "log", "--json").out == ""
    assert [it["id"] for it in cli("--root", str(tmp_path), "ls", "--json").lines] == [run.run_id]
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=copy, timeout=30
    )
    assert checked.returncode == 0


def test_without_media_the_bodies_of_records_still_come_along(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    assert cli("snapshot", "latest", str(copy), "--no-media").code == Exit.DONE
    (kept,) = (copy / MEDIA).iterdir()
    assert kept.read_bytes().startswith(b'{"type":"message"')
    assert "long" in cli("export", str(copy), "--tables", "events").out


def test_a_checkpoint_that_is_not_ready_yet_comes_along_where_the_next_attempt_looks_for_it(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    name = f"{UNREADY}7.1a2b3c4d"
    (run.path / MEDIA / name).write_bytes(b"written, not verified")
    (run.path / MEDIA / ".new.5e6f7a8b").write_bytes(b"half")
    assert cli("snapshot", "latest", str(tmp_path / "copy")).code == Exit.DONE
    assert (tmp_path / "copy" / MEDIA / name).read_bytes() == b"written, not verified"
    assert not (tmp_path / "copy" / MEDIA / ".new.5e6f7a8b").exists()
    assert cli("snapshot", "latest", str(tmp_path / "bare"), "--no-media").code == Exit.DONE
    assert not (tmp_path / "bare" / MEDIA / name).exists()


def test_a_checkpoint_in_shards_is_copied_whole_and_its_missing_parts_are_named(
    cli: Cli, root: Path, tmp_path: Path
) -> None:
    made = MadeRun(root, "sharded").train()
    parts = add_shards(made)
    ran = cli("snapshot", "sharded", str(tmp_path / "whole"))
    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert "0.0 MB" not in ran.out and " kB; read back" in ran.out
    copied = tmp_path / "whole" / "checkpoints" / parts.name
    assert sorted(os.listdir(copied)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert all((copied / it.name).read_bytes() == it.read_bytes() for it in parts.iterdir())
    assert cli("snapshot", "sharded", str(tmp_path / "bare"), "--no-media").code == Exit.DONE
    assert not (tmp_path / "bare" / "checkpoints").exists()
    (parts / "__0_0.distcp").unlink()
    ran = cli("snapshot", "sharded", str(tmp_path / "less"))
    assert (ran.code, "__0_0.distcp: No such file" in ran.err) == (Exit.IN_PART, True)


@pytest.mark.parametrize("place", ["full", "file", "link", "inside", "around"])
def test_a_copy_is_never_written_over_anything_nor_into_its_run(
    cli: Cli, run: MadeRun, tmp_path: Path, place: str
) -> None:
    target = tmp_path / place
    if place == "full":
        target.mkdir()
        (target / "mine").write_text("mine")
    elif place == "file":
        target.write_text("mine")
    elif place == "link":
        target.symlink_to(tmp_path / "nowhere")
    elif place == "inside":
        target = run.path / "copy"
    else:
        target = run.path.parent
    before = tree(tmp_path)
    ran = cli("snapshot", str(run.path), str(target))
    assert ran.code == Exit.USAGE
    assert "a copy is never written over anything" in ran.err or "lie in one another" in ran.err
    assert tree(tmp_path) == before


def test_an_empty_folder_is_taken_and_an_unfinished_copy_of_another_run_is_not(
    cli: Cli, run: MadeRun, root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    other = MadeRun(root, "other")
    shutil.copytree(other.path, tmp_path / ".copy.snapshot")
    ran = cli("snapshot", run.run_id, str(copy))
    assert ran.code == Exit.USAGE and other.run_id in ran.err
    shutil.rmtree(tmp_path / ".copy.snapshot")
    assert cli("snapshot", run.run_id, str(copy)).code == Exit.DONE


def test_links_and_pipes_in_a_run_are_named_and_left_out(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (run.path / "newer" / "key").symlink_to(secret / "key")
    (run.path / "folder").symlink_to(secret)
    os.mkfifo(run.path / "pipe")
    copy = tmp_path / "copy"
    ran = cli("snapshot", "latest", str(copy), "--json")
    assert ran.code == Exit.IN_PART
    assert sorted(ran.document["problems"]) == [
        "folder is a link; it was left out",
        "newer/key is a link; it was left out",
        "pipe is no file; it was left out",
    ]
    assert not any(b"secret" in path.read_bytes() for path in copy.rglob("*") if path.is_file())


def test_a_run_whose_data_is_a_link_is_not_copied_as_if_it_were_empty(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    (run.path / DATA).rename(tmp_path / "elsewhere")
    (run.path / DATA).symlink_to(tmp_path / "elsewhere")
    ran = cli("snapshot", "latest", str(tmp_path / "copy"))
    assert ran.code == Exit.FAILURE and "data" in ran.err
    assert not (tmp_path / "copy").exists()


def test_what_is_damaged_or_missing_in_the_run_is_named_and_the_rest_copied_as_it_is(
    cli: Cli, run: MadeRun, tmp_path: Path
) -> None:
    run.end()
    artifact = hashlib.sha256(b"weights").hexdigest()
    (run.path / MEDIA / artifact).unlink()
    journal = next(path for path in (run.path / DATA).iterdir() if path.name.startswith("r00001"))
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"x" + lines[1][1:], *lines[2:], b'{"c":"unfinished']))
    copy = tmp_path / "copy"
    ran = cli("snapshot", "latest", str(copy), "--json")
    assert ran.code == Exit.IN_PART
    said = " ".join(ran.document["problems"])
    assert f"media/{artifact} is not in the run" in said
    assert f"{journal.name} has a damaged line" in said
    # All whole lines, the damaged one too, and not the one that was never finished.
    assert (copy / DATA / journal.name).read_bytes() == journal.read_bytes()[
        : -len(b'{"c":"unfinished')
    ]
