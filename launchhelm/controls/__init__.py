"""What may be changed live, and whether one command fits. Pure: no disk, no clock, no network."""

from launchhelm.controls.decide import Judgement, judge
from launchhelm.controls.schema import check, require

__all__ = ["Judgement", "check", "judge", "require"]
