"""Checkpoints of a run on several processes: torch.distributed.checkpoint in safetensors, resumable by any number of
them.

checkpoints/step_200/shard-00001-model-....safetensors   one file a process: its parts, with their offsets in the header
                     model.safetensors, optimizer.safetensors   what is not divided (step counters)
                     state.json, manifest.json           as in every checkpoint

Nothing is pickled. Every process must see the same folder; `step_N` appears whole, by one rename of rank 0's, once all
have brought their files to the disk.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import first_line
from mmctl.runs import checkpoints as shelf
from mmctl.runs.checkpoints import Damaged
from mmctl.runs.files import WriteError
from mmctl.runs.lock import say

if TYPE_CHECKING:
    from torch import Tensor

    from mmctl.training.distributed import Group

Tensors = Mapping[str, Mapping[str, "Tensor"]]
PREFIX = "shard-"
"""Start of the names of the files that torch.distributed.checkpoint writes."""


def key(group: str, name: str) -> str:
    """The name of a divided tensor in the shards."""
    return f"{group}:{name}"


def divided(tensor: Tensor) -> bool:
    """Whether this process holds only its part of the tensor (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def save(folder: Path, step: int, tensors: Tensors, state: Mapping[str, Any], *, keep: int, ranks: Group) -> None:
    """Write checkpoint `step` from all processes. WriteError on all of them, nothing changed, if one cannot."""
    from torch.distributed import checkpoint as dcp

    from mmctl.runs.checkpoint import write_files

    target, temporary = folder / f"step_{step}", folder / f"step_{step}.tmp"
    names = {group: [n for n, t in members.items() if divided(t)] for group, members in tensors.items()}
    try:
        with ranks.together(), explained(target):
            if ranks.first:
                folder.mkdir(parents=True, exist_ok=True)
                shelf.tidy(folder)
                temporary.mkdir()
        with ranks.together(), explained(target):
            parts = untied({key(g, name): tensors[g][name] for g, some in names.items() for name in some})
            writer = dcp.HuggingFaceStorageWriter(str(temporary), save_distributed=True)
            dcp.save(parts, storage_writer=writer, process_group=ranks.control)
            own = {path.name: shelf.settle(path) for path in temporary.glob(f"{PREFIX}{ranks.rank + 1:05d}-*")}
        entries = {name: entry for some in ranks.share(own) for name, entry in some.items()}
        with ranks.together(), explained(target):
            if ranks.first:
                rest = {g: {n: t for n, t in members.items() if not divided(t)} for g, members in tensors.items()}
                shelf.seal(temporary, step, entries | write_files(temporary, step, rest, state, names))
                shelf.publish(temporary, target)
                shelf.prune(folder, keep)
    except BaseException:
        if ranks.first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def untied(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same divided tensors, none of which shares memory with another: safetensors refuses tied ones (v1's embedding
    and classifier), so all but the first are copied."""
    seen: set[int] = set()
    found = {}
    for name, tensor in parts.items():
        local: Any = tensor.to_local()  # type: ignore[attr-defined]
        place = local.untyped_storage().data_ptr()
        found[name] = tensor.clone() if local.numel() and place in seen else tensor
        seen.add(place)
    return found


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """What the disk says, in one line; torch.distributed.checkpoint wraps it, in an exception that is no Exception."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except (OSError, CheckpointException) as error:
        cause = _cause(error)
        if isinstance(cause, KeyboardInterrupt):  # a second signal, which does not wait for the saving
            raise cause from None
        said = cause.strerror if isinstance(cause, OSError) and cause.strerror else cause
        raise WriteError(f"cannot write checkpoint {target}: {said}") from error


def _cause(error: BaseException) -> BaseException:
    """The first process's error in a CheckpointException, which holds (error, traceback) by rank."""
    for inner, _ in getattr(error, "failures", {}).values():
        return _cause(inner)
    return error


def read(
    place: Path, names: Mapping[str, Sequence[str]], like: Mapping[str, Tensor] | None = None, group: Any = None
) -> dict[str, Tensor]:
    """The divided tensors of the checkpoint at `place`, by `key`.

    Whole and on the CPU; or, with `like`, this process's part of each, read by all processes of `group` together.
    Damaged, in one line, if something is missing or does not fit.
    """
    import torch
    from torch.distributed import checkpoint as dcp

    try:
        reader = dcp.HuggingFaceStorageReader(str(place))
        if like is None:
            found = reader.read_metadata().state_dict_metadata
            wanted = {n: found[n] for n in (key(g, name) for g, some in names.items() for name in some)}
            into = {n: torch.empty(m.size, dtype=m.properties.dtype) for n, m in wanted.items()}  # type: ignore[union-attr]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that no other process takes part: this is what is meant
                dcp.load(into, storage_reader=reader, no_dist=True)
        else:
            into = dict(like)
            dcp.load(into, storage_reader=reader, process_group=group)
    except (Exception, dcp.CheckpointException) as error:  # safetensors, json and DCP raise many kinds
        raise Damaged(f"checkpoint {place} is damaged: {first_line(_cause(error))}") from None
    return into


def resume(
    folder: Path, label: str, model: Mapping[str, Tensor], order: Sequence[Tensor], ranks: Group
) -> dict[str, Any] | None:
    """The newest whole checkpoint, of any number of processes, as this process's part of it; None if there is none.

    model: name -> divided parameter. order: the parameters in the optimizer's order, whose states are divided alike.
    """
    import torch
    from torch.distributed.tensor import distribute_tensor

    from mmctl.runs import checkpoint

    def near(group: str, name: str) -> Any:
        """The divided parameter that `name` is stored for: itself, or the one an optimizer state belongs to."""
        return model[name] if group in ("model", "best") else order[int(name.split(".")[1])]

    chosen = None
    with ranks.together():
        if ranks.first:
            chosen = checkpoint.newest(folder, lambda text: say(f"{label}: {text}"))
    step = ranks.share(chosen)[0]
    if step is None:
        return None
    place = shelf.place_of(folder, step)
    with ranks.together():
        loaded, names = checkpoint.read_files(place, step)
    tensors = loaded.tensors
    for group, members in tensors.items():
        for name, tensor in members.items():
            if tensor.dim() and divided(at := near(group, name)):  # step counters and buffers are not
                members[name] = distribute_tensor(
                    tensor.to(at.device), at.device_mesh, at.placements, src_data_rank=None
                )
    if names:
        like = {key(g, name): torch.empty_like(near(g, name)) for g, some in names.items() for name in some}
        with ranks.together():
            found = read(place, names, like, ranks.control)
        for group, some in names.items():
            tensors[group] |= {name: found[key(group, name)] for name in some}
    return {"step": step, "tensors": tensors, "state": loaded.state}
