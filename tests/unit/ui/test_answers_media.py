"""Histograms over steps, as the dashboard answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.dashboard import Dashboard
from tests.support.reading import RunBuilder, WriterBuilder


def log(writer: WriterBuilder, step: int, counts: list[int]) -> None:
    value = {"edges": [0.0, 0.5, 1.0], "counts": counts}
    writer.record("rich", {"name": "weights", "renderer": "histogram", "value": value}, step=step)


def test_a_histogram_comes_with_those_of_steps_before_it(tmp_path: Path) -> None:
    made = RunBuilder(tmp_path)
    writer = made.writer(0)
    for step in range(40):
        log(writer, step, [step, 40 - step])
    log(writer, 39, [7, 7])
    writer.flush()
    ui = Dashboard(tmp_path)
    path = f"runs/{ui.get('runs')['runs'][0]['id']}/media"

    def history(**query: Any) -> list[Any]:
        found: list[Any] = ui.get(path, name="weights", **query)["items"][-1]["history"]
        return found

    newest = history()
    assert [one["step"] for one in newest] == [*range(3, 40, 4)]
    assert newest[-1]["counts"] == [7, 7]
    assert [one["step"] for one in history(step=5)] == [0, 1, 2, 3, 4, 5]
