"""Runs and their scores as a pandas table, for notebooks: `mmctl.load_runs`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError, UsageError
from mmctl.evaluation.changes import said
from mmctl.runs import files, names
from mmctl.runs.filters import Filters, configurations, select
from mmctl.runs.folder import RunFolder
from mmctl.runs.listing import flat, row

if TYPE_CHECKING:
    from pandas import DataFrame

ABOUT = ("name", "identity", "seed", "run", "path", "state", "reason", "attempt", "step", "train_loss", "when")
"""Columns every run has, first; `when` is a UTC time."""
SCORES = (
    "evaluation", "suite", "changes", "remove_long_term", "delay", "task", "score", "multiple", "length", "value", "low", "high", "n",
    "chance",
)  # fmt: skip
_SCORE = re.compile(r"(?P<task>[^/]+)/(?P<score>.+)@(?P<multiple>\d+)x")


def load_runs(
    folder: str | Path | None = None,
    filters: Mapping[str, Any] | Sequence[str] = (),
    *,
    state: str | None = None,
    name: str | None = None,
    older_than: str | None = None,
    scores: bool = False,
) -> DataFrame:
    """The runs in `folder` (default: MMCTL_RUNS, else ./runs) that fit, as a pandas DataFrame.

    filters: configuration keys and their values, {"model.bandwidth": "adaptive"} or ["model.bandwidth=adaptive"];
    state, name, older_than: as `mmctl runs list` takes them. An empty table has the columns of `ABOUT`.

    One row a run: ABOUT, then every configuration key under its dotted name (model.bandwidth, training.steps, ...;
    missing where a model has no such key), then every number of result.json under `result.` (result.tokens,
    result.parameters).

    With scores=True one row a score: ABOUT without reason, attempt, step, train_loss and when, the configuration keys,
    and SCORES: `evaluation` (the file in eval/), `suite`, `changes` (what was changed
    at evaluation time, in words), `remove_long_term` and `delay` of these,
    `task` and `score` (recall, accuracy), `multiple` of the training length and `length` in tokens, `value`, `low` and
    `high` (its 95% interval over examples), `n` examples, `chance`. What could not be measured has no row.

    A damaged file costs its columns (missing), never the table. Raises UsageError for a folder, key or state that is
    not there, MmctlError without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise MmctlError("load_runs needs pandas: pip install pandas") from None
    root = names.runs_root(folder)
    if folder is not None and not root.is_dir():
        raise UsageError(f"{root}: no such folder of runs")
    words = filters if not isinstance(filters, Mapping) else [f"{k}={_typed(v)}" for k, v in filters.items()]
    found = list(select(root, Filters.of(list(words), state, name, older_than)))
    configs = configurations(found)
    rows = [
        entry
        for run in found
        for entry in (_scores(run, configs.get(run.label, {})) if scores else [_run(run, configs.get(run.label, {}))])
    ]
    first = [c for c in ABOUT if not scores or c in ("name", "identity", "seed", "run", "path", "state")]
    last = list(SCORES) if scores else []
    keys = dict.fromkeys(key for entry in rows for key in entry if key not in (*first, *last))
    made = pandas.DataFrame(rows, columns=[*first, *sorted(keys, key=_sections), *last])
    if "when" in made:
        made["when"] = pandas.to_datetime(made["when"], utc=True)
    return made


def _typed(value: Any) -> str:
    return "null" if value is None else str(value)


def _sections(key: str) -> tuple[int, str]:
    """Configuration before results."""
    return int(key.startswith("result.")), key


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("name", "seed", "schema")}


def _run(run: RunFolder, config: Mapping[str, Any]) -> dict[str, Any]:
    about = {key: files.number(value) for key, value in row(run).items() if key in ABOUT}
    result: dict[str, Any] = {}
    if run.finished:
        result = {
            f"result.{k}": files.number(v) for k, v in flat(run.result()).items() if k not in ("identity", "seed")
        }
    return {**about, **_settings(config), **result}


def _scores(run: RunFolder, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    about = {"name": run.name, "identity": run.identity, "seed": run.seed, "run": run.label, "path": str(run.path)}
    common = {**about, "state": run.state(), **_settings(config)}
    rows = []
    for path in sorted((run.path / "eval").glob("[!.]*.json"), key=lambda p: p.stem):
        try:
            evaluation = files.read_object(path)
        except MmctlError:
            continue
        entries, changes = evaluation.get("scores"), evaluation.get("changes")
        if not isinstance(entries, dict) or not isinstance(changes, dict):
            continue
        for full, score in entries.items():
            if (match := _SCORE.fullmatch(full)) and isinstance(score, dict):
                rows.append({**common, **_score(path.stem, evaluation, changes, match, score)})
    return rows


def _score(
    stem: str, evaluation: Mapping[str, Any], changes: Mapping[str, Any], match: re.Match[str], score: Mapping[str, Any]
) -> dict[str, Any]:
    multiple = int(match["multiple"])
    settings, tasks = evaluation.get("settings"), evaluation.get("tasks")
    length = settings.get("training_length") if isinstance(settings, dict) else None
    task = tasks.get(f"{match['task']}@{multiple}x") if isinstance(tasks, dict) else None
    low, high = score.get("interval") or (None, None)
    return {
        "evaluation": stem,
        "suite": evaluation.get("suite"),
        "changes": ", ".join(said(changes)),
        "remove_long_term": bool(changes.get("remove_long_term")),
        "delay": changes.get("delay"),
        "task": match["task"],
        "score": match["score"],
        "multiple": multiple,
        "length": multiple * length if isinstance(length, int) else None,
        "value": files.number(score.get("value")),
        "low": low,
        "high": high,
        "n": score.get("n"),
        "chance": task.get("chance") if isinstance(task, dict) and "accuracy" in match["score"] else None,
    }
