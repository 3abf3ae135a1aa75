"""Stop, start again, and go on with the same run.

Look at the steps: the second start is attempt 2 of the same run. It finds the state that the first
one kept, and never touches what that one wrote; `launchhelm show latest` shows both attempts.
"""

import launchhelm


def train(resume: str = "") -> str:
    """Train ten steps; the last one may come later."""
    run = launchhelm.init("quickstart", name="resumed-run", resume=resume)
    weight = run.restored.get("weight", 0.0)
    first = run.next_step
    for step in range(first, first + 10):
        weight += 0.1
        run.log({"weight": weight}, step=step)
        run.keep({"weight": weight})
    print(f"attempt {run.attempt.number}: steps {first} to {step}, weight {weight:.1f}")
    # The run stays open, so that it can be resumed; leaving a `with` block would close it.
    run.finish(close_run=False)
    return run.run_id


run_id = train()
train(resume=run_id)
