"""Rich values that our syncer sent come back identical through the official SDK."""

from __future__ import annotations

import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy
import pytest

import launchhelm
from launchhelm import Audio, Histogram, Image, Run, Table, Text
from launchhelm.values.media import artifact_of, digest_of, items_of
from launchhelm.views import open_run, samples
from syncer.api.client import Client
from tests.support.official import Driver, why_missing
from tests.support.pushing import push_all, pushing, runs_on
from tests.support.v1_server import v1_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
]

PIXELS = numpy.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
DEEP = "\U0001f600 ü\n" * 100


def written(root: Path) -> Run:
    """Write a run that shows everything there is to show."""
    with launchhelm.init("quickstart", name="rich", state_dir=root) as run:
        link = run.media_url("https://example.org/x.png", "image/png", caption="far")
        item = run.upload_media(b"film", media_type="video/mp4", caption="ü")
        for step in range(3):
            run.image("frames", PIXELS * (step / 3), caption=f"at {step}", step=step)
            run.log({"gallery": [Image(PIXELS), link, Audio(b"s", media_type="audio/wav")]})
            run.text("notes", DEEP, format="markdown", caption="c", step=step)
            run.log({"gradients": Histogram([0.0, 1.0, math.nan, math.inf], bins=3)}, step=step)
        run.audio("sound", b"sound", media_type="audio/flac", step=1, fold=0.5)
        run.media("mixed", [item, link], step=2)
        run.rows("sweep", [{"lr": 0.1, "ok": True, "n": 2**53 - 1}, {"lr": math.nan, "m": item}])
        run.log({"table": Table([("a", "number")], []), "flat": Histogram([2.0, 2.0])})
        run.histogram_counts("precomputed", [-1, 0, 2.5], [2, 1.5], total=4, mean=0.5)
        run.log({"empty": Text("")})
        run.artifact(b"weights", name="weights")
    return run


def told(value: Any, ids: dict[str, str]) -> Any:
    """Put the digests of bytes in the place of the ids that a value has for them."""
    if isinstance(value, dict):
        value = {key: told(it, ids) for key, it in value.items()}
        return {**value, "id": ids.get(value["id"], value["id"])} if "id" in value else value
    return [told(it, ids) for it in value] if isinstance(value, list) else value


def test_every_rich_value_and_its_bytes_are_read_by_the_official_sdk(tmp_path: Path) -> None:
    run = written(tmp_path / "runs")
    with v1_process(tmp_path / "server") as server:
        with Client(server.url, server.organization, server.key) as client:
            with pushing(run.directory, client) as push:
                assert push_all(push)[-1].done
            (document,) = runs_on(client, run.run_id)
        directory = tmp_path / "cwd"
        project = document["scope"]["project_id"]
        driver = Driver(server, "rich_read", document["id"], project, directory=directory)
        try:
            theirs = {}
            while (facts := driver.said_any())["event"] == "samples":
                theirs[facts["spec"]["name"]] = facts
            read = driver.said("read")
            driver.ends()
        finally:
            driver.close()

    view = open_run(run.directory)
    streams = [stream for stream in samples.streams(view) if stream.type == "object"]
    assert {stream.name for stream in streams} == {
        name for name, it in theirs.items() if it["spec"].get("presentation")
    } - {"launchhelm/events", "launchhelm/controls"}
    assert len(streams) == 11
    for stream in streams:
        select = {"mode": "latest", "limit": 100}
        ours = samples.read_samples(view, stream.id, select=select)
        answer = theirs[stream.name]["answer"]
        assert answer["renderer"] == ours["renderer"] == stream.renderer
        assert answer["complete"] is True
        digests = {
            artifact_of(item): digest_of(item)
            for point in ours["points"]
            for item in items_of(point["value"])
        }
        expected = [{**it, "value": told(it["value"], digests)} for it in ours["points"]]
        found = [
            {**it, "value": told(it["value"], theirs[stream.name]["media"])}
            for it in answer["points"]
        ]
        for point in (*expected, *found):
            del point["epoch"]
        assert found == expected
        assert set(theirs[stream.name]["states"]) <= {"ready"}
        assert len(theirs[stream.name]["media"]) == len(set(digests.values()) - {""})

    assert read["fetched"] == {
        "frames": sha256(run.fetch("frames")).hexdigest(),
        "gallery": sha256(Image(PIXELS).blobs()[0].data).hexdigest(),
        "sound": sha256(b"sound").hexdigest(),
        "weights": sha256(b"weights").hexdigest(),
    }
    assert read["latest"]["notes"]["value"] == Text(DEEP, format="markdown", caption="c").value()
    assert read["latest"]["notes"]["coordinates"] == {"step": "2"}
    assert read["latest"]["gradients"]["value"] == {
        "edges": [0.0, 1 / 3, 2 / 3, 1.0],
        "counts": [1, 0, 1],
        "underflow": 0,
        "overflow": 1,
        "total": 4,
    }
    assert read["latest"]["sweep"]["value"]["rows"][1][0] is None
