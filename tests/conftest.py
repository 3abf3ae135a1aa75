"""What every test may count on: no setting of the caller's shell, and repeatable random data."""

from __future__ import annotations

import os

import hypothesis
import pytest

# The same examples in every run: a check that fails by chance teaches people to try again.
# HYPOTHESIS_PROFILE=stress draws new ones, and more of them.
hypothesis.settings.register_profile(
    "check", deadline=None, derandomize=True, database=None, print_blob=True
)
hypothesis.settings.register_profile("stress", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))

_LAUNCHERS = ("LAUNCHHELM_", "SLURM_", "TORCHELASTIC_", "GROUP_", "ROLE_")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take our settings and every launcher's variables out of the environment."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS) or name in _RANKS:
            monkeypatch.delenv(name)
