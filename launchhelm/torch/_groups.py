"""The parameter groups that a value must be written to, behind whatever wraps the optimizer.

A wrapper may share the groups of the optimizer inside, copy them once, or copy its own over them
at every step. A command writes to all of them, and the innermost, whose `step` changes the
parameters, is where a value is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from launchhelm.torch._controls import NotEffective

Group = dict[str, Any]  # Any: torch's own type for the entries of param_groups.
Value = float | torch.Tensor

_DEEPEST: Final = 8


class Groups:
    """The parameter groups of an optimizer and of those inside it.

    Args:
        optimizer: Anything with torch's `param_groups`.
    """

    def __init__(self, optimizer: Any) -> None:
        self.watched = optimizer
        self.chain = chain(optimizer)
        """From the one that is watched to the innermost."""

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.watched.param_groups)

    def real(self, index: int) -> Group:
        """Return the group of the innermost optimizer."""
        group: Group = self.chain[-1].param_groups[index]
        return group

    def all(self, index: int) -> list[Group]:
        """Return that group in every optimizer of the chain, each dictionary once, real first."""
        groups = [each.param_groups[index] for each in reversed(self.chain)]
        return list({id(each): each for each in groups}.values())

    def read(self, key: str) -> list[float]:
        """Return a number of every real group. Waits for the device where it is a tensor there."""
        return [float(self.real(index)[key]) for index in range(self.count)]


def chain(optimizer: Any) -> list[Any]:
    """Return an optimizer and what it wraps, outermost first.

    Whatever else has as many parameter groups counts as wrapped, by whichever attribute.
    """
    found = [optimizer]
    while len(found) < _DEEPEST:
        attributes = getattr(found[-1], "__dict__", {}).values()
        count = len(optimizer.param_groups)
        inner = {id(each): each for each in attributes if _is_optimizer(each, count)}
        if len(inner) != 1 or not inner.keys().isdisjoint(map(id, found)):
            break
        found += inner.values()
    return found


def _is_optimizer(thing: Any, group_count: int) -> bool:
    groups = getattr(thing, "param_groups", None)
    return (
        callable(getattr(thing, "step", None))
        and isinstance(groups, Sequence)
        and len(groups) == group_count
    )


def before_load(optimizer: Any, call: Callable[[], object]) -> Callable[[], None]:
    """Call something before each `load_state_dict` of a torch optimizer; returns what ends that.

    It must not raise. Of an optimizer that is none of torch's nobody tells.
    """

    def hook(_: object, state: object) -> None:
        call()

    try:
        removed: Callable[[], None] = optimizer.register_load_state_dict_pre_hook(hook).remove
    except AttributeError:
        return lambda: None
    return removed


def copied(value: Any) -> Any:
    """Return a value that stays as it is now."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def write(group: Group, key: str, value: Value) -> object:
    """Set a number of a group and return the proof that it was us. A tensor is changed in place."""
    current = group[key]
    if isinstance(current, torch.Tensor):
        with torch.no_grad():
            if isinstance(value, torch.Tensor):
                current.copy_(value)
            else:
                current.fill_(value)
    else:
        group[key] = value
    return proof(group[key])


def proof(value: Value) -> object:
    """Return what tells later whether somebody else wrote since: the float, or tensor and version.

    Comparing the value of a tensor would wait for its device; identity and version do not.
    """
    return (value, value._version) if isinstance(value, torch.Tensor) else value


def is_proven(proof: object, value: Value) -> bool:
    """Whether a value is still the one that this proof is of."""
    if isinstance(value, torch.Tensor):
        return isinstance(proof, tuple) and proof[0] is value and bool(proof[1] == value._version)
    return proof == value


def require_held(groups: Groups, index: int, key: str, number: float) -> None:
    """Read a number back where the parameters are changed.

    Raises:
        NotEffective: It is not there, as exactly as its type can hold it.
    """
    value = groups.real(index)[key]
    wanted = number
    if isinstance(value, torch.Tensor):
        wanted = float(torch.tensor(number, dtype=value.dtype))
    if float(value) != wanted:
        raise NotEffective(f"{key} of group {index} was set to {number!r}, and is {float(value)!r}")


def lost(name: str, now: Sequence[float], groups: Sequence[int], suspect: str) -> str:
    """Say that a command is not in effect in these groups, "" when there are none."""
    if not groups:
        return ""
    said = ", ".join(f"{now[index]:.6g} in group {index}" for index in groups)
    return (
        f"{name} is {said} one step after it was commanded: something else in the training writes "
        f"it ({suspect})."
    )
