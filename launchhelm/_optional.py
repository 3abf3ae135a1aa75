"""Optional packages: present, or None with the line that installs them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

EXTRAS: Final = {
    "psutil": "launchhelm-offline[system]",
    "pynvml": "launchhelm-offline[system]",
    "torch": "launchhelm-offline[torch]",
    "transformers": "launchhelm-offline[hf]",
    "lightning": "launchhelm-offline[lightning]",
    "pyarrow": "launchhelm-offline[parquet]",
}


def find(name: str) -> ModuleType | None:
    """Import a package, or return None when it is not there or does not load on this machine."""
    try:
        return importlib.import_module(name)
    except Exception:  # Whoever asked goes on without it, whatever is wrong with it.
        return None


def missing(name: str) -> str:
    """Say that a package is missing and how to get it."""
    return f"{name} is not installed (pip install '{EXTRAS.get(name, name)}')"


def require(name: str) -> ModuleType:
    """Import a package.

    Raises:
        ImportError: It is missing; the text says what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(missing(name), name=name) from error
