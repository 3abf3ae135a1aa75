"""The names that scripts may import, and nothing more."""

from __future__ import annotations

import tomllib
from pathlib import Path

import launchhelm

ROOT = Path(__file__).resolve().parents[2]

LAUNCHHELM = {
    "Audio",
    "BufferFull",
    "Capability",
    "Client",
    "CommandContext",
    "Document",
    "Histogram",
    "Image",
    "LaunchHelmError",
    "Reference",
    "Run",
    "Runtime",
    "RuntimeFenced",
    "Schedule",
    "Scope",
    "Table",
    "Text",
    "Video",
    "__version__",
    "init",
    "scalar",
}
TORCH = {
    "CheckpointError",
    "DivergedStateError",
    "Trainer",
    "TrainingStopped",
    "Tunable",
    "init",
}


def test_launchhelm_exports_the_documented_names() -> None:
    assert set(launchhelm.__all__) == LAUNCHHELM
    assert [name for name in launchhelm.__all__ if not hasattr(launchhelm, name)] == []


def test_launchhelm_torch_exports_the_documented_names() -> None:
    import launchhelm.torch as lht

    assert set(lht.__all__) == TORCH
    assert [name for name in lht.__all__ if not hasattr(lht, name)] == []


def test_every_public_thing_says_what_it_does() -> None:
    import launchhelm.torch as lht

    things = [(m, name) for m in (launchhelm, lht) for name in m.__all__ if name != "__version__"]
    silent = [name for module, name in things if not getattr(module, name).__doc__]
    assert silent == []


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert launchhelm.__version__ == project["version"]
