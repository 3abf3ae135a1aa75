"""What a checkpoint file holds, and how one is judged before anything of it is believed.

The format is the hosted one: a torch file that loads with `weights_only=True`. What only this
package knows stands under one more key, which others ignore.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from launchhelm.store import media
from launchhelm.torch import _checkpoint_rates, _random_state
from launchhelm.torch._controls import is_number

Payload = dict[str, Any]  # Any: state dicts are the script's own.

ONE: Final = "launchhelm.torch.checkpoint/1"
MANY: Final = "launchhelm.torch.checkpoint/2"
OURS: Final = "launchhelm.offline"

_SECTIONS: Final = ("model", "optimizer", "scheduler", "scaler")
_STEP_LIMIT: Final = 1 << 63
_DEEPEST: Final = 64


class Unreadable(Exception):
    """A file is no checkpoint, or a damaged one; the text says why."""


def random_part(states: list[tuple[int, _random_state.State]]) -> Payload:
    """Return the entries for the random states of all ranks.

    Args:
        states: (global rank, states) in group order.
    """
    if len(states) == 1:
        return {"format": ONE, "rng": states[0][1]}
    return {
        "format": MANY,
        "world_size": len(states),
        "rng_by_rank": [
            {"rank": rank, "group_rank": group_rank, "rng": state}
            for group_rank, (rank, state) in enumerate(states)
        ],
    }


def random_of(payload: Mapping[str, Any], group_rank: int, size: int) -> tuple[Any, str]:
    """Return the random states of a rank, or None and the reason why there are none for it."""
    ranks = world_size(payload)
    if ranks != size:
        return None, (
            f"It was saved on {ranks} rank{'s' * (ranks > 1)} and this is a group of {size}: "
            "model and optimizer are restored, the random states are not"
        )
    if size == 1:
        return payload["rng"], ""
    return next(
        each["rng"] for each in payload["rng_by_rank"] if each["group_rank"] == group_rank
    ), ""


def world_size(payload: Mapping[str, Any]) -> int:
    """Return how many ranks saved it."""
    return 1 if payload["format"] == ONE else int(payload["world_size"])


def problem(payload: object) -> str:
    """Say why this is no checkpoint, "" when it is one. Reads no tensor."""
    if not isinstance(payload, Mapping):
        return f"it holds {type(payload).__name__}, no mapping"
    if payload.get("format") not in (ONE, MANY):
        return f"its format is {str(payload.get('format'))[:80]!r}, not {ONE} or {MANY}"
    step = payload.get("step")
    if type(step) is not int or not -_STEP_LIMIT <= step < _STEP_LIMIT:
        return "its step is no integer"
    for name in ("control", "tunables", OURS, *_SECTIONS):
        if not isinstance(payload.get(name) or {}, Mapping):
            return f"its {name} is {type(payload[name]).__name__}, no mapping"
    control = payload.get("control") or {}
    limit = control.get("grad_clip")
    if limit is not None and not (is_number(limit) and limit > 0):
        return f"its grad_clip is {str(limit)[:80]}"
    try:
        json.dumps(control.get("lr_history"))
        len(control.get("lr_history") or [])
    except (TypeError, ValueError):
        return "its lr_history is no list of plain values"
    why = _problem_of_optimizer(payload.get("optimizer") or {}) or _problem_of_ours(payload)
    if why:
        return why
    if payload["format"] == ONE:
        return "" if isinstance(payload.get("rng"), Mapping) else "it has no random states"
    return _problem_of_ranks(payload)


def _problem_of_optimizer(state: Mapping[str, Any]) -> str:
    """An optimizer would find these out when half of it is loaded."""
    if not state:
        return ""
    groups, of_parameters = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not all(
        isinstance(each, Mapping) and isinstance(each.get("params"), list) for each in groups
    ):
        return "its optimizer has no groups of parameters"
    if not isinstance(of_parameters, Mapping) or not all(
        isinstance(each, Mapping) for each in of_parameters.values()
    ):
        return "its optimizer has no state per parameter"
    return ""


def _problem_of_ours(payload: Mapping[str, Any]) -> str:
    ours = payload.get(OURS) or {}
    dropout = ours.get("dropout") or {}
    if not isinstance(dropout, Mapping) or not all(
        is_number(p) and 0 <= p <= 1 for p in dropout.values()
    ):
        return "its dropout is no probability for each place"
    exact = ours.get("rates") or {}
    if not isinstance(exact, Mapping):
        return "its multipliers are no mapping"
    groups = (payload.get("optimizer") or {}).get("param_groups") or []
    return _checkpoint_rates.problem(exact, groups) if exact else ""


def _problem_of_ranks(payload: Mapping[str, Any]) -> str:
    size, ranks = payload.get("world_size"), payload.get("rng_by_rank")
    if type(size) is not int or not isinstance(ranks, list) or len(ranks) != size or size < 2:
        return "the number of its random states is not that of its ranks"
    if not all(isinstance(each, Mapping) and "rng" in each for each in ranks):
        return "a rank of it has no random states"
    for key in ("group_rank", "rank"):
        numbers = [each.get(key) for each in ranks]
        if not all(type(number) is int for number in numbers) or len(set(numbers)) != size:
            return f"its ranks do not have one {key} each"
    if {each["group_rank"] for each in ranks} != set(range(size)):
        return "its ranks are not numbered from 0"
    return ""


# Files.


def read(path: Path, *, map_location: Any = None) -> Payload:
    """Read a checkpoint without running anything that is in it.

    Tensors are mapped, not read: they come in when they are used, also where there are many
    ranks on a host.

    Raises:
        Unreadable: It cannot be read, holds more than data, or is no checkpoint.
    """
    try:
        payload = torch.load(path, map_location=map_location or "cpu", weights_only=True, mmap=True)
    except Exception as error:  # Whatever the bytes of a stranger lead to.
        raise Unreadable(_said(path, error)) from error
    why = problem(payload)
    if why:
        raise Unreadable(f"{path} is no checkpoint that is known here: {why}")
    return payload  # type: ignore[no-any-return]


def require_whole(path: Path, sha256: str = "") -> None:
    """Read all bytes of a file and compare them with what they should be. Constant memory.

    Torch does not look: a flipped bit would become a weight.

    Args:
        sha256: What they must have; without it the sums in its archive count, where whoever wrote
            it has made them.

    Raises:
        Unreadable: It is damaged or cannot be read.
    """
    try:
        if not sha256:
            _require_sums(path)
        elif media.measure(media.file_chunks(path)).sha256 != sha256:
            raise Unreadable(f"{path} is damaged: its bytes do not have the recorded digest")
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(_said(path, error)) from error


def _require_sums(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        # What torch writes is stored as it is. Anything else could grow without limit.
        if any(each.compress_type or each.file_size != each.compress_size for each in entries):
            raise Unreadable(f"{path} is no checkpoint: it is compressed")
        if sum(each.file_size for each in entries) > path.stat().st_size:
            raise Unreadable(f"{path} is no checkpoint: its parts overlap")
        if not any(each.CRC for each in entries):
            return  # Written with torch.serialization.set_crc32_options(False).
        damaged = archive.testzip()
    if damaged is not None:
        raise Unreadable(f"{path} is damaged: {damaged} does not have the sum recorded for it")


def _said(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror or error}"
    first = str(error).strip().split("\n", 1)[0][:300]
    return f"{path} cannot be loaded as data alone: {type(error).__name__}: {first}"


# What may be saved.


def unloadable(value: object, name: str) -> str:
    """Return the first part of a value that would not load back as data alone, "" when all does.

    Args:
        value: Containers and tensors; of a tensor only its class is looked at.
        name: How to call the value.
    """
    try:
        buffer = io.BytesIO()
        torch.save(_emptied(value), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except RecursionError:
        return _looped(value, name) or f"{name} is nested too deeply"
    except Exception:
        inside = next(
            (found for part, it in _parts(value, name) if (found := unloadable(part, it))), ""
        )
        kind = type(value)
        return inside or f"{name} is a {kind.__module__}.{kind.__qualname__}"
    return ""


def _parts(value: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield what is in a container, with what to call it."""
    if type(value) in (dict, OrderedDict):
        for key, part in value.items():
            yield key, f"the key {key!r} of {name}"
            yield part, f"{name}[{key!r}]"
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            yield part, f"{name}[{index}]"


def _looped(value: Any, name: str, above: tuple[int, ...] = ()) -> str:
    """Say which container contains itself; "" when none does, or only far down."""
    if id(value) in above:
        return f"{name} contains itself"
    if len(above) == _DEEPEST:
        return ""
    inside = (*above, id(value))
    return next(
        (found for part, it in _parts(value, name) if (found := _looped(part, it, inside))), ""
    )


def _emptied(value: Any) -> Any:
    """Return a value whose tensors hold nothing; containers of other classes stay as they are."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return torch.empty_like(value, device="meta") if value.dim() else value
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _emptied(each)) for key, each in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(_emptied, value))
    return value
