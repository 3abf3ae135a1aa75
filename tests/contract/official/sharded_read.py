"""Read a checkpoint in shards that a syncer left on the server, with what the SDK offers."""

from __future__ import annotations

import hashlib
import json
import os
import sys

from spoken import say

import launchhelm

client = launchhelm.Client(
    os.environ["LAUNCHHELM_URL"],
    os.environ["LAUNCHHELM_API_KEY"],
    os.environ["LAUNCHHELM_ORGANIZATION"],
)
run_id, project_id, checkpoint_id = sys.argv[1:4]
reader = launchhelm.init("life", name="reader")
say(
    "checkpoint",
    id=reader.latest("checkpoint", run=run_id)["value"],
    fetched=hashlib.sha256(reader.fetch("checkpoint", run=run_id)).hexdigest(),
)
reader.finish()
page = client.list_documents(kind="artifact", project_id=project_id, run_id=run_id, limit=100)
(own,) = [document for document in page["items"] if document["id"] == checkpoint_id]
list_id = own["spec"]["provenance"]["labels"]["launchhelm.offline.shards"]
listed = json.loads(client.download_artifact(list_id))
shards = {
    each["name"]: hashlib.sha256(client.download_artifact(each["artifact"])).hexdigest()
    for each in listed["files"]
}
say("shards", directory=listed["directory"], listed=listed["files"], shards=shards)
