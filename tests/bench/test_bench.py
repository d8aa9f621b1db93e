"""Benchmarks: what they report, that they measure what they say, and that `mmctl --help` stays light."""

from __future__ import annotations

import json
import time

import pytest
import torch
from typer.testing import CliRunner

from mmctl.bench import BENCHMARKS, cli, step
from mmctl.bench.measure import interleaved, peak_allocated
from mmctl.cli.bench import app
from mmctl.errors import UsageError


def run(*words: object):
    result = CliRunner().invoke(app, [str(w) for w in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_candidates_take_turns_and_lead_in_turn():
    order: list[str] = []
    candidates = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = interleaved(candidates, rounds=3, warmup=1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert {len(t.wall) for t in times.values()} == {3}


def test_times_are_seconds_and_ratios_follow():
    times = interleaved({"slow": lambda: time.sleep(0.03), "fast": lambda: time.sleep(0.01)}, rounds=3, warmup=0)
    assert 0.03 <= times["slow"].median < 0.3
    assert times["slow"].median > times["fast"].median
    assert times["slow"].cpu_median < 0.02


def test_peak_allocation_is_exact_and_sees_inside_a_step():
    def work():
        kept = torch.empty(1 << 20, dtype=torch.float32)  # 4 MiB stay
        for _ in range(3):
            torch.empty(2 << 20, dtype=torch.float32)  # 8 MiB each come and go
        return kept

    assert peak_allocated(work, torch.device("cpu")) == pytest.approx(12 << 20, rel=0.01)


def test_step_reports_ratios_first_for_each_length():
    words = (
        "step",
        "--size",
        "smoke",
        "--tokens",
        "40,80",
        "--batch",
        4,
        "--rounds",
        3,
        "--precision",
        "float32",
        "--json",
    )
    rows = json.loads(run(*words).stdout)
    assert [row["tokens"] for row in rows] == [40, 80]
    assert [row["tokens_per_step"] for row in rows] == [160, 160]
    for row in rows:
        assert list(row)[:3] == ["tokens", "wall_ratio", "memory_ratio"]
        ours, theirs = (row["models"][name] for name in step.MODELS)
        assert row["wall_ratio"] == pytest.approx(ours["wall_seconds"] / theirs["wall_seconds"], abs=1e-3)
        assert row["memory_ratio"] == pytest.approx(ours["peak_bytes"] / theirs["peak_bytes"], abs=1e-3)
        # Weights and two moments each, and at least the gradients beside them.
        assert all(m["peak_bytes"] > 16 * m["parameters"] for m in (ours, theirs))


def test_a_step_is_a_training_step():
    from mmctl.config import load

    config = load("smoke", ["model.name=mosaic-v2", "data.length=40", "training.precision=float32"])
    work, model, standing = step.training_step(config, 2, True, torch.device("cpu"))
    before = {k: v.clone() for k, v in model.named_parameters()}
    work()
    moved = [k for k, v in model.named_parameters() if not torch.equal(v, before[k])]
    # theta_value starts at 0, where its gradient is 0, and is not decayed: the paper's own choice.
    assert set(before) - set(moved) == {k for k in before if k.endswith("theta_value")}
    held = 3 * 4 * model.parameter_count()
    assert held <= standing() <= held + 4096
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tokens", "256;1024"), "--tokens"),
        (("--tokens", "1"), "--tokens"),
        (("--size", "labb"), 'did you mean "lab"'),
    ],
)
def test_wrong_input_is_one_clear_line(words, message):
    with pytest.raises(UsageError, match=message):
        run("step", *words)


def test_help_imports_neither_torch_nor_mlflow():
    result = cli.measure(rounds=1)
    assert not set(result["heavy_imports"]) & set(cli.FORBIDDEN)
    assert result["seconds"] > result["python_seconds"]


def test_every_benchmark_is_a_command():
    text = run("--help").stdout
    assert all(name in text for name in BENCHMARKS)
