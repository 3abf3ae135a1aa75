"""The answer to a grouped request: one receipt for each batch, or nothing can be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal  # Any: JSON values.

from syncer.api.document import WireError


@dataclass(frozen=True)
class Receipt:
    """What became of one batch.

    Args:
        batch_id: The batch.
        status: `accepted` and `duplicate` mean stored and visible to readers; `rejected` not.
        code: Why it was rejected, else "".
        message: The same in words.
        retryable: Whether the same batch may be accepted later.
    """

    batch_id: str
    status: Literal["accepted", "duplicate", "rejected"]
    code: str = ""
    message: str = ""
    retryable: bool = False

    @property
    def stored(self) -> bool:
        """Whether the server has the batch."""
        return self.status != "rejected"


class InvalidReceipt(WireError):
    """The answer is not one receipt for each batch.

    Args:
        message: What is wrong.
        before: Receipts before the bad one; they hold.
    """

    def __init__(self, message: str, before: Sequence[Receipt] = ()) -> None:
        super().__init__(message, reason="invalid_receipt")
        self.before = tuple(before)


def receipts(answer: Any, sent: Mapping[str, str]) -> list[Receipt]:
    """Read the receipts of a grouped request, in the order of the answer.

    Args:
        answer: The decoded answer.
        sent: Stream id by batch id, of every batch that was sent.

    Raises:
        InvalidReceipt: Not exactly one receipt for each batch, or one that promises too little.
    """
    listed = answer.get("receipts") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise InvalidReceipt("The answer holds no receipts.")
    if len(listed) != len(sent):
        raise InvalidReceipt(f"{len(sent)} batches were sent, {len(listed)} receipts came.")
    found: dict[str, Receipt] = {}
    for entry in listed:
        receipt = _read(entry, sent)
        if receipt is None or receipt.batch_id in found:
            raise InvalidReceipt("A receipt is not one of a batch sent.", [*found.values()])
        found[receipt.batch_id] = receipt
    return [*found.values()]


def _read(entry: Any, sent: Mapping[str, str]) -> Receipt | None:
    if not isinstance(entry, dict):
        return None
    batch_id, status = entry.get("batch_id"), entry.get("status")
    if not isinstance(batch_id, str) or batch_id not in sent:
        return None
    if entry.get("stream_id", sent[batch_id]) != sent[batch_id]:
        return None
    if status in ("accepted", "duplicate"):
        visible = entry.get("durability") == "query_visible"
        return Receipt(batch_id, status) if visible else None
    if status != "rejected":
        return None
    code, message = entry.get("code"), entry.get("message")
    return Receipt(
        batch_id,
        "rejected",
        code if isinstance(code, str) and code else "rejected",
        message if isinstance(message, str) else "",
        entry.get("retryable") is True,
    )
