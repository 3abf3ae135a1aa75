"""What the rules of `findings` look at, gathered from a run."""

from __future__ import annotations

from launchhelm.views.around import diverged_of, pace_of
from launchhelm.views.findings import Finding, Scene, findings
from launchhelm.views.liveness import BEAT_S
from launchhelm.views.run import RunView


def scene_of(view: RunView) -> Scene:
    """Gather the processes of the newest attempt, and what is known around them."""
    now = view.observer.clock.wall()
    front = view.observer.observe(("front", view.directory), (view.attempt, view.step))
    clocks: dict[str, float] = {}
    for row in view.participants:
        # Whoever has just written may only be ahead of us by what its clock is.
        if row.last_at is not None and row.age.seconds < BEAT_S:
            ahead = row.last_at - now
            clocks[row.host] = max(ahead, clocks.get(row.host, ahead))
    return Scene(
        rows=view.participants,
        missing=view.missing,
        started_s=max(0.0, now - view.started_at),
        stuck_s=front.seconds,
        pace_s=pace_of(view),
        diverged=diverged_of(view),
        clocks=clocks,
        is_over=view.state.is_over,
    )


def findings_of(view: RunView) -> list[Finding]:
    """Return what is wrong with the processes of a run, the headline first."""
    return findings(scene_of(view))
