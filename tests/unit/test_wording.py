"""The sentences of page, terminal and report, case by case."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from launchhelm import _wording
from launchhelm._wording import Around, Quiet, outcome_text
from launchhelm.records import Outcome


@dataclass(frozen=True)
class Given:
    """The least that a sentence about a command needs."""

    outcome: Outcome | None = None
    first_step: int | None = None


def said(state: str, around: Around = _wording.NOTHING_KNOWN, **fields: object) -> str:
    return str(outcome_text(Given(Outcome("c1", state, **fields)), around))  # type: ignore[arg-type]


AT = {"step": 14000}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            said("applied", applied_at=AT, applied_on=512, of=512),
            "Applied at step 14,000 on all 512 processes",
        ),
        (said("applied", applied_at=AT, applied_on=1, of=1), "Applied at step 14,000"),
        (
            said("applied", applied_at=AT),
            "Applied at step 14,000, number of processes not reported",
        ),
        (
            said(
                "applied",
                applied_at={"step": 412},
                applied_on=2,
                of=2,
                changes={"lr": {"old": [0.01], "new": [0.005]}},
            ),
            "Applied at step 412 on all 2 processes, lr 0.01 -> 0.005",
        ),
        (
            said(
                "outcome_unknown",
                applied_on=511,
                of=512,
                failures=((137, "gpu-017", "RuntimeError: no"),),
                rolled_back=True,
            ),
            "Outcome unknown: 511 of 512 processes reported success. Not from: rank 137 (gpu-017), "
            "`RuntimeError: no`. All ranks report the old values again (rolled back). It will not "
            "be tried again",
        ),
        (
            said(
                "outcome_unknown",
                applied_on=1,
                of=2,
                failures=((1, "b", "E: x"),),
                rolled_back=None,
            ),
            "Outcome unknown: 1 of 2 processes reported success. Not from: rank 1 (b), `E: x`. "
            "The change may be partly in effect. It will not be tried again",
        ),
        (
            said("outcome_unknown", applied_on=512, of=512, code="runtime_restart"),
            "Outcome unknown, although 512 of 512 reported success: `runtime_restart`. It will not "
            "be tried again",
        ),
        (
            said("outcome_unknown", code="begin_uncertain"),
            "Outcome unknown: `begin_uncertain`. Number of processes not reported. It will not be "
            "tried again",
        ),
        (
            said("rejected", message="lr takes a number above 0, got -1"),
            "Rejected, nothing changed: lr takes a number above 0, got -1",
        ),
        (said("rejected", code="a_new_code"), "Rejected, nothing changed: a_new_code"),
        (
            said("expired", applied_at={"step": 14501}),
            "Expired at step 14,501, nothing changed",
        ),
        (said("cancelled", Around(cancelled_by="alice")), "Cancelled by alice, nothing changed"),
        (
            said("applied", Around(diverged=[(137, "lr 3e-4")], others_show="1.5e-4")),
            "Diverged since: rank 137 has lr 3e-4, the others 1.5e-4",
        ),
        (
            said(
                "applied",
                Around(reverted_by="restore at step 13,900, attempt 3"),
                applied_at=AT,
                applied_on=512,
                of=512,
            ),
            "Applied at step 14,000, not in effect any more: reverted by restore at step 13,900, "
            "attempt 3",
        ),
        (
            said("applying", Around(waited_s=41.9, world_size=512)),
            "Running on 512 processes for 41 s",
        ),
        (said("claimed"), "Waiting: next exchange, then at a step all ranks agree on"),
        (said("a_word_of_the_future", code="x"), "a_word_of_the_future: `x`"),
    ],
)
def test_each_evidence_has_its_sentence(sentence: str, expected: str) -> None:
    assert sentence == expected


@pytest.mark.parametrize(
    ("around", "first_step", "expected"),
    [
        (
            Around(waited_s=2, exchange_s=0.5),
            None,
            "Waiting: next exchange in about 1 s, then at a step all ranks agree on",
        ),
        (
            Around(step=13000, pace_s=1.4),
            14000,
            "Scheduled for step 14,000: about 23 min at the present pace",
        ),
        (
            Around(step=13000, paused=True),
            14000,
            "Scheduled for step 14,000: the run is paused, and goes on with `resume`",
        ),
        (
            Around(handler="checkpoint", handler_s=41),
            None,
            "Waiting behind `checkpoint`, running for 41 s",
        ),
        (
            Around(waited_s=95, exchange_s=0.5),
            14000,
            "Scheduled for step 14,000",
        ),
        (
            Around(waited_s=8, exchange_s=0.5),
            None,
            "Waiting: rank 0 has not picked it up for 8 s",
        ),
        (
            Around(waited_s=95, quiet=[Quiet(0, "silent", 140)]),
            None,
            "Not picked up for 95 s: rank 0 is silent, no heartbeat for 140 s. Nothing has changed",
        ),
        (
            Around(waited_s=3, step=5, quiet=[Quiet(0, "late", 50)]),
            14000,
            "Not picked up for 3 s: rank 0 is late, no heartbeat for 50 s. Nothing has changed",
        ),
        (
            Around(waited_s=3, exchange_s=0.5, quiet=[Quiet(2, "late", 50)]),
            None,
            "Waiting: all wait for rank 2 (late, no heartbeat for 50 s)",
        ),
        (
            Around(step=13000, pace_s=1.4, quiet=[Quiet(2, "silent", 400), Quiet(5, "late", 60)]),
            14000,
            "Scheduled for step 14,000: all wait for rank 2 (silent, no heartbeat for 6 min) and "
            "1 more rank",
        ),
        (
            Around(waited_s=95, run_over="the run has ended (finished after 2 h)"),
            None,
            "Waiting: the run has ended (finished after 2 h); a next attempt gets it while it is "
            "valid, else it expires",
        ),
        (
            Around(run_over="the run has ended (finished after 2 h)", run_closed=True),
            None,
            "Waiting: the run has ended (finished after 2 h); nothing takes it any more, and "
            "nothing has changed",
        ),
        (
            Around(waited_s=95, control_off="rank 1 left"),
            None,
            "Not picked up for 95 s: control is off: rank 1 left. Nothing has changed",
        ),
        (
            Around(waited_s=3, exchange_s=0.5, held=True),
            None,
            "Waiting: at the next control point; ranks wait for each other",
        ),
        (
            Around(step=12000, pace_s=1.4, control_off="rank 1 left"),
            14000,
            "Waiting: control is off: rank 1 left. Nothing has changed",
        ),
        (
            Around(step=12000, control_off="the process of rank 0 is gone", leaderless=True),
            14000,
            "Waiting: control is off: the process of rank 0 is gone; a next attempt gets it while "
            "it is valid, else it expires",
        ),
    ],
)
def test_a_waiting_command_says_what_it_waits_for(
    around: Around, first_step: int | None, expected: str
) -> None:
    assert str(outcome_text(Given(first_step=first_step), around)) == expected


def test_what_had_no_effect_is_told_where_it_was_applied() -> None:
    around = Around(not_effective="lr is 0.0878, not 0.05: a scheduler that watch() was not given.")
    assert said("applied", around, applied_at=AT) == (
        "Applied at step 14,000, and not in effect: lr is 0.0878, not 0.05: a scheduler that "
        "watch() was not given"
    )


@pytest.mark.parametrize(
    "around",
    [
        Around(run_over="the run has ended (failed on rank 0)"),
        Around(control_off="the process of rank 0 is gone", leaderless=True),
    ],
)
def test_what_rank_0_left_in_the_middle_is_unknown_and_does_not_run_for_ever(
    around: Around,
) -> None:
    text = str(outcome_text(Given(Outcome("1", "applying")), around))
    assert text.startswith("Outcome unknown: rank 0 was gone before it could say")


def test_not_picked_up_is_said_after_three_exchanges_and_at_least_thirty_seconds() -> None:
    def head(waited_s: float, exchange_s: float) -> str:
        return outcome_text(Given(), Around(waited_s=waited_s, exchange_s=exchange_s)).head

    assert head(29.9, 0.5) == "Waiting"
    assert head(30.0, 0.5).startswith("Not picked up")
    assert head(59.0, 20.0) == "Waiting"
    assert head(60.0, 20.0).startswith("Not picked up")


def test_a_claimed_command_is_never_called_not_picked_up() -> None:
    claimed = Given(Outcome("c", "claimed"))
    assert outcome_text(claimed, Around(waited_s=3600.0, exchange_s=0.5)).head == "Waiting"
    quiet = Around(waited_s=3600.0, quiet=[Quiet(0, "silent", 140)])
    assert str(outcome_text(claimed, quiet)) == (
        "Waiting: all wait for rank 0 (silent, no heartbeat for 140 s)"
    )


def test_all_appears_only_when_every_process_reported_success() -> None:
    for state in ("applied", "rejected", "outcome_unknown", "applying", "expired", "cancelled"):
        for count in (None, 0, 1, 511, 512):
            for of in (None, 1, 512):
                sentence = said(state, applied_at=AT, applied_on=count, of=of)
                assert ("on all" in sentence) == (state == "applied" and count == of == 512)


def test_a_missing_count_is_not_zero() -> None:
    assert "not reported" in said("applied", applied_at=AT)
    assert " 0 " not in said("outcome_unknown", code="x")
    assert "0 of 2 processes" in said("outcome_unknown", applied_on=0, of=2)


def test_unknown_is_never_green() -> None:
    for count in (None, 0, 511, 512):
        sentence = outcome_text(Given(Outcome("c", "outcome_unknown", applied_on=count, of=512)))
        assert sentence.tone == "unknown"


def test_many_failures_are_counted_and_the_first_ones_named() -> None:
    failures = tuple((rank, "h", "E: x") for rank in range(9))
    text = said("outcome_unknown", applied_on=503, of=512, failures=failures)
    assert "rank 2 (h), `E: x` and 6 more." in text
    assert "rank 3" not in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.01, 0.005, "0.01 -> 0.005"),
        ([0.01], [0.005], "0.01 -> 0.005"),
        ([0.01, 0.01], [0.005, 0.005], "0.01 -> 0.005 in 2 groups"),
        ([3e-4, 3e-5], [1.5e-4, 1.5e-5], "group0 3e-4 -> 1.5e-4, group1 3e-5 -> 1.5e-5"),
        (0.1, 0.100000001, "0.1 -> 0.100000001"),
        (None, 1.0, "none -> 1"),
        (True, False, "true -> false"),
        ("a\x1b", "b", "a\\x1b -> b"),
        ("true", True, '"true" -> true'),
        ([0.01, 0.01], [0.01, 0.01], "unchanged at 0.01 in 2 groups"),
        ([0.01, 0.02], [0.01, 0.02], "unchanged in all groups"),
        (None, None, "unchanged at none"),
    ],
)
def test_a_change_says_old_and_new(old: object, new: object, expected: str) -> None:
    assert _wording.change_text(old, new) == expected


def test_a_change_of_many_groups_names_four_and_counts_the_rest() -> None:
    text = _wording.change_text([1.0 + each for each in range(9)], [0.5] * 9)
    assert text.endswith("group3 4 -> 0.5 and 5 more groups")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    list(
        {
            0.9: "0 s",
            41: "41 s",
            179.9: "179 s",
            180: "3 min",
            3599: "59 min",
            3600: "1 h",
            11520: "3 h 12 min",
            172800: "2 d",
            -3: "0 s",
            math.inf: "an unknown time",
        }.items()
    ),
)
def test_durations_are_short_and_rounded_down(seconds: float, expected: str) -> None:
    assert _wording.duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.3141592, "2.314"),
        (3e-4, "3e-4"),
        (1.5e-4, "1.5e-4"),
        (0.001, "0.001"),
        (0.0, "0"),
        (-0.0, "-0"),
        (100.0, "100"),
        (1234.5678, "1235"),
        (98765.4, "98,770"),
        (1e6, "1e6"),
        (2.5e7, "2.5e7"),
        (12480, "12,480"),
        (math.nan, "NaN"),
        (math.inf, "+∞"),
        (-math.inf, "-∞"),
        (None, "none"),
        (True, "true"),
        ("x", "x"),
    ],
)
def test_values_have_four_significant_digits(value: object, expected: str) -> None:
    assert _wording.value_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (12480, "12480"),
        (1e-5, "1e-5"),
        (0.1 + 0.2, "0.30000000000000004"),
        ("a b", "a b"),
        ([0.5, 1.0], "[0.5,1]"),
        ({"a": [None, "x", False]}, '{"a":[null,"x",false]}'),
        ({"$number": "nonfinite", "value": "nan"}, "NaN"),
        ([{"$number": "-Infinity"}], "[-∞]"),
        ({"$number": "integer", "value": "9007199254740993"}, "9007199254740993"),
    ],
)
def test_an_input_is_said_as_it_is_typed(value: object, expected: str) -> None:
    assert _wording.payload_text({"echo": value}) == f"echo={expected}"


def test_what_nests_deeper_than_a_command_may_is_cut() -> None:
    deep: object = 1
    for _ in range(2000):
        deep = [deep]
    assert _wording.typed_text(deep) == "[" * 32 + "..." + "]" * 32


def test_a_name_cannot_move_the_cursor_or_reorder_the_line() -> None:
    assert _wording.plain("a\x1b[2Jb\r\n\u202egpj\u2066\x9b\ud800") == (
        "a\\x1b[2Jb\\r\\n\\u202egpj\\u2066\\x9b\\ud800"
    )


def test_ordinary_names_of_every_script_stay_as_they_are() -> None:
    for name in ("train/loss", "損失", "خسارة", "e\u0301", "👩\u200d🚀", "a b:@%#?"):
        assert _wording.plain(name) == name


def test_a_long_name_keeps_both_ends() -> None:
    assert _wording.cut("abcdefghij", 5) == "ab…ij"
    assert _wording.cut("abcdefghij", 6) == "abc…ij"
    assert _wording.cut("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_wording.starting_text(504, 512, 120), "starting: 504 of 512 ranks seen, 120 s"),
        (_wording.starting_text(1, 1, 300), "starting: 1 of 1 rank seen, 5 min"),
        (
            _wording.running_text({"silent": 1, "behind": 1, "ok": 510, "busy": 3}),
            "running, 1 rank silent, 1 behind",
        ),
        (_wording.running_text({}, 94.0), "running, no step for 94 s"),
        (
            _wording.no_news_text(840, "14:02", "gpu-000"),
            "no news for 14 min; last written 14:02 by gpu-000's clock",
        ),
        (_wording.finished_text(11520), "finished after 3 h 12 min"),
        (
            _wording.finished_text(51, {2: "gone"}),
            "finished after 51 s; rank 2 ended without an end record",
        ),
        (
            _wording.finished_text(None, dict.fromkeys(range(1, 8), "terminated") | {9: "odd"}),
            "finished; ranks 1-7 were terminated; rank 9 odd",
        ),
        (
            _wording.failed_text(137, 12480, "RuntimeError: no\x1b"),
            "failed on rank 137 at step 12,480: RuntimeError: no\\x1b",
        ),
        (_wording.stopped_text("SIGTERM", 12480), "stopped by SIGTERM at step 12,480"),
        (
            _wording.unreadable_text("run.json: permission denied", "alice"),
            "unreadable: run.json: permission denied (owner alice)",
        ),
    ],
)
def test_each_state_of_a_run_has_its_sentence(text: str, expected: str) -> None:
    assert text == expected


def test_what_a_command_returned_is_told_beside_what_it_changed():
    """A result of a script's command is shown in short, and dropout names its modules."""
    applied = Outcome("c", "applied", applied_on=1, of=1)
    custom = applied.but(result={"saved": 3, "where": "a"})
    assert _wording.commands._result_text(custom) == "result saved=3 where=a"
    nan = {"$number": "nonfinite", "value": "nan"}
    nested = applied.but(result={"loss": nan, "seen": {"ok": True, "why": None}})
    expected = 'result loss=NaN seen={"ok":true,"why":null}'
    assert _wording.commands._result_text(nested) == expected
    assert _wording.commands._result_text(applied.but(result={"echo": None})) == "result echo=null"
    result = {"modules": 5, "p": 0.2, "names": ["a", "b", "c", "d", "e"]}
    dropout = applied.but(changes={"dropout": {"old": 0.1, "new": 0.2}}, result=result)
    assert _wording.commands._result_text(dropout) == "in 5 modules (a, b, c and 2 more)"
    assert _wording.commands._result_text(applied) == ""
