"""One run on several processes: the same numbers as on one, the same step at which all stop, resumed by any number."""

from __future__ import annotations

import errno
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from several import on
from tiny import tiny_overrides

from mmctl import models
from mmctl.config import Config, load
from mmctl.errors import MmctlError, UsageError
from mmctl.runs import RunFolder
from mmctl.runs import checkpoints as shelf
from mmctl.training.distributed import Group, check_shares
from mmctl.training.environment import from_environment
from mmctl.training.loop import Hooks, train
from mmctl.training.losses import step_means
from mmctl.training.prepare import prepare
from mmctl.training.ranks import ALONE, Ranks
from mmctl.training.run import execute

MODELS = ("mosaic-v2", "mosaic-v1", "transformer", "transformer-masks")
TIMING = ("seconds", "time")


def tiny_config(*words: str) -> Config:
    """The tiny run of a model, on the CPU whatever there is; `words` replace its own."""
    name = next((w.partition("=")[2] for w in words if w.startswith("model.name=")), "mosaic-v2")
    fields = {f"model.{f}" for f in models.config_class(name).__dataclass_fields__}
    given = {w.partition("=")[0] for w in words}
    kept = [w for w in tiny_overrides() if w.partition("=")[0] not in given]
    kept = [w for w in kept if not w.startswith("model.") or w.partition("=")[0] in fields]
    return load("smoke", [*kept, "operation.device=cpu", *words])


def curve(ranks: Ranks, dtype: torch.dtype, *words: str) -> tuple[list[dict[str, float]], list[int | None]]:
    """Rows of metrics, the result last, and the m of each step."""
    config = tiny_config(*words)
    config.operation.log_every, config.training.evaluate_every = 1, 6
    ranks.connect(config)
    model = prepare(models.build(config).to(dtype), config.training)
    drawn: list[int | None] = []
    sample = model.sample_delay
    model.sample_delay = lambda generator: drawn.append(sample(generator)) or drawn[-1]  # type: ignore[method-assign,func-returns-value]
    rows: list[dict[str, float]] = []
    hooks = Hooks(metrics=lambda step, values: rows.append(values))
    result = train(ranks.place(model, "cpu"), config, torch.device("cpu"), hooks, ranks=ranks)
    return [without_clock(row) for row in [*rows, result]], drawn


def without_clock(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in TIMING and v is not None}


CASES: list[tuple[torch.dtype, tuple[str, ...]]] = [
    *((torch.float64, (f"model.name={name}",)) for name in MODELS),
    (torch.float32, ("model.name=mosaic-v2", "training.accumulation=3", "data.batch=6")),
    (torch.float64, ("model.name=mosaic-v2", "training.activation_checkpointing=true", "model.layers=2")),
]


def curves(ranks: Ranks) -> list[Any]:
    return [curve(ranks, dtype, *words) for dtype, words in CASES]


def test_two_processes_give_the_curve_of_one_and_draw_the_same_m() -> None:
    torch.set_num_threads(1)
    first, second = on(2, curves)
    assert isinstance(first, list), first
    for (dtype, words), got, other in zip(CASES, first, second, strict=True):
        rows, drawn = curve(ALONE, dtype, *words)
        assert got[1] == other[1] == drawn, words
        tolerance = 1e-9 if dtype == torch.float64 else 1e-5
        for mine, theirs in zip(rows, got[0], strict=True):
            assert theirs == pytest.approx(mine, rel=tolerance), words
        assert "loss/recall" in rows[0]


def unequal_labels(ranks: Ranks) -> dict[str, float]:
    ranks.connect(tiny_config())
    losses, tasks = (([1.0, 2.0, 6.0], [0, 0, 0]), ([5.0, 4.0], [0, 1]))[ranks.rank]
    return step_means(["a", "b", "c"], [(0.25, torch.tensor(losses), torch.tensor(tasks))], ranks)


def test_a_tasks_mean_is_over_all_its_labels_not_over_the_processes_means() -> None:
    expected = {"loss": 0.5, "loss/a": (1 + 2 + 6 + 5) / 4, "loss/b": 4.0}
    assert on(2, unequal_labels) == [expected, expected]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 12])
def test_shares_cover_each_sequence_once_and_are_no_larger_than_those_of_one_process(parts: int) -> None:
    largest = max(len(rows) for rows in ALONE.rows(12, parts))
    for size in (2, 3, 4, 6):
        shares = [Group(rank, size).rows(12, parts) for rank in range(size)]
        assert sorted(int(r) for share in shares for rows in share for r in rows) == list(range(12))
        assert len({len(share) for share in shares}) == 1, "a process with fewer parts would leave the others waiting"
        assert max(len(rows) for share in shares for rows in share) <= largest


# Whole runs


def run_it(ranks: Ranks, root: Path, stop: tuple[int, int, int] | None, *words: str) -> tuple[str, int, str | None]:
    """State, exit code and reason of a run. stop: (rank, step, signal) at which that process gets that signal."""
    before = torch.optim.AdamW.step
    steps = 0

    def step(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        if stop is not None and (ranks.rank, steps) == stop[:2]:
            os.kill(os.getpid(), stop[2])
        return before(self, *arguments, **named)

    torch.optim.AdamW.step = step  # type: ignore[method-assign]
    try:
        outcome = execute(tiny_config(*words), root, ranks=ranks)
    finally:
        torch.optim.AdamW.step = before  # type: ignore[method-assign]
    return outcome.state, outcome.exit_code, outcome.reason


SIX = ("data.batch=6", "operation.log_every=1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    root = tmp_path_factory.mktemp("undisturbed")
    return RunFolder.open(execute(tiny_config(*SIX), root).path)


def only_run(root: Path) -> RunFolder:
    (path,) = root.glob("*/seed*")
    return RunFolder.open(path)


def numbers(run: RunFolder) -> list[dict[str, Any]]:
    result = {k: v for k, v in run.result().items() if isinstance(v, float)}
    return [without_clock(row) for row in [*run.metrics(), result]]


def same_run(run: RunFolder, other: RunFolder) -> None:
    for mine, theirs in zip(numbers(other), numbers(run), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5)
    assert run.identity == other.identity
    assert run.evaluations().keys() == other.evaluations().keys()


def on_any(size: int, *arguments: Any) -> list[Any]:
    return [run_it(ALONE, *arguments)] if size == 1 else on(size, run_it, *arguments)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_run_is_stopped_by_a_signal_to_any_process_and_resumed_by_another_number(
    tmp_path: Path, undisturbed: RunFolder, before: int, after: int
) -> None:
    number = signal.SIGTERM if after == 1 else signal.SIGINT
    stopped = on_any(before, tmp_path, (before - 1, 5, number), *SIX)
    assert [outcome[:2] for outcome in stopped] == [("interrupted", 128 + number)] * before, stopped
    run = only_run(tmp_path)
    assert run.state() == "interrupted"
    assert run.checkpoint_steps() == [3, 5]
    resumed = on_any(after, tmp_path, None, *SIX)
    assert [outcome[:2] for outcome in resumed] == [("finished", 0)] * after, resumed
    same_run(run, undisturbed)
    segments = [(s["from_step"], s["world_size"]) for s in run.provenance()["segments"]]
    assert segments == [(0, before), (5, after)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_leaves_no_finished_run_and_the_run_goes_on(
    tmp_path: Path, undisturbed: RunFolder, rank: int
) -> None:
    ended = on(2, run_it, tmp_path, (rank, 8, signal.SIGKILL), *SIX)
    run = only_run(tmp_path)
    assert ended[rank] == "killed by 9"
    state, code, reason = ended[1 - rank]
    assert (state, code) == ("failed", 1)
    assert reason == f"process {rank} of 2 is gone (killed?)"
    assert not run.finished
    assert run.state() == ("lost" if rank == 0 else "failed")
    assert run_it(ALONE, tmp_path, None, *SIX)[:2] == ("finished", 0)
    same_run(run, undisturbed)


def diverging(ranks: Ranks, root: Path) -> tuple[str, int, str | None]:
    from mmctl.models.base import Model

    calls, original = 0, Model.sample_delay

    def poison(self: Any, generator: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5 and ranks.rank == 1:
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.to_local().fill_(math.nan)
        return original(self, generator)

    Model.sample_delay = poison  # type: ignore[method-assign]
    return run_it(ranks, root, None)


def test_a_part_that_is_not_finite_diverges_the_whole_run_at_that_step(tmp_path: Path) -> None:
    first, second = on(2, diverging, tmp_path)
    assert first == ("diverged", 1, "the loss is not finite at step 5")
    assert second[:2] == ("diverged", 1)
    assert only_run(tmp_path).state() == "diverged"


def full_disk(ranks: Ranks, root: Path) -> tuple[str, int, str | None]:
    """Rank 1's disk is full when the checkpoint of step 6 is written."""
    settle = shelf.settle

    def full(path: Path, mode: int | None = None) -> Any:
        if ranks.rank == 1 and path.parent.name == "step_6.tmp":
            raise OSError(errno.ENOSPC, "No space left on device")
        return settle(path, mode)

    shelf.settle = full
    return run_it(ranks, root, None)


def test_a_disk_full_for_one_process_leaves_the_earlier_checkpoint_and_says_so(tmp_path: Path) -> None:
    first, second = on(2, full_disk, tmp_path)
    assert first[:2] == second[:2] == ("failed", 1)
    assert "cannot write checkpoint" in first[2]
    assert "No space left on device" in first[2]
    assert os.listdir(only_run(tmp_path).checkpoints) == ["step_3"]


def failing(ranks: Ranks, root: Path) -> tuple[str, int, str | None]:
    """Rank 1 cannot go on at step 4, for a reason of its own."""
    step = torch.optim.AdamW.step
    calls = 0

    def out_of_memory(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4 and ranks.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, *arguments, **named)

    torch.optim.AdamW.step = out_of_memory  # type: ignore[method-assign]
    outcome = execute(tiny_config(), root, ranks=ranks)
    return outcome.state, outcome.exit_code, outcome.reason


def test_memory_that_runs_out_on_one_process_is_recorded_with_the_setting_that_would_fit(tmp_path: Path) -> None:
    first, _ = on(2, failing, tmp_path)
    assert first[:2] == ("failed", 1)
    assert first[2].startswith("process 1 of 2: out of memory")
    assert "training.accumulation=2" in first[2]
    assert only_run(tmp_path).status["fits"] == "training.accumulation=2"


def test_a_damaged_shard_is_found_and_the_checkpoint_before_it_used(tmp_path: Path, capsys: Any) -> None:
    on(2, run_it, tmp_path, (0, 5, signal.SIGTERM), *SIX)
    run = only_run(tmp_path)
    (shard,) = (run.checkpoints / "step_5").glob("shard-00002-*")
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    assert run.load_checkpoint()["step"] == 3
    assert "step_5 is damaged: the checksum of shard-00002" in capsys.readouterr().err
    assert not list(run.path.rglob("*.metadata")), "nothing of a checkpoint is pickled"


# What is refused


def test_a_batch_that_cannot_be_shared_is_refused_with_those_that_can() -> None:
    config = tiny_config("data.batch=10")
    check_shares(config, 5)
    with pytest.raises(UsageError, match=r"data.batch=10: expected a multiple of the 4 processes .* 8 or 12"):
        check_shares(config, 4)


def test_half_of_torchruns_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert from_environment() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert from_environment() is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="WORLD_SIZE=2, but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set"):
        from_environment()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(MmctlError, match="WORLD_SIZE=two: expected a whole number"):
        from_environment()
