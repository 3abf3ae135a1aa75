"""Many commands at random moments against real ranks, and the check that all ranks agree.

`train` is the body of a rank: it trains until a command stops it, and notes after every step what
it holds. `storm` starts the ranks, sends the commands from outside and returns what must be true.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchhelm.records import Command, Outcome
from launchhelm.store import inbox
from tests.support.journals import final_outcomes, only_run, records, wait_until
from tests.support.ranks import Ranks

UNLUCKY = 0.625
"""A value that the fragile rank fails on, after the tunable has already changed."""

FRAGILE_RANK = 2


def train(
    rank: int, size: int, tell: Callable[[str], None], root: str, seed: int, out: str
) -> dict[str, Any]:
    """Train with DDP until `set_stop`; write one line per step: digest, rates, tunables."""
    import warnings

    import torch
    from torch.nn.parallel import DistributedDataParallel

    import launchhelm.torch as lht
    from launchhelm.torch import Tunable

    if rank == FRAGILE_RANK:
        take = Tunable.take

        def fragile(self: Tunable, value: object) -> None:
            take(self, value)
            if value == UNLUCKY:
                raise RuntimeError("this rank had bad luck")

        Tunable.take = fragile  # type: ignore[method-assign]

    torch.manual_seed(seed)
    module = torch.nn.Linear(4, 2)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(
        [{"params": [module.weight], "lr": 0.01}, {"params": [module.bias], "lr": 0.02}]
    )
    torch.manual_seed(seed + rank)
    tr = lht.init("storm", state_dir=root, on_partial_failure="continue")
    tr.watch(model, optimizer)
    gain = tr.tunable("gain", 0.5, minimum=0.0, maximum=1.0)
    depth = tr.tunable("depth", 3, minimum=1, maximum=9)
    mode = tr.tunable("mode", "plain", choices=["plain", "noisy"])
    stop = tr.tunable("stop", False)
    with warnings.catch_warnings(), open(f"{out}/{rank}", "w", encoding="utf-8") as notes:
        warnings.simplefilter("ignore", RuntimeWarning)
        step = 0
        while not stop.value:
            step += 1
            loss = (model(torch.randn(3, 4)) * gain.value).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tr.step(step, loss=loss)
            weights = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
            held = {
                "weights": hashlib.sha256(weights).hexdigest()[:16],
                "lr": [group["lr"] for group in optimizer.param_groups],
                "set_gain": gain.value,
                "set_depth": depth.value,
                "set_mode": mode.value,
                "set_stop": stop.value,
            }
            print(json.dumps(held), file=notes)
            if step == 5:
                tell("training")
            time.sleep(0.001)
    tr.finish()
    return {"steps": step}


@dataclass(frozen=True)
class Storm:
    """What was sent, what became of it, and what each rank held after each step."""

    run: Path
    sent: dict[str, tuple[Command, str]]
    outcomes: dict[str, list[Outcome]]
    held: list[list[dict[str, Any]]]

    def check(self) -> None:
        """Assert that ranks agree at every step and that every outcome is true, and there once."""
        first = self.held[0]
        for rank, held in enumerate(self.held):
            assert len(held) == len(first), f"rank {rank} made {len(held)} of {len(first)} steps"
            for step, (ours, theirs) in enumerate(zip(first, held, strict=True), start=1):
                assert ours == theirs, f"rank {rank} differs from rank 0 at step {step}"

        applied_at: dict[int, list[Outcome]] = {}
        for id_, (command, expected) in self.sent.items():
            (outcome,) = self.outcomes[id_]
            assert outcome.state == expected, (command, outcome)
            size = len(self.held)
            if expected == "applied":
                assert (outcome.applied_on, outcome.of) == (size, size), outcome
                applied_at.setdefault(int(outcome.applied_at["step"]), []).append(outcome)
            elif expected == "outcome_unknown":
                assert (outcome.applied_on, outcome.of) == (size - 1, size), outcome
                assert outcome.rolled_back is True, outcome
                assert [failure[0] for failure in outcome.failures] == [FRAGILE_RANK], outcome

        # The values change at the steps that the outcomes name, to what they say, and nowhere else.
        for step in range(2, len(first) + 1):
            before, after = first[step - 2], first[step - 1]
            changed = {name for name in after if name != "weights" and after[name] != before[name]}
            for outcome in applied_at.get(step, []):
                name = outcome.name
                value = outcome.result["lr" if name == "lr" else "value"]
                assert after[name] == value, (step, outcome)
                assert outcome.changes[name] == {"old": before[name], "new": value}, outcome
                changed.discard(name)
            assert not changed, f"{changed} changed at step {step} without a command"

        effects = {record.body["cmd"] for record in records(self.run, "effect")}
        applied = {outcome.command for group in applied_at.values() for outcome in group}
        assert effects >= applied - {"stop"}


def commands(count: int, seed: int) -> list[tuple[Command, str]]:
    """Make random commands with the final state that each must come to."""
    dice = random.Random(seed)
    made: list[tuple[Command, str]] = []
    for index in range(count):
        kind = dice.randrange(10)
        if kind < 3:
            name, payload, state = "lr", {"scale": dice.choice([0.5, 0.9, 1.1, 2.0])}, "applied"
        elif kind == 3:
            name, state = "lr", "applied"
            payload = {"lr": round(dice.uniform(1e-3, 3e-2), 5), "group": dice.randrange(2)}
        elif kind == 4:
            name, payload, state = "set_depth", {"value": dice.randint(1, 9)}, "applied"
        elif kind == 5:
            name, payload, state = "set_gain", {"value": dice.choice([0, 0.25, 1.0])}, "applied"
        elif kind == 6:
            name, payload, state = "set_mode", {"value": dice.choice(["plain", "noisy"])}, "applied"
        elif kind == 7:
            name, payload, state = "set_gain", {"value": UNLUCKY}, "outcome_unknown"
        else:
            name, payload = dice.choice(INVALID)
            state = "rejected"
        made.append((Command(f"c{index}", name, payload, issued_by="storm"), state))
    return made


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("lr", {"scale": -1}),
    ("lr", {"scale": 0.5, "lr": 0.1}),
    ("lr", {}),
    ("lr", {"scale": 0.5, "group": 2}),
    ("lr", {"lr": "0.1"}),
    ("lr", {"scale": 0}),
    ("set_depth", {"value": 10}),
    ("set_depth", {"value": 2.0}),
    ("set_gain", {"value": 1.5}),
    ("set_mode", {"value": "loud"}),
    ("set_nothing", {"value": 1}),
    ("weight_decay", {"value": -0.1}),
]


def storm(root: Path, *, ranks: int, count: int, seed: int, deadline_s: float) -> Storm:
    """Run it all; every wait has a deadline."""
    out = root / "notes"
    runs = root / "runs"
    out.mkdir(parents=True)
    sent = {command.id: (command, state) for command, state in commands(count, seed)}
    dice = random.Random(seed + 1)
    with Ranks(
        train, ranks, deadline_s=deadline_s, root=str(runs), seed=seed, out=str(out)
    ) as group:
        group.wait_for(0, "training")
        run = only_run(runs)
        for command, _ in sent.values():
            inbox.send(run, command)
            time.sleep(dice.choice([0.0, 0.0, 0.01, 0.1, 0.3]))
        wait_until(
            lambda: len(final_outcomes(run)) >= count,
            "every command to come to an end",
            timeout_s=deadline_s,
        )
        stop = Command("stop", "set_stop", {"value": True}, issued_by="storm")
        inbox.send(run, stop)
        ended = group.wait()
    assert all(one.code == 0 for one in ended), ended
    held = [
        [json.loads(line) for line in (out / str(rank)).read_text("utf-8").splitlines()]
        for rank in range(ranks)
    ]
    return Storm(run, {**sent, "stop": (stop, "applied")}, final_outcomes(run), held)
