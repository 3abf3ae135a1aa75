"""The calls of a run that record what is looked at, without a server."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import pytest

import launchhelm
from launchhelm import Audio, Histogram, Image, Run, Table, Text
from launchhelm._run_shelf import Shelf
from launchhelm.errors import BufferFull, ProtocolError, StorageError
from launchhelm.rich import RichValue, media_url
from launchhelm.store import media
from tests.support.journals import records, series
from tests.support.runs import running

PIXELS = numpy.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
PNG = Image(PIXELS).blobs()[0].data
DIGEST = sha256(PNG).hexdigest()
LINK = media_url("https://example.org/x.png", "image/png")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path / "runs", name="under-test") as run:
        yield run


def bodies(run: Run) -> list[dict[str, Any]]:
    """Return the rich records of a run."""
    run.flush(delivered=False)
    return [dict(record.body) for record in records(run.directory, "rich")]


def test_the_bytes_of_a_medium_are_the_runs_own_when_the_call_returns(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "frame.png"
    path.write_bytes(PNG)
    assert run.image("frames", path, caption="c", step=3, fold=1)
    path.unlink()
    assert media.read(run.directory, DIGEST) == PNG
    assert run.fetch("frames") == PNG
    (body,) = bodies(run)
    assert body == {
        "name": "frames",
        "renderer": "media",
        "value": Image(PNG, media_type="image/png", caption="c").value(),
        "files": [{"sha256": DIGEST, "media_type": "image/png", "size": len(PNG)}],
    }
    (record,) = records(run.directory, "rich")
    assert (record.step, record.axes) == (3, {"fold": "1"})


def test_every_kind_is_a_record_of_its_own_and_none_moves_the_step(run: Run) -> None:
    run.log({"loss": 1.0}, step=4)
    item = run.upload_media(b"sound", media_type="audio/wav", caption="c")
    assert item["source"]["artifact"]["id"] == f"pending:{sha256(b'sound').hexdigest()}"
    made = [
        run.text("notes", "**bold**", format="markdown"),
        run.image("frames", PIXELS),
        run.audio("sound", b"sound", media_type="audio/wav"),
        run.video("film", b"film", media_type="video/mp4"),
        run.media(
            "gallery",
            [item, run.media_url("https://example.org/b.png", "image/png"), Image(PIXELS)],
        ),
        run.rows("sweep", [{"lr": 0.1, "ok": True}, {"lr": float("nan")}]),
        run.log_table("table", [("a", "integer"), ("m", "media")], [[1, item]]),
        run.histogram("gradients", numpy.ones(3, dtype=numpy.float32)),
        run.histogram_counts("precomputed", [0, 1], [2], total=3, fold=1),
    ]
    assert made == [True] * 9
    run.log({"loss": 0.5})
    found = bodies(run)
    assert [(body["name"], body["renderer"]) for body in found] == [
        ("notes", "text"),
        ("frames", "media"),
        ("sound", "media"),
        ("film", "media"),
        ("gallery", "media"),
        ("sweep", "table"),
        ("table", "table"),
        ("gradients", "histogram"),
        ("precomputed", "histogram"),
    ]
    assert {record.step for record in records(run.directory, "rich")} == {5}
    assert [step for step, _ in series(run.directory, "loss")] == [4, 5]
    assert records(run.directory, "rich")[-1].axes == {"fold": "1"}
    assert found[5]["left_out"] == 1 and found[5]["value"]["rows"][1] == [None, None]
    assert len(found[4]["files"]) == 2 and len(found[6]["files"]) == 1
    assert run.metric("precomputed") == {"kind": "object", "axes": ["step", "fold"], "unit": ""}
    assert run.metric("gradients") == {"kind": "object", "axes": ["step"], "unit": ""}


def test_log_takes_rich_values_and_lists_of_media_beside_numbers(run: Run) -> None:
    grid = [Image(PIXELS), LINK, Audio(b"x", media_type="audio/wav")]
    assert run.log({"grid": grid, "loss": 1.0, "t": Text("x"), "h": Histogram([1])}, step=7)
    assert run.log({"only": Table([("a", "integer")], [[1]])})
    assert run.next_step == 9
    assert [(body["name"], body["renderer"]) for body in bodies(run)] == [
        ("grid", "media"),
        ("t", "text"),
        ("h", "histogram"),
        ("only", "table"),
    ]
    assert [record.step for record in records(run.directory, "rich")] == [7, 7, 7, 8]
    assert series(run.directory, "loss") == [(7, 1.0)]


def test_an_odd_value_in_log_is_left_out_and_the_others_are_kept(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RichValue):
        renderer = "text"

        def value(self) -> dict[str, Any]:
            raise RuntimeError("not now")

    odd: dict[str, Any] = {
        "too many": [Image(PIXELS)] * 65,
        "empty": [],
        "numbers": [1, 2],
        "mixed": [Image(PIXELS), 3],
        "broken": Broken(),
        "\0": Text("x"),
        "large": Table([("a", "string")], [["x" * 4096]] * 200),
    }
    assert run.log({**odd, "loss": 1.0, "t": Text("x")}, step=0) is False
    assert run.log({"broken": Broken()}) is False
    assert [body["name"] for body in bodies(run)] == ["t"]
    assert series(run.directory, "loss") == [(0, 1.0)]
    assert run.next_step == 2
    assert "not now" in caplog.text and "820,251 bytes" in caplog.text
    assert ".." not in caplog.text
    with pytest.raises(TypeError):
        run.log({3: Text("x")})  # type: ignore[dict-item]


def test_a_metric_keeps_how_it_is_shown(run: Run) -> None:
    run.log({"loss": 1.0, "word": "a"})
    run.text("notes", "x")
    for name in ("loss", "word"):
        with pytest.raises(TypeError, match="another name"):
            run.text(name, "x")
    with pytest.raises(ValueError, match="shown as text"):
        run.image("notes", PIXELS)
    with pytest.raises(TypeError):
        run.define("notes", "number")
    with pytest.raises(TypeError):
        run.artifact(b"x", name="notes")
    # In `log` a value is never a reason to raise: it is kept under its own kind.
    assert run.log({"notes": Histogram([1.0]), "loss": Text("x")})
    assert run.log({"notes": 3.0})
    assert [(body["name"], body["renderer"]) for body in bodies(run)] == [
        ("notes", "text"),
        ("notes", "histogram"),
        ("loss", "text"),
    ]
    assert series(run.directory, "notes") == [(2, 3.0)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda run: run.text(3, "x"), TypeError),
        (lambda run: run.text("", "x"), ValueError),
        (lambda run: run.text("n", "x", step=1.0), TypeError),
        (lambda run: run.text("n", "x", Axis=1), ValueError),
        (lambda run: run.text("n", "x" * 65_537), ValueError),
        (lambda run: run.image("n", [[1]]), TypeError),
        (lambda run: run.image("n", "/no/such.png"), FileNotFoundError),
        (lambda run: run.audio("n", PIXELS), TypeError),
        (lambda run: run.video("n", b"x"), ValueError),
        (lambda run: run.media("n", []), ValueError),
        (lambda run: run.media("n", [{**LINK, "source": {"artifact": {}}}]), ValueError),
        (lambda run: run.rows("n", []), ValueError),
        (lambda run: run.rows("n", [{f"c{i}": i for i in range(64)}] * 1000), ValueError),
        (lambda run: run.histogram("n", []), ValueError),
        (lambda run: run.histogram_counts("n", [0, 0], [1]), ValueError),
        (lambda run: run.histogram_counts("n", [0, 1], [1], Nope=1), ValueError),
        (lambda run: run.media_url("http://example.org", "image/png"), ValueError),
        (lambda run: run.upload_media([1]), TypeError),
    ],
)
def test_a_wrong_argument_raises_at_once_and_records_nothing(
    run: Run, call: Callable[[Run], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(run)
    assert bodies(run) == []
    assert not (run.directory / "media").exists()


def test_an_item_is_of_the_run_that_has_its_bytes(run: Run, tmp_path: Path) -> None:
    with running(tmp_path / "runs", name="other") as other:
        item = other.upload_media(PIXELS)
    with pytest.raises(ValueError, match="upload_media"):
        run.media("m", [item])
    run.upload_media(PIXELS)
    assert run.media("m", [item])  # The bytes are here by now.


def test_equal_bytes_are_stored_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []
    put = media.put

    def counted(directory: Path, chunks: Any) -> media.Stored:
        result = put(directory, chunks)
        stored.append(result.sha256)
        return result

    monkeypatch.setattr(media, "put", counted)
    for step in range(5):
        run.image("frames", PIXELS, step=step)
        run.log({"grid": [Image(PIXELS), Image(PIXELS)]})
    assert stored == [DIGEST]
    assert [path.name for path in (run.directory / "media").iterdir()] == [DIGEST]


def test_a_full_disk_costs_the_picture_and_nothing_else(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    is_full = True

    def full(descriptor: int, data: Any) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr("os.write", full)
    for step in range(3):
        assert run.image("frames", PIXELS, step=step) is False
        assert run.log({"grid": [Image(PIXELS)], "loss": 0.5}, step=step) is False
    with pytest.raises(StorageError):
        run.upload_media(PIXELS)
    is_full = False
    assert run.image("frames", PIXELS, step=3)
    assert [body["name"] for body in bodies(run)] == ["frames"]
    assert len(series(run.directory, "loss")) == 3
    assert run.recorder.faults["media"] == 6
    assert caplog.text.count("No space left") == 1


def test_storage_that_hangs_holds_training_up_once(tmp_path: Path) -> None:
    goes_on = threading.Event()
    shelf = Shelf(tmp_path, patience_s=0.05)
    real = media.put

    def hangs(directory: Path, chunks: Any) -> media.Stored:
        assert goes_on.wait(30)
        return real(directory, chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(media, "put", hangs)
        with pytest.raises(TimeoutError, match="took nothing"):
            shelf.put(Image(PIXELS).blobs())
        with pytest.raises(TimeoutError, match="still hangs"):
            shelf.put(Audio(b"x", media_type="audio/wav").blobs())
        goes_on.set()
        assert shelf._hanging is not None
        shelf._hanging.join(30)
        shelf.put(Audio(b"x", media_type="audio/wav").blobs())
    assert len(list((tmp_path / "media").iterdir())) == 2


def test_media_are_bounded_where_the_caller_asked_for_it(tmp_path: Path) -> None:
    with running(tmp_path / "runs", media_spool_bytes=100) as run:
        sounds = [run.audio("a", bytes(60), media_type="audio/wav")]
        sounds += [run.audio("a", b"x" * 60, media_type="audio/wav")]
        sounds += [run.audio("a", b"x" * 40, media_type="audio/wav")]
        assert sounds == [True, False, True]
        assert run.text("t", "x")


def test_a_full_buffer_raises_where_the_script_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "runs", overflow="raise") as run:

        def full(*args: object, **options: object) -> bool:
            raise BufferFull

        monkeypatch.setattr(run.recorder, "append", full)
        with pytest.raises(BufferFull):
            run.text("t", "x")
        with pytest.raises(BufferFull):
            run.log({"t": Text("x")})


def test_waiting_values_count_with_their_size(run: Run) -> None:
    """The buffer is bounded by bytes, and a table is more than its two fields."""
    buffer = run.recorder._buffer  # type: ignore[union-attr]
    run.flush(delivered=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer, "take", lambda *arguments: 0)
        run.log_table("t", [("a", "string")], [["x" * 4096]] * 100)
        assert buffer._size_bytes > 400_000


def test_after_the_end_nothing_is_stored_and_nothing_raised(run: Run) -> None:
    run.image("frames", PIXELS)
    run.finish()
    assert run.image("frames", PIXELS * 0.5) is False
    assert run.text("notes", "x") is False
    assert run.log({"t": [Image(PIXELS * 0.5)]}) is False
    assert run.upload_media(PIXELS * 0.25)["media_type"] == "image/png"
    assert len(list((run.directory / "media").iterdir())) == 1
    assert run.fetch("frames") == PNG


def test_what_was_recorded_is_read_back(run: Run, tmp_path: Path) -> None:
    for step in range(4):
        run.image("frames", PIXELS * (step / 4), step=step)
        run.text("notes", f"at {step}", step=step, fold=step % 2)
    assert run.fetch("frames") == Image(PIXELS * 0.75).blobs()[0].data
    newest = run.latest("notes")
    assert newest is not None and newest["value"] == {"text": "at 3"}
    assert newest["coordinates"] == {"step": "3", "fold": "1"}
    even = run.latest("notes", fold=0)
    assert even is not None and even["value"] == {"text": "at 2"}
    assert [it["value"]["text"] for it in run.history("notes", limit=2)] == ["at 2", "at 3"]
    window = run.history("notes", step_from=1, step_to=2)
    assert [it["value"]["text"] for it in window] == ["at 1", "at 2"]
    assert run.table("notes")[0] == {"step": "0", "notes": {"text": "at 0"}}
    run.log({"linked": [LINK]})
    for name in ("notes", "linked", "missing"):
        with pytest.raises(ProtocolError):
            run.fetch(name)
    artifact = run.artifact(b"weights")
    item = {"source": {"artifact": {"id": artifact.id, "sha256": artifact.spec["sha256"]}}}
    run.media("kept", [LINK, {**item, "media_type": "image/png"}])
    assert run.fetch("kept") == b"weights"


def test_a_damaged_medium_is_told_apart_from_a_missing_one(run: Run) -> None:
    run.image("frames", PIXELS)
    path = media.path_of(run.directory, DIGEST)
    path.chmod(0o600)
    path.write_bytes(b"other")
    with pytest.raises(StorageError, match="damaged"):
        run.fetch("frames")
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        run.fetch("frames")


def test_an_attempt_shows_its_own_values_at_the_steps_that_it_repeats(tmp_path: Path) -> None:
    with running(tmp_path / "runs") as run:
        for step in range(3):
            run.text("notes", f"first {step}", step=step)
        run.finish(close_run=False)
    with running(tmp_path / "runs", resume=run.run_id) as again:
        again.text("notes", "second 1", step=1)
        shown = [it["value"]["text"] for it in again.history("notes")]
        assert shown == ["first 0", "second 1", "first 2"]
        newest = again.latest("notes")
        assert newest is not None and newest["value"]["text"] == "second 1"


def test_the_public_names_are_there() -> None:
    for name in ("Text", "Image", "Audio", "Video", "Table", "Histogram"):
        assert issubclass(getattr(launchhelm, name), RichValue)
