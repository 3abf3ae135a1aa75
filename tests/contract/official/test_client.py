"""`Client` of the official SDK and ours: to one server, the same calls give the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.official import DRIVERS, PYTHON, ROOT, why_missing
from tests.support.v1_server import V1Server, v1_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
]


def answers(server: V1Server, python: Path, place: Path, **environment: str) -> list[str]:
    """Return what `client_calls` says when that Python runs it."""
    place.mkdir()
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LAUNCHHELM_", "PYTHON"))
    }
    done = subprocess.run(
        [str(python), str(DRIVERS / "client_calls.py"), server.project],
        cwd=place,
        env={
            **inherited,
            "LAUNCHHELM_URL": server.url,
            "LAUNCHHELM_API_KEY": server.key,
            "LAUNCHHELM_ORGANIZATION": server.organization,
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_call_of_a_run_gives_what_it_gives_with_the_official_sdk(tmp_path: Path) -> None:
    with v1_process(tmp_path / "far") as server:
        theirs = answers(server, PYTHON, tmp_path / "theirs")
        ours = answers(server, Path(sys.executable), tmp_path / "ours", PYTHONPATH=str(ROOT))
    assert len({json.loads(line)["event"] for line in theirs}) >= 18
    for their, our in zip(theirs, ours, strict=True):
        assert our == their
