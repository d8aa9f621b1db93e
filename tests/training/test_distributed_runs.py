"""Whole runs on several processes: all stop at one step, whatever ends one of them is recorded, any number resumes."""

from __future__ import annotations

import errno
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from several import on, tiny_config, without_clock

from mmctl.runs import RunFolder
from mmctl.runs import checkpoints as shelf
from mmctl.training.ranks import ALONE, Ranks
from mmctl.training.run import execute


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


SIX = (
    "data.batch=6", "operation.log_every=1", "training.select=recall/loss", "training.select_every=2",
    "training.select_examples=8", "evaluation.attention=4",
)  # fmt: skip


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
    assert run.result()["selected"]["step"] == other.result()["selected"]["step"]
    assert run.identity == other.identity
    assert run.evaluations().keys() == other.evaluations().keys()
    mine, theirs = ({k: v["value"] for k, v in r.evaluations()["attention"]["scores"].items()} for r in (run, other))
    assert mine == pytest.approx(theirs, rel=1e-4)
    assert mine


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


def test_tied_parameters_and_dropout_are_those_of_one_process(tmp_path: Path) -> None:
    words = (*SIX, "model.name=mosaic-v1", "model.persistent_slots=8", "model.dropout=0.2")
    whole = RunFolder.open(execute(tiny_config(*words), tmp_path / "one").path)
    stopped = on(2, run_it, tmp_path / "two", (1, 5, signal.SIGINT), *words)
    assert [outcome[0] for outcome in stopped] == ["interrupted"] * 2, stopped
    resumed = on(2, run_it, tmp_path / "two", None, *words)
    assert [outcome[0] for outcome in resumed] == ["finished"] * 2, resumed
    same_run(only_run(tmp_path / "two"), whole)


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


def killed_while_saving(ranks: Ranks, root: Path) -> None:
    """The first process is killed before it gives the checkpoint of step 6, written by both, its name."""
    publish = shelf.publish

    def killed(temporary: Path, target: Path) -> None:
        if target.name == "step_6":
            os.kill(os.getpid(), signal.SIGKILL)
        publish(temporary, target)

    shelf.publish = killed
    run_it(ranks, root, None)


def test_killed_while_saving_the_earlier_checkpoint_is_there_and_the_next_start_tidies(tmp_path: Path) -> None:
    on(2, killed_while_saving, tmp_path)
    run = only_run(tmp_path)
    assert (run.path / "checkpoints" / "step_6.tmp").exists()
    assert run.checkpoint_steps() == [3]
    assert run.load_checkpoint()["step"] == 3
    assert run_it(ALONE, tmp_path, None)[:2] == ("finished", 0)
    assert sorted(os.listdir(run.checkpoints)) == ["step_12", "step_9"]


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
