"""Checkpoints: bit for bit the same, whole or absent, and damage never goes unnoticed."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmctl.errors import MmctlError
from mmctl.runs import codec, files
from mmctl.runs.checkpoint import flatten, load, save, unflatten
from mmctl.runs.checkpoints import best_step, steps

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return tensor.dtype, tuple(tensor.shape), raw


def some(value: float, size: int = 8) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"weight": torch.full((size,), value)}, "optimizer": {"step": torch.tensor(value)}}


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        str(dtype): (torch.randint(0, 255, (3, 4 * dtype.itemsize), generator=generator, dtype=torch.uint8) % 2).view(
            dtype
        )
        if dtype is torch.bool
        else torch.randint(0, 255, (3, 4 * dtype.itemsize), generator=generator, dtype=torch.uint8).view(dtype)
        for dtype in DTYPES
    }  # random bits: NaN payloads, denormals and negative zeros among them
    tensors |= {
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "none": torch.empty(0, 3),
        "none too": torch.empty(0),
    }
    tensors |= {"transposed": torch.randn(3, 5, generator=generator).T, "a.b/c d": torch.tensor(7)}
    save(tmp_path, 3, {"model": tensors}, {"step": 3})
    loaded = load(tmp_path).tensors["model"]
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert bits(loaded[name]) == bits(tensor), name


def test_tied_tensors_stay_tied_and_overlapping_views_are_kept(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    tensors = {"embed": base, "head": base, "half": base[:5], "rows": base.view(2, 5)}
    save(tmp_path, 1, {"model": tensors}, {})
    loaded = load(tmp_path).tensors["model"]
    assert loaded["head"] is loaded["embed"]
    for name, tensor in tensors.items():
        assert bits(loaded[name]) == bits(tensor)
    assert (tmp_path / "step_1" / "model.safetensors").stat().st_size < 1000


@pytest.mark.parametrize("kind", ["adamw", "sgd", "amsgrad"])
def test_an_optimizer_resumes_bit_for_bit(tmp_path: Path, kind: str) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        groups: list[dict[str, Any]] = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        if kind == "sgd":
            return model, torch.optim.SGD(groups, lr=0.01, momentum=0.9)
        return model, torch.optim.AdamW(groups, lr=0.01, amsgrad=kind == "amsgrad")

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        optimizer.step()

    model, optimizer = make()
    for seed in range(3):
        step(model, optimizer, seed)
    tensors, skeleton = flatten(optimizer.state_dict())
    save(tmp_path, 3, {"model": model.state_dict(), "optimizer": tensors}, {"optimizer": skeleton})
    step(model, optimizer, 3)

    other, other_optimizer = make()
    loaded = load(tmp_path)
    other.load_state_dict(loaded.tensors["model"])
    restored = unflatten(loaded.tensors["optimizer"], loaded.state["optimizer"])
    assert isinstance(restored["param_groups"][0].get("betas", ()), tuple)
    other_optimizer.load_state_dict(restored)
    step(other, other_optimizer, 3)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert bits(a) == bits(b)


def test_generator_states_resume_the_same_numbers(tmp_path: Path) -> None:
    own, numpy_rng, python_rng = torch.Generator().manual_seed(5), np.random.default_rng(5), random.Random(5)
    torch.rand(3, generator=own), numpy_rng.random(3), python_rng.random()
    state = {"torch": own.get_state(), "numpy": numpy_rng.bit_generator.state, "python": python_rng.getstate()}
    save(tmp_path, 1, {}, state)
    expected = torch.rand(4, generator=own), numpy_rng.random(4), python_rng.random()
    loaded = load(tmp_path).state
    own.set_state(loaded["torch"])
    numpy_rng.bit_generator.state = loaded["numpy"]
    python_rng.setstate(loaded["python"])
    assert torch.equal(torch.rand(4, generator=own), expected[0])
    assert np.array_equal(numpy_rng.random(4), expected[1])
    assert python_rng.random() == expected[2]


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
    | st.builds(np.float32, st.floats(width=32)) | st.builds(lambda v: np.array(v, dtype=np.int16), st.lists(st.integers(-9, 9)))
)  # fmt: skip
keys = (
    st.text(max_size=4)
    | st.integers(-3, 3)
    | st.sampled_from(["$ref", "$float", "$dict"])
    | st.tuples(st.integers(0, 3))
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def identical(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_state_of_any_shape_survives_json(tree: Any) -> None:
    text = json.dumps(codec.encode(tree), allow_nan=False)
    assert identical(codec.decode(json.loads(text)), tree)


def test_what_would_need_pickle_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"data\.generator: cannot be saved without pickle: Random"):
        save(tmp_path, 1, {}, {"data": {"generator": random.Random(0)}})
    assert steps(tmp_path) == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "form", [{"$call": ["os.system", "x"]}, {"$tensor": ["nn", [1], "AA=="]}, {"$array": ["O", [1], ""]}]
)
def test_a_hostile_state_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(MmctlError, match="damaged value"):
        codec.decode({"x": form})


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step, some(step), {"step": step}, keep=2, best=step == 2)
    assert steps(tmp_path) == [2, 4, 5]
    assert best_step(tmp_path) == 2
    assert load(tmp_path, 2).state == {"step": 2}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 1, some(1.0), {"try": 1})
    save(tmp_path, 1, some(2.0), {"try": 2})
    assert load(tmp_path).state == {"try": 2}
    assert sorted(os.listdir(tmp_path)) == ["step_1"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_damage_is_found_and_the_previous_checkpoint_used(tmp_path: Path, name: str, damage: Any) -> None:
    for step in (1, 2):
        save(tmp_path, step, some(step, 64), {"step": step})
    damage(tmp_path / "step_2" / name)
    said: list[str] = []
    loaded = load(tmp_path, notify=said.append)
    assert (loaded.step, loaded.state, loaded.tensors["model"]["weight"][0].item()) == (1, {"step": 1}, 1.0)
    assert len(said) == 1
    assert "step_2 is damaged" in said[0]
    assert said[0].endswith("using step 1 instead")
    assert "\n" not in said[0]
    with pytest.raises(MmctlError, match="step_2 is damaged"):
        load(tmp_path, 2)


def test_nothing_usable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MmctlError, match="no checkpoint in"):
        load(tmp_path)
    save(tmp_path, 1, some(1), {})
    with pytest.raises(MmctlError, match=r"no checkpoint of step 9 .*; there are: 1"):
        load(tmp_path, 9)
    flip(tmp_path / "step_1" / "state.json")
    with pytest.raises(MmctlError, match="step_1 is damaged"):
        load(tmp_path)


def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, some(1), {"step": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(files.WriteError, match="No space left on device"):
        save(tmp_path, 2, some(2), {"step": 2})
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["step_1"]
    assert load(tmp_path).state == {"step": 1}


KILL = '''
"""Fork a writer for each kill point: it dies by SIGKILL at its n-th call that touches the disk."""
import os, shutil, signal, sys
from pathlib import Path
import torch
from mmctl.runs import checkpoint

torch.set_num_threads(1)
calls = dict(n=0, at=-1)

def counted(function):
    def call(*args, **kwargs):
        calls["n"] += 1
        if calls["n"] == calls["at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for module, name in [(os, n) for n in ("fsync", "rename", "replace", "open", "mkdir", "unlink", "rmdir", "chmod")]:
    setattr(module, name, counted(getattr(module, name)))

def tensors(value):
    return {"model": {"weight": torch.full((64,), float(value))}, "optimizer": {"m": torch.full((64,), float(value))}}

root, again = Path(sys.argv[1]), sys.argv[2] == "again"
at, ended = 0, False
while not ended:
    at += 1
    folder = root / str(at)
    for step in (1, 2):
        checkpoint.save(folder, step, tensors(step), {"step": step, "try": 1}, keep=2)
    child = os.fork()
    if child == 0:
        calls.update(n=0, at=at)
        checkpoint.save(folder, 2 if again else 3, tensors(3), {"step": 3, "try": 2}, keep=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    ended = os.WIFEXITED(status)
    assert not ended or os.WEXITSTATUS(status) == 0
print(at)
'''


@pytest.mark.parametrize("again", ["next", "again"])
def test_killed_anywhere_while_saving_the_last_good_checkpoint_is_there(tmp_path: Path, again: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILL, str(tmp_path), again], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    points = int(done.stdout)
    assert points > 20
    seen = set()
    for at in range(1, points + 1):
        folder = tmp_path / str(at)
        said: list[str] = []
        loaded = load(folder, notify=said.append)
        assert not said  # nothing half-written is ever taken for a checkpoint
        value = loaded.tensors["model"]["weight"]
        assert torch.equal(value, loaded.tensors["optimizer"]["m"])
        if again == "again":
            assert (loaded.step, value[0].item()) in ((2, 2.0), (2, 3.0))
            assert (value[0].item() == 3.0) == (loaded.state["try"] == 2)
        else:
            assert (loaded.step, value[0].item()) in ((2, 2.0), (3, 3.0))
        seen.add(value[0].item())
        save(folder, 9, some(9), {"step": 9})  # the next writer cleans up
        assert all(name.startswith("step_") and not name.endswith((".tmp", ".old")) for name in os.listdir(folder))
    assert seen == {2.0, 3.0}
