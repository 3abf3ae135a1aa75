"""Every environment variable that we read: name, type, default, help.

docs/settings.md is generated from SETTINGS. Nothing else in the package reads os.environ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One environment variable.

    Args:
        name: The variable.
        default: What holds when it is unset or empty; "" means nothing.
        help: One sentence for docs/settings.md.
    """

    name: str
    default: str
    help: str

    def read(self) -> str:
        """Return the value now, or the default when unset or empty."""
        return os.environ.get(self.name, "") or self.default


DIRECTORY = Setting("LAUNCHHELM_DIR", "./runs", "Root directory in which runs are made and found.")
URL = Setting("LAUNCHHELM_URL", "", "Server to sync with; a hint for the syncer.")
API_KEY = Setting("LAUNCHHELM_API_KEY", "", "Key of the syncer. Ranks neither need nor store it.")
API_KEY_FILE = Setting(
    "LAUNCHHELM_API_KEY_FILE", "", "File that holds the syncer's key; read again when it changes."
)
CA_BUNDLE = Setting(
    "LAUNCHHELM_CA_BUNDLE",
    "",
    "PEM file of the authorities that the syncer trusts, instead of the system's.",
)
STATE_DIR = Setting(
    "LAUNCHHELM_STATE_DIR",
    "~/.local/state/launchhelm",
    "Where the syncer remembers runs whose directory it cannot write.",
)
ORGANIZATION = Setting("LAUNCHHELM_ORGANIZATION", "", "Organisation id; a hint for the syncer.")
PROJECT = Setting("LAUNCHHELM_PROJECT", "", "Project id; becomes run.project_id.")
STRICT_DELIVERY = Setting(
    "LAUNCHHELM_STRICT_DELIVERY", "", "1: flush() raises TimeoutError unless a server has it all."
)
SYNC = Setting("LAUNCHHELM_SYNC", "", "1: attach the syncer to rank 0 as a thread.")
LOCAL_RANK = Setting("LOCAL_RANK", "", "Rank within the host, set by the launcher.")
RESTART_COUNT = Setting("TORCHELASTIC_RESTART_COUNT", "", "Elastic restarts so far, by torchrun.")
TORCHELASTIC_RUN_ID = Setting("TORCHELASTIC_RUN_ID", "", "Launch id, set by torchrun.")
SLURM_JOB_ID = Setting("SLURM_JOB_ID", "", "Job id, set by SLURM.")
SLURM_ARRAY_TASK_ID = Setting("SLURM_ARRAY_TASK_ID", "", "Array task, set by SLURM.")
SLURM_STEP_ID = Setting("SLURM_STEP_ID", "", "Job step, set by SLURM.")
SLURM_RESTART_COUNT = Setting("SLURM_RESTART_COUNT", "", "Requeues so far, set by SLURM.")
GLOO_SOCKET_IFNAME = Setting(
    "GLOO_SOCKET_IFNAME", "", "Network interface that gloo uses; `launchhelm doctor` looks at it."
)
XDG_RUNTIME_DIR = Setting(
    "XDG_RUNTIME_DIR", "", "Directory of this user alone; `launchhelm ui` makes its socket there."
)
SSH_CONNECTION = Setting(
    "SSH_CONNECTION", "", "Set by ssh; `launchhelm ui` then says how to reach it by a tunnel."
)
NO_COLOR = Setting("NO_COLOR", "", "Any value: the command line prints no colour.")

SETTINGS = tuple(value for value in list(globals().values()) if isinstance(value, Setting))


def set_default(name: str, value: str) -> bool:
    """Set a variable that this process does not have yet; True when it was set."""
    if name in os.environ or "\0" in value:
        return False
    os.environ[name] = value
    return True
