"""What is wrong with the processes of a run: one rule after the other, with made-up ranks."""

from __future__ import annotations

from typing import Any

from launchhelm.records import WriterId
from launchhelm.views.findings import RULES, Finding, Scene, findings
from launchhelm.views.liveness import Age
from launchhelm.views.participants import ParticipantView


def row(rank: int, *, beat_s: float = 4.0, **facts: Any) -> ParticipantView:
    """A rank in order, at step 100 and training."""
    known: dict[str, Any] = {
        "state": "ok",
        "host": f"gpu-{rank // 4:03d}",
        "pid": 1000 + rank,
        "local_rank": rank % 4,
        "group_rank": rank,
        "world_size": 8,
        "step": 100,
        "phase": "training",
        "phase_s": 1.0,
        "lag": 0,
        "step_time_ms": 100.0,
        "exchange_wait_ms": 20.0,
    }
    return ParticipantView(
        writer=WriterId(rank, 1, f"{rank:08x}"),
        rank=rank,
        attempt=1,
        age=Age(beat_s),
        **{**known, **facts},
    )


def rows(count: int = 8, **of: dict[str, Any]) -> list[ParticipantView]:
    """Ranks in order, some of them otherwise: `r3={"step": 99}`."""
    return [row(rank, **of.get(f"r{rank}", {})) for rank in range(count)]


def found(scene: Scene) -> list[Finding]:
    made = findings(scene)
    assert {each.rule for each in made} <= set(RULES)
    return made


def headline(scene: Scene) -> Finding:
    return found(scene)[0]


def waiting(step: int = 100) -> dict[str, Any]:
    return {"phase": f"waiting at step {step}", "step": step}


def test_of_a_run_in_order_nothing_is_said() -> None:
    assert found(Scene(rows())) == []
    assert found(Scene(rows(), stuck_s=29, pace_s=0.1)) == []
    assert found(Scene(rows(1), stuck_s=1.0)) == []


def test_ranks_that_never_came_are_named_after_two_minutes() -> None:
    assert found(Scene(rows(6), missing=[6, 7], started_s=119)) == []
    said = headline(Scene(rows(6), missing=[6, 7], started_s=121))
    assert (said.rule, said.ranks) == ("missing", (6, 7))
    assert said.text == "Ranks 6-7 never seen, 121 s after the start."


def test_who_left_is_named_with_step_and_reason() -> None:
    gone = {"state": "ended", "end": "error", "reason": "OutOfMemoryError: 2 GiB", "step": 40}
    gone["ended_at"] = 1.0
    said = headline(Scene(rows(r2=gone)))
    assert (said.rule, said.ranks) == ("left", (2,))
    assert "Rank 2 (gpu-000, local 2) ended at step 40 (OutOfMemoryError: 2 GiB)" in said.text
    assert found(Scene([row(0, **gone)], is_over=True)) == []


def test_a_silent_host_is_one_finding() -> None:
    quiet = {"state": "silent", "beat_s": 130.0}
    said = found(Scene(rows(r4=quiet, r5=quiet, r6=quiet, r7=quiet)))
    assert [(each.rule, each.ranks) for each in said] == [("host_silent", (4, 5, 6, 7))]
    assert said[0].text == "All 4 ranks of gpu-001 are silent for 130 s."


def test_a_silent_rank_is_named_with_where_it_stood() -> None:
    said = headline(Scene(rows(r5={"state": "silent", "beat_s": 125.0, "step": 97})))
    assert (said.rule, said.ranks) == ("silent", (5,))
    assert "no heartbeat for 125 s, last heard of at step 97, in training code" in said.text
    assert said.look_at == ("on gpu-001: py-spy dump --pid 1005",)


def test_a_late_rank_is_named_with_those_that_wait_for_it_and_nobody_else_is_blamed() -> None:
    late = {"state": "late", "beat_s": 21.0, "step": 97, "lag": 0}
    those = [row(rank, **(late if rank == 1 else waiting())) for rank in range(3)]
    for stuck_s in (21.0, 90.0):
        (said,) = found(Scene(those, stuck_s=stuck_s, pace_s=0.1))
        assert (said.rule, said.ranks, said.mark) == ("late", (1,), "◐")
        assert said.text == (
            "Rank 1 (gpu-000, local 1): no heartbeat for 21 s, last heard of at step 97, in "
            "training code. Ranks 0, 2 wait for it."
        )
    assert found(Scene([row(0, **late)])) == []
    (said,) = found(Scene(rows(3, r1={**late, "awaited": True})))
    assert said.text.endswith("in training code. No other rank gets further.")


def test_of_a_killed_rank_the_last_step_heard_of_is_named() -> None:
    gone = {"state": "ended", "end": "gone", "reason": "process 7 is gone", "step": 40}
    said = headline(Scene(rows(r2=gone)))
    assert "Rank 2 (gpu-000, local 2) ended, last heard of at step 40 (process 7" in said.text


def test_the_laggard_holds_the_run_up_and_is_named_with_phase_and_step() -> None:
    late = {"step": 99, "phase": "training", "phase_s": 90.0, "state": "behind", "lag": 1}
    those = [row(rank, **(late if rank == 3 else waiting())) for rank in range(8)]
    said = headline(Scene(those, stuck_s=94.0, pace_s=2.0))
    assert (said.rule, said.ranks, said.weight) == ("laggard", (3,), "bad")
    assert said.text == (
        "Rank 3 holds the run up. Rank 3 (gpu-000, local 3) is at step 99, in training code for "
        "94 s. 7 ranks are at step 100."
    )
    assert said.look_at[0] == "data loader and storage of rank 3"
    assert said.look_at[1] == "on gpu-000: py-spy dump --pid 1003"


def test_a_slow_pace_is_not_a_standstill() -> None:
    late = {"step": 99, "state": "behind"}
    those = [row(rank, **(late if rank == 3 else waiting())) for rank in range(8)]
    assert found(Scene(those, stuck_s=94.0, pace_s=20.0)) == []


def test_who_has_not_come_to_the_exchange_is_named_long_before_the_timeout() -> None:
    those = [row(rank, **({} if rank == 6 else waiting())) for rank in range(8)]
    said = headline(Scene(those, stuck_s=40.0, pace_s=0.1))
    assert (said.rule, said.ranks) == ("exchange", (6,))
    assert "in training code" in said.text and "7 ranks are at step 100" in said.text


def test_all_at_one_place_names_no_rank_to_blame() -> None:
    said = headline(Scene(rows(), stuck_s=60.0, pace_s=0.1))
    assert (said.rule, said.weight) == ("same_place", "unknown")
    assert said.text.startswith("No rank has advanced for 60 s: all at step 100, training.")
    assert len(said.look_at) == 3


def test_a_long_checkpoint_is_information_not_an_error() -> None:
    those = [row(rank, phase="in checkpoint", state="busy") for rank in range(8)]
    assert headline(Scene(those, stuck_s=60.0)).weight == "info"


def test_a_slow_loader_blames_its_own_rank_not_the_waiting_ones() -> None:
    """All have the same step time, since the fast wait for the slow; who does not wait is slow."""
    those = [
        row(rank, step_time_ms=200.0, exchange_wait_ms=1.0 if rank == 2 else 100.0)
        for rank in range(8)
    ]
    said = found(Scene(those))
    assert [(each.rule, each.ranks) for each in said] == [("slow", (2,))]
    assert "works 2 times as long per step as the others" in said[0].text


def test_most_ranks_of_a_host_slow_is_a_slow_host() -> None:
    those = [
        row(rank, step_time_ms=200.0, exchange_wait_ms=1.0 if rank >= 8 else 100.0)
        for rank in range(12)
    ]
    said = found(Scene(those))
    assert [(each.rule, each.ranks) for each in said] == [("slow_host", (8, 9, 10, 11))]


def test_divergence_losses_and_clocks_are_said_also_of_a_run_that_ended() -> None:
    scene = Scene(
        rows(r1={"lost": 3}, r2={"storage_errors": 2}),
        diverged={"lr": {"0": 0.1, "5": 0.2}},
        clocks={"gpu-000": 0.0, "gpu-001": 7.5},
        is_over=True,
    )
    said = {each.rule: each for each in found(scene)}
    assert set(said) == {"diverged", "losing", "clock"}
    assert said["diverged"].text == "Diverged: lr is 0.1 on rank 0, 0.2 on rank 5."
    assert said["losing"].ranks == (1, 2)
    assert said["clock"].weight == "info"


def test_names_from_a_run_cannot_move_the_cursor() -> None:
    said = headline(Scene(rows(r5={"state": "silent", "beat_s": 125.0, "host": "a\x1b[2J"})))
    assert "\x1b" not in said.text and "\x1b" not in "".join(said.look_at)
