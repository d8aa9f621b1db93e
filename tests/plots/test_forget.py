"""The figures of forgetting: what is read from a sweep and from a model's states, and that both are drawn."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmctl.errors import UsageError
from mmctl.plots import forget, forget_state


def score(values: list[float]) -> dict[str, Any]:
    mean = sum(values) / len(values)
    seeds = {str(seed): {"value": value} for seed, value in enumerate(values)}
    return {"mean": mean, "interval": [mean - 0.1, mean + 0.1], "n": len(values), "chance": None, "seeds": seeds}


def arm(name: str, length: int) -> dict[str, Any]:
    """Loss p in part p of its own length's sequences, 10 p in part p of four times as long ones."""
    parts = {f"stream/loss-part{p}@1x": score([float(p)] * 3) for p in (1, 2, 3, 4)}
    parts |= {f"stream/loss-part{p}@4x": score([10.0 * p] * 3) for p in range(1, 9)}
    parts |= {f"stream/accuracy-passkey@{k}x": score([1.0 / k] * 3) for k in (1, 4)}
    return {"name": name, "model": "mamba2", "cost": {"context": length}, "scores": parts, "runs": {}, "identity": name}


def family(state: float, thresholds: list[float]) -> dict[str, Any]:
    scores = {
        "across:state": score([state] * 3),
        "across:ratio-t16": score([3.0] * 3),
        "across:ratio-t32": score([1.0] * 3),
    }
    if thresholds:
        return scores | {"across:threshold-2x": score(thresholds), "across:above-1.5x": score([32.0] * 3)}
    return scores | {"across:above-2x": score([32.0] * 3)}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    from mmctl.sweeps.results import SCHEMA

    entry: dict[str, Any] = {
        "function": "forget-threshold",
        "families": {"small": ["a", "b"], "large": ["c", "d"]},
        "fit": "line",
    }
    entry["arms"] = {
        "small": {"scores": family(2.0, [16.0, 16.0, 32.0])},
        "large": {"scores": family(8.0, [])},
        "line": {"scores": {"across:slope-2x": score([1.0, 2.0, 3.0]), "across:intercept-2x": score([4.0, 3.0, 2.0])}},
    }  # fmt: skip
    arms = [arm("a", 16), arm("b", 32), arm("c", 16), arm("d", 32)]
    ablation = {"name": "forget", "arms": arms, "claims": [], "across": [entry]}
    other = {"name": "bandwidth", "arms": [], "claims": []}
    (tmp_path / "results.json").write_text(json.dumps({"schema": SCHEMA, "ablations": [other, ablation], "runs": []}))
    return tmp_path


def test_numbers_are_taken_as_the_rules_read_them(sweep: Path) -> None:
    found = forget.collect(sweep)
    loss = [(p.x, p.mean) for p in found.of("loss", "small") if p.arm == "a"]
    assert loss == [(2, 1), (6, 2), (10, 3), (14, 4), (20, 50), (28, 60), (40, 70), (56, 80)]
    assert [(p.x, p.mean) for p in found.of("ratio", "large")] == [(16, 3), (32, 1)]
    assert [(p.x, p.mean, p.seed) for p in found.of("threshold-2x")] == [(2, 16, "0"), (2, 16, "1"), (2, 32, "2")]
    assert [(p.family, p.mean) for p in found.of("above-2x")] == [("large", 32)] * 3
    assert [(p.x, p.mean) for p in found.of("passkey", "small") if p.arm == "b"] == [(32, 1), (128, 0.25)]
    assert found.lines == {"2x": [(1, 4), (2, 3), (3, 2)], "1.5x": []}


def test_the_figure_and_its_numbers_are_saved(sweep: Path, tmp_path: Path) -> None:
    paths = forget.draw(sweep, tmp_path / "out")
    with paths["csv"].open() as file:
        rows = list(csv.DictReader(file))
    slope = next(row for row in rows if row["panel"] == "slope-2x")
    assert (float(slope["value"]), slope["n"]) == (2, "3")
    assert float(slope["low"]) < 0 < float(slope["high"])  # 2 ± 2.48
    assert len(rows) == len(forget.collect(sweep).points) + 2
    assert paths["png"].stat().st_size > 10_000


def test_a_sweep_that_measures_no_forgetting_says_so(sweep: Path) -> None:
    with pytest.raises(UsageError, match="no ablation of it measures forgetting; run mmctl ablate forget"):
        forget.collect(sweep, "bandwidth")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return untrained(tmp_path_factory.mktemp("runs"), "mamba2", "model.state=4")


def untrained(folder: Path, name: str, *words: str) -> Any:
    from mmctl import models
    from mmctl.config import load
    from mmctl.runs import RunFolder

    common = [f"model.name={name}", "model.layers=2", "model.width=16", "model.heads=2", "data.length=16"]
    common += [
        "data.mixture={stream: 1}",
        "training.precision=float32",
        "operation.mlflow=false",
        "operation.device=cpu",
    ]
    config = load("smoke", [*common, *words])
    made = RunFolder.create(folder, config, [])
    with made.lock():
        weights = models.build(config).state_dict()
        made.save_checkpoint(1, {"tensors": {"model": weights, "optimizer": {}}, "state": {"step": 1}})
        made.write_result({"train_loss": 1.0})
    return made


def test_curves_are_products_of_alphas_and_moments_of_states(run: Any) -> None:
    from mmctl.data import build_task
    from mmctl.evaluation.scoring import examples
    from mmctl.training.run import load_model

    curves = forget_state.collect([run], ["tiny"], multiple=2)
    assert len(curves) == 3 * 2 * 2  # what, layers, heads
    model, config = load_model(run)
    tokens = torch.from_numpy(examples(build_task("stream", config.data), 32, 0, forget_state.SEQUENCES)[0].tokens)
    alpha = [log_alpha.exp() for log_alpha in model.log_retentions(tokens)]
    with torch.no_grad():
        states = []
        for upto in (16, 32):
            cache = model.init_cache(len(tokens))
            model.advance(tokens[:, :upto], cache, None)
            states.append([entry.state for entry in cache.layers])
    for curve in curves:
        assert curve.positions == (2, 4, 6, 8, 10, 12, 14, 16, 24, 32)
        at = dict(zip(curve.positions, curve.values, strict=True))
        if curve.what == "retention":
            for n in (2, 16, 32):
                kept = alpha[curve.layer][:, curve.head, 1:n].prod(-1).mean()
                assert at[n] == pytest.approx(kept.item(), rel=1e-4)
        else:
            for place, n in enumerate((16, 32)):
                state = states[place][curve.layer][:, curve.head]
                moment = state.mean((-1, -2)) if curve.what == "mean" else state.var((-1, -2))
                assert at[n] == pytest.approx(moment.mean().item(), rel=1e-3, abs=1e-7)


def test_states_are_drawn_and_other_models_refused(run: Any, tmp_path: Path) -> None:
    paths = forget_state.draw([run], tmp_path / "out")
    assert paths["png"].stat().st_size > 10_000
    with paths["csv"].open() as file:
        assert {row["what"] for row in csv.DictReader(file)} == {"retention", "mean", "variance"}
    with pytest.raises(UsageError, match='model "transformer" keeps no state of fixed size: expected mamba2'):
        forget_state.collect([untrained(tmp_path, "transformer")])
    assert forget_state.chosen({"ablations": [{"arms": [{"model": "mosaic-v2"}]}]}, tmp_path) == []
