"""One run on several processes: the same numbers as on one, the same step at which all stop, resumed by any number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from several import on, tiny_config, without_clock

from mmctl import models
from mmctl.errors import MmctlError, UsageError
from mmctl.training.distributed import Group, check_shares
from mmctl.training.environment import from_environment
from mmctl.training.loop import Hooks, train
from mmctl.training.losses import step_means
from mmctl.training.prepare import prepare
from mmctl.training.ranks import ALONE, Ranks

MODELS = ("mosaic-v2", "mosaic-v1", "transformer", "transformer-masks")


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


def test_each_process_needs_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [Group(rank, 2, rank).device("auto") for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert Group(1, 2, 1).device("cpu") == "cpu"
    with pytest.raises(UsageError, match=r'operation\.device="cuda:1": every process takes a device of its own'):
        Group(0, 2, 0).device("cuda:1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank in range(3):  # on all of them, so that none waits for the others
        with pytest.raises(UsageError, match="3 processes on this machine, where torch sees 2 CUDA"):
            Group(rank, 3, rank).device("auto")
