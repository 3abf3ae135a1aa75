"""Something put around the `step` of the script's scheduler, which nobody else notices."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Around(Protocol):
    """What stands between the script and its scheduler."""

    def step_scheduler(self, step: Callable[[], Any]) -> Any:
        """Called in place of `scheduler.step`, with what does the step."""
        ...

    def effective(self, last: Sequence[Any]) -> list[Any]:
        """Return what `get_last_lr` shall return in place of this."""
        ...


def hook(scheduler: Any, rates: Around) -> Callable[[], None]:
    """Put `rates` around `scheduler.step` and return what undoes it.

    The object gets a subclass of its own class. An attribute on the instance would stand in its
    state_dict, and a patched class would change schedulers that nobody watches. Copies and pickles
    are of the original class: they are not watched.
    """
    original = type(scheduler)
    reduce: Any = original.__reduce_ex__  # Any: its result is a text or a tuple of any length.

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return rates.step_scheduler(functools.partial(original.step, self, *args, **kwargs))

    def get_last_lr(self: Any) -> list[Any]:
        return rates.effective(original.get_last_lr(self))

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = reduce(self, protocol)
        if isinstance(reduced, str):
            return reduced
        make, arguments, *rest = reduced
        arguments = tuple(original if each is hooked else each for each in arguments)
        if getattr(make, "__name__", "") == "__newobj__" and len(arguments) == 1:
            # Pickle insists that __newobj__ names the object's own class; this one, which older
            # protocols use, takes any.
            make, arguments = copyreg._reconstructor, (original, object, None)  # type: ignore[attr-defined]
        return (original if make is hooked else make, arguments, *rest)

    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": __reduce_ex__,
        "step": functools.wraps(original.step)(step),
    }
    if hasattr(original, "get_last_lr"):
        namespace["get_last_lr"] = get_last_lr
    hooked = type(original.__name__, (original,), namespace)

    if "step" in getattr(scheduler, "__dict__", ()):
        return _hook_instance(scheduler, rates)
    try:
        scheduler.__class__ = hooked
    except TypeError:  # A class of C code, or one that forbids it.
        return _hook_instance(scheduler, rates)

    def unhook() -> None:
        # Somebody may have put another class on top since; then ours stays below and passes on.
        if type(scheduler) is hooked:
            scheduler.__class__ = original

    return unhook


def _hook_instance(scheduler: Any, rates: Around) -> Callable[[], None]:
    """Hook an object whose `step` is its own attribute, or whose class cannot be changed."""
    had_own = "step" in getattr(scheduler, "__dict__", ())
    original = scheduler.step

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        return rates.step_scheduler(functools.partial(original, *args, **kwargs))

    scheduler.step = step

    def unhook() -> None:
        if getattr(scheduler, "step", None) is not step:
            return
        if had_own:
            scheduler.step = original
        else:
            del scheduler.step

    return unhook
