"""Saving and loading the whole state of a training, on every rank together.

What is saved: model, optimizer, scheduler and scaler as watched; the random states of every rank;
step, tunables, gradient clipping; and what commands changed: multipliers of the learning rate, and
dropout. Whatever goes wrong on any rank is raised on all of them.

Everything here runs on the training thread; what is left for another is in `_checkpoint_vault`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from launchhelm._ids import new_id
from launchhelm.errors import LaunchHelmError, NotFound, StorageError, Unavailable
from launchhelm.records import Outcome
from launchhelm.run import Run
from launchhelm.store import layout, media
from launchhelm.torch import _checkpoint_payload as payloads
from launchhelm.torch import _checkpoint_rates, _random_state
from launchhelm.torch._built_in import BuiltIn
from launchhelm.torch._checkpoint_file import copy_whole, discard, target_of
from launchhelm.torch._checkpoint_vault import OWN, Ready, Vault
from launchhelm.torch._collective import Links
from launchhelm.torch._participant import RankFacts
from launchhelm.torch._sharding import (
    Others,
    StateError,
    Target,
    bare_state,
    full_state,
    kind,
    load_full_state,
    mapped,
    own_state,
    require_same,
)
from launchhelm.torch._shards import load_shards, save_shards

LATEST: Final = "latest"
SAVING: Final = "saving a checkpoint"
LOADING: Final = "loading a checkpoint"

_WHOLE_HERE: Final = ("plain", "ddp")
"""Kinds of models of which every rank has the whole state."""

_MOST_HISTORY: Final = 16

_ID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What `new_id` makes. A file of such a name can be given as "./NAME"."""


class CheckpointError(LaunchHelmError):
    """A checkpoint could not be saved or loaded; raised on every rank alike."""

    def __init__(self, message: str, *, kept: str = "", remedy: str = "") -> None:
        super().__init__("checkpoint", message, kept=kept, remedy=remedy)


class Watched:
    """What `Trainer.watch` was given, as state dicts."""

    def __init__(self, model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        others = {"scheduler": scheduler, "scaler": scaler}
        self.others = {
            name: each for name, each in others.items() if hasattr(each, "load_state_dict")
        }

    def state(
        self, is_coordinator: bool, links: Links | None, directory: Path | None
    ) -> dict[str, Any]:
        """Return model, optimizer, scheduler and scaler on the coordinator. Collective.

        With a directory the tensors of model and optimizer are left there, in parts.
        """
        if directory is not None:
            model, optimizer = save_shards(directory, self.model, self.optimizer, links=links)
        elif kind(self.model) not in _WHOLE_HERE:
            model, optimizer = full_state(
                self.model, self.optimizer, is_coordinator=is_coordinator, links=links
            )
        else:
            others = Others(links)
            own = own_state(self.model, self.optimizer, others)
            require_same(self.model, own["model"], others)
            model, optimizer = own["model"], own["optimizer"]
        if not is_coordinator:
            return {}
        rest = {name: each.state_dict() for name, each in self.others.items()}
        return {"model": model, "optimizer": optimizer, **rest}

    def take(
        self,
        parts: Mapping[str, Any],
        others: Others,
        links: Links | None,
        directory: Path | None,
    ) -> None:
        """Load the model and the optimizer, on all ranks or on none. Collective.

        One of them that is missing stays as it is.
        """
        if directory is not None:
            outlines = parts.get("model", {}), parts.get("optimizer", {})
            load_shards(directory, self.model, self.optimizer, *outlines, links=links)
            return
        missing = {"model", "optimizer"} - parts.keys()
        if len(missing) == 2:
            return
        target = Target(self.model, self.optimizer)
        if target.how not in _WHOLE_HERE and not missing:
            load_full_state(
                self.model, self.optimizer, parts["model"], parts["optimizer"], links=links
            )
            return
        with others.one_mind():
            if target.how not in _WHOLE_HERE:
                raise payloads.Unreadable(f"it has no {missing.pop()}, which a sharded one needs")
            state = target.fitting(
                {
                    "model": parts["model"] if "model" in parts else bare_state(self.model),
                    "optimizer": parts.get("optimizer") or self.optimizer.state_dict(),
                }
            )
        with others.one_mind(is_changed=True):
            target.take(mapped(state, target.part))


class Checkpoints:
    """The checkpoints of one trainer.

    Args:
        run: This rank's.
        facts: Where this rank stands.
        links: To the others; None when there are none.
        built_in: What commands may have changed.
        notice: Told what people should know.
        tunables: Returns the values of all tunables.
        take_tunables: Takes values of some, also of those that are not declared yet.

    Attributes:
        failure: Why the state of this training cannot be trusted any more; None when it can.
        rate_history: The last changes of learning rates, on the coordinator.
    """

    def __init__(
        self,
        run: Run,
        facts: RankFacts,
        links: Links | None,
        built_in: BuiltIn,
        notice: Callable[[str], object],
        tunables: Callable[[], dict[str, Any]],
        take_tunables: Callable[[Mapping[str, Any]], object],
    ) -> None:
        self.failure: CheckpointError | None = None
        self.rate_history: list[dict[str, Any]] = []
        self._run = run
        self._facts = facts
        self._links = links
        self._others = Others(links)
        self._built_in = built_in
        self._notice = notice
        self._tunables = tunables
        self._take_tunables = take_tunables
        self._watched: Watched | None = None
        self._is_changing = False
        self._vault = Vault(run, notice) if facts.is_coordinator else None

    def watch(self, model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
        """Save and load these objects from now on."""
        self._watched = Watched(model, optimizer, scheduler, scaler)

    def finish(self) -> None:
        """Wait for what is being verified, as long as the end of the run allows."""
        if self._vault is not None:
            self._vault.finish(self._run.finish_left_s - 1.0)

    def note(self, outcome: Outcome) -> None:
        """Remember by how much a command has changed the learning rates."""
        change = outcome.changes.get("lr")
        if change is not None:
            factors = {
                index: new / old if old else 1.0
                for index, (old, new) in enumerate(zip(change["old"], change["new"], strict=True))
                if new != old
            }
            step = outcome.applied_at.get("step")
            entry = {"step": step, "groups": list(factors), "factors": list(factors.values())}
            self.rate_history = [*self.rate_history, entry][-_MOST_HISTORY:]

    # Saving.

    def save(
        self,
        step: int,
        path: str | os.PathLike[str] | None,
        extra: Any,
        *,
        sharded: bool = False,
    ) -> str | None:
        """Save at a step; see `Trainer.save_checkpoint`. Collective."""
        if sharded and path is not None:
            raise ValueError("sharded=True writes into the run directory; give no path with it.")
        others, vault = self._others, self._vault
        with self._phase(SAVING), self._as_checkpoint_error("saved", "Nothing was written."):
            with others.one_mind():
                if self.failure is not None:
                    raise self.failure
                extra = {} if extra is None else extra
                if not isinstance(extra, dict):
                    raise TypeError(
                        f"extra is of type {type(extra).__name__}, and only a dict comes back; "
                        'give a dict, extra={"value": ...}'
                    )
                # The coordinator writes it; others may not even see the place.
                copy = None if path is None or vault is None else target_of(path)
                problem = payloads.unloadable(extra, "extra")
                if problem:
                    raise TypeError(
                        f"{problem}, which cannot be loaded back as data alone; give numbers, "
                        "texts, tensors, and dicts and lists of them"
                    )
                own = _random_state.captured()
            states = self._collected(own)
            directory: Path | None = None
            if sharded:
                directory = self._run.directory / layout.CHECKPOINTS / self._agreed(new_id())
            with _gone_on_failure(directory if vault is not None else None):
                id_ = self._written(step, extra, states, directory, copy)
        return id_

    def _written(
        self,
        step: int,
        extra: Any,
        states: list[tuple[int, _random_state.State]],
        directory: Path | None,
        copy: Path | None,
    ) -> str | None:
        """Write the file, on the coordinator, and return its id there. Collective."""
        others, vault = self._others, self._vault
        id_: str | None = None
        parts: dict[str, Any] = {}
        if self._watched is not None:
            parts = self._watched.state(self._facts.is_coordinator, self._links, directory)
        with others.one_mind():
            if vault is not None:
                payload = self._payload(step, extra, parts, states)
                if directory is not None:
                    payload[payloads.OURS]["parts"] = directory.name
                # Those of thousands of ranks take seconds to look through, and are ours.
                problem = payloads.unloadable({**payload, "rng_by_rank": None}, "the checkpoint")
                if problem:
                    raise TypeError(f"{problem}, which cannot be loaded back as data alone")
                hidden = vault.write(payload)
                try:
                    if copy is not None:
                        copy_whole(hidden, copy)
                except BaseException:
                    discard(hidden)
                    raise
                id_ = new_id()
                vault.admit(id_, hidden, payload, self._kept(id_, payload, copy))
        return id_

    def _agreed(self, word: str) -> str:
        """Return the coordinator's word. Collective."""
        return word if self._links is None else str(self._links.gather_json(word)[0])

    def _collected(self, own: _random_state.State) -> list[tuple[int, _random_state.State]]:
        """Return the random states of all ranks on the coordinator. Collective."""
        if self._links is None:
            return [(self._facts.rank, own)]
        body = json.dumps([self._facts.rank, _random_state.packed(own)]).encode()
        rows = [json.loads(row) for row in self._links.collect(body)]
        return [(rank, _random_state.unpacked(state)) for rank, state in rows]

    def _payload(
        self,
        step: int,
        extra: Any,
        parts: dict[str, Any],
        states: list[tuple[int, _random_state.State]],
    ) -> payloads.Payload:
        parts, exact = _checkpoint_rates.written(self._built_in.rates, parts)
        ours = {"rates": exact, "dropout": self._built_in.sites.changed()}
        return {
            **payloads.random_part(states),
            "step": step,
            "extra": extra,
            "tunables": self._tunables(),
            "control": {
                "grad_clip": self._built_in.clipping.limit,
                "lr_history": self.rate_history,
            },
            **parts,
            payloads.OURS: {key: value for key, value in ours.items() if value},
        }

    def _kept(self, id_: str, payload: payloads.Payload, copy: Path | None) -> dict[str, Any]:
        return {
            OWN: {
                "step": payload["step"],
                "artifact": id_,
                "path": "" if copy is None else str(copy),
            },
            "control": payload["control"],
            "tunables": payload["tunables"],
        }

    # Loading.

    def load(self, source: str | os.PathLike[str], map_location: Any) -> tuple[int, dict[str, Any]]:
        """Load; see `Trainer.load_checkpoint`. Collective. Returns step and extra."""
        others = self._others
        unchanged = "Nothing of this training was changed."
        with self._phase(LOADING), self._as_checkpoint_error("loaded", unchanged):
            path, ready = self._located(source)
            with others.one_mind():
                if self._facts.is_coordinator:
                    self._require_whole(path, ready)
                payload = payloads.read(path, map_location=map_location)
                own, why_not = payloads.random_of(
                    payload, self._facts.group_rank, self._facts.world_size
                )
                problem = "" if own is None else _random_state.problem(own)
                if problem:
                    raise payloads.Unreadable(problem)
                ours = _mapping(payload.get(payloads.OURS))
                exact = _mapping(ours.get("rates"))
                rates = self._built_in.rates
                parts = _checkpoint_rates.exactly(rates, payload, exact)
            self._is_changing = True
            watched = self._watched
            if watched is not None:
                name = Path(str(ours.get("parts", ""))).name
                directory = path.parents[1] / layout.CHECKPOINTS / name if name else None
                watched.take(parts, others, self._links, directory)
            with others.one_mind(is_changed=True):
                for name, each in (watched.others if watched is not None else {}).items():
                    if parts.get(name) is not None:
                        each.load_state_dict(parts[name])
                _checkpoint_rates.adopt(rates, exact)
                if "control" in payload:
                    self._built_in.clipping.limit = payload["control"].get("grad_clip")
                    self.rate_history = list(payload["control"].get("lr_history") or ())
                if payloads.OURS in payload:
                    self._built_in.sites.put(_mapping(ours.get("dropout")))
                self._take_tunables(_mapping(payload.get("tunables")))
                if own is not None:
                    _random_state.restore(own)
            self.failure = None
        self._tell(str(path) if ready is None else ready.id, payload, why_not)
        extra = payload.get("extra")
        return int(payload["step"]), extra if isinstance(extra, dict) else {}

    def _located(self, source: str | os.PathLike[str]) -> tuple[Path, Ready | None]:
        """Return the file to read and, of the run's own, what is known of it."""
        id_ = _id_in(source)
        if source != LATEST and not id_:
            return Path(source).absolute(), None
        found: Ready | None = None
        with self._others.one_mind():
            if self._vault is not None:
                found = self._vault.find(id_) if id_ else self._vault.newest()
        if self._links is not None:
            found = self._links.gather_json(found)[0]
        if found is None:
            raise NotFound(
                f"The run {self._run.name!r} has no checkpoint{f' {id_}' * bool(id_)}.",
                remedy="Save one with save_checkpoint(), or give the path of a file.",
            )
        ready = Ready(*found)
        return media.path_of(self._run.directory, ready.sha256), ready

    def _require_whole(self, path: Path, ready: Ready | None) -> None:
        """Read the file to its end; of a damaged one of the run say what there is instead."""
        try:
            payloads.require_whole(path, "" if ready is None else ready.sha256)
        except payloads.Unreadable as error:
            if ready is None or self._vault is None:
                raise
            good = self._vault.last_good()
            instead = "no other of this run is whole"
            if good is not None:
                instead = f'the last good one loads with load_checkpoint("{good.id}")'
            raise payloads.Unreadable(f"checkpoint {ready.id}: {error}; {instead}") from error

    def _tell(self, name: str, payload: payloads.Payload, why_not: str) -> None:
        """Say what of this training the file does not have, and the other way round."""
        texts = [f"{why_not}."] if why_not else []
        watched = self._watched
        here = {"model", "optimizer", *watched.others} if watched is not None else set()
        there = {name for name in ("model", "optimizer", "scheduler", "scaler") if name in payload}
        if here - there:
            texts.append(f"It has no {' and no '.join(sorted(here - there))}: kept as it was.")
        if there - here:
            texts.append(f"Its {' and '.join(sorted(there - here))} is not watched: not restored.")
        for text in texts:
            self._notice(f"Checkpoint {name} of step {payload['step']}: {text}")

    # For both.

    @contextlib.contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        """Let heartbeats say what this rank does."""
        progress = self._run.recorder.progress
        before = progress.phase
        if before.startswith("in "):  # A command's handler, which is waited for by that name.
            phase = before
        progress.phase, progress.phase_since = phase, time.monotonic()
        try:
            yield
        finally:
            progress.phase, progress.phase_since = before, time.monotonic()

    @contextlib.contextmanager
    def _as_checkpoint_error(self, what: str, kept: str) -> Iterator[None]:
        """Raise whatever all ranks learnt of together as the one error of checkpoints."""
        self._is_changing = False
        try:
            yield
        except (StateError, StorageError, Unavailable) as error:
            is_changed, message = self._is_changing, f"{error}."
            if isinstance(error, StateError):
                is_changed = error.is_changed
            else:  # A rank is gone, and nobody knows how far it came.
                message, kept = error.message, "" if what == "saved" else kept
            failed = CheckpointError(
                f"The checkpoint could not be {what}: {message}",
                kept="The state of this training may be half restored." if is_changed else kept,
                remedy="Load a good checkpoint before you go on." if is_changed else "",
            )
            if is_changed:
                self.failure = failed
            raise failed from error


@contextlib.contextmanager
def _gone_on_failure(directory: Path | None) -> Iterator[None]:
    """Remove a directory unless all goes well."""
    try:
        yield
    except BaseException:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
        raise


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _id_in(source: str | os.PathLike[str]) -> str:
    """Return the id of a checkpoint if that is what was given, else ""."""
    return source if isinstance(source, str) and _ID.fullmatch(source) else ""
