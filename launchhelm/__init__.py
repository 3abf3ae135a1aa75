"""Record a training run in a directory, offline, and change it while it runs.

    import launchhelm

    with launchhelm.init("quickstart", config={"lr": 0.1}) as run:
        for step in range(100):
            run.log({"loss": 1 / (step + 1)}, step=step)

Importing has no effects: no file is read, no thread started, nothing heavy loaded. A public name is
loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launchhelm.client import Client
    from launchhelm.commands import Schedule
    from launchhelm.errors import BufferFull, LaunchHelmError, RuntimeFenced
    from launchhelm.models import Capability, CommandContext, Document, Reference, Scope
    from launchhelm.rich import Audio, Histogram, Image, Table, Text, Video
    from launchhelm.run import Run, init
    from launchhelm.runtime import Runtime
    from launchhelm.values import scalar

__version__ = "0.1.0"

__all__ = [
    "Audio",
    "BufferFull",
    "Capability",
    "Client",
    "CommandContext",
    "Document",
    "Histogram",
    "Image",
    "LaunchHelmError",
    "Reference",
    "Run",
    "Runtime",
    "RuntimeFenced",
    "Schedule",
    "Scope",
    "Table",
    "Text",
    "Video",
    "__version__",
    "init",
    "scalar",
]

_HOMES = {
    "launchhelm.client": ("Client",),
    "launchhelm.commands": ("Schedule",),
    "launchhelm.errors": ("BufferFull", "LaunchHelmError", "RuntimeFenced"),
    "launchhelm.models": ("Capability", "CommandContext", "Document", "Reference", "Scope"),
    "launchhelm.rich": ("Audio", "Histogram", "Image", "Table", "Text", "Video"),
    "launchhelm.run": ("Run", "init"),
    "launchhelm.runtime": ("Runtime",),
    "launchhelm.values": ("scalar",),
}


def __getattr__(name: str) -> object:
    """Load a public name's module on first use."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            value: object = getattr(import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'launchhelm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
