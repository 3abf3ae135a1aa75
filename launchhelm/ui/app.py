"""The dashboard as a WSGI callable: routes, and answers with the headers that all of them carry."""

from __future__ import annotations

import gzip
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from launchhelm import _strict
from launchhelm.errors import LaunchHelmError, NotFound
from launchhelm.ui import (
    _answers_commands,
    _answers_console,
    _answers_effect,
    _answers_media,
    _answers_processes,
    _answers_replay,
    _answers_runs,
    _answers_series,
)
from launchhelm.ui.board import NEVER, Board
from launchhelm.ui.guard import HEADERS, Guard
from launchhelm.ui.pages import Page, Pages
from launchhelm.ui.request import MAX_BODY_BYTES, Problem, Request, too_large
from launchhelm.ui.scan import POLL_S, Scanner

API: Final = "/api/1/"
FOREVER: Final = "public, max-age=31536000, immutable"
_PACKED_FROM_BYTES: Final = 1024
_PAGES: Final = ("run", "compare", "sync")

Document = Mapping[str, Any]  # Any: JSON.


@dataclass(slots=True)
class Answer:
    """What is answered; a stream has parts instead of a document."""

    document: Document | None = None
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    parts: Iterable[bytes] | None = None


class App:
    """Answers requests about the runs of a board.

    Args:
        board: The runs.
        guard: Who may ask.
        pages: The shell and its files.
        base: The path under which a proxy shows this server, "" for none.
        sync: Returns the document of the sync page; None where nothing is known of syncing.
    """

    def __init__(
        self,
        board: Board,
        guard: Guard,
        pages: Pages | None = None,
        *,
        base: str = "",
        sync: Callable[[], Document] | None = None,
        mode: str = "directory",
        version: str = "",
        poll_s: float = POLL_S,
    ) -> None:
        self.board = board
        self.scanner = Scanner(board, poll_s, sync)
        self.sync = sync
        self.mode = mode
        self.version = version
        self._asked_at = board.clock.monotonic()
        self._guard = guard
        self._base = base.rstrip("/")
        self._pages = pages or Pages(self._base)

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request; never raises."""
        packs = "gzip" in str(environ.get("HTTP_ACCEPT_ENCODING", ""))
        try:
            answer = self._answer(environ, packs=packs)
        except Problem as problem:
            fields = {"fields": problem.fields} if problem.fields else {}
            answer = Answer({"error": {**problem.document, **fields}}, problem.status)
        except LaunchHelmError as error:
            status = 404 if isinstance(error, NotFound) else 503
            said = {"code": error.code, "happened": error.message}
            document = {"error": {**said, "kept": error.kept, "remedy": error.remedy}}
            answer = Answer(document, status)
        except Exception as error:  # The thread serves one viewer; a fault of ours is an answer.
            traceback.print_exc(limit=-8, file=environ.get("wsgi.errors"))
            said = {"code": "our_failure", "happened": f"{type(error).__name__}: {error}"}
            remedy = "Nothing was changed; please report it."
            answer = Answer({"error": {**said, "kept": "", "remedy": remedy}}, 500)
        return _sent(answer, start_response, packs=packs)

    def idle_s(self) -> float:
        """Return for how long nobody with the token has asked for anything."""
        return self.board.clock.monotonic() - self._asked_at

    def _answer(self, environ: dict[str, Any], *, packs: bool) -> Answer:
        path = str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace")
        if self._base:
            if path != self._base and not path.startswith(f"{self._base}/"):
                raise _nothing_there()
            path = path[len(self._base) :]
        request = Request(environ, path or "/")
        is_page = not path.startswith(("/api/", "/static/"))
        self._guard.check_address(request, is_page=is_page)
        if path.startswith("/static/"):
            return self._static(request, packs=packs)
        if path.startswith(API):
            return self._api(request)
        if is_page and request.parts[0] in ("", *_PAGES):
            _only_get(request)
            return _page(self._pages.shell, "no-cache", packs=packs)
        raise _nothing_there()

    def _static(self, request: Request, *, packs: bool) -> Answer:
        _only_get(request)
        page = self._pages.file(request.path.removeprefix("/static/"))
        if page is None:
            raise _nothing_there()
        return _page(page, FOREVER, packs=packs)

    def _api(self, request: Request) -> Answer:
        self._guard.check_token(request)
        self._asked_at = self.board.clock.monotonic()
        length = request.header("Content-Length")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            raise too_large()
        parts = request.parts[2:]
        if request.method == "POST":
            self._guard.check_post(request)
            return self._post(request, parts)
        return self._get(request, parts)

    def _get(self, request: Request, parts: tuple[str, ...]) -> Answer:
        match parts:
            case ("info",):
                return Answer(_answers_runs.info(self.board, self.mode, self.version))
            case ("runs",):
                return Answer(_answers_runs.rows(self.board, request))
            case ("runs", id_):
                with self.board.open(id_) as run:
                    return Answer(_answers_runs.run(self.board, run.view))
            case ("runs", id_, "metrics"):
                with self.board.open(id_) as run:
                    return Answer(_answers_series.metrics(run, request))
            case ("runs", id_, "series"):
                with self.board.open(id_) as run:
                    curves = _answers_series.series(run, request)
                    return Answer({**curves, "indexing": run.share} if run.share < 1 else curves)
            case ("runs", id_, "commands"):
                with self.board.open(id_) as run:
                    return Answer(_answers_commands.commands(self.board, run.view))
            case ("runs", id_, "effect"):
                with self.board.open(id_) as run:
                    return Answer(_answers_effect.effects(run, request))
            case ("runs", id_, "controls"):
                with self.board.open(id_) as run:
                    return Answer(_answers_commands.controls(self.board, run.view))
            case ("runs", id_, "console"):
                with self.board.open(id_) as run:
                    return Answer(_answers_console.console(run, request))
            case ("runs", id_, "media"):
                with self.board.open(id_) as run:
                    return Answer(_answers_media.listing(run, request))
            case ("runs", id_, "files"):
                with self.board.open(id_) as run:
                    return Answer(_answers_media.files(self.board, run))
            case ("blobs", digest):
                status, headers, data = _answers_media.blob(self.board.folders(), digest, request)
                return Answer(None, status, headers, data)
            case ("runs", id_, "skew"):
                with self.board.open(id_) as run:
                    return Answer(_answers_processes.skew(run, request))
            case ("sync",):
                return Answer(self.sync() if self.sync is not None else {"servers": [], "runs": []})
            case ("changes",):
                found = self.scanner.changes(_watched(request), request.text("cursor"))
                return Answer(found, 200 if found is not None else 204)
            case ("stream",):
                events = self.scanner.stream(_watched(request), request.text("cursor"))
                kind = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")]
                return Answer(headers=kind, parts=events)
            case ("runs", id_, "processes"):
                with self.board.open(id_) as run:
                    watched_s = self.board.clock.monotonic() - run.opened_at
                    return Answer(_answers_processes.processes(run.view, watched_s))
        raise _nothing_there()

    def _post(self, request: Request, parts: tuple[str, ...]) -> Answer:
        body = request.body()
        match parts:
            case ("runs", id_, "commands", "check"):
                with self.board.open(id_) as run:
                    return Answer(_answers_commands.check(self.board, run.view, body))
            case ("runs", id_, "commands", "replay"):
                ledger = _answers_replay.ledger(self.board, body)
                with self.board.open(id_, fresh=True) as run:
                    if "ids" not in body:
                        return Answer(_answers_replay.plan(self.board, run.view, ledger, body))
                    run.looked_at = NEVER
                    document = _answers_replay.give(self.board, run.view, ledger, body)
                    return Answer(document, 201)
            case ("runs", id_, "commands"):
                with self.board.open(id_, fresh=True) as run:
                    status, document = _answers_commands.give(self.board, run.view, body)
                    run.looked_at = NEVER  # Whoever asks next sees what was just written.
                    return Answer(document, status)
            case ("runs", id_, "commands", command, "cancel"):
                with self.board.open(id_, fresh=True) as run:
                    document = _answers_commands.cancel(self.board, run.view, command, body)
                    run.looked_at = NEVER
                    return Answer(document, 201)
        raise _nothing_there()


def _nothing_there() -> Problem:
    return Problem(404, "not_found", "There is nothing at this address.")


def _only_get(request: Request) -> None:
    if request.method not in ("GET", "HEAD"):
        raise Problem(405, "not_allowed", "This address is only read.")


def _page(page: Page, kept: str, *, packs: bool) -> Answer:
    headers = [("Content-Type", page.media_type), ("Cache-Control", kept)]
    data = page.data
    if packs and len(page.packed) < len(page.data):
        data = page.packed
        headers.append(("Content-Encoding", "gzip"))
    headers += [("Vary", "Accept-Encoding"), ("Content-Length", str(len(data)))]
    return Answer(headers=headers, parts=(data,))


def _sent(answer: Answer, start_response: Callable[..., Any], *, packs: bool) -> Iterable[bytes]:
    headers, parts = list(answer.headers), answer.parts
    if parts is None:
        data = b"" if answer.document is None else _strict.dump(answer.document).encode()
        if answer.document is not None:
            headers += [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        if packs and len(data) > _PACKED_FROM_BYTES:
            data = gzip.compress(data, 3, mtime=0)
            headers += [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")]
        headers.append(("Content-Length", str(len(data))))
        parts = (data,)
    # What an answer says of itself comes before what all of them say.
    said = {name for name, _ in headers}
    headers += [(name, value) for name, value in HEADERS if name not in said]
    start_response(f"{answer.status} {_phrase(answer.status)}", headers)
    return parts


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _watched(request: Request) -> list[str]:
    return [id_ for id_ in request.text("watch").split(",") if id_]
