"""One root per test, and the command line called the way a shell calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launchhelm.cli import main


@dataclass(frozen=True)
class Ran:
    """What one call gave."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        (document,) = self.lines
        return document


Cli = Callable[..., Ran]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root without runs."""
    path = tmp_path / "runs"
    path.mkdir()
    return path


@pytest.fixture
def cli(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call `main` below the root of this test."""
    monkeypatch.setenv("LAUNCHHELM_DIR", str(root))

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return call
