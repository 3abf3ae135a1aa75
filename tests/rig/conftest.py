"""The two-host rigs as fixtures. Without root, /dev/fuse or the packages, their tests skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import two_hosts as rig
from tests.support.two_hosts import TwoHosts


@pytest.fixture(scope="session")
def hostfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the file system of the quick rig, or skip and say what is missing."""
    if why := rig.missing():
        pytest.skip(why)
    return rig.build(tmp_path_factory.mktemp("hostfs"))


@pytest.fixture
def make_hosts(hostfs: Path, tmp_path: Path) -> Iterator[Callable[..., TwoHosts]]:
    """Make rigs with the options of TwoHosts; they are taken down at the end."""
    made: list[TwoHosts] = []

    def make(**options: object) -> TwoHosts:
        folder = tmp_path / f"hosts-{len(made)}"
        folder.mkdir()
        made.append(TwoHosts(folder, program=hostfs, **options))
        return made[-1]

    yield make
    for hosts in made:
        hosts.down()


@pytest.fixture
def hosts(make_hosts: Callable[..., TwoHosts]) -> TwoHosts:
    """Two hosts whose locks work within each of them only, as on many clusters."""
    return make_hosts()
