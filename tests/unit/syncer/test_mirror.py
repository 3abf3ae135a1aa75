"""Records that went to a server as points come back as they were."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

import pytest

from launchhelm.records import Record, WriterId
from syncer import mapping
from syncer.mirror.records import Made, Stream, joined, made, value_of
from syncer.server.held import Point

WRITER = WriterId(0, 1, "0123abcd")
AT = 1_796_000_000.125
RECORDS: list[tuple[str, int | None, dict[str, str], dict[str, Any]]] = [
    ("m", 7, {}, {"loss": 0.25, "count": 3, "is_ok": True, "word": "nan"}),
    ("m", 8, {}, {"loss": math.nan, "up": math.inf, "down": -math.inf, "minus": -0.0}),
    ("m", 9, {}, {"big": 2**70, "edge": 2**53 - 1, "neg": -(2**63)}),
    ("m", None, {}, {"loss": 0.5}),
    ("m", 3, {"fold": "2", "lr": "0.5"}, {"eval/acc": 0.75}),
    ("con", 4, {}, {"text": "a line", "line": 12, "stream": 1}),
    ("rich", 4, {}, {"name": "note", "renderer": "text", "value": {"text": "seen"}}),
    ("oc", 5, {}, {"cmd": "c-1", "state": "claimed", "name": "lr", "payload": {"value": 0.1}}),
    ("oc", 6, {}, {"cmd": "c-1", "state": "applied", "name": "lr", "applied_on": 4, "of": 4}),
    ("effect", 7, {}, {"cmd": "c-1", "values": {"lr": [0.1]}, "step": 7}),
    ("ev", 0, {}, {"type": "start", "world_size": 4}),
    ("ev", 9, {}, {"type": "message", "text": "one\ntwo"}),
    ("gap", 9, {}, {"first": 4, "last": 6, "why": "storage was full"}),
    ("close", 9, {}, {"state": "error", "reason": "ValueError: bad\nvery"}),
]


@pytest.mark.parametrize(("kind", "step", "axes", "body"), RECORDS)
def test_what_a_server_was_sent_is_the_record_that_it_came_from(
    kind: str, step: int | None, axes: dict[str, str], body: dict[str, Any]
) -> None:
    record = Record(WRITER, 17, kind, AT, step, body, axes)
    found: list[Made] = []
    for sample in mapping.samples(record):
        assert isinstance(sample, mapping.Sample), sample
        key, sent = sample.key, json.loads(sample.data)
        stream = Stream(1, "p", key.name, key.type, key.renderer, "")
        at = int(datetime.fromisoformat(sent["observed_at"]).timestamp() * 1000) / 1000
        places = [(each["axis"], each["value"]) for each in sent["coordinates"]]
        point = Point((1, int(sent["sequence"])), at, places, sent["value"])
        record_again = made(stream, point, str)
        assert record_again is not None
        found.append(record_again)
    (back,) = joined(found)
    assert (back.place, back.kind, back.step, back.axes) == ((1, 17), kind, step, axes)
    assert back.at == pytest.approx(AT, abs=0.002)
    # NaN is not equal to itself, and -0.0 is equal to 0.
    assert repr(back.body) == repr(body)


def test_what_is_no_value_is_left_out() -> None:
    for value in (None, [1], {}, {"$number": "nonfinite", "value": "big"}, {"$number": "integer"}):
        assert value_of(value) is None
    stream = Stream(1, "p", "notes", "object", "nobody-knows", "")
    assert made(stream, Point((1, 1), AT, [], {"text": "x"}), str) is None
