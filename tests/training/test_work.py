"""Inside a run's lock: signs of life while it evaluates, memory that runs out, blocks that recompute or are
compiled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mmctl import evaluation, models
from mmctl.config import Config, identity, load
from mmctl.runs import RunFolder, folder
from mmctl.training import work
from mmctl.training.loop import Hooks, train
from mmctl.training.prepare import prepare
from mmctl.training.run import execute


def test_a_long_evaluation_gives_signs_of_life(tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: set[float] = set()
    measure = evaluation.evaluate

    def slow(*arguments: Any, **named: Any) -> Any:
        (path,) = tmp_path.glob("*/seed*")
        deadline = time.monotonic() + 10
        while len(beats) < 3 and time.monotonic() < deadline:
            beats.add(RunFolder.open(path).status["heartbeat"])
            time.sleep(0.005)
        return measure(*arguments, **named)

    monkeypatch.setattr(evaluation, "evaluate", slow)
    monkeypatch.setattr(work, "BEAT", 0.01)
    monkeypatch.setattr(folder, "HEARTBEAT_EVERY", 0.0)
    assert execute(tiny, tmp_path).state == "finished"
    assert len(beats) >= 3


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_is_one_line_with_the_setting_that_would_fit(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    step = torch.optim.AdamW.step

    def run_out(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.state:
            raise error
        return step(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", run_out)
    outcome = execute(tiny, tmp_path)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    assert (outcome.reason or "").startswith("out of memory")
    assert "training.accumulation=2" in (outcome.reason or "")
    run = RunFolder.open(outcome.path)
    assert run.status["fits"] == "training.accumulation=2"
    monkeypatch.undo()
    assert execute(tiny, tmp_path).state == "finished"
    assert run.status["fits"] is None, "what was said of a failed attempt must not stay with a finished run"


def weights(config: Config) -> list[torch.Tensor]:
    torch.set_num_threads(1)
    model = prepare(models.build(config), config.training)
    train(model, config, torch.device("cpu"), Hooks())
    return list(model.state_dict().values())


@pytest.mark.parametrize("name", ["mosaic-v2", "transformer"])
def test_recomputed_activations_train_the_same_weights_to_the_bit(name: str) -> None:
    from tiny import tiny_overrides

    fields = {f"model.{f}" for f in models.config_class(name).__dataclass_fields__}
    words = [w for w in tiny_overrides() if not w.startswith("model.") or w.partition("=")[0] in fields]
    plain, recomputed = (
        load("smoke", [*words, f"model.name={name}", f"training.activation_checkpointing={flag}"])
        for flag in ("false", "true")
    )
    assert saved_bytes(recomputed) < 0.6 * saved_bytes(plain)
    assert identity(plain) == identity(recomputed)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(recomputed), strict=True))


def saved_bytes(config: Config) -> int:
    """Bytes kept for the backward pass of one batch."""
    model = prepare(models.build(config), config.training)
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.arange(4 * 32).view(4, 32)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        for block in model.blocks:
            block(model.embedding(tokens), model.context(tokens, None, None))
    return sum(kept.values())


def test_compiled_blocks_keep_their_names_and_make_another_run(tiny: Config) -> None:
    plain, before = weights(tiny), identity(tiny)
    tiny.training.compile = True
    with torch.compiler.set_stance("force_eager"):  # compiling takes minutes; what is tested is the way there
        assert all(torch.equal(a, b) for a, b in zip(plain, weights(tiny), strict=True))
    assert identity(tiny) != before
    assert list(prepare(models.build(tiny), tiny.training).state_dict()) == list(models.build(tiny).state_dict())
