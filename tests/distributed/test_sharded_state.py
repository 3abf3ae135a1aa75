"""The whole state of wrapped and sharded models: one copy, the same for any number of ranks."""

from __future__ import annotations

import io
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launchhelm.torch._shards import read_index
from tests.support.ranks import SHARDING, Ranks, run_ranks

DEADLINE_S = 120.0
KINDS = {4: ("flat", "hsdp"), 2: ("ddp", "zero", "fsdp1", "flat", "part", "compiled")}
"""By the number of ranks. zero: DDP whose optimizer is spread over the ranks; flat: FSDP1 with flat
parameters; part: only one layer is sharded by `fully_shard`; hsdp: on a mesh of 2 x 2; compiled:
`fully_shard` inside torch.compile."""

Tell = Callable[[str], None]


def build(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
    )


def wrapped(kind: str, model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if kind in ("ddp", "zero"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind in ("fsdp1", "flat"):
        cpu = torch.device("cpu")
        orig = kind == "fsdp1"
        model[0] = FullyShardedDataParallel(model[0], device_id=cpu, use_orig_params=orig)
        return FullyShardedDataParallel(model, device_id=cpu, use_orig_params=orig)
    size = torch.distributed.get_world_size()
    shape = (2, size // 2) if kind == "hsdp" else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")[-len(shape) :])
    fully_shard(model[0], mesh=mesh)
    if kind != "part":
        fully_shard(model, mesh=mesh)
    return torch.compile(model, backend="eager") if kind == "compiled" else model


def optimizer_of(model: Any, kind: str = "plain") -> Any:
    if kind == "flat":  # One flat parameter of a module cannot be in two groups.
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    groups: list[dict[str, Any]] = [
        {"params": [it for name, it in model.named_parameters() if name.endswith(end)]}
        for end in ("weight", "bias")
    ]
    groups[1]["weight_decay"] = 0.0
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, lr=0.01)
    return torch.optim.AdamW(groups, lr=0.01)


def train(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        torch.manual_seed(1000 + step)  # All ranks see the same, so sharding changes nothing.
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        optimizer.step()


def saved(model: Any, optimizer: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer}, buffer)
    return buffer.getvalue()


def tensors(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{path}.{key}")
    elif isinstance(state, torch.Tensor):
        yield path, state


def assert_equal(one: Any, other: Any, *, exactly: bool = True) -> None:
    """Compare the tensors of two states, by name."""
    ours, theirs = dict(tensors(one)), dict(tensors(other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        same = torch.equal(value, theirs[name])
        assert same or (not exactly and torch.allclose(value, theirs[name], atol=1e-5)), name


def go_on(rank: int, size: int, tell: Tell, root: str, come: str) -> None:
    """Take the states that are there, go on for two steps, and leave states, whole and in parts."""
    from launchhelm.torch._collective import make_links
    from launchhelm.torch._sharding import full_state, load_full_state
    from launchhelm.torch._shards import load_shards, save_shards

    links = make_links()
    nothing: dict[str, Any] = {"model": {}, "optimizer": {}}

    def fresh(kind: str) -> tuple[Any, Any]:
        model = wrapped(kind, build(seed=rank))  # Ranks that begin unlike are alike afterwards.
        return model, optimizer_of(model, kind)

    def taken(model: Any, optimizer: Any) -> dict[str, Any]:
        both = full_state(model, optimizer, is_coordinator=rank == 0, links=links)
        assert rank == 0 or both == ({}, {})
        return dict(zip(("model", "optimizer"), both, strict=True))

    for kind in KINDS[size]:
        # Whichever kind wrote it, but for the groups of the optimizer.
        path = Path(root, f"{come}-{'flat' if kind == 'flat' else 'hsdp'}")
        given = torch.load(path, weights_only=True) if rank == 0 else nothing
        model, optimizer = fresh(kind)
        load_full_state(model, optimizer, given["model"], given["optimizer"], links=links)
        now = taken(model, optimizer)
        if rank == 0:
            assert_equal(now, given)
            assert now["optimizer"]["param_groups"] == given["optimizer"]["param_groups"]
        parts = Path(root, f"{path.name}-parts")
        if parts.exists() and kind not in ("fsdp1", "flat"):
            outline = torch.load(parts / "outline.pt", weights_only=True) if rank == 0 else nothing
            other = fresh(kind)
            load_shards(parts, *other, outline["model"], outline["optimizer"], links=links)
            now = taken(*other)
            if rank == 0:
                assert_equal(now, given)
        train(model, optimizer, range(2 * size, 2 * size + 2))
        with torch.no_grad():
            model.eval()(torch.randn(8, 6))  # After which fully_shard leaves whole parameters.
        now = taken(model, optimizer)
        parts = Path(root, f"{size}-{kind}-parts")
        if kind not in ("fsdp1", "flat"):
            model_outline, optimizer_outline = save_shards(parts, model, optimizer, links=links)
        if rank == 0:
            Path(root, f"{size}-{kind}").write_bytes(saved(**now))
            if parts.exists():
                outlines = saved(model_outline, optimizer_outline)
                (parts / "outline.pt").write_bytes(outlines)
                assert len(outlines) < 10_000


def test_a_state_goes_from_one_process_to_4_ranks_to_2_and_back(tmp_path: Path) -> None:
    """Names, numbers and shapes are those of the bare model all along, and so are the values."""
    whole = {}
    for name in ("hsdp", "flat"):
        model = build(seed=7)
        optimizer = optimizer_of(model, name)
        train(model, optimizer, range(2))
        (tmp_path / f"1-{name}").write_bytes(saved(model.state_dict(), optimizer.state_dict()))
        train(model, optimizer, range(8, 10))
        train(model, optimizer, range(4, 6))
        whole[name] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    common = {"root": str(tmp_path), "deadline_s": DEADLINE_S, "imports": SHARDING}
    run_ranks(go_on, 4, come="1", **common)
    run_ranks(go_on, 2, come="4", **common)
    for kind in KINDS[2]:
        found = torch.load(tmp_path / f"2-{kind}", weights_only=True)
        name = "flat" if kind == "flat" else "hsdp"
        model = build(seed=0)
        optimizer = optimizer_of(model, name)
        model.load_state_dict(found["model"])  # As any program would, that knows nothing of ranks.
        optimizer.load_state_dict(found["optimizer"])
        restored = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        assert list(restored["model"]) == list(found["model"]), kind
        assert_equal(restored, whole[name], exactly=False)


def refused(rank: int, size: int, tell: Tell, root: str) -> dict[str, str]:
    """Return what each thing that cannot be right is refused with."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from launchhelm.torch._collective import make_links
    from launchhelm.torch._sharding import StateError, full_state, kind, load_full_state
    from launchhelm.torch._shards import load_shards, save_shards

    links = make_links()
    said: dict[str, str] = {}

    def expect(name: str, act: Callable[[], Any], model: Any = None) -> None:
        before = [value.clone() for _, value in tensors(model.state_dict())] if model else []
        with pytest.raises(StateError) as caught:
            act()
        assert not caught.value.is_changed
        said[name] = str(caught.value)
        after = [value for _, value in tensors(model.state_dict())] if model else []
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))

    def save(model: Any, optimizer: Any = None) -> Any:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return full_state(model, optimizer, is_coordinator=rank == 0, links=links)

    # Of ranks that hold different things, one copy would lose all but one.
    expect("stage", lambda: save(torch.nn.Linear(2, 3 + rank)))
    model = wrapped("part", build(seed=0))
    with torch.no_grad():
        model[3].bias += rank
    expect("expert", lambda: save(model))
    expect("expert in parts", lambda: save_shards(Path(root, "x"), model, sgd(model), links=links))
    ignoring = build(seed=rank)
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        ignoring, ["3.weight"]
    )
    expect("ignored", lambda: save(wrapped("ddp", ignoring)))
    some = init_device_mesh("cpu", (2, 1), mesh_dim_names=("stage", "data"))["data"]
    apart = build(seed=0)
    fully_shard(apart, mesh=some)
    assert save(apart)[0].keys() == (apart.state_dict().keys() if rank == 0 else set())
    with torch.no_grad():
        apart[0].bias += rank
    expect("submesh", lambda: save(apart))

    class Engine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = build(seed=0)

    assert kind(Engine()) == kind(None) == "unknown"
    expect("unknown", lambda: save(Engine()))

    # What an optimizer keeps for its shard alone.
    model = wrapped("fsdp2", build(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, range(1))
    for kept in optimizer.state.values():
        kept["momentum_buffer"] = kept["momentum_buffer"].to_local()
    expect("local", lambda: save(model, optimizer))

    # One rank cannot, so none does.
    class Failing(torch.optim.SGD):
        def state_dict(self) -> Any:
            if rank == 1:
                raise OSError("no space left")
            return super().state_dict()

    model = wrapped("fsdp2", build(seed=0))
    expect("one rank", lambda: save(model, Failing(model.parameters(), lr=0.1)))

    # What does not fit changes nothing.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit = [{"params": list(range(6))}]

    def load(state: Any, groups: Any = fit) -> None:
        of_optimizer = {"state": {}, "param_groups": groups}
        load_full_state(model, optimizer, state, of_optimizer, links=links)

    good = {name: torch.ones(value.shape) for name, value in model.state_dict().items()}
    lacks = {name: value for name, value in good.items() if name != "0.weight"}
    expect("name", lambda: load(lacks | {"1x": torch.ones(2)}), model)
    expect("shape", lambda: load(good | {"0.bias": torch.ones(4)}), model)
    expect("groups", lambda: load(good, [{"params": [0]}]), model)

    # A directory of parts.
    parts = Path(root, "parts")
    outlines = save_shards(parts, model, optimizer, links=links)
    torch.distributed.barrier()
    if rank == 0:
        (parts / "__1_0.distcp").write_bytes((parts / "__1_0.distcp").read_bytes()[:200])
    torch.distributed.barrier()
    expect("torn", lambda: load_shards(parts, model, optimizer, *outlines, links=links), model)
    flat = wrapped("fsdp1", build(seed=0))
    expect("fsdp1 in parts", lambda: save_shards(parts, flat, sgd(flat), links=links))
    return said


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_makes_no_whole_is_refused_on_all_ranks_alike(tmp_path: Path) -> None:
    one, other = (
        it.value
        for it in run_ranks(refused, 2, deadline_s=DEADLINE_S, imports=SHARDING, root=str(tmp_path))
    )
    assert one == other
    assert "rank 1 has other parameters" in one["stage"] and "[4]" in one["stage"]
    for name in ("expert", "expert in parts", "ignored", "submesh"):
        assert "rank 1 has other values than rank 0" in one[name], name
    assert "3.bias" in one["expert"] and "3.weight" in one["ignored"]
    assert "not known here" in one["unknown"]
    assert "momentum_buffer" in one["local"]
    assert "rank 1: OSError: no space left" in one["one rank"] and "rank 0" not in one["one rank"]
    assert "0.weight, 1x" in one["name"] and "0.bias" in one["shape"] and "[6]" in one["groups"]
    assert "rank 1" in one["torn"] and "without sharded=True" in one["fsdp1 in parts"]


def test_an_optimizer_that_has_not_stepped_is_left_so() -> None:
    """torch.distributed.checkpoint makes it step to learn what its state would be."""
    from launchhelm.torch._sharding import full_state

    model = build(seed=0)
    optimizer = optimizer_of(model)
    _, state = full_state(model, optimizer, is_coordinator=True)
    assert state["state"] == {} and not optimizer.state


class Code:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize(
    "damage", [b"", b"garbage", pickle.dumps(Code()), pickle.dumps({"storage_data": {}})]
)
def test_no_code_of_an_index_is_run(
    damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(damage)
    with pytest.raises(ValueError, match="no index of a checkpoint"):
        read_index(tmp_path)
    assert not Path("executed").exists()


def broken(rank: int, size: int, tell: Tell, dies: bool) -> list[Any]:
    """Rank 1 fails, or dies, when it puts the second tensor together."""
    import os
    import time
    from datetime import timedelta

    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from launchhelm.errors import Unavailable
    from launchhelm.torch._collective import make_links
    from launchhelm.torch._sharding import StateError, full_state

    links = make_links()
    group: Any = dist.new_group(timeout=timedelta(seconds=3))
    model = build(seed=0)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    put_together, count = DTensor.full_tensor, 0

    def whole(tensor: Any) -> Any:
        nonlocal count
        count += 1
        if rank == 1 and count == 2:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("no memory left")
        return put_together(tensor)

    DTensor.full_tensor = whole  # type: ignore[method-assign]
    since = time.monotonic()
    with pytest.raises((StateError, Unavailable)) as caught:
        full_state(model, sgd(model), is_coordinator=rank == 0, links=links)
    return [str(caught.value), time.monotonic() - since]


@pytest.mark.parametrize("dies", [False, True])
def test_a_rank_that_fails_or_dies_between_two_tensors_keeps_nobody_waiting(dies: bool) -> None:
    """Beyond the timeout of the mesh's group, which is 3 s here."""
    with Ranks(broken, 2, deadline_s=DEADLINE_S, imports=SHARDING, dies=dies) as ranks:
        left, other = ranks.wait()
    assert (left.code, other.code) == (0, -signal.SIGKILL if dies else 0), (left, other)
    said, waited_s = left.value
    assert "rank 1" in said and waited_s < 30.0
    if not dies:
        assert said == other.value[0] and "rank 1: OSError: no memory left" in said
