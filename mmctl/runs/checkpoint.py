"""Checkpoints: `step_N/` appears whole, by one rename, or not at all; nothing in it is pickled.

checkpoints/step_200/model.safetensors      one file a group of tensors
                     optimizer.safetensors
                     state.json             step, loop and data position, generator states, ties between tensors
                     manifest.json          size and crc32 of each file: damage is detected before use
checkpoints/best.json                       {"step": N}: kept whatever its age
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.runs import codec
from mmctl.runs.files import WriteError, fsync_file, fsync_folder, read_json, write_json
from mmctl.runs.lock import say

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_STEP = re.compile(r"step_(\d+)(\.old)?")
Tensors = dict[str, dict[str, "Tensor"]]


@dataclass
class Checkpoint:
    step: int
    tensors: Tensors
    state: dict[str, Any]


class Damaged(MmctlError):
    """A checkpoint that is not what was written."""


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
        tidy(folder)
        temporary.mkdir()
        names = _write_files(temporary, step, tensors, state)
        manifest = {
            name: {"bytes": (temporary / name).stat().st_size, "crc32": _crc(temporary / name)} for name in names
        }
        write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, "files": manifest})
        mode = (temporary / "state.json").stat().st_mode  # safetensors writes 0600 whatever the umask
        for name in names:
            os.chmod(temporary / name, mode)
            fsync_file(temporary / name)
        fsync_folder(temporary)
        _publish(temporary, target)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise WriteError(f"cannot write checkpoint {target}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if best:
        write_json(folder / "best.json", {"step": step})
    prune(folder, keep)
    return target


def _write_files(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> list[str]:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    names, ties = [], {}
    for group, members in tensors.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", group):
            raise ValueError(f"{group!r} is no name for a group of tensors")
        unique, ties[group] = _untie(members)
        try:
            save_file(unique, folder / f"{group}.safetensors")
        except SafetensorError as error:  # it wraps what the disk said
            raise WriteError(f"cannot write {folder / group}.safetensors: {error}") from error
        names.append(f"{group}.safetensors")
    record = {"format": FORMAT, "step": step, "groups": list(tensors), "ties": ties, "state": codec.encode(state)}
    (folder / "state.json").write_text(json.dumps(record, allow_nan=False), encoding="ascii")
    return [*names, "state.json"]


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
        if tensor.numel():
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


def _publish(temporary: Path, target: Path) -> None:
    old = target.with_name(target.name + ".old")
    if target.exists():  # the same step again; at every moment one of the two can be found by `steps`
        os.rename(target, old)
    os.rename(temporary, target)
    fsync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, ascending. Damage is found by `load`, or cheaply by `looks_whole`."""
    if not folder.is_dir():
        return []
    return sorted({int(m[1]) for entry in os.scandir(folder) if (m := _STEP.fullmatch(entry.name)) and entry.is_dir()})


def best_step(folder: Path) -> int | None:
    """The step marked best, if its checkpoint is still there."""
    try:
        step = read_json(folder / "best.json")["step"]
    except (MmctlError, KeyError, TypeError):
        return None
    return step if step in steps(folder) else None


def looks_whole(folder: Path, step: int) -> bool:
    """Whether all files are there with the right sizes. Costs a few stats; reads no tensor."""
    try:
        _verify(_place(folder, step), checksums=False)
    except Damaged:
        return False
    return True


def load(folder: Path, step: int | None = None, device: str = "cpu", notify: Callable[[str], None] = say) -> Checkpoint:
    """Checkpoint `step`, or the newest undamaged one; a damaged one passed over is said through `notify`.

    Raises MmctlError in one line if `step` is missing or damaged, or if nothing usable is there.
    """
    if step is not None:
        if step not in steps(folder):
            have = ", ".join(map(str, steps(folder))) or "none"
            raise MmctlError(f"no checkpoint of step {step} in {folder}; there are: {have}")
        return _read(_place(folder, step), step, device)
    problems = []
    for candidate in reversed(steps(folder)):
        try:
            checkpoint = _read(_place(folder, candidate), candidate, device)
        except Damaged as problem:
            problems.append(str(problem))
            continue
        for problem_text in problems:
            notify(f"{problem_text}; using step {candidate} instead")
        return checkpoint
    raise MmctlError("; ".join(problems) if problems else f"no checkpoint in {folder}")


def _place(folder: Path, step: int) -> Path:
    current, old = folder / f"step_{step}", folder / f"step_{step}.old"
    return old if old.is_dir() and not current.is_dir() else current


def _read(place: Path, step: int, device: str) -> Checkpoint:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _verify(place, checksums=True)
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
        return Checkpoint(step, tensors, codec.decode(record["state"]))
    except Damaged:
        raise
    except (SafetensorError, MmctlError, OSError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"checkpoint {place} is damaged: {error}") from None


def _verify(place: Path, *, checksums: bool) -> None:
    try:
        manifest = read_json(place / "manifest.json")
        files = {str(name): (int(entry["bytes"]), int(entry["crc32"])) for name, entry in manifest["files"].items()}
        version = manifest["format"]
    except (MmctlError, KeyError, TypeError, AttributeError, ValueError):
        raise Damaged(f"checkpoint {place} is damaged: manifest.json is missing or unreadable") from None
    if version != FORMAT:
        raise Damaged(f"checkpoint {place} has format {version}, this version reads {FORMAT}")
    for name, (size, crc) in files.items():
        path = place / Path(name).name
        try:
            actual = path.stat().st_size
            if actual != size:
                raise Damaged(f"checkpoint {place} is damaged: {name} has {actual} bytes instead of {size}")
            if checksums and _crc(path) != crc:
                raise Damaged(f"checkpoint {place} is damaged: the checksum of {name} does not match")
        except OSError as error:
            raise Damaged(f"checkpoint {place} is damaged: {name}: {error.strerror or error}") from None


def _crc(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def tidy(folder: Path) -> list[str]:
    """Finish what a killed writer left: half-written `.tmp` folders go, a replaced `.old` goes or comes back."""
    removed = []
    for entry in folder.iterdir():
        if entry.name.endswith(".old") and _STEP.fullmatch(entry.name):
            current = entry.with_suffix("")
            if not current.exists():
                os.rename(entry, current)
                continue
        elif not re.fullmatch(r"step_\d+\.tmp", entry.name):
            continue
        shutil.rmtree(entry, ignore_errors=True)
        removed.append(entry.name)
    return removed


def prune(folder: Path, keep: int) -> list[int]:
    """Delete all but the newest `keep` checkpoints and the best one; return the steps deleted.

    A deletion is a rename to `.tmp` first, so that a kill in the middle leaves rubbish, not half a checkpoint.
    """
    have = steps(folder)
    removed = [step for step in have[:-keep] if step != best_step(folder)]
    for step in removed:
        temporary = folder / f"step_{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        os.rename(_place(folder, step), temporary)
        shutil.rmtree(temporary, ignore_errors=True)
    return removed


def flatten(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """A nested structure, such as `optimizer.state_dict()`, as named tensors and a JSON-ready skeleton."""
    tensors: dict[str, Tensor] = {}
    skeleton = codec.encode(tree, tensors)
    return tensors, skeleton


def unflatten(tensors: Mapping[str, Tensor], skeleton: Any) -> Any:
    """The exact inverse of `flatten`: key types, tuples and dtypes included."""
    return codec.decode(skeleton, tensors)
