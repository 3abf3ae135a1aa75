"""The lease: who holds it, when it lapses, and what is told of its holder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from syncer.lease import Lease


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
