"""Two untrained runs of one layer and a sweep's results that name them: enough for every figure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)

SEEDS = (0, 1, 2)


def small(name: str, seed: int) -> Any:
    from mmctl.config import load

    words = [f"model.name={name}", f"seed={seed}", "model.layers=1", "data.length=64", "training.precision=float32"]
    words += ["data.mixture={recall: 1, text: 1}", "operation.mlflow=false", "operation.device=cpu"]
    return load("smoke", words)


def arm(
    name: str, label: str, model: str, values: list[float], path: str | None, removed: bool = False
) -> dict[str, Any]:
    run = {"state": "finished" if path else "planned", "path": path}
    return {
        "name": name,
        "label": label,
        "model": model,
        "identity": f"id-{model}",
        "cell": model,
        "evaluate": {"remove_long_term": removed, "delay": None},
        "runs": {"0": run},
        "cost": {
            "parameters": 1000,
            "context": 64,
            "flops_per_token": {"published": 2.0e6 + removed, "executed": 3.0e6 + removed},
        },
        "scores": {
            metric: score(values, 0.125) for metric in ("icl/accuracy-last-quarter@1x", "icl/accuracy-last-quarter@4x")
        }
        | ({} if model == "transformer" else {"diagnostics:bandwidth/alpha/long-term": score([0.3, 0.3, 0.3])}),
    }


def score(values: list[float], chance: float | None = None) -> dict[str, Any]:
    """As results.json has it; the interval is made up."""
    mean = sum(values) / len(values)
    seeds = {str(s): {"value": v} for s, v in zip(SEEDS, values, strict=True)}
    return {"mean": mean, "interval": [mean - 0.05, mean + 0.05], "n": len(values), "chance": chance, "seeds": seeds}


def claim(id: str, metric: str, treatment: str, control: str | None, mean: float, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "metric": metric,
        "treatment": treatment,
        "control": control,
        "difference": {"mean": mean, "interval": [mean - 0.01, mean + 0.02], "n": 3},
        "margin": 0.02,
        "published_effect": None,
        "verdict": "reproduced",
        "expected": "greater",
        "at_chance": [],
        **more,
    }


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with finished runs of mosaic-v2 and transformer, and the sweep `smoke-00000000`."""
    from mmctl import models
    from mmctl.runs import RunFolder
    from mmctl.sweeps.results import SCHEMA

    folder = tmp_path_factory.mktemp("runs")
    paths = {}
    for name in ("mosaic-v2", "transformer"):
        config = small(name, 0)
        run = RunFolder.create(folder, config, [])
        with run.lock():
            weights = models.build(config).state_dict()
            run.save_checkpoint(1, {"tensors": {"model": weights, "optimizer": {}}, "state": {"step": 1}})
            for step in (10, 20, 30):
                row = {
                    "loss": 3.0 - step / 20,
                    "tokens": 100 * step,
                    "flops": 1e6 * step * (2 if name == "mosaic-v2" else 1),
                }
                run.append_metrics(step, row)
            run.write_result({"train_loss": 1.0})
        paths[name] = str(run.path.relative_to(folder))
    ablations = [
        {"name": "bandwidth", "arms": [
            arm("adaptive", "adaptive bandwidth", "mosaic-v2", [0.9, 0.8, 1.0], paths["mosaic-v2"]),
        ], "claims": [claim("loss", "train_loss", "adaptive", "constant", -0.02, published_effect=-0.3),
                      claim("alpha", "diagnostics:bandwidth/alpha/long-term", "adaptive", None, 0.3)]},
        {"name": "transformer-masks", "arms": [
            arm("mosaic", "mosaic v2", "mosaic-v2", [0.9, 0.8, 1.0], paths["mosaic-v2"]),
            arm("transformer", "transformer", "transformer", [0.1, 0.1, 0.1], paths["transformer"]),
        ], "claims": [claim("icl", "icl/accuracy-last-quarter@1x", "mosaic", "transformer", 0.8, published_effect=0.225),
                      claim("small", "icl/accuracy-last-quarter@4x", "mosaic", "transformer", 0.01, verdict="no effect"),
                      claim("missing", "facts/accuracy@1x", "mosaic", "transformer", 0.0, difference=None)]},
        {"name": "long-term-removal", "arms": [
            arm("removed", "long-term removed", "mosaic-v2", [0.5, 0.4, 0.3], paths["mosaic-v2"], removed=True),
        ], "claims": []},
    ]  # fmt: skip
    sweep = folder / "sweeps" / "smoke-00000000"
    sweep.mkdir(parents=True)
    (sweep / "results.json").write_text(json.dumps({"schema": SCHEMA, "ablations": ablations}))
    return folder


@pytest.fixture(scope="session")
def sweep(root: Path) -> Path:
    return root / "sweeps" / "smoke-00000000"


@pytest.fixture
def own_root(root: Path, tmp_path: Path) -> Path:
    """A runs folder of the test's own to draw into and to add sweeps to: the same runs, and a copy of the sweep."""
    return Path(shutil.copytree(root, tmp_path / "runs"))


@pytest.fixture
def own_sweep(own_root: Path) -> Path:
    return own_root / "sweeps" / "smoke-00000000"


@pytest.fixture(autouse=True)
def what_tests_share_stays_as_it_is(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests pass in any order: none may leave anything in the folder that all read, such as a newest sweep."""
    if "root" not in request.fixturenames:
        yield
        return
    shared = request.getfixturevalue("root")

    def content() -> dict[str, tuple[int, int]]:
        found = {path: path.stat() for path in sorted(shared.rglob("*"))}
        return {
            str(path.relative_to(shared)): (s.st_size, s.st_mtime_ns if path.is_file() else 0)
            for path, s in found.items()
        }

    before = content()
    yield
    assert content() == before, "a test changed the shared runs folder; own_root is for that"
