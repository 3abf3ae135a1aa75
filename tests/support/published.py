"""The example scripts that the official SDK publishes, fetched for one test session, never kept.

examples = published_examples(tmp_path)          # a folder of scripts; Unavailable without one
job = run_script(examples / "log_run.py", cwd)   # with our packages, without a network
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from tests.support.jobs import ROOT, Job, run_job
from tests.support.off_network import off_network

NAME, VERSION = "launchhelm", "0.1.1"
FETCH_S = 90.0
SCRIPT_S = 240.0

# pip asks the build backend of what it downloads for its metadata. This one answers without
# building, so that no backend has to be fetched and nothing of the archive is executed.
_BACKEND = f"""
import pathlib

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "{NAME}-{VERSION}.dist-info"
    pathlib.Path(directory, name).mkdir()
    text = "Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n"
    pathlib.Path(directory, name, "METADATA").write_text(text)
    return name

def build_wheel(*arguments, **options):
    raise NotImplementedError
"""

# time.sleep of a script, faster: what it does between two sleeps stays what it is.
_HASTE = """
import os, time

def sleep(seconds, real=time.sleep, haste=float(os.environ["HASTE"])):
    real(seconds / haste)

time.sleep = sleep
"""


class Unavailable(Exception):
    """The archive cannot be fetched here; the text says why."""


def published_examples(scratch: Path) -> Path:
    """Download the source archive by pip and unpack its examples, and nothing else of it.

    Raises:
        Unavailable: pip could not fetch it.
    """
    backend = scratch / "backend" / "hatchling"
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build.py").write_text(_BACKEND)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--no-binary", ":all:", "--no-build-isolation", "--dest", str(scratch)),
                f"{NAME}=={VERSION}",
            ],
            env={**os.environ, "PYTHONPATH": str(backend.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not answer within {FETCH_S:g} s") from error
    archive = next(iter(scratch.glob("*.tar.gz")), None)
    if archive is None:
        raise Unavailable(done.stderr.strip().rpartition("\n")[2] or "pip fetched nothing")
    examples = scratch / "examples"
    examples.mkdir()
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.match(f"{NAME}-{VERSION}/examples/*.py") and member.isfile():
                content = members.extractfile(member)
                assert content is not None
                (examples / path.name).write_bytes(content.read())
    archive.unlink()
    return examples


def run_script(
    script: Path,
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
    haste: float = 1.0,
) -> Job:
    """Run a script as it is, in a folder, with our packages and without a network.

    Args:
        launcher: What starts it; default: Python.
        haste: By how much its `time.sleep` is shortened.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = [str(ROOT)]
    if haste != 1.0:
        hurry = directory / "hurry"
        hurry.mkdir()
        (hurry / "sitecustomize.py").write_text(_HASTE)
        path.insert(0, str(hurry))
    return run_job(
        off_network([*(launcher or [sys.executable]), str(script), *arguments]),
        directory,
        {
            "PYTHONPATH": os.pathsep.join(path),
            "HF_HUB_OFFLINE": "1",
            "HASTE": str(haste),
            **(environment or {}),
        },
        timeout_s=SCRIPT_S,
    )
