"""The one read API, for the command line, the dashboard and `Run`: everything in it only looks.

No third-party package is imported, nothing is written anywhere, and no clock of another host
decides anything.
"""

from launchhelm.views.attempts import Span
from launchhelm.views.commands import CommandState, CommandView, Freeze, freeze_of, frozen
from launchhelm.views.liveness import AWAITED_S, BEAT_S, LATE_S, SILENT_S, Age, Observer
from launchhelm.views.participants import ParticipantView
from launchhelm.views.points import Point
from launchhelm.views.run import AttemptView, Losses, RunView, open_run
from launchhelm.views.runs import LOSSES, RunSummary, find_run, runs
from launchhelm.views.state import PAUSED, RANK_STATES, RUN_STATES, RunState

__all__ = [
    "AWAITED_S",
    "BEAT_S",
    "LATE_S",
    "LOSSES",
    "PAUSED",
    "RANK_STATES",
    "RUN_STATES",
    "SILENT_S",
    "Age",
    "AttemptView",
    "CommandState",
    "CommandView",
    "Freeze",
    "Losses",
    "Observer",
    "ParticipantView",
    "Point",
    "RunState",
    "RunSummary",
    "RunView",
    "Span",
    "find_run",
    "freeze_of",
    "frozen",
    "open_run",
    "runs",
]
