"""Random requests to every documented endpoint of a real server, good ones with something broken.

Ten minutes; `FUZZ_S` in the environment of the test makes it longer or shorter. No answer may be a
500, no traceback may be in the log, no file outside the data folder, and memory must not grow.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.v1_calls import Call, World
from tests.support.v1_server import V1Server, v1_process

FUZZ_S = float(os.environ.get("FUZZ_S", "600"))
EXAMPLES = 25
WARM_SHARE = 0.3
MAX_GROWTH_MIB = 64.0

Json = Any  # Whatever JSON has.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(
        [
            "",
            "0",
            "1",
            "-1",
            "x" * 300,
            "9" * 30,
            "2026-01-01T00:00:00Z",
            "1e5",
            "nan",
            "\0",
            "../x",
        ]
    ),
    st.uuids().map(str),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=8,
)
headers: st.SearchStrategy[dict[str, str]] = st.one_of(
    st.just({}),
    st.dictionaries(
        st.sampled_from(
            [
                "Idempotency-Key",
                "Content-Type",
                "X-LaunchHelm-Protocol",
                "X-Forwarded-Host",
                "Range",
            ]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip),
        max_size=2,
    ),
)


@st.composite
def broken(draw: st.DrawFn, body: Json) -> Json:
    """Return a copy of a good body with up to three things changed."""
    changed = body
    for _ in range(draw(st.integers(0, 3))):
        places = list(_places(changed))
        place = draw(st.sampled_from(places)) if places else ()
        how = draw(st.sampled_from(["replace", "replace", "remove", "repeat"]))
        changed = _changed(changed, place, how, draw(values))
    return changed


@st.composite
def requests(draw: st.DrawFn, call: Call) -> Call:
    """Return a good request with something broken, or hardly anything left of it."""
    body = draw(st.one_of(broken(call.body), broken(call.body), values))
    query = dict(call.query)
    for name in draw(st.lists(st.sampled_from([*query, "more"]), max_size=2)):
        query[name] = draw(st.text(max_size=20) | st.sampled_from(["", "-1", "0", "9" * 20, "1e9"]))
    path = call.path
    if draw(st.integers(0, 5)) == 0:
        ids = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", path)
        if ids:
            other = draw(st.uuids().map(str) | st.sampled_from(["x", "%00", "..", "%2e%2e%2f"]))
            path = path.replace(draw(st.sampled_from(ids)), other)
    key = draw(st.sampled_from(["", "", "", "", None, "wrong"]))
    return call.but(
        body=body,
        query=query,
        path=path,
        key=key,
        headers={**call.headers, **draw(headers)},
    )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V1Server]:
    (tmp_path / "home").mkdir()
    for name in ("HOME", "TMPDIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    with v1_process(tmp_path / "far") as server:
        yield server


@pytest.mark.stress
@pytest.mark.timeout(0)
def test_random_requests_get_answers_and_leave_the_server_as_it_was(
    tmp_path: Path, server: V1Server, capfd: pytest.CaptureFixture[str]
) -> None:
    world = World.on(server)
    outside = _outside(tmp_path)
    counts: Counter[int] = Counter()
    routes: Counter[str] = Counter()
    good: list[Call] = []
    started = time.monotonic()
    warm = 0.0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def probe(data: st.DataObject) -> None:
        call = data.draw(requests(good[-1]))
        try:
            answer = world.send(call)
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, ValueError):
            return  # It cannot even be sent.
        counts[answer.status_code] += 1
        routes[call.name] += 1
        assert answer.status_code < 500 or answer.status_code == 503, (call, answer.text[:500])
        told = answer.json()
        if answer.status_code >= 300:
            error = told["error"]
            assert isinstance(error["code"], str) and isinstance(error["message"], str)

    for call in itertools.cycle(world.calls()):
        if (passed := time.monotonic() - started) > FUZZ_S:
            break
        good[:] = [call]
        probe()
        if not warm and passed > WARM_SHARE * FUZZ_S:
            warm = _memory_mib(server)
    grown = _memory_mib(server) - warm
    world.close()
    log = capfd.readouterr().err
    print(f"{counts.total():,} requests in {passed:.0f} s: {dict(counts)}; {grown:+.1f} MiB")
    assert "Traceback" not in log, log[-4000:]
    assert _outside(tmp_path) == outside
    assert FUZZ_S < 30 or len(routes) == len({call.name for call in world.calls()})
    assert counts[200] + counts[201] > 0
    assert grown < MAX_GROWTH_MIB


def _outside(directory: Path) -> set[str]:
    """Return every file below a directory that is not the server's."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    return {path for path in found if not path.startswith("far/server/")}


def _memory_mib(server: V1Server) -> float:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    return int(resident[1]) / 1024


def _places(value: Json, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every part of a body is."""
    yield place
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _places(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*place, index))


def _changed(value: Json, place: tuple[Any, ...], how: str, new: Json) -> Json:
    """Return a copy with one part replaced, removed or repeated."""
    if not place:
        return new
    head, rest = place[0], place[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest or how == "replace":
        copy[head] = _changed(copy[head], rest, how, new)
    elif how == "remove":
        del copy[head]
    elif isinstance(copy, list):
        copy.extend([copy[head]] * 3)
    else:
        copy[f"{head}2"] = copy[head]
    return copy
