"""A process ends while an operation with another rank is still under way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

# Registered before torch's own handlers, so it runs after them. PyDLL keeps the GIL, so gloo's
# thread, which must drop the tensors of the operation that fails meanwhile, waits for the GIL just
# when the interpreter begins to shut down.
_RANK = """
import atexit, ctypes, os, pathlib, sys, time
rank, here = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if rank == 1:
    atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)
    atexit.register((here / "exiting").touch)
import torch.distributed as dist
from launchhelm.torch._collective import make_links

dist.init_process_group("gloo", init_method=f"file://{here}/store", rank=rank, world_size=2)
links = make_links()
if rank == 0:
    while not (here / "exiting").exists():
        time.sleep(0.01)
    time.sleep(0.5)
    os._exit(0)
links.timeout_s = 0.5
try:
    links.expect()
    links.receive()
except Exception as error:
    print(error)
del links
"""


def test_an_exit_with_an_operation_under_way_is_clean_when_the_peer_dies(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), tmp_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for rank in range(2)
    ]
    deadline = time.monotonic() + 60
    out, complaints = ranks[1].communicate(timeout=deadline - time.monotonic())
    ranks[0].communicate(timeout=deadline - time.monotonic())
    assert "did not come to step" in out
    assert (ranks[1].returncode, complaints) == (0, "")
