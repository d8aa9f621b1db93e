"""The loop: golden numbers, accumulation, schedule, divergence, the stochastic mask's stream."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_overrides

from mmctl import models
from mmctl.config import Config, load
from mmctl.models.base import Model
from mmctl.runs import RunFolder
from mmctl.training.config import TrainingConfig
from mmctl.training.loop import Hooks, learning_rate, task_means, train
from mmctl.training.run import execute

CPU = torch.device("cpu")


def losses(config: Config) -> tuple[list[float], Model]:
    rows: list[float] = []
    config.operation.log_every = 1
    model = models.build(config)
    torch.set_num_threads(1)
    train(model, config, CPU, Hooks(metrics=lambda step, values: rows.append(values["loss"])))
    return rows, model


def test_accumulation_changes_only_rounding(tiny: Config) -> None:
    whole, _ = losses(tiny)
    tiny.training.accumulation = 3
    parts, _ = losses(tiny)
    assert parts == pytest.approx(whole, rel=2e-4)


def test_same_seed_same_numbers_other_seed_other_numbers(tiny: Config) -> None:
    first, model = losses(tiny)
    again, other = losses(tiny)
    assert first == again
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    tiny.seed = 1
    assert losses(tiny)[0] != first


def test_schedule_is_linear_then_cosine_to_its_floor() -> None:
    t = TrainingConfig(steps=100, learning_rate=2.0, warmup=10, final_fraction=0.01)
    assert [learning_rate(s, t) for s in (1, 5, 10)] == pytest.approx([0.2, 1.0, 2.0])
    assert learning_rate(55, t) == pytest.approx(2.0 * (0.01 + 0.99 * 0.5))
    assert learning_rate(100, t) == pytest.approx(0.02)


def test_stochastic_m_covers_its_range_and_fixed_m_stays(tiny: Config) -> None:
    model = models.build(tiny)
    drawn = [model.sample_delay(np.random.default_rng([0, 1, s])) for s in range(600)]
    assert set(drawn) == set(range(2, 9))
    counts = np.bincount(drawn, minlength=9)[2:]
    assert ((counts - 600 / 7) ** 2 / (600 / 7)).sum() < 22.5  # chi-square, 6 degrees of freedom, p = 0.001
    tiny.model.long_term_mask = "fixed"
    assert {models.build(tiny).sample_delay(np.random.default_rng(s)) for s in range(20)} == {2}


def test_task_means_are_plain_means_of_the_tasks_present() -> None:
    means = task_means(["a", "b", "c"], torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]))
    assert means == {"loss/a": 2.0, "loss/c": 5.0}


def test_divergence_is_recorded_with_its_step_and_makes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Model.sample_delay

    def poison(self: Model, generator: np.random.Generator) -> int | None:
        poison.calls += 1  # type: ignore[attr-defined]
        if poison.calls == 5:  # type: ignore[attr-defined]
            with torch.no_grad():
                self.classifier.weight.fill_(math.nan)
        return original(self, generator)

    poison.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(Model, "sample_delay", poison)
    outcome = execute(load("smoke", tiny_overrides()), tmp_path)
    run = RunFolder.open(outcome.path)
    assert (outcome.state, outcome.exit_code) == ("diverged", 1)
    assert "step 5" in (outcome.reason or "")
    assert run.state() == "diverged"
    assert not run.finished
    assert math.isnan(float(run.metrics()[-1]["loss"]))
