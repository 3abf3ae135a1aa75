"""Console capture: lines in records, everything still on the terminal, nothing ever raised."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from launchhelm._console import MAX_LINE_CHARS, Capture


class Captured:
    """A capture over two streams of its own; pytest swaps the real ones between its phases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", self.out)
        monkeypatch.setattr(sys, "stderr", self.err)
        self.lines: list[tuple[str, str]] = []
        self.failures: list[Exception] = []
        self.capture = Capture(
            lambda text, stream: self.lines.append((stream, text)), self.failures.append
        )
        self.capture.start()


def test_lines_of_both_streams_are_recorded_and_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)
    print("one\ntwo")
    print("three", file=sys.stderr)
    assert captured.lines == [("stdout", "one"), ("stdout", "two"), ("stderr", "three")]
    assert (captured.out.getvalue(), captured.err.getvalue()) == ("one\ntwo\n", "three\n")


def test_stop_puts_the_streams_back_and_records_what_has_no_line_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured = Captured(monkeypatch)
    print("half", end="")
    captured.capture.stop()
    print("after")
    assert captured.lines == [("stdout", "half")]
    assert sys.stdout is captured.out


def test_a_long_line_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)
    print("x" * (2 * MAX_LINE_CHARS + 1))
    assert [len(text) for _, text in captured.lines] == [MAX_LINE_CHARS, MAX_LINE_CHARS, 1]


def test_a_progress_bar_is_recorded_in_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)
    for percent in range(101):
        sys.stderr.write(f"\r{percent}%")
    sys.stderr.write("\n")
    print("crlf\r")
    assert captured.lines == [("stderr", "100%"), ("stdout", "crlf")]


def test_a_bar_that_never_ends_its_line_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)
    for _ in range(3_000):
        sys.stderr.write("\r" + "#" * 100)
    assert captured.lines == []
    captured.capture.stop()
    assert captured.lines == [("stderr", "#" * 100)]


def test_a_failing_record_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)

    def fail(text: str, stream: str) -> None:
        print("printed by the failing record itself")
        raise RuntimeError("disk")

    for tee in captured.capture._tees:
        tee._record = fail
    print("still printed")
    assert "still printed\n" in captured.out.getvalue()
    assert len(captured.failures) == 1


def test_somebody_elses_wrapper_stays_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)
    inner = sys.stdout
    wrapper = io.StringIO()
    sys.stdout = wrapper
    captured.capture.stop()
    assert sys.stdout is wrapper
    inner.write("passed on\n")
    assert captured.out.getvalue() == "passed on\n"
    assert captured.lines == []


def test_threads_do_not_mix_within_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(monkeypatch)

    def talk(name: str) -> None:
        for _ in range(200):
            sys.stdout.write(f"{name * 20}\n")

    threads = [threading.Thread(target=talk, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(captured.lines) == 400
    assert {text for _, text in captured.lines} == {"a" * 20, "b" * 20}
