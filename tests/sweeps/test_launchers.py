"""The same sweep through SLURM's path (submitit, on this machine) and through a local Ray cluster; what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmctl.errors import UsageError
from mmctl.sweeps import matrix, profiles, session
from mmctl.sweeps.launchers import Resources, launcher
from mmctl.sweeps.plan import make_plan

SMALL = [
    "training.steps=4", "training.warmup=1", "data.length=64", "data.batch=4", "data.mixture.text=0", "model.width=16",
    "model.heads=2", "model.ffn_width=32", "evaluation.examples=4", "evaluation.minimum_examples=2",
    "evaluation.lengths=[1]", "operation.mlflow=false",
]  # fmt: skip
MATRIX = """
name: own
question: Does it run elsewhere?
baseline: {set: {model.name: transformer}}
arms:
  - {name: rope}
  - {name: nope, set: {model.position: none}}
"""


def ablate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "own.yaml").write_text(MATRIX)
    command = [sys.executable, "-m", "mmctl", "ablate", str(folder / "own.yaml"), "--seeds", "0,", *words, *SMALL]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "RAY_AUTH_MODE": "disabled"}
    )


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("submitit", ["--launcher", "slurm", "--launcher-option", "cluster=local"]),
        ("ray", ["--launcher", "ray"]),
    ],
)
def test_a_sweep_elsewhere_gives_the_results_of_one_here(package: str, words: list[str], tmp_path: Path) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    done = ablate(tmp_path, "--runs", str(tmp_path / "there"), *words)
    assert done.returncode == 0, done.stderr[-2000:]
    here = ablate(tmp_path, "--runs", str(tmp_path / "here"))
    assert here.returncode == 0, here.stderr[-2000:]
    results = {}
    for where in ("here", "there"):
        found = sorted((tmp_path / where).glob("*/seed0/result.json"))
        assert len(found) == 2
        results[where] = {p.parent.parent.name: json.loads(p.read_text())["train_loss"] for p in found}
    assert results["here"] == results["there"]  # bit for bit
    provenance = json.loads(next((tmp_path / "there").glob("own-nope*/seed0/provenance.json")).read_text())
    assert "mmctl train" in " ".join(provenance["command"])
    if package == "submitit":
        assert list((tmp_path / "there").glob("sweeps/*/workers/slurm/*_log.out"))  # logs are collected
    again = ablate(tmp_path, "--runs", str(tmp_path / "there"))
    assert "nothing has changed" in again.stderr  # another launcher finds the same runs


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("slurm", {"partion": "gpu"}, 'partion": no such option of slurm.*partition'),
        ("slurm", {"time": "soon"}, "time=soon: expected a whole number"),
        ("slurm", {"cluster": "pbs"}, "cluster=pbs: expected slurm or local"),
        ("ray", {"adress": "auto"}, 'adress": no such option of ray.*address'),
        ("ray", {"retries": "-1"}, "retries=-1: expected a whole number"),
        ("local", {"cluster": "local"}, 'cluster": launcher "local" has no options'),
        ("slrum", {}, 'no such launcher.*"slurm"'),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        launcher(name, Resources(), tmp_path, options)
    plan = make_plan(matrix.find(["bandwidth"]), profiles.profile("smoke"), [], [0], ["bandwidth"])
    with pytest.raises(UsageError, match=words):  # a dry run says so, too
        session.dry_run(plan, tmp_path, session.Where(name, options), as_json=False)
    assert not list(tmp_path.iterdir())


def test_a_missing_cluster_or_package_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    done = ablate(tmp_path, "--runs", str(tmp_path / "runs"), "--launcher", "slurm")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("mmctl: --launcher slurm:")
    assert "Traceback" not in done.stderr
    wrong = ablate(tmp_path, "--runs", str(tmp_path / "runs"), "--ray-address", "auto")
    assert wrong.returncode == 2
    assert "--ray-address auto" in wrong.stderr


def test_a_preempted_job_is_submitted_again_as_it_is() -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    from mmctl.sweeps.launchers.remote import Requeued

    again = Requeued().checkpoint({"id": 3}, {"train": "x:y"})
    assert isinstance(again.function, Requeued)
    assert again.args == ({"id": 3}, {"train": "x:y"})


def test_a_login_node_without_devices_can_ask_for_them(tmp_path: Path) -> None:
    """The usual case on a cluster: what this machine lacks, the nodes have."""
    words = ["--launcher", "slurm", "--launcher-option", "cluster=local", "--gpus-per-run", "1", "--dry-run"]
    done = ablate(tmp_path, "--runs", str(tmp_path / "runs"), *words)
    assert done.returncode == 0, done.stderr
    here = ablate(tmp_path, "--runs", str(tmp_path / "runs"), "--gpus-per-run", "1", "--dry-run")
    assert here.returncode == 2
    assert "--gpus-per-run 1" in here.stderr
