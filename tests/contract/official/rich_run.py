"""Media, tables, histograms, texts, artifacts and checkpoints, and their bytes read back.

The argument is the name of the project.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy
from spoken import say

import launchhelm

Path("weights.bin").write_bytes(os.urandom(300_000))
Path("step-7.pt").write_bytes(b"checkpoint")

with launchhelm.init(sys.argv[1], name="rich") as run:
    image = numpy.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
    run.image("frames", image, caption="a frame", step=1)
    run.log({"grid": [launchhelm.Image(image), launchhelm.Image(image[::-1])]}, step=1)
    run.media("linked", [run.media_url("https://example.org/x.png", "image/png")], step=1)
    run.rows("sweep", [{"lr": 0.1, "loss": 1.5, "ok": True}, {"lr": 0.2, "loss": 2, "ok": None}])
    run.histogram("gradients", [0.0, 0.5, 0.5, 1.0], bins=4, step=1)
    run.log({"flat": launchhelm.Histogram([2.0, 2.0])}, step=1)  # Two equal edges.
    run.text("notes", "**bold**", format="markdown", step=1)
    weights = run.artifact("weights.bin", step=2, name="weights")
    checkpoint = run.checkpoint("step-7.pt", step=7)
    run.flush()
    digest = hashlib.sha256(Path("weights.bin").read_bytes()).hexdigest()
    say(
        "artifacts",
        weights=weights.spec["sha256"] == digest,
        state=weights.spec["state"],
        fetched=hashlib.sha256(run.fetch("weights")).hexdigest() == digest,
        checkpoint=run.fetch("checkpoint").decode(),
        latest=run.latest("checkpoint")["value"] == checkpoint.id,
        frame=run.fetch("frames")[:8].hex(),
    )

    client = run.runtime.client
    samples = {}
    page = client.list_documents(kind="stream", project_id=run.project_id, run_id=run.run_id)
    for stream in page["items"]:
        if stream["spec"].get("presentation"):
            answer = client.read_samples(stream["id"], select={"mode": "latest", "limit": 4})
            samples[stream["spec"]["name"]] = {
                "renderer": answer["renderer"],
                "values": [point["value"] for point in answer["points"]],
                "media": {each["state"] for each in answer["media"].values()} == {"ready"},
            }
    say("samples", samples=samples)
