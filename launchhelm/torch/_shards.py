"""A checkpoint in parts: each rank writes its shards, for models that do not fit one host.

The parts are a directory of torch.distributed.checkpoint, which that package can read by itself.
Its index is a pickle: it is read here by an unpickler that knows the classes of such an index and
no others. All else of a state (numbers, shapes, settings) is its *outline*: the same state with
empty tensors, which is saved like a whole one.

Both functions are collective, on the training thread, and both read or write `directory` there. The
plan of who writes what goes through `process_group`, as torch.distributed.checkpoint does it.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from launchhelm.torch._checkpoint_file import freed_on_failure
from launchhelm.torch._collective import Links
from launchhelm.torch._sharding import (
    Others,
    State,
    Target,
    kind,
    mapped,
    outlined,
    own_state,
    require_same,
)
from launchhelm.torch._wrapping import is_dtensor

_INDEX: Final = ".metadata"
_NO_INDEX: Final = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
_CLASSES: Final = {
    "torch": frozenset(("Size",)),
    "torch.serialization": frozenset(("_get_layout",)),
    "torch.distributed.checkpoint.filesystem": frozenset(("_StorageInfo",)),
    "torch.distributed.checkpoint.metadata": frozenset(
        (
            *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
            *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
    "pathlib": frozenset(("PosixPath", "PurePosixPath")),
    "pathlib._local": frozenset(("PosixPath", "PurePosixPath")),
}


def save_shards(
    directory: Path,
    model: torch.nn.Module,
    optimizer: Any,
    *,
    links: Links | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[State, State]:
    """Write this rank's parts of a state into a directory that all ranks see. Collective.

    Returns:
        The outlines of the model's and the optimizer's state, which `load_shards` needs; on every
        rank.

    Raises:
        StateError: As `full_state`; and some rank could not write, and holds no room any more.
        Unavailable: A rank left or died meanwhile.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    others = Others(links)
    with others.one_mind():
        _require_parts(kind(model), others.size, process_group)
    state = own_state(model, optimizer, others)
    require_same(model, state["model"], others)
    written = partial(_own_files, directory, process_group)
    with others.one_mind(), freed_on_failure(directory, written), _plainly(others.rank):
        writer = FileSystemWriter(directory)
        save(_parts(state), storage_writer=writer, process_group=process_group)
    outline = mapped(state, outlined)
    return outline["model"], outline["optimizer"]


def load_shards(
    directory: Path,
    model: torch.nn.Module,
    optimizer: Any,
    model_outline: State,
    optimizer_outline: State,
    *,
    links: Links | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Read this rank's parts of a state, whatever the number of ranks that wrote it. Collective.

    Args:
        directory: As `save_shards` left it.
        model: Any but a FullyShardedDataParallel.
        optimizer: Has as many groups of as many parameters as the one that was saved.
        model_outline: From `save_shards`, on the coordinator; ignored elsewhere.
        optimizer_outline: Likewise.
        links: To the other ranks, if there are any.
        process_group: The ranks that train together.

    Raises:
        StateError: As `load_full_state`; and the directory is damaged or holds what it should not.
        Unavailable: A rank left or died meanwhile.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    others = Others(links)
    state = others.described({"model": model_outline, "optimizer": optimizer_outline})
    target = Target(model, optimizer)
    with others.one_mind():
        _require_parts(target.how, others.size, process_group)
        state = target.fitting(state)
        parts = mapped(state, lambda path, tensor: _empty(tensor, target.like(path)))
        index = read_index(directory)
    with others.one_mind(), _plainly(others.rank):
        load(_parts(parts), storage_reader=_reader(directory, index), process_group=process_group)
    with others.one_mind(is_changed=True):
        target.take(parts)


def read_index(directory: Path) -> Any:  # Any: torch's Metadata, imported where it is used.
    """Read the index of such a directory without running anything that is in it.

    Raises:
        ValueError: It is no such index.
        OSError: It cannot be read.
    """
    with open(directory / _INDEX, "rb") as file:
        try:
            index = _IndexReader(file).load()
            paths = {info.relative_path for info in index.storage_data.values()}
        except _NO_INDEX as error:
            raise ValueError(f"{directory / _INDEX} is no index of a checkpoint: {error}") from None
    if any(Path(path).name != path for path in paths):
        raise ValueError(f"{directory / _INDEX} leads out of its directory")
    return index


class _IndexReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = name in _CLASSES.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


def _own_files(directory: Path, process_group: dist.ProcessGroup | None) -> list[Path]:
    """Return what this rank has written, as torch names it."""
    rank = dist.get_rank(process_group) if dist.is_initialized() else 0
    return list(directory.glob(f"__{rank}_*.distcp"))


def _reader(directory: Path, index: Any) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta

    class Reader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Any:
            index.storage_meta = StorageMeta(load_id=self.load_id)
            return index

    return Reader(directory)


def _parts(state: State) -> State:
    """Return the tensors of a state, in the form in which torch.distributed.checkpoint has them."""
    return {
        "model": _tensors(state["model"]),
        "optimizer": {
            "state": {
                str(index): _tensors(kept) for index, kept in state["optimizer"]["state"].items()
            }
        },
    }


def _tensors(state: Any) -> Any:
    """Return the tensors with a dimension; the others are in the outline."""
    return {
        str(name): value
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }


def _empty(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """Return a tensor to be filled: this rank's part of one of that shape and type."""
    if tensor.dim() == 0:
        return tensor.detach().clone()
    if not is_dtensor(like):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=getattr(like, "device", "cpu"))
    if tensor.shape == like.shape:
        return torch.empty_like(like, dtype=tensor.dtype, requires_grad=False)
    from torch.distributed.tensor import DTensor, Replicate

    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=like.device)
    everywhere = [Replicate()] * like.device_mesh.ndim
    return DTensor.from_local(whole, like.device_mesh, everywhere, run_check=False)


def _require_parts(how: str, size: int, process_group: dist.ProcessGroup | None) -> None:
    if how in ("fsdp1", "unknown"):
        raise ValueError(
            "sharded=True needs a model of fully_shard, of DTensors, or one that is not sharded; "
            "a FullyShardedDataParallel is saved whole, without sharded=True."
        )
    if process_group is None and dist.is_initialized() and dist.get_world_size() != size:
        raise ValueError(
            f"sharded=True needs all {dist.get_world_size()} ranks of the job, and init() was "
            f"given a process_group of {size}."
        )


@contextmanager
def _plainly(rank: int) -> Iterator[None]:
    """Turn the failures of all ranks into that of this one, which the others will hear of."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed")
        warnings.filterwarnings("ignore", message=".*single process.*")
        try:
            yield
        except CheckpointException as error:
            if rank in error.failures:
                raise error.failures[rank][0] from None
