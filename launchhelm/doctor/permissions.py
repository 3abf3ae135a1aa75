"""Who may write and control: what the modes of a root and of its runs say, and whether they agree.

A run belongs to its owner alone (mode 700), or to the owner's group (2770); see "Sharing with a
group" in docs/run-directory.md.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from launchhelm.doctor.finding import Finding, listed
from launchhelm.store import layout

_SHARED: Final = stat.S_ISGID | stat.S_IRWXG
_PARTS: Final = ("", layout.DATA, layout.CONTROL, layout.ATTEMPTS)


def of_root(root: Path) -> list[Finding]:
    """Look at the directory in which runs are made."""
    try:
        mode = root.stat().st_mode
    except OSError:
        return []
    said = f"Its mode is {stat.S_IMODE(mode):o}."
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        happened = "Any user may remove or replace the runs in it."
        return [Finding("modes", "error", str(root), happened, said, _chmod("o-w", root))]
    if mode & stat.S_IWGRP and not mode & (stat.S_ISGID | stat.S_IWOTH):
        happened = "Its group may make runs in it, but each run will be closed to the others."
        remedy = f"To share runs with the group: chmod 2770 {root}"
        return [Finding("sharing", "note", str(root), happened, said, remedy)]
    if mode & stat.S_ISGID and not mode & stat.S_IXGRP:
        happened = "Runs are made for the group, which cannot enter the folder that they are in."
        return [Finding("sharing", "warning", str(root), happened, said, _chmod("2770", root))]
    return []


def of_runs(directories: Iterable[Path]) -> list[Finding]:
    """Look at the folders of runs; what is wrong with several alike is told once."""
    open_to_all: list[str] = []
    half_shared: list[str] = []
    for directory in directories:
        modes = {}
        for part in _PARTS:
            try:
                modes[part] = os.stat(directory / part).st_mode
            except OSError:
                continue
        if any(mode & stat.S_IWOTH for mode in modes.values()):
            open_to_all.append(str(directory))
        shared = {mode & _SHARED for mode in modes.values()}
        if shared != {_SHARED} and any(bits & stat.S_IWGRP for bits in shared):
            half_shared.append(str(directory))
    found = []
    if open_to_all:
        found.append(
            Finding(
                "modes",
                "error",
                open_to_all[0],
                f"Any user may control or damage {_runs(open_to_all)}.",
                f"Others may write: {listed(open_to_all)}.",
                f"chmod -R o-w {open_to_all[0]}",
            )
        )
    if half_shared:
        found.append(
            Finding(
                "sharing",
                "warning",
                half_shared[0],
                f"The group may write into part of {_runs(half_shared)} only; its commands are "
                "not accepted.",
                f"Not all folders have mode 2770: {listed(half_shared)}.",
                f"find {half_shared[0]} -type d -exec chmod 2770 {{}} + (to share nothing: 700)",
            )
        )
    return found


def _runs(names: list[str]) -> str:
    return "this run" if len(names) == 1 else f"{len(names):,} runs"


def _chmod(mode: str, path: Path) -> str:
    return f"chmod {mode} {path}"
