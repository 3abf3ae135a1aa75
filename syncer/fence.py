"""The token on a run's document: whoever finds another one than it wrote no longer knows enough.

Each process that begins to push a run writes a new token there, so that an older copy of the state,
or one in another place, is told from the newest. Durable first what we are about to write, then the
document, then that it was written; so a kill in between is not taken for somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final  # Any: the JSON of documents.

from launchhelm._ids import new_id
from syncer.api.answers import ApiError
from syncer.api.client import Client
from syncer.state import Journal

TOKEN_LABEL: Final = "launchhelm.offline.syncer"
"""Followed by the name of the host where its storage is not shared: each part has its own."""

_TRIES: Final = 5


@dataclass(slots=True)
class Fence:
    """The token of one run, as we know it and as the server has it. May raise ApiError."""

    client: Client
    journal: Journal
    run_id: str
    node: str = ""
    _document: dict[str, Any] = field(default_factory=dict)

    def holds(self) -> bool:
        """Ask the server; whether the last to push this run was the state that we hold."""
        self._document = self.client.get_document(self.run_id)
        state = self.journal.state
        return self._token in (state.token, state.token_next)

    def renew(self) -> bool:
        """Write a new token over the one seen; False when it has changed since.

        Raises:
            OSError: The state cannot be written.
        """
        seen = self._token
        token = new_id()
        # What stands there is known to be covered by our state, also if this try ends here.
        self.journal.write({"token": seen, "next": token})
        for _ in range(_TRIES):
            spec = self._document["spec"]
            labels = {**(spec.get("labels") or {}), self._label: token}
            try:
                self.client.update_document(
                    self.run_id, self._document["revision"], {**spec, "labels": labels}
                )
            except ApiError as error:
                if error.status != 409 and error.code != "conflict":
                    raise
                self._document = self.client.get_document(self.run_id)
                if self._token not in (seen, token):
                    return False
                continue
            self.journal.write({"token": token, "next": ""})
            return True
        raise ApiError(
            "conflict", "The run's document changes too often to be written.", retryable=True
        )

    @property
    def _token(self) -> str:
        labels = self._document["spec"].get("labels") or {}
        return str(labels.get(self._label, ""))

    @property
    def _label(self) -> str:
        return f"{TOKEN_LABEL}.{self.node}" if self.node else TOKEN_LABEL
