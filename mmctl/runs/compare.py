"""Runs side by side: where their configurations differ, their scores with paired differences, what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError
from mmctl.runs import names
from mmctl.runs.folder import RunFolder
from mmctl.runs.listing import flat
from mmctl.runs.store import finite

COSTS = ("parameters", "flops_per_token/published", "flops_per_token/executed", "tokens", "seconds")
"""What stands beside the scores, from result.json."""
RESULTS = ("train_loss", "held_out_loss")
"""Numbers of result.json that are compared as scores are."""
NOT_DIFFERENCES = ("name", "seed", "schema")


@dataclass
class Group:
    """The runs of one identity that were named: one seed, or several. `runs` are finished; `unfinished` is label ->
    state."""

    identity: str
    label: str
    runs: dict[int, RunFolder] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def groups(root: Path, texts: Sequence[str]) -> list[Group]:
    """One group for each thing named: `.../seedK` is that run, `name-identity` (or a name of only one identity) all its
    seeds. UsageError if a name fits several identities, or nothing named is finished."""
    found = []
    for text in texts:
        places = names.find_all(root, text)
        if len({place.identity for place in places}) > 1:
            raise names.Ambiguous(text, places)
        group = Group(places[0].identity, places[0].label if len(places) == 1 else places[0].label.partition("/")[0])
        for place in places:
            run = RunFolder.open(place.path)
            if run.finished:
                group.runs.setdefault(run.seed, run)
            else:
                group.unfinished[run.label] = run.state()
        group.config = flat(RunFolder.open(places[0].path).config_dict())
        found.append(group)
    if len(found) < 2:
        raise UsageError("expected at least two runs to compare")
    if not any(group.runs for group in found):
        raise MmctlError("none of these runs is finished: there are no scores to compare")
    return found


def compare(found: Sequence[Group]) -> dict[str, Any]:
    """JSON-ready: "runs" (with costs), "differences" {key: [a value a run]}, "scores" (a row each, see `_row`).

    Differences are against the first one named, over the seeds both have: over at least two seeds as the reports have
    them (sweeps/statistics.py), for one shared seed a paired bootstrap over its examples. Evaluations are compared only
    where they were made with the same settings.
    """
    return {
        "runs": [_about(group) for group in found],
        "differences": differences([group.config for group in found]),
        "scores": [*_result_rows(found), *_score_rows(found)],
    }


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The keys whose values are not all the same, in order, with each configuration's value; None where it has no such
    key (a key of another model)."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in NOT_DIFFERENCES)
    rows = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in rows.items() if any(value != values[0] for value in values)}


def _about(group: Group) -> dict[str, Any]:
    results = [run.result() for run in group.runs.values()]
    costs = {key: _mean([r.get(key) for r in results]) for key in COSTS}
    return {
        "run": group.label,
        "identity": group.identity,
        "seeds": sorted(group.runs),
        "unfinished": group.unfinished,
        "cost": costs,
    }


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return sum(numbers) / len(numbers) if numbers else None


def _result_rows(found: Sequence[Group]) -> list[dict[str, Any]]:
    rows = []
    for name in RESULTS:
        columns = [{s: {"value": run.result().get(name)} for s, run in group.runs.items()} for group in found]
        if row := _row("result", name, columns):
            rows.append(row)
    return rows


def _score_rows(found: Sequence[Group]) -> list[dict[str, Any]]:
    """By evaluation (a file's name in eval/) and score."""
    read = [{seed: _evaluations(run) for seed, run in group.runs.items()} for group in found]
    stems = dict.fromkeys(stem for group in read for evaluations in group.values() for stem in evaluations)
    rows = []
    for stem in sorted(stems):
        usable = [{seed: e[stem] for seed, e in group.items() if stem in e} for group in read]
        settings = [e.get("settings") for group in usable for e in group.values()]
        if any(s != settings[0] for s in settings):
            continue  # other examples: a difference would mean nothing
        scores = dict.fromkeys(name for group in usable for e in group.values() for name in e["scores"])
        for name in scores:
            columns = [
                {seed: e["scores"][name] for seed, e in group.items() if name in e["scores"]} for group in usable
            ]
            if row := _row(stem, name, columns):
                rows.append(row)
    return rows


def _evaluations(run: RunFolder) -> dict[str, dict[str, Any]]:
    return {stem: e for stem, e in run.evaluations().items() if isinstance(e.get("scores"), dict)}


def _row(evaluation: str, score: str, columns: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[str, Any] | None:
    """ "values": mean, interval and n a run; "differences": from the first run, None where no seed pairs up."""
    from mmctl.sweeps.examples import bootstrap_difference, sampling
    from mmctl.sweeps.statistics import paired, summarise

    numbers = [{seed: float(s["value"]) for seed, s in column.items() if finite(s.get("value"))} for column in columns]
    if sum(bool(column) for column in numbers) < 1:
        return None
    values: list[dict[str, Any] | None] = []
    for column, entries in zip(numbers, columns, strict=True):
        summary = summarise(list(column.values()), sampling([entries[s] for s in column]))
        if summary is None:
            values.append(None)
            continue
        interval = summary.interval
        if summary.n == 1:
            own = entries[next(iter(column))].get("interval")
            interval = (own[0], own[1]) if own else None
        values.append({"mean": summary.mean, "sd": summary.sd, "interval": interval, "n": summary.n})
    found: list[dict[str, Any] | None] = [None]
    for column, entries in zip(numbers[1:], columns[1:], strict=True):
        shared = sorted(column.keys() & numbers[0].keys())
        sides = [entries[s] for s in shared], [columns[0][s] for s in shared]
        difference = paired(column, numbers[0], sampling(*sides) if shared else None)
        if difference is None:
            found.append(None)
            continue
        interval, over = difference.interval, difference.over
        if len(shared) == 1 and (drawn := bootstrap_difference(sides[0][0], sides[1][0])) is not None and drawn[1]:
            interval, over = drawn[0], "examples"
        found.append({"mean": difference.mean, "interval": interval, "p": difference.p, "n": len(shared), "over": over})
    return {"evaluation": evaluation, "score": score, "values": values, "differences": found}


def apart(places: Sequence[names.Place]) -> list[tuple[str, str, str]]:
    """(Label, state, what tells it from the others) of runs that fit one name, so that a person can choose."""
    runs = [RunFolder(place) for place in places]
    configs: list[dict[str, Any]] = []
    for run in runs:
        try:
            configs.append(flat(run.config_dict()))
        except MmctlError:
            configs.append({})
    unlike = differences(configs)
    return [
        (
            run.label,
            run.state(),
            ", ".join(f"{key}={values[number]}" for key, values in unlike.items()) or "the seed only",
        )
        for number, run in enumerate(runs)
    ]
