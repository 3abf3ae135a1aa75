"""Every example is listed here and in the docs, says what to look at, and runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
COMMANDS = {
    "first_run.py": [sys.executable, "first_run.py"],
    "media.py": [sys.executable, "media.py"],
    "resume.py": [sys.executable, "resume.py"],
    "live_learning_rate.py": [sys.executable, "live_learning_rate.py"],
    "preemption.py": [sys.executable, "preemption.py"],
    "ddp.py": [*TORCHRUN, "--standalone", "--nproc_per_node=2", "ddp.py", "--seconds", "3"],
    "demo.py": [sys.executable, "demo.py"],
    "huggingface.py": [sys.executable, "huggingface.py", "--seconds", "1"],
    "lightning_trainer.py": [sys.executable, "lightning_trainer.py", "--seconds", "1"],
}


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_says_what_to_look_at(name: str) -> None:
    docstring = ast.get_docstring(ast.parse((EXAMPLES / name).read_text("utf-8")))
    assert docstring and len(docstring.splitlines()) > 1
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"examples/{name}" in page.read_text("utf-8") for page in pages)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    """Run from an empty folder, without network settings, as a user would who copied the file."""
    command = [str(EXAMPLES / part) if part == name else part for part in COMMANDS[name]]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
