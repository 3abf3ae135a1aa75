"""Read what a syncer left on the server: every stream page by page, then as a run does."""

from __future__ import annotations

import hashlib
import os
import sys

from spoken import say

import launchhelm

client = launchhelm.Client(
    os.environ["LAUNCHHELM_URL"],
    os.environ["LAUNCHHELM_API_KEY"],
    os.environ["LAUNCHHELM_ORGANIZATION"],
)
run_id, project_id, artifact_id = sys.argv[1:4]
page = client.list_documents(kind="stream", project_id=project_id, run_id=run_id, limit=100)
for stream in page["items"]:
    points: list[object] = []
    after = {"start": "1970-01-01T00:00:00Z"}
    while True:
        answer = client.query(stream["id"], end="2261-01-01T00:00:00Z", limit=1000, **after)
        points += answer["items"]
        if answer["complete"]:
            break
        last = answer["items"][-1]
        after = {
            "start": last["observed_at"],
            "after_epoch": last["epoch"],
            "after_sequence": last["sequence"],
        }
    say("stream", spec=stream["spec"], points=points)
say("no more streams")
artifact = client.download_artifact(artifact_id)
say("artifact", sha256=hashlib.sha256(artifact).hexdigest(), size=len(artifact))

reader = launchhelm.init("quickstart", name="reader")
say(
    "read",
    about=reader.about(run_id),
    metrics=reader.metrics(run=run_id),
    latest=reader.latest("loss", run=run_id),
    newest_odd=reader.latest("odd", run=run_id),
    history=reader.history("loss", run=run_id, limit=10_000),
    fetched=hashlib.sha256(reader.fetch("weights", run=run_id)).hexdigest(),
)
reader.finish()
