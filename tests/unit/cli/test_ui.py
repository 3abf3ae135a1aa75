"""What `launchhelm ui` refuses, and the address that it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from launchhelm.cli._exit import Exit


def test_an_address_of_all_interfaces_is_printed_by_the_name_that_browsers_may_use(
    tmp_path: Path,
) -> None:
    options = ("--json", "--host", "0.0.0.0", "--allow-host", "localhost")
    with (
        tempfile.TemporaryDirectory() as folder,  # The path of a socket has to be short.
        subprocess.Popen(
            [sys.executable, "-m", "launchhelm", "ui", str(tmp_path), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": folder},
        ) as served,
    ):
        assert served.stdout is not None
        address = json.loads(served.stdout.readline())["address"]
        try:
            assert address.startswith("http://localhost:")
            assert httpx.get(address).status_code == 200
        finally:
            served.send_signal(signal.SIGTERM)


def test_hours_below_zero_are_a_usage_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "launchhelm", "ui", str(tmp_path), "--idle-exit", "-1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == Exit.USAGE
    assert "--idle-exit takes hours from 0 on, got -1." in done.stderr
