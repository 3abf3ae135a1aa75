"""`checkpoint`: save one, on every rank at one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launchhelm.controls import schema
from launchhelm.errors import LaunchHelmError
from launchhelm.torch._controls import NotDone, Payload, no_fields


class Checkpoint:
    """Save a checkpoint; the result names the artifact, which is ready a little later.

    Args:
        save: `Trainer.save_checkpoint`. What it raises it raises on every rank, and then nothing is
            saved on any: a full disk must not end a training that goes well.
    """

    name = "checkpoint"
    input_schema = no_fields()

    def __init__(self, save: Callable[[], str | None]) -> None:
        self._save = save

    def problem(self, payload: Payload) -> str:
        """Judge by the schema."""
        return schema.check(self.input_schema, payload)

    def apply(self, payload: Payload) -> Mapping[str, Any]:
        """Save. Only the coordinator knows the id."""
        try:
            id_ = self._save()
        except LaunchHelmError as error:
            raise NotDone(error.message) from error
        return {} if id_ is None else {"artifact": id_}
