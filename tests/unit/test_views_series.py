"""Points of metrics: newest, windows, attempts, ranks, axes; from journals and sealed segments."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launchhelm import views
from launchhelm.store.layout import SegmentName
from launchhelm.store.segment import seal
from launchhelm.views.points import Selection
from launchhelm.views.series import Series
from tests.support.reading import EPOCH, RunBuilder, WriterBuilder


def log(writer: WriterBuilder, steps: range, *, sealed: bool = False, **more: object) -> None:
    for step in steps:
        writer.metrics(step, loss=step + writer.writer.attempt / 10, **more)
    writer.flush()
    if sealed:
        writer.seal()


def steps(points: list[views.Point]) -> list[int | None]:
    return [point.step for point in points]


def test_without_a_window_the_last_points_come_oldest_first(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(50), sealed=True)
    log(writer, range(50, 100), sealed=True)
    log(writer, range(100, 120))
    view = views.open_run(run.directory)
    assert steps(view.history("loss")) == list(range(120))
    assert steps(view.history("loss", limit=30)) == list(range(90, 120))
    assert steps(view.history("loss", limit=1)) == [119]
    assert view.history("other") == []


def test_with_a_window_the_first_points_inside_it_come(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(50), sealed=True)
    log(writer, range(50, 100))
    view = views.open_run(run.directory)
    assert steps(view.history("loss", step_from=45, limit=10)) == list(range(45, 55))
    assert steps(view.history("loss", step_to=3)) == [0, 1, 2, 3]
    assert steps(view.history("loss", step_from=98, step_to=500)) == [98, 99]
    assert view.history("loss", step_from=200) == []


def test_a_repeated_step_comes_from_the_newest_attempt_and_the_older_stays_available(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path, attempts=2)
    log(run.writer(attempt=1), range(213))
    log(run.writer(attempt=2), range(200, 301), sealed=True)
    view = views.open_run(run.directory)
    default = view.history("loss")
    assert steps(default) == list(range(301))
    assert {point.attempt for point in default if (point.step or 0) >= 200} == {2}
    everything = view.history("loss", all_attempts=True)
    assert len(everything) == 213 + 101
    assert [p.value for p in everything if p.step == 205] == [205.1, 205.2]
    assert sorted(steps(list(view.points("loss")))) == list(range(301))
    assert len(list(view.points("loss", all_attempts=True))) == 314
    assert steps(view.history("loss", step_from=190, step_to=220)) == list(range(190, 221))


def test_a_short_history_over_overlapping_attempts_is_exact(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, attempts=2)
    first = run.writer(attempt=1)
    log(first, range(300), sealed=True)
    log(first, range(300, 400), sealed=True)
    log(run.writer(attempt=2), range(250, 390, 2), sealed=True)
    view = views.open_run(run.directory)
    everything = view.history("loss", limit=10_000)
    for limit in (1, 5, 20, 60, 110, 200):
        assert view.history("loss", limit=limit) == everything[-limit:]
        assert view.history("loss", limit=limit, step_from=0) == everything[:limit]


def test_a_step_logged_several_times_appears_several_times_in_order_of_number(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    for value, at in ((1, 50.0), (2, 20.0), (3, 90.0)):
        writer.record("m", {"loss": value}, step=7, at=EPOCH + at)
    writer.flush()
    view = views.open_run(run.directory)
    assert [point.value for point in view.history("loss")] == [1, 2, 3]


def test_ranks_can_be_told_apart_or_read_together(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, world_size=3)
    for rank in range(3):
        writer = run.writer(rank)
        for step in range(4):
            writer.metrics(step, loss=rank * 100 + step)
        writer.flush()
    view = views.open_run(run.directory)
    assert [p.value for p in view.history("loss", rank=1)] == [100, 101, 102, 103]
    assert [(p.step, p.rank) for p in view.history("loss", step_to=1)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_axes_filter_by_exact_decimal(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    for epoch in ("0", "1", "1.50"):
        for step in range(3):
            writer.record("m", {"loss": step}, step=step, axes={"epoch": epoch})
    writer.flush()
    for sealed in (False, True):
        if sealed:
            writer.seal()
        view = views.open_run(run.directory)
        assert len(view.history("loss", epoch=1)) == 3
        assert len(view.history("loss", epoch=1.5)) == 3
        assert len(view.history("loss", epoch="1.5", limit=2)) == 2
        assert view.history("loss", epoch=2) == []
        assert view.history("loss", batch=1) == []
        newest = view.latest("loss", epoch=0)
        assert newest is not None
        assert newest.coordinates == {"step": "2", "epoch": "0"}


def test_classes_and_signs_of_values_survive_both_forms(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    values = [1, 1.0, True, False, -0.0, math.inf, -math.inf, "nan", 1 << 80, -(1 << 63), "", "x"]
    for step, value in enumerate(values):
        writer.metrics(step, v=value)
    writer.metrics(None, v=0.5)
    writer.flush()
    for sealed in (False, True):
        if sealed:
            writer.seal()
        points = views.open_run(run.directory).history("v")
        assert points[0].step is None
        found = [point.value for point in points[1:]]
        assert [(type(value), repr(value)) for value in found] == [
            (type(value), repr(value)) for value in values
        ]


def test_nan_comes_back_as_nan(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.metrics(0, loss=math.nan)
    writer.seal()
    writer.metrics(1, loss=math.nan)
    writer.flush()
    values = [point.value for point in views.open_run(run.directory).history("loss")]
    assert all(isinstance(value, float) and math.isnan(value) for value in values)


def test_the_newest_point_is_newest_by_number_not_by_step_or_clock(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.record("m", {"loss": 1}, step=900, at=EPOCH + 900)
    writer.seal()
    writer.record("m", {"loss": 2}, step=10, at=EPOCH - 3600)
    writer.metrics(11, other=1)
    writer.flush()
    newest = views.open_run(run.directory).latest("loss")
    assert newest is not None
    assert (newest.value, newest.step) == (2, 10)


def test_the_newest_point_comes_from_the_newest_attempt_that_has_one(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, attempts=2)
    old, new = run.writer(attempt=1), run.writer(attempt=2)
    old.record("m", {"loss": 1, "eval": 5}, step=100, at=EPOCH + 999)
    new.record("m", {"loss": 2}, step=50, at=EPOCH)
    old.flush()
    new.flush()
    view = views.open_run(run.directory)
    assert view.latest("loss").value == 2  # type: ignore[union-attr]
    assert view.latest("eval").value == 5  # type: ignore[union-attr]
    assert view.latest("none") is None


def test_the_newest_point_on_a_rare_axis_is_found_behind_many_others(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    writer.record("m", {"loss": 0.25}, step=0, axes={"fold": "9"})
    for step in range(1, 300):
        writer.record("m", {"loss": 1.0}, step=step, axes={"fold": "1"})
    writer.seal()
    point = views.open_run(run.directory).latest("loss", fold=9)
    assert point is not None
    assert point.value == 0.25


def test_names_and_kinds_of_all_metrics_are_known(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    first, second = run.writer(0), run.writer(1)
    first.metrics(0, loss=1.0, word="a", flag=True)
    first.record("def", {"name": "acc", "kind": "number", "axes": ["fold"], "unit": "%"})
    first.record("rich", {"name": "sample", "renderer": "text"}, step=1)
    first.seal()
    first.record("con", {"text": "hello"}, step=1)
    first.flush()
    second.record("sys", {"gpu/0/used": 12}, step=None)
    second.flush()
    view = views.open_run(run.directory)
    assert view.metrics() == ["acc", "console", "flag", "gpu/0/used", "loss", "sample", "word"]
    assert view.metric("loss") == {"kind": "number", "axes": ["step"], "unit": ""}
    assert view.metric("word") == {"kind": "string", "axes": ["step"], "unit": ""}
    assert view.metric("flag") == {"kind": "boolean", "axes": ["step"], "unit": ""}
    assert view.metric("acc") == {"kind": "number", "axes": ["step", "fold"], "unit": "%"}
    assert view.metric("sample") == {"kind": "object", "axes": ["step"], "unit": ""}
    assert view.metric("none") is None
    assert [point.value for point in view.history("gpu/0/used")] == [12]
    second.metrics(5, fresh=1)
    second.flush()
    assert "fresh" in view.metrics()


def test_odd_names_are_names(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    names = ['a"b', "back\\slash", "naïve/損失", "tab\there", " ", "loss:", 'x":1,"loss']
    writer.record("m", {name: index for index, name in enumerate(names)}, step=0)
    writer.flush()
    for sealed in (False, True):
        if sealed:
            writer.seal()
        view = views.open_run(run.directory)
        assert view.metrics() == sorted(names)
        for index, name in enumerate(names):
            assert [point.value for point in view.history(name)] == [index]
        assert view.history("loss") == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"limit": 10_001}, ValueError),
        ({"limit": True}, TypeError),
        ({"step_from": 5, "step_to": 4}, ValueError),
        ({"step_from": 1.5}, TypeError),
        ({"step": 3}, ValueError),
        ({"Bad": 3}, ValueError),
        ({"epoch": True}, TypeError),
        ({"epoch": math.nan}, ValueError),
    ],
)
def test_wrong_arguments_raise_at_once(
    tmp_path: Path, arguments: dict[str, object], error: type[Exception]
) -> None:
    view = views.open_run(RunBuilder(tmp_path).directory)
    with pytest.raises(error):
        view.history("loss", **arguments)  # type: ignore[arg-type]


def test_a_record_in_two_segments_is_one_point(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(5))
    twice = SegmentName(writer.writer, 2, sealed=False)
    (writer.data / str(twice)).write_bytes(writer.journal.read_bytes())
    view = views.open_run(run.directory)
    assert steps(view.history("loss")) == list(range(5))
    assert steps(list(view.points("loss"))) == list(range(5))


def test_damaged_lines_give_no_points_and_hide_no_others(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(10))
    damaged = writer.journal.read_bytes().replace(b'"loss":4.1', b'"loss":9.1')
    writer.journal.write_bytes(damaged + b'{"c":"0000')
    view = views.open_run(run.directory)
    wanted = [step for step in range(10) if step != 4]
    assert steps(view.history("loss")) == wanted
    assert steps(list(view.points("loss"))) == wanted
    assert view.latest("loss").step == 9  # type: ignore[union-attr]


def test_a_journal_that_is_sealed_while_it_is_read_is_read_from_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(20))
    series = Series(run.directory)
    listed = series._list
    journal = writer.rotate()

    def seal_after_listing() -> object:
        listing = listed()
        if journal.exists():
            seal(journal)
        return listing

    monkeypatch.setattr(series, "_list", seal_after_listing)
    assert steps(series.history(Selection("loss"), 100)) == list(range(20))


def test_points_can_be_read_to_the_end_although_their_journal_is_sealed_meanwhile(
    tmp_path: Path,
) -> None:
    run = RunBuilder(tmp_path)
    writer = run.writer()
    log(writer, range(20))
    points = views.open_run(run.directory).points("loss")
    first = next(points)
    writer.seal()
    assert [first.step, *(point.step for point in points)] == list(range(20))


def test_a_segment_that_cannot_be_read_is_said_and_the_others_are_shown(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, world_size=2)
    first, second = run.writer(0), run.writer(1)
    log(first, range(10), sealed=True)
    log(second, range(10), sealed=True)
    log(second, range(10, 15))
    broken = sorted(second.data.glob("r00001*.db"))[0]
    whole = broken.read_bytes()
    broken.chmod(0o640)
    broken.write_bytes(whole[:5000])
    view = views.open_run(run.directory)
    assert steps(view.history("loss", rank=1)) == list(range(10, 15))
    assert len(view.history("loss")) == 15
    assert any(broken.name in problem for problem in view.problems)
    broken.write_bytes(whole)
    assert len(view.history("loss")) == 25
    view.refresh()
    assert view.problems == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_history_is_what_a_plain_sort_of_all_visible_points_gives(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = RunBuilder(tmp_path_factory.mktemp("any"), attempts=3, world_size=2)
    for attempt in range(1, data.draw(st.integers(1, 3)) + 1):
        for rank in range(2):
            writer = run.writer(rank, attempt=attempt)
            for _ in range(data.draw(st.integers(0, 3))):
                for step in data.draw(st.lists(st.integers(-3, 12) | st.none(), max_size=8)):
                    writer.metrics(step, loss=writer.seq, other=0)
                action = data.draw(st.sampled_from(["flush", "seal", "rotate"]))
                if action == "seal" and writer.seq > writer._segment_first:
                    writer.seal()
                elif action == "rotate" and writer.seq > writer._segment_first:
                    writer.rotate()
            writer.flush()
    view = views.open_run(run.directory)
    every = sorted(view.points("loss", all_attempts=True), key=lambda point: point.order)
    newest: dict[int | None, int] = {}
    for point in every:
        newest[point.step] = max(point.attempt, newest.get(point.step, 0))
    visible = [p for p in every if p.step is None or p.attempt == newest[p.step]]
    limit = data.draw(st.integers(1, 12))
    low, high = data.draw(st.integers(-4, 6)), data.draw(st.integers(6, 13))
    inside = [p for p in visible if p.step is not None and low <= p.step <= high]
    assert view.history("loss", limit=limit) == visible[-limit:]
    assert view.history("loss", limit=limit, all_attempts=True) == every[-limit:]
    window = view.history("loss", limit=limit, step_from=low, step_to=high)
    assert window == inside[:limit]
    assert sorted(view.points("loss"), key=lambda point: point.order) == visible
