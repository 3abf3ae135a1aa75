"""What follows from each failure of a server."""

from __future__ import annotations

import pytest

from syncer.api.answers import ApiError
from syncer.retry import Fatal, PauseForKey, SkipRun, Split, Wait, decide, pause_s


def error(
    status: int, *, code: str = "a_code", retryable: bool = False, after: float | None = None
) -> ApiError:
    return ApiError(code, "Words.", status=status, retryable=retryable, retry_after_s=after)


@pytest.mark.parametrize("status", [0, 408, 425, 429, 500, 502, 503, 504])
def test_a_server_that_is_away_or_busy_is_waited_for(status: int) -> None:
    advice = decide(error(status), tries=0, chance=1.0)
    assert isinstance(advice, Wait) and advice.seconds == 1.0


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_pauses_for_a_minute(status: int) -> None:
    advice = decide(error(status))
    assert isinstance(advice, PauseForKey) and advice.seconds == 60.0


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_what_will_not_change_ends_the_work_on_the_run(status: int) -> None:
    advice = decide(error(status))
    assert isinstance(advice, SkipRun) and advice.status == status and "Words." in advice.why


@pytest.mark.parametrize("status", [200, 302, 400, 404, 409, 418])
def test_an_answer_of_something_in_between_is_no_last_word(status: int) -> None:
    assert isinstance(decide(error(status, code="http_error")), Wait)


def test_a_request_that_is_too_large_is_split() -> None:
    assert isinstance(decide(error(413)), Split)
    assert isinstance(decide(error(413, code="http_error")), Split)


def test_anything_else_is_final_unless_the_server_says_otherwise() -> None:
    assert isinstance(decide(error(400)), Fatal)
    assert isinstance(decide(error(400, retryable=True)), Wait)


def test_what_the_server_asks_for_is_kept_to() -> None:
    assert decide(error(429, after=2.5)) == Wait(2.5, "The server is not ready: Words. (429)")
    assert pause_s(7200.0, 0) == 3600.0


def test_waits_double_up_to_a_minute_with_jitter_below() -> None:
    assert [pause_s(None, tries, 1.0) for tries in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert pause_s(None, 10_000, 0.0) == 30.0
    assert all(15.0 <= pause_s(None, 5) <= 32.0 for _ in range(100))
