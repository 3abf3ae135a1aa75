""".env files: what is read, what wins, and that nothing of other tools is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launchhelm.env import load_env, parse_env


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("A=1", {"A": "1"}),
        ("export A = 1 ", {"A": "1"}),
        ("A='1 2'", {"A": "1 2"}),
        ('A="1"', {"A": "1"}),
        ("A='1\"", {"A": "'1\""}),
        ("A=1 # c", {"A": "1 # c"}),
        ("A=b=c", {"A": "b=c"}),
        ("A=", {"A": ""}),
        ("# A=1", {}),
        ("1A=1", {}),
        ("A-B=1", {}),
        ("A", {}),
    ],
)
def test_a_line_is_read(line: str, pairs: dict[str, str]) -> None:
    assert parse_env(line) == pairs


def test_the_nearer_file_wins_and_the_process_wins_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHHELM_C", "process")
    for name in ("LAUNCHHELM_A", "LAUNCHHELM_B", "OTHER_TOOL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".env").write_text("LAUNCHHELM_A=far\nLAUNCHHELM_B=far\nLAUNCHHELM_C=far\n")
    (inner / ".env").write_text("LAUNCHHELM_A=near\nOTHER_TOOL=1\n")
    assert load_env(inner) == {"LAUNCHHELM_A": "near", "LAUNCHHELM_B": "far"}
    assert os.environ["LAUNCHHELM_C"] == "process"
    assert "OTHER_TOOL" not in os.environ


def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert load_env(tmp_path) == {}
