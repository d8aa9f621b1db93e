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
from mmctl.errors import UsageError
from mmctl.models.base import Model
from mmctl.runs import RunFolder
from mmctl.training.config import TrainingConfig
from mmctl.training.loop import Hooks, learning_rate, train
from mmctl.training.losses import step_means
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


def test_step_means_are_plain_means_of_the_tasks_present() -> None:
    parts = [(0.5, torch.tensor([1.0, 3.0]), torch.tensor([0, 0])), (0.25, torch.tensor([5.0]), torch.tensor([2]))]
    means = step_means(["a", "b", "c"], parts)
    assert means == {"loss": 0.75, "loss/a": 2.0, "loss/c": 5.0}


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


def test_a_signal_between_saving_and_stopping_is_saved_first(tiny: Config) -> None:
    import os
    import signal

    from mmctl.training.loop import Interrupted

    tiny.operation.checkpoint_every = 1000
    saved: list[int] = []

    def listener(progress: object) -> None:
        if progress.step == 4:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)

    hooks = Hooks(checkpoint=lambda step, payload: saved.append(step), listener=listener)
    with pytest.raises(Interrupted):
        train(models.build(tiny), tiny, CPU, hooks)
    assert saved == [5]


def test_a_signal_sent_several_times_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import pickle
    import signal

    from mmctl.training import signals
    from mmctl.training.ranks import Stopped

    with signals.signals() as received:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        monkeypatch.setattr(signals, "AGAIN", 0.0)
        with pytest.raises(Stopped) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    passed_on = pickle.loads(pickle.dumps(stopped.value))
    assert (str(passed_on), passed_on.signal) == ("SIGTERM", signal.SIGTERM)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_outside_the_loop_is_recorded_too(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, code: int
) -> None:
    import os
    import signal
    import time

    def stopped(*_: object, **__: object) -> None:
        os.kill(os.getpid(), getattr(signal, number))
        time.sleep(10)  # the signal may reach another thread first; it ends this sleep

    # A job started in the background inherits an ignored SIGINT; here it must do what it does at a terminal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("mmctl.evaluation.evaluate", stopped)
            outcome = execute(tiny, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (outcome.state, outcome.exit_code) == ("interrupted", code)
    assert number in str(outcome.reason)
    assert RunFolder.open(outcome.path).state() == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert execute(tiny, tmp_path).state == "finished"


def test_keep_is_what_is_asked_for_now(tiny: Config, tmp_path: Path) -> None:
    from mmctl.evaluation.suites import wanted_suites

    assert wanted_suites(tiny)
    run = RunFolder.create(tmp_path, tiny)
    tiny.operation.keep = 4
    assert execute(tiny, tmp_path).state == "finished"
    assert run.checkpoint_steps() == [3, 6, 9, 12]


@pytest.mark.parametrize(
    "word", ["model.layers=100000000000000000000", "data.batch=100000000000", "model.ffn_width=10000000000000"]
)
def test_what_no_memory_can_hold_is_refused_and_leaves_nothing(tmp_path: Path, word: str) -> None:
    key = word.partition("=")[0]
    config = load("smoke", [w for w in tiny_overrides() if not w.startswith(key + "=")] + [word])
    with pytest.raises(UsageError, match="memory"):
        execute(config, tmp_path)
    assert not list(tmp_path.iterdir())
