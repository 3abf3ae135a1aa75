"""Importing has no effects and loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "httpx", "sqlite_utils", "psutil", "pandas", "asyncio")


def _python(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["launchhelm", "launchhelm.cli", "launchhelm.views", "syncer"])
def test_importing_loads_no_heavy_package(module: str, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}; "
    loaded = _python(code + f"print([m for m in {HEAVY!r} if m in sys.modules])", tmp_path)
    assert loaded.strip() == "[]"


def test_importing_starts_no_thread_and_leaves_no_file(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import threading, logging\n"
        "handlers = list(logging.getLogger().handlers)\n"
        "import launchhelm\n"
        "print(threading.active_count(), logging.getLogger().handlers == handlers)"
    )
    assert _python(code, tmp_path).split() == ["1", "True"]
    assert list(tmp_path.iterdir()) == []


def test_importing_torch_support_without_torch_says_what_to_install(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['torch'] = None\n"
        "try:\n    import launchhelm.torch\nexcept ImportError as error:\n    print(error)"
    )
    assert "pip install" in _python(code, tmp_path)
