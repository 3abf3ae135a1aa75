"""Which run was meant: a path, an id or a unique prefix, a title, or `latest`."""

from __future__ import annotations

import argparse
from pathlib import Path

from launchhelm import views
from launchhelm._settings import DIRECTORY
from launchhelm.store.layout import default_root

RUN_HELP = "path, id or unique prefix, title, or `latest` (the default)"


def roots(arguments: argparse.Namespace) -> list[Path]:
    """Return the roots to look in: --root before or after the verb, else the configured one."""
    given = [*(arguments.roots_before or ()), *(arguments.roots or ())]
    return [default_root(each) for each in given or [DIRECTORY.read()]]


def select(arguments: argparse.Namespace, selector: str | None = None) -> views.RunView:
    """Open the run that the arguments name.

    Raises:
        NotFound: There is no such run under the roots.
        Conflict: Several runs fit; the message lists them.
        StorageError: The run cannot be read.
    """
    name = selector if selector is not None else arguments.run
    return views.open_run(views.find_run(roots(arguments), name))
