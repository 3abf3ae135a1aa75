"""The official SDK's own uploader, for benchmarks.sync: `fill STEPS METRICS`, later `send RUN`.

Runs in .venv-official, where `launchhelm` is the hosted product's SDK. Says facts as JSON lines and
goes on when a line comes in.
"""

from __future__ import annotations

import json
import sys
import time

import launchhelm


def say(**facts: object) -> None:
    """Tell the benchmark something."""
    print(json.dumps(facts), flush=True)


if sys.argv[1] == "fill":
    steps, metrics = map(int, sys.argv[2:])
    run = launchhelm.init("benchmark", name="official")
    names = [f"metric/{index}" for index in range(metrics - 1)]
    run.log({"loss": 1.0, **dict.fromkeys(names, 0.1)}, step=0)  # The streams need the server.
    run.flush()
    run.keep({})  # So that a resume is the same participant, whose spool it is.
    say(run=run.run_id)
    sys.stdin.readline()  # Until the server is away.
    began = time.perf_counter()
    for step in range(1, steps):
        run.log({"loss": 1.0 / (step + 1), **dict.fromkeys(names, step * 0.001 + 0.1)}, step=step)
    run.flush(delivered=False)
    say(logged_s=time.perf_counter() - began)
    sys.stdin.readline()  # Until it is killed.
else:
    began, began_cpu = time.perf_counter(), time.process_time()
    run = launchhelm.init("benchmark", resume=sys.argv[2])
    run.flush()
    say(sent_s=time.perf_counter() - began, cpu_s=time.process_time() - began_cpu)
    run.finish()
