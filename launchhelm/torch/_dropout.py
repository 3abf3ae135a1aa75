"""`dropout`: the probability of every dropout that can be reached.

That is every module of torch's dropout classes, or of a class derived from them, and whatever the
script has registered. A call of `torch.nn.functional.dropout` has its probability from the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.modules.dropout import _DropoutNd

from launchhelm.controls import schema
from launchhelm.torch._controls import NotEffective, Payload
from launchhelm.torch._judge import NO_TARGET
from launchhelm.torch._wrapping import clean, peeled

_MOST_NAMES: Final = 32


@dataclass(frozen=True, slots=True)
class Site:
    """One place that drops out.

    Args:
        name: As the model or the script calls it.
        kind: Its class, or "registered".
    """

    name: str
    kind: str
    get: Callable[[], float]
    put: Callable[[float], object]


class Sites:
    """All places of one trainer that can be reached.

    A large model takes milliseconds to look through, so that is done anew for a command only.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._found: list[Site] = []
        self._registered: dict[str, Site] = {}
        self._from_script: dict[str, float] = {}

    def watch(self, model: Any) -> None:
        """Look through another model from now on."""
        if model is not self._model:
            self._from_script.clear()
        self._model = model
        self.look()

    def look(self) -> None:
        """Find the modules that the model has now."""
        model = peeled(self._model)
        named = model.named_modules() if isinstance(model, torch.nn.Module) else ()
        self._found = [_site(name, it) for name, it in named if isinstance(it, _DropoutNd)]
        self._note()

    def register(self, name: str, get: Callable[[], float], put: Callable[[float], object]) -> None:
        """Add a place that the script knows how to change; one of the same name is replaced."""
        self._registered[name] = Site(name, "registered", get, put)
        self._note()

    def changed(self) -> dict[str, float]:
        """Return the places that have another probability than the script gave them."""
        return {
            site.name: float(site.get())
            for site in self
            if site.get() != self._from_script[site.name]
        }

    def put(self, changed: Mapping[str, float]) -> None:
        """Give every place what `changed` has for it, else what the script gave it."""
        for site in self:
            p = float(changed.get(site.name, self._from_script[site.name]))
            if site.get() != p:
                site.put(p)

    def _note(self) -> None:
        for site in self:
            self._from_script.setdefault(site.name, site.get())

    def __iter__(self) -> Iterator[Site]:
        yield from self._found
        yield from self._registered.values()


def _site(name: str, module: _DropoutNd) -> Site:
    kind = type(module).__name__
    return Site(clean(name), kind, lambda: module.p, lambda p: setattr(module, "p", p))


class Dropout:
    """`dropout`: give every place, or with `skip_zero` those that drop now, one probability."""

    name = "dropout"
    input_schema: Mapping[str, Any] = schema.record(
        [
            schema.field("p", schema.number(minimum=0, maximum=1)),
            schema.field("skip_zero", schema.boolean(), optional=True),
        ]
    )

    def __init__(self, sites: Sites) -> None:
        self._sites = sites

    def problem(self, payload: Payload) -> str:
        """Judge by the schema; 1 would drop everything, and nothing to change is no success."""
        misfit = schema.check(self.input_schema, payload)
        if misfit:
            return misfit
        if payload["p"] >= 1:
            return f"p must be below 1, got {payload['p']!r}."
        self._sites.look()
        if not self._chosen(payload):
            return (
                f"{NO_TARGET}the model has no dropout module"
                f"{' with p above 0' if payload.get('skip_zero') else ''}. Calls of "
                "torch.nn.functional.dropout are reached through trainer.register_dropout()."
            )
        return ""

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Set p; the result counts and names what was changed."""
        p = float(payload["p"])
        chosen = self._chosen(payload)
        for site in chosen:
            site.put(p)
            if site.get() != p:
                raise NotEffective(f"p of {site.name} was set to {p!r}, and is {site.get()!r}")
        return {
            "modules": len(chosen),
            "p": p,
            "kinds": dict(Counter(site.kind for site in chosen)),
            "names": [site.name for site in chosen[:_MOST_NAMES]],
        }

    def snapshot(self) -> object:
        """Remember every p."""
        return [(site, site.get()) for site in self._sites]

    def restore(self, snapshot: Any) -> None:
        """Put every p back."""
        for site, p in snapshot:
            site.put(p)

    def state(self) -> object:
        """Return every p that occurs. Ranks may have different parts of a model."""
        return sorted({float(site.get()) for site in self._sites})

    def values(self) -> Mapping[str, Any]:
        """Return the one p of all places, or all that occur as text; nothing without a place."""
        return self.values_of([(site, site.get()) for site in self._sites])

    def values_of(self, snapshot: Any) -> Mapping[str, Any]:
        """Return what a snapshot holds, in the form of `values`."""
        occurring = sorted({float(p) for _, p in snapshot})
        if not occurring:
            return {}
        if len(occurring) == 1:
            return {self.name: occurring[0]}
        return {self.name: ", ".join(map(repr, occurring))}

    def look_again(self, old: Any, new: Any) -> str:
        """Say that the script has set another p since."""
        now = self.values().get(self.name)
        if now == new:
            return ""
        return f"dropout is {now} one step after {new} was commanded: the script writes it as well."

    def _chosen(self, payload: Payload) -> list[Site]:
        wants_all = not payload.get("skip_zero")
        return [site for site in self._sites if wants_all or site.get() != 0]
