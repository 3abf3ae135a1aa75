"""Read what a syncer left on the server of a run's rich values: samples, and the bytes of media."""

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
run_id, project_id = sys.argv[1:3]
page = client.list_documents(kind="stream", project_id=project_id, run_id=run_id, limit=100)
for stream in page["items"]:
    answer = client.read_samples(stream["id"], select={"mode": "latest", "limit": 100})
    media = {
        id_: hashlib.sha256(client.download_artifact(id_)).hexdigest() for id_ in answer["media"]
    }
    states = sorted(each["state"] for each in answer["media"].values())
    say("samples", spec=stream["spec"], answer=answer, media=media, states=states)
say("no more")

reader = launchhelm.init("quickstart", name="reader")
fetched = {
    name: hashlib.sha256(reader.fetch(name, run=run_id)).hexdigest()
    for name in ("frames", "gallery", "sound", "weights")
}
latest = {name: reader.latest(name, run=run_id) for name in ("notes", "sweep", "gradients")}
say("read", fetched=fetched, latest=latest)
reader.finish()
