"""`python -m launchhelm` is the `launchhelm` command."""

from __future__ import annotations

import sys

from launchhelm.cli import main

if __name__ == "__main__":
    sys.exit(main())
