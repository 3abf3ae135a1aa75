"""Record a training run in a directory, offline, and change it while it runs.

    import launchhelm

    with launchhelm.init("quickstart", config={"lr": 0.1}) as run:
        for step in range(100):
            run.log({"loss": 1 / (step + 1)}, step=step)

Importing has no effects: no file is read, no thread started, nothing heavy loaded.
"""

from launchhelm.commands import Schedule
from launchhelm.errors import BufferFull, LaunchHelmError, RuntimeFenced
from launchhelm.models import Capability, CommandContext, Document, Reference, Scope
from launchhelm.run import Run, init
from launchhelm.runtime import Runtime
from launchhelm.values import scalar

__version__ = "0.1.0"

__all__ = [
    "BufferFull",
    "Capability",
    "CommandContext",
    "Document",
    "LaunchHelmError",
    "Reference",
    "Run",
    "Runtime",
    "RuntimeFenced",
    "Schedule",
    "Scope",
    "__version__",
    "init",
    "scalar",
]
