"""How far a sync is: one line, redrawn on a terminal, printed now and then elsewhere."""

from __future__ import annotations

from typing import Final

from launchhelm import _wording
from launchhelm._clock import SYSTEM_CLOCK, Clock
from syncer.service import Service
from syncer.work import Work

PLAIN_S: Final = 10.0
_BAR: Final = 20


class Progress:
    """Text about what a service does; reads its attributes from another thread.

    Args:
        service: What is watched.
        terminal: Whether lines are redrawn.
        watch: The service goes on for good; a run that another syncer holds is no news then.
    """

    def __init__(
        self,
        service: Service,
        *,
        terminal: bool,
        watch: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._service = service
        self._terminal = terminal
        self._watch = watch
        self._held: Work | None = None
        self._clock = clock
        self._said_at = clock.monotonic()
        self._last: tuple[float, int] = (self._said_at, 0)
        self._rate = 0.0

    def line(self) -> str | None:
        """Return the line to show now, None when there is nothing new to say yet."""
        now = self._clock.monotonic()
        works = list(self._service.work.values())
        before, self._held = self._held, self._first_held(works)
        is_news = self._held is not None and self._held is not before
        if not self._terminal and not is_news and now - self._said_at < PLAIN_S:
            return None
        self._measure(now, sum(work.points for work in works))
        self._said_at = now
        hold = self._service.hold
        if hold is not None and hold.until > now:
            left_s = hold.until - now
            return f"{_wording.plain(hold.why)}; next try in {_wording.duration(left_s)}"
        since = self._service.asking_since
        if since is not None and now - since >= PLAIN_S:
            return f"waiting for an answer of the server, for {_wording.duration(now - since)}"
        sending = [work for work in works if work.state == "sending"]
        if self._held is not None and (is_news or not sending):
            return _wording.plain(f"{self._held.place.name}: waiting; {self._held.why}")
        if not sending:
            return None if not self._terminal else ""
        work = max(sending, key=lambda work: work.served_at)
        done = sum(work.state not in ("waiting", "sending") for work in works)
        return f"{self._of(work)}; {done:,} of {len(works):,} runs done"

    def _first_held(self, works: list[Work]) -> Work | None:
        if self._watch:
            return None
        return next((work for work in works if work.state == "held"), None)

    def _of(self, work: Work) -> str:
        said = [f"{work.points:,} points", _wording.size_text(work.bytes), f"{self._rate:,.0f}/s"]
        bar = ""
        if work.pending:
            share = work.points / (work.points + work.pending)
            filled = int(share * _BAR)
            bar = (
                f"[{'#' * filled}{'.' * (_BAR - filled)}] " if self._terminal else f"{share:.0%}, "
            )
            if self._rate >= 1:
                said.append(f"about {_wording.duration(work.pending / self._rate)} left")
        return f"{_wording.cut(_wording.plain(work.place.name), 40)}: {bar}{', '.join(said)}"

    def _measure(self, now: float, points: int) -> None:
        at, before = self._last
        if now - at >= 1.0:
            rate = (points - before) / (now - at)
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate
            self._last = (now, points)
