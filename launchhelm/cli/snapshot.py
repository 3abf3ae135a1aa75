"""`launchhelm snapshot`: a consistent copy of a run, also while it writes."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from launchhelm import _wording, snapshot
from launchhelm.cli import selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import ConfigError

DESCRIPTION = """Copy a run, also while it writes, to a place of any file system. The copy appears
when it is complete, consistent and read back. A call that was interrupted is gone on with by the
same one again."""

_PROGRESS_S: Final = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `snapshot` takes."""
    parser.add_argument("run", metavar="RUN", help=selection.RUN_HELP)
    parser.add_argument("dest", metavar="DEST", help="the run directory of the copy; must be free")
    parser.add_argument(
        "--no-media", action="store_true", help="leave out artifacts, checkpoints and media"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Make the copy and say what is in it."""
    view = selection.select(arguments)
    target = Path(arguments.dest).expanduser().absolute()
    said_at = time.monotonic()

    def note(files: int, size_bytes: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > _PROGRESS_S:
            said_at = time.monotonic()
            output.say(f"{files:,} files, {_wording.size_text(size_bytes)} so far")

    try:
        made = snapshot.take(view.directory, target, with_media=not arguments.no_media, note=note)
    except ConfigError as error:
        raise UsageError(error.message, remedy=error.remedy) from error
    if output.json:
        output.document(
            {
                "id": made.run_id,
                "source": str(view.directory),
                "directory": str(made.directory),
                "files": made.files,
                "bytes": made.size_bytes,
                "kept": made.kept,
                "problems": list(made.problems),
            }
        )
    else:
        kept = f", {made.kept:,} of them from an earlier call" if made.kept else ""
        path = _wording.plain(str(made.directory))
        output.line(
            f"{path}: {made.files:,} files, {_wording.size_text(made.size_bytes)}{kept}; read back"
        )
    for problem in made.problems:
        output.say(f"launchhelm: {_wording.plain(problem)}")
    return Exit.IN_PART if made.problems else Exit.DONE
