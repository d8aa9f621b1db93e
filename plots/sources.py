"""Where figures get their data: sweeps on disk, the runs behind them, and where finished figures are announced."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError, UsageError, nearest

if TYPE_CHECKING:
    from mmctl.runs import RunFolder


def find_sweep(root: Path, wanted: str | None) -> Path:
    """A sweep's folder: `wanted` as a path or a name under `root`/sweeps, or without it the newest that has results."""
    if wanted and (Path(wanted) / "results.json").is_file():
        return Path(wanted)
    folder = root / "sweeps"
    found = {p.parent.name: p for p in folder.glob("*/results.json")}
    if wanted:
        if wanted not in found:
            raise UsageError(f'sweep "{wanted}": not found under {folder}{nearest(wanted, found, "sweeps")}')
        return found[wanted].parent
    if not found:
        raise UsageError(f"{folder}: no sweep has results yet; run mmctl ablate, or name a run or a sweep")
    return max(found.values(), key=lambda p: p.stat().st_mtime).parent


def read_results(sweep: Path) -> dict[str, Any]:
    """A sweep's results.json. MmctlError, one line, when it is damaged or of another version's form."""
    from mmctl.runs.files import read_json
    from mmctl.sweeps.results import SCHEMA

    results = read_json(sweep / "results.json")
    if not isinstance(results, dict) or not isinstance(results.get("ablations"), list):
        raise MmctlError(f"{sweep / 'results.json'}: not the results of a sweep")
    if results.get("schema") != SCHEMA:
        again = results.get("command") or "its own command"
        raise MmctlError(
            f"{sweep / 'results.json'}: of form {results.get('schema')}, expected {SCHEMA}; brought up to date, without "
            f"training anything anew, by: {again}"
        )
    return results


def arms(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every distinct arm once: ablations share cells, and the same cell read the same way is one point.

    Each arm gets a `shown` name: its own label, or its cell's name where several ablations have it.
    """
    distinct: dict[tuple[Any, ...], dict[str, Any]] = {}
    for ablation in results["ablations"]:
        for arm in ablation["arms"]:
            key = (arm["identity"], *sorted((k, str(v)) for k, v in arm["evaluate"].items()))
            if key in distinct:
                distinct[key]["shown"] = arm.get("cell") or arm["model"]
            else:
                distinct[key] = {**arm, "shown": arm["label"]}
    return list(distinct.values())


def named_runs(root: Path, texts: Iterable[str]) -> list[RunFolder]:
    """The runs that a command names, each once: a run named twice is not a second seed of itself."""
    from mmctl.runs import RunFolder

    found = (RunFolder.find(root, text) for text in texts)
    return list({run.path.resolve(): run for run in found}.values())


def typed(run: RunFolder) -> str:
    """A run as a command that is to be typed names it: short where commands look for runs unasked, else its folder."""
    from mmctl.runs import runs_root

    return run.label if run.path.parent.parent == runs_root() else shlex.quote(str(run.path))


def to_score(run: RunFolder, task: str) -> str:
    """What makes scores of `task` for a run, also one not trained on it: the command as typed, or why none does."""
    from mmctl.data import build_task

    config = run.config()
    try:
        source = build_task(task, config.data)
        reasons = [source.unavailable(times * config.data.length, "held-out") for times in config.evaluation.lengths]
    except UsageError as error:
        reasons = [str(error)]
    if reasons and all(reasons):
        return f"task {task} cannot be measured on it: {reasons[-1]}"
    return f"first mmctl eval {typed(run)} --tasks {task}"


def run_of(arm: Mapping[str, Any], sweep: Path, seed: str | None = None) -> RunFolder | None:
    """The finished run behind an arm: that of `seed`, or of the first seed that has one. None when there is none."""
    from mmctl.runs import RunFolder

    for one, run in arm["runs"].items():
        if seed in (None, one) and run["state"] == "finished" and run["path"]:
            return RunFolder.open(sweep.parent.parent / run["path"])
    return None


def runs_of(arm: Mapping[str, Any], sweep: Path) -> list[RunFolder]:
    """The finished runs behind an arm, a seed each."""
    found = (run_of(arm, sweep, seed) for seed in arm["runs"])
    return [run for run in found if run is not None]


def trained(results: Mapping[str, Any]) -> list[Any]:
    """What a figure of the runs themselves depends on: which they are, and how they ended."""
    return [
        [ablation["name"], arm["name"], arm["identity"], arm["evaluate"], arm["runs"], _loss(arm)]
        for ablation in results["ablations"]
        for arm in ablation["arms"]
    ]


def _loss(arm: Mapping[str, Any]) -> Any:
    return (arm["scores"].get("train_loss") or {}).get("seeds")


def run_labels(results: Mapping[str, Any]) -> list[str]:
    """Finished runs of a sweep, "name/seed0", each once."""
    return [run["label"] for run in results.get("runs", []) if run["state"] == "finished"]


def baseline_arms(sweep: Path) -> list[dict[str, Any]]:
    """Of each model in the sweep the first arm that has a finished run; transformers before mosaics. UsageError where
    there is none."""
    chosen: dict[str, dict[str, Any]] = {}
    for arm in arms(read_results(sweep)):
        if arm["model"] not in chosen and run_of(arm, sweep) is not None:
            chosen[arm["model"]] = arm
    if not chosen:
        raise UsageError(f"{sweep}: no run of it is finished yet")
    return [chosen[name] for name in sorted(chosen, key=lambda name: (name.startswith("mosaic"), name))]


def baseline_runs(sweep: Path) -> list[RunFolder]:
    """One run of each of `baseline_arms`."""
    return [run for arm in baseline_arms(sweep) if (run := run_of(arm, sweep)) is not None]


def announce(paths: Mapping[str, Path], runs: Iterable[RunFolder] = (), sweep: Path | None = None) -> None:
    """Log a figure's files to the MLflow runs it is about, and print the paths on stdout.

    Those are the runs shown, or the parent runs of a sweep. The store being down is said on stderr and is no failure. A
    figure drawn elsewhere than in the folder of runs is not logged: the store's copies are remade from that folder.
    """
    from mmctl.runs import Mirror
    from mmctl.runs.parents import parents

    for path in paths.values():
        print(path)

    def kept(root: Path) -> bool:
        return all(path.absolute().is_relative_to(root.absolute()) for path in paths.values())

    for run in runs:
        if run.finished and kept(run.path.parent.parent) and run.config().operation.mlflow:
            mirror = Mirror.start(run)
            mirror.artifacts(paths.values())
            mirror.finish(run.state())
    if sweep is not None and kept(sweep.parent.parent):
        for parent in parents(sweep.parent.parent):
            if parent.folder.resolve() == sweep.resolve():
                parent.artifacts(paths.values(), "figures")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
