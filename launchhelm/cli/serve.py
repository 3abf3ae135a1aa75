"""`launchhelm serve`: a small server of your own, its keys and its backup."""

from __future__ import annotations

import argparse
import contextlib
import logging
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import ConfigError

if TYPE_CHECKING:
    from syncer.server.serve import Address
    from syncer.server.state import Limits

DESCRIPTION = """Serve the LaunchHelm API from one directory until Ctrl-C or SIGTERM.
`serve init` makes an organisation and a key, `serve keys list`, `create`, `revoke KEY` and
`rotate KEY` look after keys, `serve backup DEST` copies everything, also while it is served."""

DEFAULT_DATA: Final = "./launchhelm-server"

_KEYS: Final = ("list", "create", "revoke", "rotate")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `serve` takes."""
    parser.usage = (
        f"{parser.prog} [init | keys list | keys create | keys revoke KEY | keys rotate KEY"
        " | backup DEST] [options]"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ACTION",
        help="init, keys or backup; without one: serve. KEY is an id or its unique beginning",
    )
    parser.add_argument(
        "--data",
        default=DEFAULT_DATA,
        metavar="DIR",
        help=f"data directory; default {DEFAULT_DATA}",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to serve; default 127.0.0.1"
    )
    parser.add_argument(
        "--port", type=int, default=8787, metavar="N", help="0 takes a free one; default 8787"
    )
    parser.add_argument("--tls-cert", default="", metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", default="", metavar="FILE", help="its private key, PEM")
    parser.add_argument(
        "--insecure-http",
        action="store_true",
        help="plain HTTP on a host that is not loopback; clients refuse to use it",
    )
    parser.add_argument(
        "--max-body", type=int, metavar="BYTES", help="longest request body; default 4194304"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=0.0,
        metavar="N",
        help="requests per second that one key may make; default no limit",
    )
    parser.add_argument(
        "--trust-proxy",
        action="store_true",
        help="only a reverse proxy reaches this server: believe its X-Forwarded-* headers",
    )
    parser.add_argument(
        "--organization", default="", metavar="NAME", help="init, keys create: name of it"
    )
    parser.add_argument(
        "--project",
        default="",
        metavar="NAME",
        help="init, keys create: a key for this project only, which is made when absent",
    )
    parser.add_argument("--name", default="", metavar="TEXT", help="keys create: what it is for")
    parser.add_argument(
        "--read-only", action="store_true", help="keys create: a key that changes nothing"
    )
    parser.add_argument(
        "--all", action="store_true", help="keys list: also ended keys, and those of participants"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Serve, or do one of the actions."""
    try:
        from launchhelm.cli import _serve_keys

        if not arguments.words:
            from launchhelm.cli import _served_pages  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio", "a2wsgi"):
            raise
        raise ConfigError(
            f"{error.name} is not installed.",
            remedy="Install what the server needs: pip install 'launchhelm-offline[server]'",
        ) from error
    words = list(arguments.words)
    if not words:
        return _serve(arguments, output)
    if words == ["init"]:
        return _serve_keys.initialise(arguments, output)
    if words[0] == "backup":
        if len(words) != 2:
            raise UsageError("serve backup takes the directory to make: serve backup DEST")
        return _serve_keys.backup(arguments, output, Path(words[1]))
    if words[0] == "keys" and len(words) > 1 and words[1] in _KEYS:
        action, rest = words[1], words[2:]
        if len(rest) != (1 if action in ("revoke", "rotate") else 0):
            what = "a KEY" if action in ("revoke", "rotate") else "nothing else"
            raise UsageError(f"serve keys {action} takes {what}.")
        return _serve_keys.act(action, rest, arguments, output)
    raise UsageError(
        f"serve does not know {' '.join(words)!r}.",
        remedy="It knows init, keys list, keys create, keys revoke KEY, keys rotate KEY, backup"
        " DEST, and serves without a word.",
    )


def _serve(arguments: argparse.Namespace, output: Output) -> int:
    from launchhelm.cli import _serve_keys
    from launchhelm.cli._served_pages import BASE, ServedPages
    from syncer.server import data
    from syncer.server.serve import Address, Service

    address = Address(
        host=arguments.host,
        port=arguments.port,
        certificate=arguments.tls_cert,
        private_key=arguments.tls_key,
        insecure=arguments.insecure_http,
    )
    address.check()
    for option, file in (("--tls-cert", arguments.tls_cert), ("--tls-key", arguments.tls_key)):
        _check_file(option, file)
    limits = _limits(arguments)
    directory = Path(arguments.data)
    if not data.exists(directory) and not address.loopback:
        raise ConfigError(
            f"{directory} is no data directory of a server yet.",
            remedy=f"Make it, and a key: launchhelm serve init --data {directory}",
        )
    if not data.exists(directory):
        _check_port(address)  # Else a start that comes to nothing would make a key.
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    server = data.open_server(directory, limits=limits)
    server.trust_proxy = arguments.trust_proxy
    try:
        if data.is_empty(server):
            output.say(f"{directory} is new: made the organisation {data.DEFAULT_ORGANIZATION}.")
            _serve_keys.tell_made(data.initialise(server), output, output.say)
        if not address.loopback and not address.certificate:
            output.say(
                "Warning: plain HTTP. Keys go over the network readable for anyone, and clients"
                " refuse to connect."
            )

        def ready(url: str) -> None:
            if output.json:
                output.document({"url": url, "data": str(directory), "dashboard": f"{url}{BASE}/"})
            else:
                output.line(f"Serving {url} from {directory}")
                output.line(f"Dashboard {url}{BASE}/")
            output.flush()

        _allow_files()
        pages = ServedPages(server)
        Service(
            server, address, ready, beside=pages.beside, stopping=pages.close
        ).serve_until_stopped()
    finally:
        server.database.close()
    return Exit.DONE


def _allow_files() -> None:
    """Take as many open files as may be had: a run that is looked at has one for each process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _check_file(option: str, file: str) -> None:
    """Refuse a file that cannot be read; "" is none."""
    if not file:
        return
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {file}: {error.strerror or error}.") from error


def _check_port(address: Address) -> None:
    """Refuse an address that cannot be had."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        raise ConfigError(
            f"Cannot serve {address.host} port {address.port}: {error.strerror or error}.",
            remedy="Nothing was made. Another one: --port N, or --port 0 for any that is free.",
        ) from error


def _limits(arguments: argparse.Namespace) -> Limits:
    from syncer.server.state import MIN_BODY_BYTES, Limits

    if arguments.rate < 0:
        raise UsageError("--rate must not be negative.")
    if arguments.max_body is None:
        return Limits(requests_per_s=arguments.rate)
    if arguments.max_body < MIN_BODY_BYTES:
        raise UsageError(f"--max-body must be at least {MIN_BODY_BYTES}: clients send that much.")
    return Limits(body_bytes=arguments.max_body, requests_per_s=arguments.rate)
