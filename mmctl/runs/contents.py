"""What the tracking store is told about a run, read from its folder: tags, parameters, metrics, scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError
from mmctl.runs import files
from mmctl.runs.folder import RunFolder
from mmctl.runs.listing import flat
from mmctl.runs.store import clean_key, finite, milliseconds

PARAMETERS = (
    "name",
    "seed",
    "data.length",
    "data.batch",
    "data.vocabulary",
    "training.steps",
    "training.learning_rate",
)
"""Logged as parameters beside `model.*`; everything else is in the artifact config.yaml."""
NOT_METRICS = ("step", "time")
NOT_RESULTS = ("seed", "identity")


def tags(run: RunFolder, uid: str, parent: str | None) -> dict[str, str]:
    """What identifies the run. `mmctl.run` names its folder for good, wherever it is moved."""
    found = {
        "mmctl.run": uid,
        "mmctl.identity": run.identity,
        "mmctl.seed": str(run.seed),
        "mmctl.path": run.label,
        "mmctl.attempt": str(run.status.get("attempt", 0)),
        "mlflow.source.name": "mmctl",
        "mlflow.source.type": "LOCAL",
    }
    git = run.provenance().get("git")
    if isinstance(git, dict) and git.get("commit"):
        found["mlflow.source.git.commit"] = str(git["commit"])
    if parent:
        found["mlflow.parentRunId"] = parent
    return found


def parameters(run: RunFolder) -> dict[str, str]:
    """The axes and a few keys: MLflow's parameters can never be changed and are few by design."""
    chosen = {k: v for k, v in flat(run.config_dict()).items() if k.startswith("model.") or k in PARAMETERS}
    return {"identity": run.identity, **{clean_key(k): str(v)[:500] for k, v in chosen.items()}}


def metrics(row: Mapping[str, Any]) -> list[Any]:
    """MLflow metrics of one row of metrics.jsonl; what is not finite is left out."""
    from mlflow.entities import Metric

    stamp = milliseconds(row.get("time")) or 0
    numbers = {key: value for key, value in row.items() if key not in NOT_METRICS and finite(value)}
    return [Metric(clean_key(key), float(value), stamp, row["step"]) for key, value in numbers.items()]


def diverged(row: Mapping[str, Any]) -> bool:
    """Whether this row's loss is NaN or infinite."""
    return "loss" in row and not finite(files.number(row["loss"]))


def scores(run: RunFolder, there: Mapping[str, float]) -> list[Any]:
    """Evaluations as <stem>/<score> and result.json as result/<name>, at the run's last step, where they differ from
    what is `there`. MmctlError if an evaluation is damaged."""
    from mlflow.entities import Metric

    values: dict[str, tuple[Any, int]] = {}
    for stem, evaluation in run.evaluations().items():
        changed = _changed(run, f"eval/{stem}.json")
        if not isinstance(evaluation.get("scores"), dict):
            raise MmctlError(f"{run.path}/eval/{stem}.json: damaged, not an evaluation")
        for name, score in evaluation["scores"].items():
            values[clean_key(f"{stem}/{name}")] = (score.get("value") if isinstance(score, dict) else None, changed)
    if run.finished:
        changed = _changed(run, "result.json")
        values |= {clean_key(f"result/{k}"): (v, changed) for k, v in run.result().items() if k not in NOT_RESULTS}
    step = run.last_metrics().get("step", 0)
    return [
        Metric(key, float(value), stamp, int(step) if isinstance(step, int) else 0)
        for key, (value, stamp) in values.items()
        if finite(value) and there.get(key) != float(value)
    ]


def system_metrics(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Any]:
    """MLflow metrics of (number, row) of system.jsonl: the number stands for the step, as MLflow does it."""
    from mlflow.entities import Metric

    return [
        Metric(clean_key(key), float(value), milliseconds(row.get("time")) or 0, number)
        for number, row in rows
        for key, value in row.items()
        if key not in NOT_METRICS and finite(value)
    ]


def kept_path(root: Path, path: Path | str) -> str:
    """How a file under `root` is noted down: relative, so that the folder of runs may be moved. ValueError
    elsewhere."""
    relative = Path(path).absolute().relative_to(root.absolute())
    if ".." in relative.parts:
        raise ValueError(f"{path}: not under {root}")
    return str(relative)


def file_to_send(root: Path, noted: str) -> Path | None:
    """The file noted by `kept_path`; None if it is gone, or leads out of `root`: what a run's folder says may come from
    somebody else, and must not make us send away whatever it names."""
    path = root / noted
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None
    return path if real.is_file() and real.is_relative_to(root.resolve()) else None


def _changed(run: RunFolder, name: str) -> int:
    """Milliseconds at which a file of the run was last written."""
    return int((run.path / name).stat().st_mtime * 1000)
