"""The README's walk to a new model, taken to the letter in a copy of the package: one file and one registry line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder holding the package as it is installed."""
    keep = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mmctl", tmp_path / "mmctl", ignore=keep)
    for part in ("kernels", "ablations", "plots"):
        shutil.copytree(ROOT / part, tmp_path / "mmctl" / part, ignore=keep)
    return tmp_path


def run(package: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mmctl", *words],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_model_is_one_file_and_one_registry_line(package: Path) -> None:
    walk = re.search(r"- \*\*A model\*\*:(.+?)\n- \*\*", README, re.DOTALL)
    assert walk
    block = next(b for b in re.findall(r"```python\n(.+?)```", README, re.DOTALL) if "MODELS = " in b)
    lines = block.rstrip().splitlines()
    assert lines.pop().startswith("MODELS = ")
    where, line, registry = re.search(r"`(\S+\.py)`, add\s+`(.+?)`\s+to `MODELS` in\s+`(\S+)`", walk[1]).groups()
    command = re.search(r"`mmctl (train \S+ [^`]+)`", walk[1])[1].split()

    (package / where).write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = package / registry
    text = path.read_text(encoding="utf-8")
    head = "MODELS: dict[str, str | type] = {\n"
    assert head in text
    path.write_text(text.replace(head, f"{head}    {line}\n"), encoding="utf-8")

    small = ["training.steps=2", "data.length=48", "data.batch=2", "data.mixture={recall: 1}", "training.warmup=1",
             "evaluation.examples=2", "evaluation.minimum_examples=2", "evaluation.lengths=[1]", "operation.mlflow=false"]  # fmt: skip
    run(package, *command, *small)
    (finished,) = package.glob("runs/*/seed0/result.json")
    assert json.loads(finished.read_text())["steps"] == 2
    config = (finished.parent / "config.yaml").read_text()
    assert "name: normed" in config
    assert "gain: 2.0" in config
    assert json.loads(run(package, "flops", "smoke", "model.name=normed", "--json"))
