"""A run that is killed and goes on: `open`, then `again RUN` where it was, then elsewhere.

While the test keeps the server away, points go to the spool only; whoever opens the same state
directory next delivers them under the old epoch.
"""

from __future__ import annotations

import sys

from spoken import say, wait

import launchhelm

if sys.argv[1] == "open":
    run = launchhelm.init("contract", name="killed")
    run.log({"loss": 0.0}, step=0)
    run.flush()
    run.keep({"seen": 1})
    say("open", run_id=run.run_id, epoch=run.runtime.session["epoch"])
    wait()
    for step in range(1, 301):
        run.log({"loss": float(step)}, step=step)
    run.flush(delivered=False)
    say("spooled")
    wait()
else:
    run = launchhelm.init("contract", resume=sys.argv[2])
    say(
        "resumed",
        epoch=run.runtime.session["epoch"],
        participant=run.runtime.participant.id,
        restored=run.restored,
    )
    for _ in range(10):
        # Two metrics at once: the SDK makes a second stream `loss` of the same participant.
        run.log({"loss": -1.0, "other": 1.0})
    run.flush()
    say("delivered", history=run.history("loss", limit=10_000))
    run.finish(close_run=sys.argv[3:] == ["close"])
    say("finished")
