"""Where checkpoints lie: in the run directory, each under its digest once it is known to be good.

`Trainer.save_checkpoint` writes a file under a hidden name in media/ and returns. One thread then
makes it *ready*: it syncs the file, takes its digest, loads it back as data alone, gives it the
name of its digest, and records it. That very file is the artifact; there is no second copy.

A process that ends before that leaves the file hidden, with a record that names it. The next
attempt finds it there and makes it ready itself.

The thread reads files and appends records. It knows no group, model or optimizer, and no lock:
jobs go to it by a queue, and each job says by an event that it is over.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from launchhelm._run_artifacts import OCTETS
from launchhelm.errors import StorageError
from launchhelm.run import Run
from launchhelm.store import layout, media
from launchhelm.store.reader import Reader
from launchhelm.torch._checkpoint_file import discard, save_whole
from launchhelm.torch._checkpoint_payload import OURS, Payload, Unreadable, read, require_whole

METRIC: Final = "checkpoint"
"""Its value at a step is the id of the checkpoint of that step."""

EVENT: Final = "checkpoint"
OWN: Final = "launchhelm.torch"
"""In what a run keeps: which checkpoint a resume begins with."""

_LAST_LOOK_S: Final = 3.0
"""How long the end of a run waits for a file that is being loaded back; that cannot be stopped."""


@dataclass(slots=True)
class Job:
    """One file on its way to being ready.

    Args:
        id: Of the artifact.
        kept: What a resume finds in `Run.restored`, once it is ready.
        path: Where it is now.
        sha256: "" until it is ready.
        failed: Why it never will be.
        parts: Name of its directory in checkpoints/, "" for one that is whole in its file, None
            where nobody has said.
        is_own: Whether this process has saved it.
    """

    id: str
    step: int
    format: str
    path: Path
    kept: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON.
    sha256: str = ""
    failed: str = ""
    parts: str | None = None
    is_own: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class Ready(NamedTuple):
    """A checkpoint that may be loaded: its id, and the digest that its file must have."""

    id: str
    sha256: str


class _Stopped(Exception):
    """The run ends; what is left to do is the next attempt's."""


class Vault:
    """The checkpoints of one run, on the coordinator.

    Args:
        run: Whose directory and records.
        notice: Told of a checkpoint that turned out to be unusable.
    """

    def __init__(self, run: Run, notice: Callable[[str], object]) -> None:
        self._run = run
        self._notice = notice
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._newest: Job | None = None
        self._ready: dict[str, Job] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stop = False
        self._is_loading = False

    # On the training thread.

    def write(self, payload: Payload) -> Path:
        """Write a checkpoint under a hidden name; for as long as torch.save takes.

        Raises:
            OSError, RuntimeError: It could not be written, and nothing of it is left behind.
        """
        directory = self._run.directory / layout.MEDIA
        directory.mkdir(exist_ok=True)
        hidden = directory / layout.hidden_name(f"{METRIC}-{payload['step']}")
        save_whole(payload, hidden)
        return hidden

    def admit(self, id_: str, hidden: Path, payload: Payload, kept: Mapping[str, Any]) -> None:
        """Let the thread make a written file ready."""
        job = Job(id_, payload["step"], payload["format"], hidden, kept)
        job.parts, job.is_own = str(payload.get(OURS, {}).get("parts", "")), True
        # Before the thread begins: whoever finds the file hidden knows what it is.
        body = {
            "type": EVENT,
            "id": id_,
            "state": "verifying",
            "file": hidden.name,
            "format": job.format,
            "parts": job.parts,
            "kept": kept,
        }
        self._run.recorder.append_urgent("ev", body, step=job.step)
        self._newest = job
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="launchhelm-checkpoint", daemon=True
            )
            self._thread.start()

    def newest(self) -> Ready | None:
        """Return the newest ready checkpoint; None when there is none.

        Waits for those that this process has saved. One that an earlier attempt could not make
        ready is made so now, if it is good.
        """
        for job in reversed(self._known().values()):
            if job.sha256 or self._finished(job):
                return Ready(job.id, job.sha256)
        point = self._run.latest(METRIC)  # As the script has recorded by `run.checkpoint`.
        return None if point is None else self._artifact(str(point["value"]))

    def find(self, id_: str) -> Ready | None:
        """Return the ready checkpoint of an id, as `newest` does; None when there is none."""
        job = self._known().get(id_)
        if job is None:
            return self._artifact(id_)
        return Ready(id_, job.sha256) if job.sha256 or self._finished(job) else None

    def last_good(self) -> Ready | None:
        """Return the newest ready checkpoint whose file is whole. Reads files to the end."""
        for job in reversed(self._known().values()):
            with suppress(Unreadable, StorageError):
                if job.sha256:
                    require_whole(media.path_of(self._run.directory, job.sha256), job.sha256)
                    return Ready(job.id, job.sha256)
        return None

    def finish(self, limit_s: float) -> None:
        """Wait for what is under way, then leave the rest to the next attempt."""
        job, thread = self._newest, self._thread
        if job is None or thread is None:
            return
        if not job.over.wait(max(0.0, limit_s)):
            self._notice(
                f"Checkpoint {job.id} of step {job.step} is on disk and was not verified before "
                f'the end of the run. The next attempt does that in load_checkpoint("latest"): '
                f"{job.path.name}."
            )
        with self._lock:
            self._stop = True
        if self._is_loading:
            # Python must not end while torch loads a file on a thread.
            job.over.wait(_LAST_LOOK_S)

    # On the thread, and for what an earlier attempt left.

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._make_ready(job)
            finally:
                job.over.set()

    def _make_ready(self, job: Job) -> None:
        try:
            stored = self._verified(job.path)
            self._require_going()
            # Durable before the file has its name: whoever is killed now leaves the digest.
            self._keep(job, stored.sha256)
            with self._lock:
                self._require_going()
                media.reveal(job.path, stored.sha256)
                self._record(job, stored)
        except _Stopped:
            return
        except Exception as error:  # Training goes on; what cannot be used is said, and removed.
            self._give_up(job, error)

    def _verified(self, path: Path) -> media.Stored:
        self._require_going()
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        stored = media.measure(self._unless_stopped(media.file_chunks(path)))
        self._is_loading = True
        try:
            self._require_going()
            read(path)
        finally:
            self._is_loading = False
        return stored

    def _require_going(self) -> None:
        if self._stop:
            raise _Stopped

    def _unless_stopped(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self._require_going()

    def _keep(self, job: Job, sha256: str) -> None:
        own = {**job.kept, OWN: {**job.kept.get(OWN, {}), "sha256": sha256}}
        try:
            self._run.keep_beside(own)
        except Exception as error:  # A resume then begins with what was kept before.
            self._run.fault("checkpoint", error)

    def _record(self, job: Job, stored: media.Stored) -> None:
        """Say that it is ready: first what its id means, then the id as the value of its step."""
        body = {
            "id": job.id,
            "name": f"step-{job.step}.pt",
            "media_type": OCTETS,
            "size": stored.size,
            "sha256": stored.sha256,
            "purpose": "general",
            "format": job.format,
            **({} if job.parts is None else {"parts": job.parts}),
        }
        self._run.recorder.append_urgent("art", body, step=job.step)
        self._run.recorder.append_urgent("m", {METRIC: job.id}, step=job.step)
        job.sha256 = stored.sha256
        self._ready[job.id] = job

    def _give_up(self, job: Job, error: Exception) -> None:
        job.failed = (
            str(error) if isinstance(error, Unreadable) else f"{type(error).__name__}: {error}"
        )
        discard(job.path)
        if job.is_own and job.parts:  # Without the file nobody could load them.
            place = self._run.directory / layout.CHECKPOINTS
            shutil.rmtree(place / job.parts, ignore_errors=True)
        body = {"type": EVENT, "id": job.id, "state": "failed", "error": job.failed[:1000]}
        self._run.recorder.append_urgent("ev", body, step=job.step)
        self._notice(
            f"Checkpoint {job.id} of step {job.step} cannot be used and was removed: {job.failed}."
        )

    # What is recorded, and what an earlier attempt left.

    def _known(self) -> dict[str, Job]:
        """Return what is ready and what may become so, oldest first.

        Waits for those that this process has saved.
        """
        if self._newest is not None:
            self._newest.over.wait()
        known: dict[str, Job] = {}
        for record in Reader(self._run.directory, kinds=("art", "ev"), ranks=(0,)).poll():
            body = record.body
            id_ = str(body.get("id"))
            if record.kind == "art" and body.get("format"):
                job = known.setdefault(id_, self._left_behind(id_, record.step, body))
                job.sha256 = str(body.get("sha256"))
            elif body.get("type") == EVENT and body.get("state") == "failed":
                known.pop(id_, None)
            elif body.get("type") == EVENT:
                known[id_] = self._left_behind(id_, record.step, body)
        # Those whose records are on their way to the file.
        return {**known, **self._ready}

    def _left_behind(self, id_: str, step: int | None, body: Mapping[str, Any]) -> Job:
        # The name alone: whatever a record says, nothing outside of media/ is touched.
        name = Path(str(body.get("file"))).name
        kept, parts = body.get("kept"), body.get("parts")
        return Job(
            id_,
            step or 0,
            str(body.get("format")),
            self._run.directory / layout.MEDIA / name,
            kept if isinstance(kept, Mapping) else {},
            parts=parts if isinstance(parts, str) else None,
        )

    def _finished(self, job: Job) -> bool:
        """Make a file ready that its process could not, if it is there and good."""
        directory = self._run.directory / layout.MEDIA
        try:
            names = os.listdir(directory)
            kept = self._run.restored.get(OWN) or {}
            if kept.get("artifact") == job.id and kept.get("sha256") in names:
                path = directory / kept["sha256"]  # Only the record was missing.
                self._record(job, media.Stored(path.name, path.stat().st_size))
                return True
            if not job.path.name.startswith(".") or job.path.name not in names:
                return False
            # Its host may have lost power before it was synced.
            require_whole(job.path)
        except (OSError, Unreadable) as error:
            self._give_up(job, error)
            return False
        self._make_ready(job)
        return bool(job.sha256)

    def _artifact(self, id_: str) -> Ready | None:
        for record in Reader(self._run.directory, kinds=("art",)).poll():
            if record.body.get("id") == id_:
                return Ready(id_, str(record.body.get("sha256")))
        return None
