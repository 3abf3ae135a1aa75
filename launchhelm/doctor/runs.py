"""What is wrong with runs: many by a glance at each, some by reading all of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from launchhelm import _run_metadata as metadata
from launchhelm import views
from launchhelm.doctor.finding import Finding, listed
from launchhelm.errors import LaunchHelmError
from launchhelm.store import journal, layout, media, sums
from launchhelm.store.layout import SegmentName
from launchhelm.store.reader import LOST, PATIENCE_S, Reader, list_segments
from launchhelm.views import whole
from launchhelm.views.runs import RunSummary
from launchhelm.views.whole import Named, files_of

SILENT_S: Final = 3600.0
"""No news for so long, and no end: the job is most likely dead."""

_PAGE: Final = 5000


def glance(summaries: Sequence[RunSummary], *, secret: str = "") -> list[Finding]:
    """Look at what a summary tells of each of many runs.

    Args:
        summaries: Of all runs.
        secret: A text that no run may hold, such as the key of the syncer.
    """
    return [
        *(unreadable(each.directory, each.problem) for each in summaries if each.problem),
        *_copies(summaries),
        *_left_open(summaries),
        *not_shared(each.directory for each in summaries),
        *_exposed(summaries, secret),
    ]


def unreadable(about: Path, why: str) -> Finding:
    """Say that a run, or part of it, cannot be read."""
    if "newer than" in why:
        happened, remedy = "It was written by a newer version.", "pip install -U launchhelm-offline"
        return Finding("format", "warning", str(about), happened, why, remedy)
    return Finding(
        "readable",
        "error",
        str(about),
        "It cannot be read, or not whole.",
        why,
        "Look for a copy, or for who may read it. What is whole in it stays readable; if it is "
        "live on another host, look again in a minute.",
    )


def _copies(summaries: Iterable[RunSummary]) -> Iterator[Finding]:
    places: dict[str, list[str]] = {}
    for each in summaries:
        places.setdefault(each.run_id, []).append(str(each.directory))
    for run_id, paths in places.items():
        if len(paths) > 1:
            yield Finding(
                "copies",
                "warning",
                paths[0],
                "The same run is here more than once.",
                f"{run_id}: {listed(paths)}",
                "Keep one under the root, else a title or `latest` may mean the wrong one.",
            )


def _left_open(summaries: Iterable[RunSummary]) -> Iterator[Finding]:
    dead = [
        each
        for each in summaries
        if "left no end record" in each.state.text
        or (each.state.word == "no news" and each.age is not None and each.age.seconds > SILENT_S)
    ]
    if dead:
        what = "A job ended" if len(dead) == 1 else f"{len(dead):,} jobs ended"
        yield Finding(
            "left_open",
            "note",
            str(dead[0].directory),
            f"{what} without saying so, or cannot be seen any more.",
            listed([f"{it.name} ({it.run_id[:8]}, {it.state.text})" for it in dead]),
            "Resume with init(resume=ID), or remove old ones with `launchhelm clean`.",
        )


def not_shared(directories: Iterable[Path]) -> Iterator[Finding]:
    """Find runs of which some hosts have written apart, since they do not share this storage."""
    for directory in directories:
        try:
            names = [it for it in os.listdir(directory / layout.NODES) if layout.is_node(it)]
        except OSError:
            continue
        if names:
            hosts = sorted({name.removesuffix(".json").rpartition("-")[0] for name in names})
            several = f"{len(hosts)} host" + ("s" if len(hosts) > 1 else "")
            yield Finding(
                "not_shared",
                "warning",
                str(directory),
                f"Not shared: {several} did not see the coordinator's files and wrote apart.",
                listed(hosts),
                "Use a root that all hosts see (LAUNCHHELM_DIR). To join these parts, sync every "
                "host's folder to one server.",
            )


def _exposed(summaries: Iterable[RunSummary], secret: str) -> Iterator[Finding]:
    shown, keyed = [], []
    for each in summaries:
        if metadata.masked(each.config) != each.config:
            shown.append(str(each.directory))
        elif secret and secret in json.dumps(each.config, default=str):
            keyed.append(str(each.directory))
    for paths, what in ((shown, "a value under a name like key or password"), (keyed, "the key")):
        if paths:
            yield Finding(
                "secrets",
                "error",
                paths[0],
                f"The config of a run shows {what} to whoever may read the run.",
                listed(paths),
                "Replace that secret where it is used, and mask it in run.json.",
            )


# --- one run --------------------------------------------------------------------------------------


def inspect(directory: Path, *, deep: bool) -> list[Finding]:
    """Look into one run.

    Args:
        deep: Read every record, and the digest of every file that the run names.
    """
    try:
        run = views.open_run(directory)
    except (LaunchHelmError, OSError) as error:
        said = error.message if isinstance(error, LaunchHelmError) else str(error)
        return [unreadable(directory, said)]
    return [*_now(run), *(_whole(run) if deep else [])]


def _now(run: views.RunView) -> list[Finding]:
    """Look at the processes, losses and versions of one run."""
    about = str(run.directory)
    found = [unreadable(run.directory, problem) for problem in run.problems]
    losses = run.losses
    if losses.records:
        found.append(
            Finding(
                "losses",
                "warning",
                about,
                f"{losses.records:,} records were given up by their writers.",
                "Storage did not accept them in time, by the writers' own count.",
                "Look at the speed and room of the file system.",
            )
        )
    if losses.storage_errors:
        found.append(
            Finding(
                "losses",
                "warning",
                about,
                f"Writing failed {losses.storage_errors:,} times and was repeated.",
                "",
                "Look at room, quota and mount of the file system: launchhelm show says when.",
            )
        )
    if losses.faults:
        said = ", ".join(f"{name}: {count}" for name, count in sorted(losses.faults.items()))
        happened = "Something inside the tracker failed; training went on."
        remedy = "launchhelm tail RUN --events shows them; please report what is not storage."
        found.append(Finding("faults", "warning", about, happened, said, remedy))
    quiet = [row for row in run.participants if row.state == "silent"]
    if quiet and run.state.word == "running":
        said = listed([f"rank {row.rank} on {row.host}, {row.phase}" for row in quiet])
        happened = f"{len(quiet)} of {len(run.participants)} processes are silent."
        remedy = "launchhelm show RUN --ranks; then py-spy dump on that host."
        found.append(Finding("silent", "warning", about, happened, said, remedy))
    if gone := whole.absent(run):
        happened = f"{sum(map(len, gone.values())):,} processes have no file here."
        said = listed(whole.absent_texts(run))
        remedy = (
            "They wrote elsewhere, never started, or their files were lost: compare "
            "LAUNCHHELM_DIR on their hosts, and look for a copy."
        )
        found.append(Finding("missing", "warning", about, happened, said, remedy))
    return [*found, *_versions(run), *_commands(run)]


def _versions(run: views.RunView) -> Iterator[Finding]:
    """Say when the processes of the newest attempt run different versions."""
    ranks: dict[str, list[int]] = {}
    listing = list_segments(run.directory)
    for writer, files in listing.items():
        journals = [number for number, forms in files.items() if False in forms]
        if writer.attempt != run.attempt or not journals:
            continue
        name = SegmentName(writer, max(journals), sealed=False)
        try:
            with journal.opened(run.directory / layout.DATA / str(name)) as (descriptor, _):
                lib = str((journal.opening(descriptor) or {}).get("lib", ""))
        except OSError:
            continue
        if lib:
            ranks.setdefault(lib, []).append(writer.rank)
    if len(ranks) > 1:
        said = "; ".join(
            f"{lib}: rank {listed([str(rank) for rank in sorted(them)])}"
            for lib, them in sorted(ranks.items())
        )
        yield Finding(
            "versions",
            "warning",
            str(run.directory),
            "The ranks run different versions of launchhelm-offline.",
            said,
            "Give all hosts one environment; the exchange between versions is not tested.",
        )


def _commands(run: views.RunView) -> Iterator[Finding]:
    """Name commands that nobody will decide any more."""
    waiting = [each for each in run.commands if each.outcome is None or not each.outcome.is_final]
    if waiting and run.state.is_over:
        yield Finding(
            "commands",
            "note",
            str(run.directory),
            f"Commands are undecided: {listed([each.name for each in waiting])}.",
            f"The run is over: {run.state.text}.",
            "The next attempt rejects what rank 0 had picked up, and gets the others while they "
            "are valid; launchhelm control RUN cancel ID takes one back.",
        )


def _whole(run: views.RunView) -> list[Finding]:
    directory = run.directory
    # A run that is being written may show a hole for a moment, and reads on behind it later.
    reader = Reader(directory, patience_s=PATIENCE_S if run.state.word == "running" else 0.0)
    named: dict[str, Named] = {}
    while records := reader.poll(limit=_PAGE):
        for record in records:
            named.update((each.sha256, each) for each in files_of(record))
    about = str(directory)
    found = [unreadable(directory, problem) for problem in reader.problems]
    lost = [gap for gap in reader.gaps if gap.why in LOST]
    given_up = [gap for gap in reader.gaps if gap.why not in LOST]
    for gaps, level, what in (
        (lost, "error", "Records are missing"),
        (given_up, "warning", "Writers gave records up"),
    ):
        if gaps:
            said = listed([f"{gap.writer} {gap.first}-{gap.last} ({gap.why})" for gap in gaps])
            happened = f"{what}: {sum(gap.last - gap.first + 1 for gap in gaps):,}."
            remedy = "Look for a copy, or on the server that it was synced to."
            found.append(Finding("damaged", level, about, happened, said, remedy))
    found += _altered(directory)
    for writer, number in reader.holes.items():
        found.append(
            Finding(
                "torn",
                "warning",
                about,
                f"The records of {writer} break off at number {number}, and later ones are there.",
                "A copy of a live run looks like that, and a slow file system for a while.",
                "Copy again (launchhelm snapshot makes a whole copy), or look again in a minute.",
            )
        )
    return [*found, *_files(directory, named)]


def _altered(directory: Path) -> Iterator[Finding]:
    """Find sealed values that are not those of which the segment keeps sums."""
    for writer, files in list_segments(directory).items():
        for number in sorted(number for number, forms in files.items() if True in forms):
            name = str(SegmentName(writer, number, sealed=True))
            try:
                names = sums.altered(directory / layout.DATA / name)
            except LaunchHelmError as error:
                yield unreadable(directory, error.message)
                continue
            except OSError:
                continue  # The reader has said it.
            if names:
                yield Finding(
                    "damaged",
                    "error",
                    str(directory / layout.DATA / name),
                    "Values, steps or names in it were changed after it was sealed.",
                    f"They do not agree with its own sums: {listed(names)}.",
                    "Look for a copy, or on the server that it was synced to.",
                )


def _files(directory: Path, named: Mapping[str, Named]) -> Iterator[Finding]:
    bad = []
    for digest, each in named.items():
        try:
            path = media.path_of(directory, digest)
            is_whole = media.measure(media.file_chunks(path)).sha256 == digest
            why = "" if is_whole else "is damaged"
        except OSError as error:
            why = error.strerror or str(error)
        except LaunchHelmError as error:
            why = error.message
        if why:
            bad.append(f"{each.what}: {why}")
    if bad:
        yield Finding(
            "media",
            "error",
            str(directory),
            f"{len(bad):,} of {len(named):,} files that the run names are missing or damaged.",
            listed(bad),
            "Look for a copy, or on the server that it was synced to.",
        )
    if parts := whole.missing_parts(directory, named.values()):
        happened = "Parts of a checkpoint are missing or cut short; it cannot be loaded."
        remedy = "Look for a copy, or resume from another checkpoint."
        yield Finding("media", "error", str(directory), happened, listed(parts), remedy)


def leftovers(root: Path, *, older_than_s: float = 3600.0) -> list[Finding]:
    """Find hidden files and folders that a process left which was killed meanwhile."""
    now = time.time()
    old = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                is_ours = entry.name.startswith((".removed-", ".doctor.", ".self-test."))
                if is_ours and now - entry.stat(follow_symlinks=False).st_mtime > older_than_s:
                    old.append(entry.name)
    except OSError:
        return []
    if not old:
        return []
    happened = "An earlier command was killed and left hidden files."
    remedy = "launchhelm clean --delete removes folders that it began; others may be deleted."
    return [Finding("leftovers", "note", str(root), happened, listed(sorted(old)), remedy)]
