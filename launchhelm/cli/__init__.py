"""The `launchhelm` command: parse, run one verb, turn errors into exit codes.

A verb is a module of this folder with `DESCRIPTION`, `configure(parser)` and `run(arguments,
output)`. Only the verb that was asked for is imported, so that the command starts fast on a slow
disk.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

from launchhelm._wording import plain
from launchhelm.cli._exit import EXIT_CODES, Exit, UsageError
from launchhelm.cli.output import Output, quiet_after_closed_pipe
from launchhelm.errors import Conflict, LaunchHelmError, NotFound

__all__ = ["EXIT_CODES", "VERBS", "Exit", "main", "parser_for"]

VERBS: Final[Mapping[str, str]] = {
    "ls": "list runs",
    "show": "one run: state, processes, controls, commands",
    "top": "the same, live in the terminal, until it ends",
    "tail": "follow metrics, events, commands or console lines",
    "control": "change a running training, see what may be changed and what became of it",
    "ui": "the same in a browser: curves, processes, controls",
    "sync": "send runs to a server, once or for good",
    "status": "what of which run is on which server, without a network",
    "export": "a run as tables: CSV, JSON lines, Parquet",
    "snapshot": "a consistent copy of a run, also while it writes",
    "clean": "remove old runs of which nothing would be lost",
    "doctor": "what is wrong with a directory, its file system, runs or environment",
    "serve": "a small server of your own, its keys and its backup",
    "completion": "a script for bash, zsh or fish, which completes all this",
}
"""Name and one line of help; the module of the same name is imported when it is called."""

_PROGRAM: Final = "launchhelm"


class Verb(Protocol):
    """What each module of this folder offers."""

    DESCRIPTION: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's own arguments."""
        ...

    def run(self, arguments: argparse.Namespace, output: Output) -> int:
        """Do it and return an exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing escapes but a bug's SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    top = _top_parser()
    if not words:
        top.print_help(sys.stderr)
        return Exit.USAGE
    if words == ["--version"]:
        import launchhelm

        print(f"{_PROGRAM} {launchhelm.__version__}")
        return Exit.DONE
    verbose = "--traceback" in words
    try:
        before = top.parse_args(words)
        if before.verb not in VERBS:
            top.error(f"there is no verb {before.verb!r}; verbs are {', '.join(VERBS)}")
        verb = _verb(before.verb)
        parser = parser_for(before.verb)
        arguments = parser.parse_intermixed_args(before.rest)
        arguments.roots_before = before.roots
        output = Output(sys.stdout, sys.stderr, json=arguments.json, color=arguments.color)
        code = verb.run(arguments, output)
        output.flush()
        return code
    except SystemExit as stop:  # argparse: --help, or a usage error that is already printed.
        return stop.code if isinstance(stop.code, int) else Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        quiet_after_closed_pipe()
        return Exit.DONE
    except Exception as error:  # The thread is the command itself: every failure gets a code.
        return _report(error, verbose=verbose)


def parser_for(verb: str) -> argparse.ArgumentParser:
    """Build the parser of one verb; docs/cli.md is checked against it."""
    module = _verb(verb)
    parser = argparse.ArgumentParser(
        prog=f"{_PROGRAM} {verb}", description=module.DESCRIPTION, allow_abbrev=False
    )
    module.configure(parser)
    common = parser.add_argument_group("common options")
    _add_root(common)
    common.add_argument(
        "--json", action="store_true", help="print JSON; the fields are in docs/cli.md"
    )
    common.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour; auto: on a terminal, unless NO_COLOR is set",
    )
    common.add_argument("--traceback", action="store_true", help="show where a failure came from")
    return parser


def _top_parser() -> argparse.ArgumentParser:
    verbs = "\n".join(f"  {name:<11}{text}" for name, text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [--root DIR] VERB [RUN] [options]",
        description="Look at training runs in run directories, and change running ones.",
        epilog=f"verbs:\n{verbs}\n\nlaunchhelm VERB --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_root(parser)
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("verb", metavar="VERB", help="what to do, see below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_root(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--root",
        dest="roots",
        metavar="DIR",
        action="append",
        help="root directory of runs, repeatable; default LAUNCHHELM_DIR, else ./runs",
    )


def _verb(name: str) -> Verb:
    # A module satisfies the protocol; each is checked by tests/unit/cli.
    return cast(Verb, importlib.import_module(f"launchhelm.cli.{name}"))


def _report(error: Exception, *, verbose: bool) -> int:
    """Say on stderr what happened, what was kept and what to do, and choose the exit code."""
    output = Output(sys.stdout, sys.stderr)
    said: list[str] = []
    if verbose:
        said += "".join(traceback.format_exception(error)).rstrip("\n").split("\n")
    if isinstance(error, LaunchHelmError):
        more = [f"  {sentence}" for sentence in (error.kept, error.remedy) if sentence]
        said += [f"launchhelm: {error.message}", *more]
    elif isinstance(error, OSError):
        said.append(f"launchhelm: {error.filename or 'files'}: {error.strerror or error}")
    else:
        said.append(f"launchhelm: our failure, {type(error).__name__}: {error}")
        said.append("  Run the same command with --traceback for the details.")
    for line in said:
        # Titles, paths and texts of other people's processes are in it.
        output.say(plain(line))
    return exit_code(error)


def exit_code(error: Exception) -> Exit:
    """Map an error to its exit code."""
    if isinstance(error, UsageError):
        return Exit.USAGE
    if isinstance(error, NotFound | Conflict):
        return Exit.NO_SUCH_RUN
    if isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError):
        return Exit.NOT_PERMITTED
    return Exit.FAILURE
