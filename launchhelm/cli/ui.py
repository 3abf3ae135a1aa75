"""`launchhelm ui`: the local dashboard, in a browser, usually through an ssh tunnel."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import secrets
import signal
import socket
import stat
import tempfile
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import launchhelm
from launchhelm import _wording
from launchhelm._settings import SSH_CONNECTION, XDG_RUNTIME_DIR
from launchhelm.cli import selection
from launchhelm.cli._exit import Exit, UsageError
from launchhelm.cli.output import Output
from launchhelm.errors import ConfigError
from launchhelm.store.layout import default_root
from launchhelm.views.liveness import process_facts, process_is_gone
from launchhelm.views.plan import user_name

if TYPE_CHECKING:
    from launchhelm.ui.board import Board
    from launchhelm.ui.serve import Service

DESCRIPTION = """Show runs in a browser: curves, processes, controls, console, media and files.
Listens on loopback and on a private socket, for whoever has the token in the printed address.
Needs no server and asks nobody; writes nothing but the commands that you send."""

_LAPTOP_PORT: Final = 7843
_FIRST_LOOK_S: Final = 2.0
_CHECK_S: Final = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what `ui` takes."""
    parser.add_argument(
        "paths", nargs="*", metavar="ROOT", help="roots, or single runs; default --root"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of loopback; default any free one")
    parser.add_argument(
        "--no-tcp", action="store_true", help="the private socket only; for shared login nodes"
    )
    parser.add_argument("--socket", metavar="PATH", help="another place for the socket")
    parser.add_argument("--read-only", action="store_true", help="nobody may control from here")
    parser.add_argument("--base-path", default="", metavar="PATH", help="behind a reverse proxy")
    parser.add_argument(
        "--host", metavar="ADDR", help="another interface; read-only, and with --allow-host"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which browsers may call this server, repeatable",
    )
    parser.add_argument(
        "--token-file", metavar="PATH", help="use the token in this file (mode 0600, yours)"
    )
    parser.add_argument("--list", action="store_true", help="what runs for this user, and where")
    parser.add_argument("--stop", action="store_true", help="end what runs for this user")
    parser.add_argument("--open", action="store_true", help="open a browser")
    parser.add_argument(
        "--idle-exit",
        type=float,
        default=12.0,
        metavar="H",
        help="end after so many hours without a viewer; default 12, 0 never",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Serve until Ctrl-C, or list or end what is served."""
    folder = _runtime_folder()
    if arguments.list or arguments.stop:
        return _running(folder, output, stop=arguments.stop)
    _require_sensible(arguments)
    from launchhelm.ui.app import App
    from launchhelm.ui.board import Board
    from launchhelm.ui.guard import Guard

    roots = [default_root(each) for each in arguments.paths] or selection.roots(arguments)
    token = _token(arguments.token_file)
    base = f"/{arguments.base_path.strip('/')}" if arguments.base_path.strip("/") else ""
    board = Board(roots, read_only=arguments.read_only or arguments.host is not None)
    guard = Guard(token, arguments.allow_host)
    sync = functools.partial(_sync, board)
    app = App(board, guard, base=base, sync=sync, version=launchhelm.__version__)
    mark = secrets.token_hex(4)
    with _served(app, arguments, folder, mark) as service:
        # By an address that means all interfaces no browser may call it; by a name given it may.
        name = arguments.allow_host[0] if arguments.host is not None else "127.0.0.1"
        facts = _facts(service, roots, token, base, name)
        note = _note(folder / f"ui-{mark}.json", facts)
        try:
            _say(board, facts, arguments, output)
            if arguments.open:
                webbrowser.open(facts["address"])
            _wait(app, arguments.idle_exit)
        finally:
            note.unlink(missing_ok=True)
    return Exit.DONE


def _require_sensible(arguments: argparse.Namespace) -> None:
    if (arguments.host is None) != (not arguments.allow_host):
        raise UsageError(
            "--host and --allow-host go together: an address to listen at, and its name.",
            remedy="For one's own browser leave out both, and use an ssh tunnel.",
        )
    if arguments.port is not None and not 0 <= arguments.port < 65536:
        raise UsageError(f"--port takes 0 to 65535, got {arguments.port}.")
    if not arguments.idle_exit >= 0:
        raise UsageError(f"--idle-exit takes hours from 0 on, got {arguments.idle_exit:g}.")
    if arguments.no_tcp and (arguments.port is not None or arguments.host is not None):
        raise UsageError("--no-tcp goes without --port and --host.")


@contextlib.contextmanager
def _served(app: Any, arguments: argparse.Namespace, folder: Path, mark: str) -> Iterator[Service]:
    from launchhelm.ui.serve import Service

    path = Path(arguments.socket).absolute() if arguments.socket else folder / f"ui-{mark}.sock"
    service = Service(
        app,
        port=None if arguments.no_tcp else arguments.port or 0,
        socket_path=path,
        host=arguments.host or "127.0.0.1",
    )
    service.start()
    try:
        yield service
    finally:
        service.close()


def _wait(app: Any, idle_h: float) -> None:
    """Wait for Ctrl-C, SIGTERM, or hours without a viewer."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        while not stop.wait(_CHECK_S):
            if idle_h and app.idle_s() > idle_h * 3600:
                return
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(
    board: Board, facts: Mapping[str, Any], arguments: argparse.Namespace, output: Output
) -> None:
    from launchhelm.views.plan import may_send

    found, expected = board.look(_FIRST_LOOK_S)
    live = [each for each in found if each.state.word in ("running", "starting")]
    mine = 0 if board.read_only else sum(not may_send(each.directory) for each in live)
    where = _wording.listed(map(str, board.roots))
    runs = f"{expected:,} {'run' if expected == 1 else 'runs'}"
    so_far = "" if len(found) == expected else f" ({len(found):,} read so far)"
    output.say(
        f"Dashboard for {where}: {runs}{so_far}, {len(live):,} live. "
        f"You may control {mine:,} of these."
    )
    for path, why in board.problems.items():
        output.say(f"  cannot be read: {_wording.plain(str(path))}: {_wording.plain(why)}")
    if facts["address"]:
        output.say(f"  Here      {facts['address']}")
    if facts["socket"]:
        output.say(f"  Laptop    {facts['tunnel']}")
        laptop = f"http://localhost:{_LAPTOP_PORT}{facts['base']}/#token={facts['token']}"
        output.say(f"            then open {laptop}")
    output.say("  Stop      Ctrl-C")
    if output.json:
        output.document(facts)
        output.flush()


def _facts(service: Service, roots: list[Path], token: str, base: str, name: str) -> dict[str, Any]:
    socket_path = str(service.socket_path) if service.socket_path else ""
    address = f"http://{name}:{service.port}{base}/#token={token}" if service.port else ""
    # Behind ssh the node's own name is what a laptop's ssh can reach, perhaps by a jump host.
    jump = "" if SSH_CONNECTION.read() else "-J LOGIN-NODE "
    tunnel = (
        f"ssh -N {jump if _in_a_job() else ''}-L {_LAPTOP_PORT}:{socket_path} "
        f"{user_name()}@{socket.gethostname()}"
    )
    return {
        **process_facts(),
        "host": socket.gethostname(),
        "roots": [str(root) for root in roots],
        "address": address,
        "socket": socket_path,
        "tunnel": tunnel,
        "base": base,
        "token": token,
    }


def _in_a_job() -> bool:
    from launchhelm._settings import SLURM_JOB_ID

    return bool(SLURM_JOB_ID.read())


def _sync(board: Board) -> dict[str, Any]:
    """Return what the sync page shows: files only, no network."""
    from launchhelm.cli import status
    from syncer.discover import Discovery

    return status.page(Discovery(board.roots))


# Files of this user -------------------------------------------------------------------------


def _runtime_folder() -> Path:
    """Return a directory that only this user may enter, never one under a name that all know."""
    given = XDG_RUNTIME_DIR.read()
    base = Path(given) if given else Path("~/.cache").expanduser()
    folder = base / "launchhelm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
        if mine and not facts.st_mode & 0o077:
            return folder
    except OSError:
        pass
    # Made anew under a random name, so that nobody can have put it there.
    return Path(tempfile.mkdtemp(prefix="launchhelm-"))


def _note(path: Path, facts: Mapping[str, Any]) -> Path:
    """Write where this dashboard is, for `--list`; private from the first instant."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    return path


def _running(folder: Path, output: Output, *, stop: bool) -> int:
    """Say what runs for this user on this host, and end it where that was asked for."""
    count = 0
    for path in sorted(folder.glob("ui-*.json")):
        try:
            facts = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if facts.get("host") != socket.gethostname():
            continue
        if process_is_gone(facts):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                Path(facts["socket"]).unlink(missing_ok=True)
            continue
        count += 1
        where = _wording.listed(facts["roots"])
        if stop:
            os.kill(facts["pid"], signal.SIGTERM)
        if output.json:
            output.document(facts)
        else:
            output.line(f"{'ended' if stop else facts['address'] or facts['tunnel']}  {where}")
    if not count:
        output.say("No dashboard runs for you on this host.")
    return Exit.DONE


def _token(file: str | None) -> str:
    """Return the token of a private file of ours, or a new one of 256 bits."""
    if file is None:
        return secrets.token_urlsafe(32)
    path = Path(file)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, encoding="ascii", errors="replace") as opened:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise ConfigError(
                f"{path} is open to others, or not yours.", remedy=f"chmod 600 {path}"
            )
        token = opened.read().strip()
    if re.fullmatch(r"[A-Za-z0-9_-]{32,}", token) is None:
        raise ConfigError(
            f"{path} holds no token of at least 32 letters, digits, - and _.",
            remedy="Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token
