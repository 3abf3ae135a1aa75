"""Log a loss, and read it back: no network, no account, no server.

Look at the folder that the first line names: `run.json` says who the run is, `data/` holds what was
logged. `launchhelm show latest` and `launchhelm tail latest` print it, also from another host.
"""

import math

import launchhelm

with launchhelm.init("quickstart", name="first-run", config={"lr": 0.1}) as run:
    for step in range(100):
        loss = math.exp(-step / 30) * (1.1 + 0.1 * math.sin(step))
        run.log({"loss": loss, "lr": 0.1}, step=step)

    newest = run.latest("loss")
    print(f"{run.run_id}: loss at step {newest['coordinates']['step']} is {newest['value']:.4f}")
    for point in run.history("loss", step_from=0, step_to=2):
        print(point["coordinates"]["step"], round(point["value"], 4))
