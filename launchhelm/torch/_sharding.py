"""The state of a wrapped or sharded model as one whole copy, and back onto any number of ranks.

The whole copy is what the same script would save on one process: the names of the bare model, and
an optimizer's state by the number of its parameter. It is put together tensor by tensor, so no
rank holds more than one whole tensor beside what the coordinator keeps.

Why not `get_state_dict` and `set_state_dict` of torch.distributed.checkpoint, as of torch 2.13:
asking for the state of an optimizer that has not stepped makes it step; the whole state comes to
global rank 0, whichever ranks train together; loading asserts for SGD without momentum, and where a
parameter never had a gradient, rank 0 raises while the others wait for it. Whole tensors are
DTensor's own business, and loading sends nothing but on our own group.

What is called collective is called by all ranks of a trainer, on the training thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from launchhelm.torch import _fsdp1
from launchhelm.torch._collective import Links
from launchhelm.torch._wrapping import (
    as_ddp,
    clean,
    is_dtensor,
    is_fsdp1,
    is_fsdp2,
    peeled,
    unknown,
)

State = dict[str, Any]  # Any: what a state_dict() holds is the module's and the optimizer's own.
Path = tuple[Any, ...]

_MOST_SHOWN: Final = 3
_MOST_SENT: Final = 100_000
_DOUBT: Final = "has other values than rank 0 in a parameter that is not sharded over all ranks"


class StateError(Exception):
    """A state could not be gathered or restored. With links it is raised on all ranks alike.

    Args:
        text: What happened, and on which rank.
        is_changed: Whether a model or an optimizer may be half restored.
    """

    def __init__(self, text: str, *, is_changed: bool = False) -> None:
        super().__init__(text)
        self.is_changed = is_changed


def kind(model: Any) -> str:
    """Return how a model is spread over ranks: plain, ddp, fsdp1, fsdp2 or unknown.

    "fsdp2" is every model with a DTensor among its parameters: `fully_shard`, tensor parallel, and
    both on one mesh. A compiled model is what was compiled.
    """
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if not isinstance(model, torch.nn.Module) or unknown(model, size):
        return "unknown"
    if any(map(is_fsdp1, model.modules())):
        return "fsdp1"
    if any(map(is_fsdp2, model.modules())) or any(map(is_dtensor, model.parameters())):
        return "fsdp2"
    return "ddp" if as_ddp(model) is not None else "plain"


def full_state(
    model: torch.nn.Module,
    optimizer: Any,
    *,
    is_coordinator: bool,
    links: Links | None = None,
) -> tuple[State, State]:
    """Gather the whole state of a model and its optimizer on the coordinator. Collective.

    Whole tensors are put together on their device by the groups of the model's own mesh, one after
    the other; the coordinator moves each to the CPU. A tensor that is there already is not copied.

    Args:
        model: Wrapped in any way that `kind` knows.
        optimizer: Whatever has torch's `state_dict`.
        is_coordinator: Whether to keep what is gathered.
        links: To the other ranks; None: there are none, or nothing can be agreed on with them.

    Returns:
        Both state dicts on the coordinator, two empty ones elsewhere.

    Raises:
        StateError: The kind is unknown, the parts make no whole, or an operation failed.
        Unavailable: A rank left or died meanwhile.
    """
    others = Others(links)
    how = kind(model)
    if how == "fsdp1":
        with others.one_mind():
            both = _fsdp1.full_state(peeled(model), optimizer)
        return both if is_coordinator else ({}, {})
    parts = own_state(model, optimizer, others)
    doubtful, marks = _doubtful(model, how), list[str]()
    problems: list[str] = []

    def whole(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
        gathered: Any = tensor.detach()
        if is_dtensor(tensor):
            gathered = gathered.full_tensor()
        if path[:2] in doubtful and not covers(tensor, others.size):
            marks.append(f"{path[1]} {_mark(gathered)}")
        if not is_coordinator:
            return None
        try:
            return gathered.cpu()  # type: ignore[no-any-return]
        except RuntimeError as error:  # The others go on to the next tensor; so must this rank.
            problems.append(f"{'.'.join(map(str, path))}: {error}")
            return None

    with others.one_mind():
        gathered = mapped(parts, whole)
        if problems:
            raise RuntimeError("; ".join(problems[:_MOST_SHOWN]))
    others.require_equal(marks, _DOUBT)
    return (gathered["model"], gathered["optimizer"]) if is_coordinator else ({}, {})


def require_same(model: torch.nn.Module, state: State, others: Others) -> None:
    """Raise StateError on all ranks unless each parameter is one of a mesh or equal on all ranks.

    Collective. Without it, of experts that each rank has for itself only one would be kept.
    """
    doubtful, marks = _doubtful(model, kind(model)), []
    with others.one_mind():
        for name, tensor in state.items():
            if ("model", name) in doubtful and not covers(tensor, others.size):
                if is_dtensor(tensor):
                    raise ValueError(f"{name} is spread over some of the ranks only")
                marks.append(f"{name} {_mark(tensor.detach())}")
    others.require_equal(marks, _DOUBT)


def own_state(model: torch.nn.Module, optimizer: Any, others: Others) -> State:
    """Return `model` and `optimizer` as this rank has them, shards as they are. Collective.

    Any but a FullyShardedDataParallel. Raises StateError on all ranks alike where one cannot, where
    ranks have other names, types or shapes, or where an optimizer's shards would be lost.
    """
    with others.one_mind():
        _require_known(model, kind(model))
        consolidate = getattr(optimizer, "consolidate_state_dict", None)
        state = {"model": bare_state(model), "optimizer": {"state": {}, "param_groups": []}}
        if consolidate is not None:  # As of a ZeroRedundancyOptimizer, which is whole on one rank.
            consolidate(to=0)
        if consolidate is None or others.rank == 0:
            state["optimizer"] = optimizer.state_dict()
            _require_whole(state["optimizer"], optimizer)
    compared = {"model": state["model"]} if consolidate is not None else state
    others.require_equal(_outline(compared), "has other parameters or states than rank 0")
    return state


def load_full_state(
    model: torch.nn.Module,
    optimizer: Any,
    model_state: Mapping[str, Any],
    optimizer_state: Mapping[str, Any],
    *,
    links: Links | None = None,
) -> None:
    """Put a whole state of the coordinator into the model and optimizer of every rank. Collective.

    The number of ranks may be another than when it was saved. Tensors are broadcast one by one on
    our own group, from CPU to CPU, and each rank keeps its part.

    Args:
        model: Wrapped in any way that `kind` knows.
        optimizer: Has as many groups of as many parameters as the one that was saved.
        model_state: On the coordinator; ignored elsewhere.
        optimizer_state: Likewise.
        links: To the other ranks; None: there are none, or each rank was given the same state.

    Raises:
        StateError: Names, shapes or groups do not fit, and nothing has changed on any rank; or
            `is_changed`: a module or an optimizer refused its state.
        Unavailable: A rank left or died meanwhile.
    """
    others = Others(links)
    state = others.described({"model": dict(model_state), "optimizer": dict(optimizer_state)})
    target = Target(model, optimizer)
    with others.one_mind():
        state = target.fitting(state)
    problems: list[Exception] = []

    def part(path: Path, tensor: torch.Tensor) -> torch.Tensor | None:
        whole = others.shared(tensor)
        try:
            return target.part(path, whole)
        except Exception as error:  # As in full_state.
            problems.append(error)
            return None

    parts = mapped(state, part)
    with others.one_mind():
        if problems:
            raise problems[0]
    with others.one_mind(is_changed=True):
        target.take(parts)


class Target:
    """A model and its optimizer, as that into which a state is put, on one rank."""

    def __init__(self, model: torch.nn.Module, optimizer: Any) -> None:
        self.how = kind(model)
        self._model, self._optimizer = model, optimizer
        self._parameters = _parameters(optimizer)
        self._own: State = {}

    def fitting(self, state: State) -> State:
        """Return a state by clean names, or raise ValueError where it does not fit. Local."""
        _require_known(self._model, self.how)
        model_state = {clean(name): value for name, value in state["model"].items()}
        if self.how == "fsdp1":
            groups: Any = _fsdp1.names_of(peeled(self._model), self._optimizer)
        else:
            groups = [group["params"] for group in self._optimizer.param_groups]
            self._own = bare_state(self._model)
            _require_fit(model_state, self._own)
        _require_groups(state["optimizer"], [len(group) for group in groups])
        return {"model": model_state, "optimizer": state["optimizer"]}

    def like(self, path: Path) -> Any:
        """Return the tensor that shows how the one at this place is spread; None: not at all."""
        if self.how == "fsdp1":
            return None
        if path[0] == "model":
            return self._own[path[1]]
        return self._parameters[path[2]] if path[1] == "state" else None

    def part(self, path: Path, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a whole tensor."""
        part = as_part(whole, self.like(path))
        # An optimizer keeps the very tensors that it is given, for example those of a mapped file.
        return part.clone() if part is whole and path[0] == "optimizer" else part

    def take(self, parts: State) -> None:
        """Load the parts. Collective where a FullyShardedDataParallel is."""
        if self.how == "fsdp1":
            model = peeled(self._model)
            _fsdp1.load(model, self._optimizer, parts["model"], parts["optimizer"])
            return
        self._optimizer.load_state_dict(parts["optimizer"])
        inside = peeled(self._model)
        inside.load_state_dict({name: parts["model"][clean(name)] for name in inside.state_dict()})


def bare_state(model: torch.nn.Module) -> State:
    """Return the state of the module inside all wrappers, shards as they are, by clean names."""
    return {clean(name): value for name, value in peeled(model).state_dict().items()}


def as_part(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """Return this rank's part of a whole tensor, spread as another tensor is. Sends nothing.

    Args:
        whole: The same on every rank, on any device.
        like: A DTensor, or what is whole itself. Of another shape, it gives the mesh only.
    """
    if not is_dtensor(like) or whole.dim() == 0:
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    everywhere = [Replicate()] * like.device_mesh.ndim
    spread = DTensor.from_local(
        whole.to(like.device), like.device_mesh, everywhere, run_check=False
    )
    if whole.shape != like.shape:
        return spread
    with torch.no_grad():
        part: Any = torch.empty_like(like, dtype=whole.dtype)
        part.to_local().copy_(spread.redistribute(placements=like.placements).to_local())
    return part  # type: ignore[no-any-return]


class Others:
    """The other ranks of a trainer, if there are any to talk to."""

    def __init__(self, links: Links | None) -> None:
        self._links = links
        self.rank = 0 if links is None else links.rank
        self.size = 1 if links is None else links.size

    @contextlib.contextmanager
    def one_mind(self, *, is_changed: bool = False) -> Iterator[None]:
        """Raise the error of any rank on all of them. Collective."""
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        said = "" if error is None else f"{type(error).__name__}: {error}"[:2000]
        texts = [said] if self._links is None else self._links.gather_json(said)
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
        if failed:
            more = f"; and {len(failed) - _MOST_SHOWN} more" * (len(failed) > _MOST_SHOWN)
            raise StateError(
                "; ".join(failed[:_MOST_SHOWN]) + more, is_changed=is_changed
            ) from error

    def require_equal(self, lines: Sequence[str], what: str) -> None:
        """Raise on all ranks unless all have the same lines. Collective."""
        if self._links is None:
            return
        body = "\n".join(lines)
        digests = self._links.gather_json(hashlib.sha256(body.encode()).hexdigest())
        odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if not odd:
            return
        # Only now what it is: of a large model it is much to send.
        theirs = [text.split("\n") for text in self._links.gather_json(body[:_MOST_SENT])]
        unlike = [line for line in theirs[odd[0]] if line not in theirs[0]]
        unlike += [line for line in theirs[0] if line not in theirs[odd[0]]]
        shown = ", ".join(unlike[:_MOST_SHOWN])
        raise StateError(f"rank {odd[0]} {what}: {shown}")

    def described(self, state: State) -> State:
        """Return the coordinator's state, on other ranks with empty tensors. Collective."""
        if self._links is None:
            return state
        body = b""
        with self.one_mind():
            if self._links.rank == 0:
                buffer = io.BytesIO()
                torch.save(mapped(state, outlined), buffer)
                body = buffer.getvalue()
        body = self._links.share_bytes(body)
        with self.one_mind():
            if self._links.rank != 0:
                state = torch.load(io.BytesIO(body), weights_only=True)
        return state

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the coordinator's tensor on the CPU of every rank. Collective."""
        if self._links is None or tensor.dim() == 0:
            return tensor
        if self._links.rank == 0:
            whole = tensor.detach().cpu().contiguous()
        else:
            whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        if whole.numel():
            self._links.share_tensor(whole.view(-1).view(torch.uint8))
        return whole


def _require_known(model: Any, how: str) -> None:
    if how == "unknown":
        why = unknown(model, 2) or f"{type(model).__name__} is no torch module"
        raise ValueError(f"{why}; use its own means to save and load.")


def _require_whole(optimizer_state: State, optimizer: Any) -> None:
    """Refuse what an optimizer keeps for its shard alone, in tensors that do not say so."""
    parameters = _parameters(optimizer)
    for index, kept in optimizer_state["state"].items():
        like = parameters[index]
        if not is_dtensor(like) or not any(each.is_shard() for each in like.placements):
            continue
        for name, value in kept.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and not is_dtensor(value):
                raise ValueError(
                    f"{name!r} of {type(optimizer).__name__} for parameter {index} is no DTensor, "
                    "though the parameter is sharded: the parts of the ranks make no whole"
                )


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _require_fit(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Compare names and shapes with those of the model."""
    missing, surplus = [it for it in own if it not in state], [it for it in state if it not in own]
    if missing or surplus:
        names = ", ".join((*missing[:_MOST_SHOWN], *surplus[:_MOST_SHOWN]))
        raise ValueError(
            f"the model has {len(missing)} names that the checkpoint lacks, and lacks "
            f"{len(surplus)} that are in it: {names}"
        )
    for name, value in own.items():
        if isinstance(value, torch.Tensor):
            shape = getattr(state[name], "shape", None)
            if shape != value.shape:
                raise ValueError(f"{name} has shape {shape} in the checkpoint, not {value.shape}")
            if value.is_meta:
                raise ValueError(f"{name} has no storage yet; call model.to_empty() first")


def _require_groups(state: Mapping[str, Any], ours: Sequence[int]) -> None:
    theirs = [len(group["params"]) for group in state["param_groups"]]
    if ours != theirs:
        raise ValueError(
            f"the optimizer has groups of {ours} parameters, in the checkpoint it has {theirs}"
        )


def _doubtful(model: Any, how: str) -> set[Path]:
    """Return which parameters may differ from rank to rank, and make no whole then.

    Experts, for example, that each rank keeps for itself under the same name.
    """
    names: Any = ()
    if how == "fsdp2":
        names = [name for name, _ in peeled(model).named_parameters()]
    elif how == "ddp":
        names = getattr(as_ddp(model), "parameters_to_ignore", ())
    return {("model", clean(name)) for name in names}


def covers(tensor: Any, size: int) -> bool:
    """Whether the mesh of a tensor has all ranks, so that its whole is the same for each."""
    return is_dtensor(tensor) and int(tensor.device_mesh.size()) == size


def _mark(tensor: torch.Tensor) -> int:
    """Return a sum over the bits of a tensor, the same on every device. Waits for the device."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = plain.contiguous().view(-1).view(integers[plain.element_size()])
    return int(bits.sum(dtype=torch.int64))


def _outline(state: State) -> list[str]:
    """Return one line for each tensor: where it is, its type and its whole shape."""
    lines: list[str] = []

    def note(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        lines.append(f"{'.'.join(map(str, path))} {tensor.dtype} {list(tensor.shape)}")
        return tensor

    mapped(state, note)
    return lines


def outlined(_: Path, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its values; a number is kept."""
    return tensor.detach().cpu() if tensor.dim() == 0 else tensor.detach().to("meta")


def mapped(value: Any, change: Callable[[Path, torch.Tensor], Any], path: Path = ()) -> Any:
    """Return a state with another value for each of its tensors, which are visited in order."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, Mapping):
        return {key: mapped(each, change, (*path, key)) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(mapped(each, change, (*path, index)) for index, each in enumerate(value))
    return value
