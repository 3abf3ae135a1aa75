"""Options that name a server and how to get in, for the verbs that use one."""

from __future__ import annotations

import argparse
import importlib.util
from typing import TYPE_CHECKING, Final

from launchhelm import _optional
from launchhelm.cli._exit import UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import ConfigError

if TYPE_CHECKING:
    from syncer.settings import Target

BESIDE: Final = ("project", "organization", "key_file", "ca_bundle", "insecure_skip_verify")
"""Destinations of the options that say more about the server."""


def configure(parser: argparse.ArgumentParser, *, server: str, project: str = "") -> None:
    """Declare the options.

    Args:
        server: Help of --server.
        project: Help of --project; without one there is no such option.
    """
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help=server)
    if project:
        group.add_argument("--project", metavar="NAME_OR_ID", help=project)
    else:
        parser.set_defaults(project="")
    group.add_argument("--organization", metavar="ID", help="needed if the key sees several")
    group.add_argument("--key-file", metavar="FILE", help="holds the key; read again when refused")
    group.add_argument("--ca-bundle", metavar="FILE", help="PEM file of authorities to trust")
    group.add_argument(
        "--insecure-skip-verify", action="store_true", help="believe any server; never a default"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """Return the server that options, environment and `.env`, loaded before, name.

    Raises:
        UsageError: They name none, or no key.
    """
    from syncer.settings import Target

    try:
        return Target.of(
            url=arguments.server or "",
            key_file=arguments.key_file or "",
            organization=arguments.organization or "",
            project=arguments.project or "",
            ca_bundle=arguments.ca_bundle or "",
            verify=not arguments.insecure_skip_verify,
        )
    except ConfigError as error:
        raise UsageError(error.message, kept=error.kept, remedy=error.remedy) from error


def require_http(purpose: str) -> None:
    """Say what to install where the network package is missing. Imports nothing.

    Raises:
        ConfigError: It is missing; `purpose` begins the sentence about who needs it.
    """
    if importlib.util.find_spec("httpx") is None:
        raise ConfigError(f"{_optional.missing('httpx')}.", remedy=f"{purpose} needs it.")


def warn_of_trust(arguments: argparse.Namespace, output: Output) -> None:
    """Say it when the server's certificate is not looked at."""
    if arguments.insecure_skip_verify:
        output.say("launchhelm: the server's certificate is not checked (--insecure-skip-verify)")
