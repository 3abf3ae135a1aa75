"""`python -m syncer`: the same as `launchhelm sync --watch`, for service managers."""

import sys

from launchhelm.cli import main

if __name__ == "__main__":
    sys.exit(main(["sync", "--watch", *sys.argv[1:]]))
