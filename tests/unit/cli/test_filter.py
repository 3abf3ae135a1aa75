"""The filter language of run lists."""

from __future__ import annotations

import pytest

from launchhelm.errors import ConfigError
from launchhelm.views import filter as _filter

ROW = {
    "id": "0199-abcd",
    "name": "LLM-7b-base",
    "tags": ["night", "base"],
    "state": "no news",
    "host": "gpu-017",
    "created_at": 1_796_000_000.0,
    "step": 12480,
    "config": {"lr": 3e-4, "model": {"depth": 12}, "opt": "adam"},
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llm",
        "0199",
        "night",
        "state:no-news",
        "state:news",
        "host:gpu-0",
        "tag:base",
        "-tag:day",
        "lr>1e-4",
        "lr=0.0003",
        "lr!=1",
        "model.depth>=12",
        "opt=adam",
        "opt~DAM",
        "step<=12480",
        "-unknown=3",
        "unknown!=3",
        "after:2026-11-01",
        "-zebra",
        "llm tag:base lr<1",
    ],
)
def test_a_filter_that_fits_keeps_the_run(text: str) -> None:
    assert _filter.parse(text)(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "zebra",
        "-llm",
        "state:running",
        "tag:bas",
        "lr<1e-4",
        "opt=sgd",
        "unknown>3",
        "before:2026-11-01",
        "llm zebra",
        "opt!=adam",
    ],
)
def test_a_filter_that_does_not_fit_drops_the_run(text: str) -> None:
    assert not _filter.parse(text)(ROW)


@pytest.mark.parametrize("text", ["lr>", "lr>fast", "before:soon"])
def test_a_bad_filter_says_where(text: str) -> None:
    with pytest.raises(ConfigError, match="Filter"):
        _filter.parse(text)
