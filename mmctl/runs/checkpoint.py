"""One checkpoint: `step_N/` appears whole, by one rename, or not at all; nothing in it is pickled.

checkpoints/step_200/model.safetensors      one file a group of tensors
                     optimizer.safetensors
                     state.json             step, loop and data position, generator states, ties between tensors
                     manifest.json          size and crc32 of each file: damage is detected before use
checkpoints/best.json                       {"step": N}: kept whatever its age

A run on several processes divides its tensors among files (mmctl.runs.shards); both kinds are read here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.runs import checkpoints as shelf
from mmctl.runs import codec
from mmctl.runs.checkpoints import Damaged
from mmctl.runs.files import WriteError, read_json, write_json
from mmctl.runs.lock import say

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, dict[str, "Tensor"]]


@dataclass
class Checkpoint:
    step: int
    tensors: Tensors
    state: dict[str, Any]


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
    best: bool = False,
) -> Path:
    """Write checkpoint `step`, then delete all but the newest `keep` and the best one.

    tensors: group ("model", "optimizer") -> name -> tensor of any dtype and shape; tied tensors stay tied.
    state: anything `codec.encode` takes. best: this is the best so far; remember it and keep it.
    Raises WriteError (disk full, ...) with the earlier checkpoints untouched.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    target, temporary = folder / f"step_{step}", folder / f"step_{step}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shelf.tidy(folder)
        temporary.mkdir()
        shelf.seal(temporary, step, write_files(temporary, step, tensors, state))
        shelf.publish(temporary, target)
        if best:
            write_json(folder / "best.json", {"step": step})
        shelf.prune(folder, keep)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise WriteError(f"cannot write checkpoint {target}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def write_files(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    divided: Mapping[str, list[str]] | None = None,
) -> dict[str, dict[str, int]]:
    """Write and settle one file a group, and state.json, which also says which tensors are `divided` among other files.

    Returns what the manifest says about each.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ties = {}
    for group, members in tensors.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", group):
            raise ValueError(f"{group!r} is no name for a group of tensors")
        unique, ties[group] = _untie(members)
        try:
            save_file(unique, folder / f"{group}.safetensors")
        except SafetensorError as error:  # it wraps what the disk said
            raise WriteError(f"cannot write {folder / group}.safetensors: {error}") from error
    record = {"format": shelf.FORMAT, "step": step, "groups": list(tensors), "ties": ties, "state": codec.encode(state)}
    if divided:
        record["divided"] = divided
    (folder / "state.json").write_text(json.dumps(record, allow_nan=False), encoding="ascii")
    mode = (folder / "state.json").stat().st_mode  # safetensors writes 0600 whatever the umask
    names = [*(f"{group}.safetensors" for group in tensors), "state.json"]
    return {name: shelf.settle(folder / name, mode) for name in names}


def _untie(members: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors to store and {name: the name it is tied to}. Views that overlap without being the same are copied."""
    import torch

    unique: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    seen: dict[Any, str] = {}
    storages: set[int] = set()
    for name, tensor in members.items():
        tensor = tensor.detach()
        if tensor.is_meta or tensor.layout is not torch.strided:
            raise TypeError(f"{name}: only dense tensors with data can be saved")
        storage = tensor.untyped_storage().data_ptr()
        place = (
            storage,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            tensor.device,
        )
        if place in seen:
            ties[name] = seen[place]
            continue
        seen[place] = name
        if storage in storages:
            tensor = tensor.clone()
        storages.add(storage)
        unique[name] = tensor.contiguous()
    return unique, ties


def load(folder: Path, step: int | None = None, device: str = "cpu", notify: Callable[[str], None] = say) -> Checkpoint:
    """Checkpoint `step`, or the newest undamaged one; a damaged one passed over is said through `notify`.

    Raises MmctlError in one line if `step` is missing or damaged, or if nothing usable is there.
    """
    if step is not None:
        if step not in shelf.steps(folder):
            have = ", ".join(map(str, shelf.steps(folder))) or "none"
            raise MmctlError(f"no checkpoint of step {step} in {folder}; there are: {have}")
        return _read(shelf.place_of(folder, step), step, device)
    problems = []
    for candidate in reversed(shelf.steps(folder)):
        try:
            checkpoint = _read(shelf.place_of(folder, candidate), candidate, device)
        except Damaged as problem:
            problems.append(str(problem))
            continue
        for problem_text in problems:
            notify(f"{problem_text}; using step {candidate} instead")
        return checkpoint
    raise MmctlError("; ".join(problems) if problems else f"no checkpoint in {folder}")


def newest(folder: Path, notify: Callable[[str], None] = say) -> int | None:
    """The newest step whose checkpoint is undamaged, checksums included; a damaged one passed over is said."""
    problems = []
    for step in reversed(shelf.steps(folder)):
        try:
            shelf.verify(shelf.place_of(folder, step), checksums=True)
        except Damaged as problem:
            problems.append(str(problem))
            continue
        for problem_text in problems:
            notify(f"{problem_text}; using step {step} instead")
        return step
    return None


def _read(place: Path, step: int, device: str) -> Checkpoint:
    shelf.verify(place, checksums=True)
    checkpoint, divided = read_files(place, step, device)
    if divided:
        from mmctl.runs import shards

        whole = shards.read(place, divided)
        for group, names in divided.items():
            for name in names:
                checkpoint.tensors[group][name] = whole[shards.key(group, name)].to(device)
    return checkpoint


def read_files(place: Path, step: int, device: str = "cpu") -> tuple[Checkpoint, dict[str, list[str]]]:
    """What `write_files` wrote: the checkpoint without its divided tensors, and their names by group.

    Damaged, in one line, if it cannot be read; the checksums are the caller's to verify.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        record = read_json(place / "state.json")
        tensors: Tensors = {}
        for group in record["groups"]:
            if not re.fullmatch(r"[A-Za-z0-9_-]+", group):
                raise Damaged(f"checkpoint {place} is damaged: group {group!r}")
            tensors[group] = load_file(place / f"{group}.safetensors", device=device)
            for name, tied_to in record["ties"][group].items():
                tensors[group][name] = tensors[group][tied_to]
        if record["step"] != step:
            raise Damaged(f"checkpoint {place} is damaged: it holds step {record['step']}")
        divided = {str(group): [str(name) for name in names] for group, names in record.get("divided", {}).items()}
        if not divided.keys() <= tensors.keys():
            raise Damaged(f"checkpoint {place} is damaged: divided tensors of an unknown group")
        return Checkpoint(step, tensors, codec.decode(record["state"])), divided
    except Damaged:
        raise
    except RecursionError:
        raise Damaged(f"checkpoint {place} is damaged: state.json is nested too deeply") from None
    except (SafetensorError, MmctlError, OSError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"checkpoint {place} is damaged: {error}") from None


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """A nested structure, such as `optimizer.state_dict()`, as named tensors and a JSON-ready skeleton."""
    tensors: dict[str, Tensor] = {}
    skeleton = codec.encode(tree, tensors)
    return tensors, skeleton


def unflatten(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """The exact inverse of `flatten`: key types, tuples and dtypes included."""
    return codec.decode(skeleton, tensors)
