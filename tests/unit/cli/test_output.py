"""What is printed, in any locale and into any pipe."""

from __future__ import annotations

import io
import json
import math

import pytest

from launchhelm._strict import dump
from launchhelm._wording import Sentence
from launchhelm.cli.output import Output, width


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


def written(text: io.TextIOWrapper) -> bytes:
    text.flush()
    buffer = text.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


def test_an_ascii_terminal_gets_plain_marks_and_escaped_names() -> None:
    out = stream("ascii")
    Output(out, stream("ascii")).line("▼ 損失 …")
    assert written(out) == b"v \\u640d\\u5931 ...\n"


def test_a_utf8_terminal_gets_names_as_they_are() -> None:
    out = stream("utf-8")
    Output(out, stream("utf-8")).line("▼ 損失")
    assert written(out).decode() == "▼ 損失\n"


def test_json_is_ascii_and_strict_in_every_locale() -> None:
    text = dump({"損失": [math.nan, math.inf, -math.inf, 1e-5, 2**70, True, None, ("a",)]})
    assert text.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {
        "損失": ["NaN", "Infinity", "-Infinity", 1e-5, 2**70, True, None, ["a"]]
    }


def test_columns_line_up_whatever_width_the_names_have() -> None:
    out = stream("utf-8")
    Output(out, stream("utf-8")).table(
        ("RUN", "STEP"), [("損失", "1"), ("e\u0301", "12,480")], right=("STEP",)
    )
    lines = written(out).decode().splitlines()
    assert {width(line) for line in lines} == {12}


def test_without_a_terminal_nothing_is_cut_or_coloured() -> None:
    out = stream("utf-8")
    output = Output(out, stream("utf-8"))
    output.table(("RUN",), [("x" * 200,)])
    output.line(output.sentence(Sentence("Applied", ", lr 0.1 -> 0.2", tone="good")))
    assert written(out).decode() == f"RUN\n{'x' * 200}\nApplied, lr 0.1 -> 0.2\n"


def test_no_color_wins_over_a_terminal_and_always_wins_over_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = stream("utf-8")
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Output(out, out).paint("ok", "good") == "\x1b[32mok\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Output(out, out).paint("ok", "good") == "ok"
    assert Output(out, out, color="always").paint("ok", "good") == "\x1b[32mok\x1b[0m"
