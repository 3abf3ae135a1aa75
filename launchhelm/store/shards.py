"""Whether the parts of a checkpoint in shards are all there, told without torch.

Its index (`.metadata`) and the file that names its directory are pickles. They are read by an
unpickler for which every class is a blank: nothing in them runs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final  # Any: whatever a pickle holds.

from launchhelm.store import layout

INDEX: Final = ".metadata"
_OURS: Final = "launchhelm.offline"
_PARTS: Final = "parts"


class _Blank:
    """Stands for an object of any class: takes what it is given, does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> _Blank:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> _Blank:
        return self

    def __setitem__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Blind(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Blank

    def persistent_load(self, pid: Any) -> Any:
        return _Blank()


def parts_of(checkpoint: Path) -> str:
    """Return the name of the directory in checkpoints/ that a checkpoint's file needs, or ""."""
    import zipfile  # Not before one is looked for: every verb that opens a run would load it.

    try:
        with zipfile.ZipFile(checkpoint) as archive:
            name = next(it for it in archive.namelist() if it.endswith("/data.pkl"))
            with archive.open(name) as file:
                ours = _read(file).get(_OURS)
        return Path(str(ours[_PARTS])).name
    except Exception:  # No checkpoint, a damaged one, or one that is whole in its file.
        return ""


def missing(run_directory: Path, name: str) -> list[str]:
    """Say what of one directory in checkpoints/ is not there, or shorter than its index says."""
    directory = run_directory / layout.CHECKPOINTS / name
    try:
        with open(directory / INDEX, "rb") as file:
            ends = _ends(_read(file))
    except OSError as error:
        return [f"{layout.CHECKPOINTS}/{name}/{INDEX}: {error.strerror or error}"]
    except Exception as error:  # A damaged pickle raises nearly anything.
        return [f"{layout.CHECKPOINTS}/{name}/{INDEX} is damaged: {type(error).__name__}"]
    said = []
    for part, end in sorted(ends.items()):
        try:
            size = os.stat(directory / part).st_size
        except OSError as error:
            said.append(f"{layout.CHECKPOINTS}/{name}/{part}: {error.strerror or error}")
            continue
        if size < end:
            said.append(f"{layout.CHECKPOINTS}/{name}/{part}: {size:,} of {end:,} bytes")
    return said


def finished(run_directory: Path) -> Iterator[str]:
    """Yield the directories of checkpoints/ that have an index, which is written last."""
    try:
        names = sorted(os.listdir(run_directory / layout.CHECKPOINTS))
    except OSError:
        return
    for name in names:
        if os.path.lexists(run_directory / layout.CHECKPOINTS / name / INDEX):
            yield name


def _read(file: IO[bytes]) -> Any:
    return _Blind(file).load()


def _ends(index: Any) -> dict[str, int]:
    """Return how long each part must be at least."""
    ends: dict[str, int] = {}
    for each in index.storage_data.values():
        part = Path(str(each.relative_path)).name
        ends[part] = max(ends.get(part, 0), int(each.offset) + int(each.length))
    return ends
