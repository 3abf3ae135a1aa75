"""What every driver here has in common: it runs the official SDK, and says facts as JSON lines."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

# The two distributions share an import name: a driver that ran ours would prove nothing.
assert importlib.metadata.version("launchhelm") == "0.1.1"
assert "launchhelm" not in sys.modules


def say(event: str, **facts: Any) -> None:
    """Tell the test something."""
    print(json.dumps({"event": event, **facts}), flush=True)


def wait() -> str:
    """Wait until the test says something; "" when it is gone."""
    return sys.stdin.readline().strip()
