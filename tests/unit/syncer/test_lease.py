"""The lease: who holds it, when it lapses, and what is told of its holder."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from syncer.lease import LEASE_S, Lease, lease_name
from syncer.state import state_name
from tests.support.runs import TurnedClock


def test_a_released_lease_can_be_taken_at_once(tmp_path: Path) -> None:
    first = Lease(tmp_path)
    assert first.try_acquire() == 1
    first.release()

    assert Lease(tmp_path).try_acquire() == 2


def test_the_holder_of_a_lease_is_named_to_those_who_wait(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    assert first.try_acquire() == 1

    assert second.try_acquire() is None
    assert second.holder == f"{socket.gethostname()}, process {os.getpid()}"
    first.release()


def test_a_holder_keeps_its_epoch(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    assert [lease.try_acquire() for _ in range(3)] == [1, 1, 1]
    assert lease.still_mine()


def test_a_lease_lapses_when_its_counter_stood_still_on_the_observers_clock(
    tmp_path: Path,
) -> None:
    clock = TurnedClock()
    first, second = Lease(tmp_path, clock), Lease(tmp_path, clock)
    first.try_acquire()
    for _ in range(30):
        clock.turn(20)
        first.renew()
        assert second.try_acquire() is None
    clock.turn(LEASE_S - 1)
    assert second.try_acquire() is None
    clock.turn(1)
    assert second.try_acquire() == 2
    assert not first.still_mine()
    assert os.listdir(tmp_path) == [lease_name(2)]


def test_the_first_look_at_a_lease_never_takes_it_whatever_the_clocks_say(tmp_path: Path) -> None:
    Lease(tmp_path, TurnedClock(5.0)).try_acquire()
    os.utime(tmp_path / lease_name(1), (0, 0))
    assert Lease(tmp_path, TurnedClock(1e9)).try_acquire() is None


def test_a_replaced_holder_sees_it_by_listing_and_may_try_again(tmp_path: Path) -> None:
    clock = TurnedClock()
    first, second = Lease(tmp_path, clock), Lease(tmp_path, clock)
    first.try_acquire()
    second.try_acquire()
    clock.turn(LEASE_S)
    assert second.try_acquire() == 2
    assert not first.still_mine()
    first.renew()
    assert first.try_acquire() is None
    second.release()
    assert first.try_acquire() == 3


def test_a_holder_whose_lease_or_state_was_deleted_holds_nothing(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    lease.try_acquire()
    (tmp_path / state_name(1, 1)).touch()
    assert lease.still_mine(state_name(1, 1))
    assert not lease.still_mine(state_name(1, 2))
    (tmp_path / lease_name(1)).unlink()
    assert not lease.still_mine()


def test_numbers_never_fall_even_when_the_lease_files_are_gone(tmp_path: Path) -> None:
    (tmp_path / state_name(7, 3)).touch()
    assert Lease(tmp_path).try_acquire() == 8


def test_a_damaged_lease_lapses_like_any_other(tmp_path: Path) -> None:
    clock = TurnedClock()
    (tmp_path / lease_name(4)).write_bytes(b"\0" * 100)
    lease = Lease(tmp_path, clock)
    assert lease.try_acquire() is None
    clock.turn(LEASE_S)
    assert lease.try_acquire() == 5


def test_of_many_that_try_at_once_one_gets_it(tmp_path: Path) -> None:
    for _ in range(30):
        leases = [Lease(tmp_path) for _ in range(8)]
        barrier = threading.Barrier(len(leases))

        def take(lease: Lease, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            lease.try_acquire()

        threads = [threading.Thread(target=take, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        holders = [lease for lease in leases if lease.epoch is not None and lease.still_mine()]
        assert len(holders) == 1
        holders[0].release()


def test_a_directory_that_cannot_be_listed_is_an_error_and_no_lease(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Lease(tmp_path / "missing").try_acquire()
