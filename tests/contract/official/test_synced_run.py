"""What our syncer leaves on a server, seen by the official SDK, is what the run directory holds."""

from __future__ import annotations

import hashlib
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import launchhelm
from launchhelm.store.reader import Reader
from syncer.api import wire
from syncer.mapping import Sample, samples
from tests.support.official import ROOT, Driver, documents, why_missing
from tests.support.v1_server import V1Server, v1_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_missing()), reason=why_missing()),
]

ODD = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e22, 2**53, 2**70, -1, True, "nan", "ü", ""]
CONFIG = {"lr": 3e-4, "layers": [1, 2], "deep": {"a": False}, "on": True, "text": "ü" * 1200}


def _sync(server: V1Server, root: Path) -> None:
    command = [sys.executable, "-m", "launchhelm", "--root", str(root), "sync"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LAUNCHHELM_URL": server.url,
        "LAUNCHHELM_API_KEY": server.key,
        "LAUNCHHELM_ORGANIZATION": server.organization,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _text(value: Any) -> str:
    return wire.canonical(value).decode()


def test_every_point_label_and_byte_of_a_synced_run_is_read_by_the_official_sdk(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(random.Random(1).randbytes(300_000))
    root = tmp_path / "runs"
    run = launchhelm.init(
        "quickstart",
        name="synced",
        config=CONFIG,
        group="g",
        tags=["a", "b"],
        notes="n\u00fc",
        state_dir=root,
    )
    run.define("loss", unit="nats")
    for step in range(2500):
        run.log({"loss": 1 / (step + 1), "emoji \U0001f600/%": step}, step=step, fold=step % 2)
    for step, value in enumerate(ODD):
        run.log({"odd": value, f"odd {type(value).__name__}": value}, step=step)
    run.artifact(weights, name="weights")
    run.summary({"best": 0.25, "label": "x"})
    run.finish()
    with v1_process(tmp_path / "server") as server:
        _sync(server, root)
        [document] = [
            it
            for it in server.get("documents", kind="run")["items"]
            if it["spec"]["name"] == "synced"
        ]
        [artifact] = documents(server, "artifact", document["id"])
        driver = Driver(
            server,
            "synced_run",
            document["id"],
            document["scope"]["project_id"],
            artifact["id"],
            directory=tmp_path / "cwd",
        )
        try:
            found: Counter[tuple[str, str, str]] = Counter()
            while (facts := driver.said_any())["event"] == "stream":
                for point in facts["points"]:
                    at = _text(point["coordinates"])
                    found[facts["spec"]["name"], at, _text(point["value"])] += 1
            kept = driver.said("artifact")
            read = driver.said("read")
            driver.ends()
        finally:
            driver.close()

    expected: Counter[tuple[str, str, str]] = Counter()
    for record in Reader(run.directory).poll():
        for sample in samples(record, run.directory):
            assert isinstance(sample, Sample)
            point = wire.parse(sample.data, exact=False)
            value = point["value"]
            if value == run_artifact_id(run):
                value = artifact["id"]
            expected[sample.key.name, _text(point["coordinates"]), _text(value)] += 1
    assert found == expected
    assert found.total() > 5000

    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert (kept["sha256"], kept["size"], read["fetched"]) == (digest, 300_000, digest)
    about = read["about"]
    assert (about["state"], about["group"], about["tags"], about["notes"]) == (
        "closed",
        "g",
        ["a", "b"],
        "n\u00fc",
    )
    assert about["config"] == CONFIG
    assert about["summary"]["best"] == 0.25
    assert {"loss", "emoji \U0001f600/%", "odd", "weights"} <= set(read["metrics"])
    assert read["latest"]["coordinates"] == {"step": "2499", "fold": "1"}
    assert [point["value"] for point in read["history"]] == [1 / (step + 1) for step in range(2500)]


def run_artifact_id(run: launchhelm.Run) -> str:
    """Return the local id of the run's one artifact."""
    [record] = Reader(run.directory, kinds={"art"}).poll()
    return str(record.body["id"])
