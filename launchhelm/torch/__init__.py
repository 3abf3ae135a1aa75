"""Record a PyTorch training job, and change it live on every rank at one step.

import launchhelm.torch as lht

tr = lht.init("my-project")
tr.watch(model, optimizer, scheduler)
for batch in loader:
    ...
    tr.step(loss=loss)
tr.finish()
"""

from launchhelm import _optional

_optional.require("torch")  # Without it: one line that says what to install.

from launchhelm.torch._checkpoint import CheckpointError
from launchhelm.torch._errors import DivergedStateError
from launchhelm.torch._flow import TrainingStopped
from launchhelm.torch._open import init
from launchhelm.torch._trainer import Trainer
from launchhelm.torch._tunables import Tunable

__all__ = [
    "CheckpointError",
    "DivergedStateError",
    "Trainer",
    "TrainingStopped",
    "Tunable",
    "init",
]
