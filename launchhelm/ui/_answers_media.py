"""Answers about media and files, and the bytes of one, found by digest among those of the run."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from launchhelm import views
from launchhelm._wording import plain
from launchhelm.errors import StorageError
from launchhelm.store import layout, media
from launchhelm.ui.board import Board, OpenRun
from launchhelm.ui.request import Problem, Request
from launchhelm.values.media import MEDIA_TYPES, artifact_of, digest_of
from launchhelm.views.rich import rich_records

Json = dict[str, Any]  # Any: JSON.

MAX_ITEMS: Final = 500
MAX_ROWS: Final = 1000
MAX_HISTORY: Final = 12
"""Steps of a histogram that are shown together, at equal distances, the one asked for last."""

MAX_TEXT: Final = 20_000
MAX_OWN_FILES: Final = 2000
_CHUNK: Final = 256 << 10
_RANGE: Final = re.compile(r"bytes=(\d{1,15})-(\d{0,15})", re.ASCII)
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
)


def listing(run: OpenRun, request: Request) -> Json:
    """Return what there is to look at: of one name and step, or the newest."""
    view = run.view
    names: dict[str, set[int]] = {}
    found: list[tuple[int, dict[str, Any], int]] = []
    wanted = request.text("name")
    for body, record in rich_records(view):
        name, step = plain(body["name"]), record.step if record.step is not None else -1
        names.setdefault(name, set()).add(step)
        if wanted in ("", name):
            found.append((step, dict(body), record.writer.rank))
    steps = sorted(names.get(wanted, set().union(*names.values())))
    step = request.integer("step", steps[-1] if steps else 0, -1, 1 << 53)
    items: list[Json] = []
    for at, body, rank in found:
        if at == step and len(items) < MAX_ITEMS:
            items += _items(view, body, at, rank)
    histories = _histories(found, step)
    for item in items:
        if item["histogram"] is not None:
            item["history"] = histories[item["name"], item["rank"]]
    return {"names": sorted(names), "steps": steps, "step": step, "items": items[:MAX_ITEMS]}


def _histories(
    found: Iterable[tuple[int, dict[str, Any], int]], step: int
) -> dict[tuple[str, int], list[Json]]:
    """Return the histograms of each name and rank up to a step, a choice of them if many."""
    every: dict[tuple[str, int], dict[int, Json]] = {}
    for at, body, rank in found:
        value = body["value"]
        if at <= step and isinstance(value.get("counts"), list):
            shown = {"step": at, "edges": value.get("edges"), "counts": value["counts"]}
            # A step that was logged again is shown as it was last.
            every.setdefault((plain(body["name"]), rank), {})[at] = shown
    histories: dict[tuple[str, int], list[Json]] = defaultdict(list)
    for key, by_step in every.items():
        steps = sorted(by_step, reverse=True)
        some = steps[:: -(-len(steps) // MAX_HISTORY)]
        histories[key] = [by_step[at] for at in reversed(some)]
    return histories


def _items(view: views.RunView, body: dict[str, Any], step: int, rank: int) -> list[Json]:
    value: Any = body["value"]
    base: Json = {
        "name": plain(body["name"]),
        "step": step,
        "rank": rank,
        "type": body["renderer"],
        "media_type": "",
        "size": None,
        "width": None,
        "height": None,
        "caption": "",
        "digest": "",
        "text": None,
        "table": None,
        "histogram": None,
        "missing": False,
    }
    items = value.get("items")
    if isinstance(items, list):
        return [_medium(view, base, item) for item in items if isinstance(item, dict)]
    if isinstance(value.get("rows"), list):
        columns = value.get("columns")
        rows = value["rows"]
        table = {"columns": columns, "rows": rows[:MAX_ROWS], "total": len(rows)}
        return [{**base, "table": table}]
    if isinstance(value.get("text"), str):
        return [{**base, "text": value["text"][:MAX_TEXT]}]
    return [{**base, "histogram": value}]


def _medium(view: views.RunView, base: Json, item: dict[str, Any]) -> Json:
    digest = digest_of(item) or _digest_in(item)
    size = _size_of(view, digest)
    caption = item.get("caption")
    return {
        **base,
        "media_type": plain(str(item.get("media_type", ""))),
        "size": size,
        "width": item.get("width"),
        "height": item.get("height"),
        "caption": plain(caption) if isinstance(caption, str) else "",
        "digest": digest,
        "address": _address(item),
        "missing": size is None,
        "id": artifact_of(item),
    }


def _digest_in(item: dict[str, Any]) -> str:
    source = item.get("source")
    artifact = source.get("artifact") if isinstance(source, dict) else None
    digest = artifact.get("sha256") if isinstance(artifact, dict) else None
    return digest if isinstance(digest, str) else ""


def _address(item: dict[str, Any]) -> str:
    """Return where a medium lies that the run only names; the page never fetches it."""
    source = item.get("source")
    url = source.get("url") if isinstance(source, dict) else None
    return plain(str(url.get("href", ""))) if isinstance(url, dict) else ""


def _size_of(view: views.RunView, digest: str) -> int | None:
    try:
        return media.path_of(view.directory, digest).lstat().st_size
    except (OSError, StorageError):
        return None


# Files --------------------------------------------------------------------------------------


def files(board: Board, run: OpenRun) -> Json:
    """Return artifacts and checkpoints, and the run directory's own files where it is one."""
    view = run.view
    found = []
    for record in _artifacts(view):
        body = record.body
        digest = str(body.get("sha256", ""))
        there = _size_of(view, digest)
        is_checkpoint = "format" in body or body.get("purpose") == "checkpoint"
        found.append(
            {
                "id": plain(str(body.get("id", ""))),
                "name": plain(str(body.get("name", ""))),
                "kind": "checkpoint" if is_checkpoint else "artifact",
                "size": body.get("size"),
                "media_type": plain(str(body.get("media_type", ""))),
                "digest": digest,
                "step": record.step,
                "state": "ready" if there is not None else board.absent,
                "synced": None,
                "resume": f'trainer.load_checkpoint("{body.get("id")}")' if is_checkpoint else "",
            }
        )
    path, _ = board.place_of(view.directory)
    own = list(_own(view.directory)) if path else []
    total = sum(size for _, size in own)
    return {
        "files": found,
        "own": [{"path": plain(path), "size": size} for path, size in own[:MAX_OWN_FILES]],
        "total": total,
    }


def _artifacts(view: views.RunView) -> Iterator[Any]:
    reader = view.reader(kinds=("art",))
    while records := reader.poll(limit=500):
        yield from records


def _own(directory: Path) -> Iterator[tuple[str, int]]:
    for name in sorted(layout.NAMES):
        place = directory / name
        try:
            facts = place.lstat()
            if stat.S_ISREG(facts.st_mode):
                yield name, facts.st_size
            elif stat.S_ISDIR(facts.st_mode):
                with os.scandir(place) as entries:
                    for entry in sorted(entries, key=lambda each: each.name):
                        if entry.is_file(follow_symlinks=False):
                            size = entry.stat(follow_symlinks=False).st_size
                            yield f"{name}/{entry.name}", size
        except OSError:
            continue


# Bytes --------------------------------------------------------------------------------------


def blob(
    folders: Iterable[Path], digest: str, request: Request
) -> tuple[int, list[tuple[str, str]], Iterator[bytes]]:
    """Return status, headers and parts of the bytes of a digest, whole or a range.

    What may be shown is what the bytes say they are, not what a name says; all else is a download
    that runs no script.

    Args:
        folders: The runs that may have it.

    Raises:
        Problem: None of them has.
    """
    descriptor = next((found for each in folders if (found := _opened(each, digest)) >= 0), -1)
    if descriptor < 0:
        raise _not_here()
    file = os.fdopen(descriptor, "rb")
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        file.close()
        raise _not_here()
    kind = _kind(file.read(16))
    size, status = facts.st_size, 200
    first, last = 0, size - 1
    match = _RANGE.fullmatch(request.header("Range"))
    headers = [("Accept-Ranges", "bytes"), ("Cache-Control", "private, max-age=3600")]
    headers.append(("ETag", f'"{digest}"'))
    if match is not None and int(match[1]) < size:
        first = int(match[1])
        last = min(int(match[2]), last) if match[2] else last
        if last >= first:
            status = 206
            headers.append(("Content-Range", f"bytes {first}-{last}/{size}"))
        else:
            first, last = 0, size - 1
    headers.append(("Content-Length", str(last - first + 1)))
    headers.append(("Content-Type", kind or "application/octet-stream"))
    if not kind:
        headers.append(("Content-Disposition", f'attachment; filename="{digest[:16]}"'))
        headers.append(("Content-Security-Policy", "sandbox"))
    return status, headers, _parts(file, first, last)


def _opened(folder: Path, digest: str) -> int:
    """Open the bytes of a digest in one run; -1 where it does not have them."""
    try:
        path = media.path_of(folder, digest)
        # A link could lead out of the run.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, StorageError):
        return -1


def _not_here() -> Problem:
    said = "These bytes are not on this disk."
    return Problem(404, "not_here", said, remedy="Look for another copy of the run.")


def _kind(head: bytes) -> str:
    """Return the type of media that may be shown, "" for anything else."""
    known = next((kind for magic, kind in _MAGIC if head.startswith(magic)), "")
    if head[:4] == b"RIFF":
        known = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        known = "image/avif" if head[8:12] in (b"avif", b"avis") else "video/mp4"
    if head[:4] == b"\x1aE\xdf\xa3":
        known = "video/webm"
    return known if known in MEDIA_TYPES else ""


def _parts(file: BinaryIO, first: int, last: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        left = last - first + 1
        while left > 0 and (part := file.read(min(left, _CHUNK))):
            left -= len(part)
            yield part
