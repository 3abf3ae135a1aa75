"""Do all ranks hold the same values between commands? Asked now and then, at the price of 8 bytes.

Rank 0 broadcasts a digest of what its controls hold. A rank that holds something else writes its
values to the board, without a collective; rank 0 looks there before its next packets and then tells
all ranks. Everything here runs on the thread that calls `Trainer.step`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from launchhelm.torch._collective import Links
from launchhelm.torch._controls import canonical
from launchhelm.torch._messages import Verdict, digest

INTERVAL_S: Final = 15.0
"""Between two comparisons; the first is made at the first exchange."""

MAX_NAMES: Final = 8
_MAX_VALUE_CHARACTERS: Final = 400
_DIGEST_BYTES: Final = 8
_SETTLE_S: Final = 0.5
"""After this the others have said what they hold, unless they lag; then the next time counts."""


class Comparison:
    """What one rank contributes to comparing, and on rank 0 what came of it.

    Args:
        links: To the other ranks.
        values: Returns what the controls of this rank hold, by name; JSON.
        now: Monotonic seconds.
        notice: Told when ranks differ, and when they no longer do.
        wanted: False: this rank 0 never asks.
    """

    def __init__(
        self,
        links: Links,
        values: Callable[[], Mapping[str, Any]],
        now: Callable[[], float],
        notice: Callable[[str], None],
        *,
        wanted: bool = True,
    ) -> None:
        self.diverged: dict[str, dict[str, Any]] = {}
        """{name: {rank: value}} of what differed last; rank 0 and some ranks that are unlike it."""
        self._links = links
        self._values = values
        self._now = now
        self._notice = notice
        self._due_at = now() if wanted else float("inf")
        self._number = 0
        self._look_at = float("inf")
        self._step = 0
        self._mine: dict[str, Any] = {}
        self._told: object = None
        self._body = b""

    def agreed(self, name: str) -> None:
        """Rank 0: take in that a command has made this control alike on all ranks."""
        self._look_at = float("inf")  # What ranks have reported may be from before it.
        if name in self.diverged:
            self.diverged = {each: held for each, held in self.diverged.items() if each != name}
            self._told = None

    @property
    def is_due(self) -> bool:
        """Whether rank 0 should ask again."""
        return self._now() >= self._due_at

    def compare(self) -> None:
        """Take part in one comparison. Collective.

        Raises:
            LinkLost: The exchange broke.
        """
        links, self._number = self._links, self._number + 1
        try:
            mine = {str(name): _shown(value) for name, value in self._values().items()}
            own = digest(canonical(mine))
        except Exception as error:  # The others wait for the broadcast; this rank then differs not.
            mine, own = {}, 0
            self._notice(f"The values of this rank could not be compared: {error}.")
        is_first = links.rank == 0
        sent = own.to_bytes(_DIGEST_BYTES, "little") if is_first else None
        theirs = int.from_bytes(links.share(sent, _DIGEST_BYTES), "little")
        if is_first:
            self._mine, self._step = mine, links.where()[1]
            self._look_at, self._due_at = self._now() + _SETTLE_S, self._now() + INTERVAL_S
        elif own and theirs and own != theirs:
            links.board.report(self._topic, {"rank": links.rank, "values": mine})

    def found(self) -> int | None:
        """Rank 0: return the size of what all ranks must hear, None when that is nothing."""
        if self._now() < self._look_at:
            return None
        self._look_at = self._due_at
        count, entries = self._links.board.reports(self._topic)
        if not count:
            if self.diverged and self.is_due:
                self.diverged, self._told = {}, None
                self._notice("All ranks hold equal values again.")
            return None
        entries.sort(key=lambda entry: int(entry["rank"]))
        unlike = self._unlike(entries)
        told = (count, tuple(unlike), tuple(entry["rank"] for entry in entries))
        if told == self._told:
            self.diverged = unlike
        if told == self._told or not unlike:
            return None
        self._told = told
        self._body = json.dumps(self._news(unlike, count)).encode()
        return len(self._body)

    def tell(self, size: int) -> Verdict:
        """Share what rank 0 found. Collective.

        Raises:
            LinkLost: The exchange broke.
        """
        news = json.loads(self._links.share(self._body if self._links.rank == 0 else None, size))
        self.diverged = news["diverged"]
        failures = tuple((int(rank), str(text)) for rank, text in news["failures"])
        if self._links.rank in (0, *(rank for rank, _ in failures)):
            self._notice(news["text"])
        return Verdict(
            "diverged", "drift", news["text"], failures=failures, applied_on=None, consistent=False
        )

    @property
    def _topic(self) -> str:
        return f"drift/{self._number}"

    def _unlike(self, entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        names = sorted({name for entry in entries for name in entry["values"]} | set(self._mine))
        held = {
            name: {
                "0": self._mine.get(name),
                **{str(entry["rank"]): entry["values"].get(name) for entry in entries},
            }
            for name in names
        }
        unlike = {
            name: by_rank
            for name, by_rank in held.items()
            if len({canonical(value) for value in by_rank.values()}) > 1
        }
        return dict(list(unlike.items())[:MAX_NAMES])

    def _news(self, unlike: Mapping[str, Mapping[str, Any]], count: int) -> dict[str, Any]:
        failures: dict[int, str] = {}
        sentences = []
        for name, by_rank in unlike.items():
            said = [
                f"{json.dumps(value)} on rank {self._links.name_of(int(rank))}"
                for rank, value in by_rank.items()
            ]
            sentences.append(f"{name} is {', '.join(said[:4])}")
            for rank, value in by_rank.items():
                if value != by_rank["0"]:
                    usual = json.dumps(by_rank["0"])
                    text = f"Drift: {name} is {json.dumps(value)}, {usual} on rank 0"
                    failures.setdefault(int(rank), text)
        text = (
            f"The ranks hold different values since step {self._step} or before: "
            f"{'; '.join(sentences)}. {count} of {self._links.size} ranks differ from rank 0."
        )
        return {"text": text, "diverged": unlike, "failures": sorted(failures.items())}


def _shown(value: Any) -> Any:  # Any: JSON.
    """Return a value as it may be told, short; equal exactly when the value is."""
    text = canonical(value)
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return value
    return f"{text[:64]}... ({digest(text):x})"
