"""The one error of live control that must stop a training run."""

from __future__ import annotations

from collections.abc import Sequence


class DivergedStateError(Exception):
    """A command did not end alike on all ranks, so they may no longer compute the same model.

    Raised on every rank that is left, at the same call of `Trainer.step`, and again by each later
    call. It derives from Exception alone: code that tolerates our own failures never swallows it.

    Args:
        capability: The control, for example `lr`.
        failures: (group rank, "Type: text") of each rank that failed, in group-rank order.
        applied_on: Ranks that had applied it before any roll-back; None: not known.
        of: Ranks of the training group; None: not known.
        rolled_back: Whether every rank that had changed something took it back.
        state_consistent: Whether all ranks are known to hold the same values now.
        hosts: Host of each rank in `failures`, in the same order, where known.
        step: At which step this was found out; None: not known.
        what: What happened, in a sentence; default: on how many ranks it was applied.
    """

    def __init__(
        self,
        capability: str,
        failures: Sequence[tuple[int, str]],
        *,
        applied_on: int | None = None,
        of: int | None = None,
        rolled_back: bool | None = None,
        state_consistent: bool = False,
        hosts: Sequence[str] = (),
        step: int | None = None,
        what: str = "",
    ) -> None:
        self.capability = capability
        self.failures = [(rank, text) for rank, text in failures]
        self.applied_on = applied_on
        self.of = of
        self.rolled_back = rolled_back
        self.state_consistent = state_consistent
        self.hosts = list(hosts)
        self.step = step
        self.what = what
        super().__init__(self._text())

    def _text(self) -> str:
        count = "an unknown number of" if self.applied_on is None else f"{self.applied_on} of"
        ranks = "ranks" if self.of is None else f"{self.of} ranks"
        at = "" if self.step is None else f" at step {self.step}"
        sentences = [self.what or f"{self.capability!r} was applied on {count} {ranks}{at}."]
        for index, (rank, text) in enumerate(self.failures):
            host = self.hosts[index] if index < len(self.hosts) and self.hosts[index] else ""
            sentences.append(f"Rank {rank}{f' on {host}' if host else ''}: {text}.")
        if self.state_consistent:
            sentences.append("Every rank holds its former values again: the state is consistent.")
        else:
            sentences.append("The ranks may hold different values now.")
        if not self.what:
            sentences.append('on_partial_failure="continue" warns here and goes on.')
        return " ".join(sentences)

    def __reduce__(self) -> tuple[object, ...]:
        # mp.spawn carries errors to the parent by pickle; the default would lose the keywords.
        return _restore, (self.capability, self.failures, self.__dict__)


def _restore(
    capability: str, failures: list[tuple[int, str]], state: dict[str, object]
) -> DivergedStateError:
    error = DivergedStateError(capability, failures)
    error.__dict__.update(state)
    error.args = (error._text(),)
    return error
