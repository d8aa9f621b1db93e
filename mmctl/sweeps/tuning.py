"""`--tune KEY=VALUES`: each arm's own value of one key, chosen by the validation loss before anything is reported.

Every arm is trained with every value, with the same steps and the same seeds, and takes the value whose mean validation
loss (evaluation/validation.py: sequences that no reported number uses) is lowest; that value is then used for all of the
arm's seeds. Trials are ordinary runs: what is trained once is trained for every arm, sweep and command that asks for it,
so an arm's trial with the chosen value is that arm's run with that seed. The choice is a function of finished runs: the
same command again chooses the same.

A trial that diverged has no loss and is not chosen. Of equal losses the value that was given first is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmctl.config import separate
from mmctl.errors import MmctlError, UsageError, first_line
from mmctl.sweeps.matrix import Arm, Matrix
from mmctl.sweeps.plan import Plan, make_plan
from mmctl.sweeps.profiles import Profile

BUDGET = ("training.steps",)
"""Keys that change how much an arm is trained: the budget is the same for every arm."""


@dataclass(frozen=True)
class Tuning:
    """What is asked: `key`, its `values` as typed, and the seeds of every trial."""

    key: str
    values: tuple[str, ...]
    seeds: tuple[int, ...]

    def read(self, text: str) -> Any:
        """A value as YAML reads it."""
        from mmctl import plain

        try:
            return plain.load(f"value: {text}")["value"]
        except Exception as error:
            raise UsageError(f"--tune {self.key}: {text}: not readable: {first_line(error)}") from None

    def words(self) -> list[str]:
        return ["--tune", f"{self.key}={','.join(self.values)}", "--tune-seeds", _list(self.seeds)]

    def record(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "values": list(self.values),
            "seeds": list(self.seeds),
            "chosen_by": "lowest mean validation loss of the mixture over these seeds, in nats",
        }


@dataclass(frozen=True)
class Tuned:
    """What a plan says of its tuning: the sweep's name (which must not depend on what is chosen) and the choices, one an
    arm (None before they are made)."""

    tuning: Tuning
    sweep: str
    choices: tuple[dict[str, Any], ...] | None = None

    def record(self) -> dict[str, Any]:
        return self.tuning.record() | {"arms": None if self.choices is None else list(self.choices)}


def parse(words: Sequence[str], seeds: Sequence[int] | None, default: Sequence[int]) -> Tuning | None:
    """From `--tune` and `--tune-seeds`. default: the sweep's seeds, whose first one trials take. UsageError."""
    if not words:
        if seeds is not None:
            raise UsageError(f"--tune-seeds {_list(seeds)}: is for --tune KEY=VALUES")
        return None
    if len(words) > 1:
        raise UsageError(f"--tune {words[1]}: one key at a time, as --tune {words[0]} is given")
    key, equals, text = words[0].partition("=")
    values = tuple(separate(text))
    if not equals or not key.strip() or not all(values):
        raise UsageError(f"--tune {words[0]}: expected KEY=VALUE,VALUE, such as training.learning_rate=1e-3,3e-3,1e-2")
    if len(values) < 2:
        raise UsageError(f"--tune {words[0]}: expected at least two values to choose from")
    key = key.strip()
    if key.partition(".")[0] not in ("training", "model") or key.startswith("model.name"):
        raise UsageError(
            f"--tune {key}: expected a key of training or model: the data, and with it the loss, must stay"
        )
    if key in BUDGET:
        raise UsageError(f"--tune {key}: the budget of trials is the same for every arm; steps are not chosen")
    return Tuning(key, values, tuple(seeds or (min(default),)))


def base(
    matrices: Sequence[Matrix],
    profile: Profile,
    overrides: Sequence[str],
    seeds: Sequence[int] | None,
    arguments: Sequence[str],
    budget: str | None,
    tuning: Tuning,
) -> Plan:
    """The sweep without any choice: its claims, seeds and costs. Refuses what cannot be tuned."""
    for text in overrides:
        if text.partition("=")[0].strip() == tuning.key:
            raise UsageError(f'"{tuning.key}" is what --tune chooses: leave {text} out')
    for matrix in matrices:
        for arm in matrix.arms:
            taken = {**arm.set, **arm.times, **dict.fromkeys(arm.match.keys if arm.match else ())}
            if tuning.key in taken:
                raise UsageError(f'--tune {tuning.key}: "{matrix.name}/{arm.name}" sets it: choose arms with --only')
    plan = make_plan(matrices, profile, overrides, seeds, arguments, budget)
    content = json.dumps([plan.digest, tuning.record()], sort_keys=True)
    plan.tuned = Tuned(tuning, f"{profile.name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}")
    return plan


def trials(plan: Plan, tuning: Tuning) -> Plan:
    """Every arm with every value, under the sweep's name: ordinary runs that are also scored on validation sequences."""
    matrices = [
        replace(
            matrix,
            arms=tuple(_with(arm, tuning, value, True) for arm in _trained(plan, matrix) for value in tuning.values),
            siblings=(*matrix.siblings, *matrix.arms),
            claims=(),
            across=(),
            figures=(),
        )
        for matrix in plan.matrices
    ]
    profile = replace(plan.profile, set={**plan.profile.set, "evaluation.validation": True})
    made = make_plan(matrices, profile, plan.overrides, tuning.seeds, plan.arguments, plan.budget)
    for matrix in plan.matrices:
        for arm in _trained(plan, matrix):
            _distinct(made, matrix, arm, tuning)
    made.tuned = plan.tuned
    return made


def choose(plan: Plan, made: Plan, root: Path) -> tuple[dict[str, Any], ...] | None:
    """One record an arm of `plan`: values tried with their validation losses, and the chosen one; None while a trial of
    `made` has neither a loss nor diverged. MmctlError where every value of an arm diverged."""
    assert plan.tuned is not None
    tuning, losses = plan.tuned.tuning, _losses(made, root)
    if any(state not in ("finished", "diverged") for state, _ in losses.values()):
        return None
    found = []
    for matrix in plan.matrices:
        for arm in _trained(plan, matrix):
            tried = []
            for value in tuning.values:
                identity = made.arms[matrix.name, _name(arm, tuning, value)]
                by_seed = {str(seed): losses[identity, seed][1] for seed in tuning.seeds}
                known = [loss for loss in by_seed.values() if loss is not None]
                mean = sum(known) / len(known) if len(known) == len(by_seed) else None
                tried.append({"value": tuning.read(value), "identity": identity, "losses": by_seed, "mean": mean})
            best = min(tried, key=lambda one: math.inf if one["mean"] is None else one["mean"])
            if best["mean"] is None:
                raise MmctlError(f"{matrix.name}/{arm.name}: diverged with every value of {tuning.key}: none to choose")
            edge = _at_edge(best["value"], [one["value"] for one in tried])
            found.append(
                {"ablation": matrix.name, "arm": arm.name, "tried": tried, "chosen": best["value"], "edge": edge}
            )
    return tuple(found)


def chosen(plan: Plan, choices: Sequence[dict[str, Any]]) -> Plan:
    """The sweep with every arm's own value."""
    assert plan.tuned is not None
    tuning = plan.tuned.tuning
    by_identity = {plan.arms[one["ablation"], one["arm"]]: one["chosen"] for one in choices}
    texts = {tuning.read(value): value for value in tuning.values}

    def own(matrix: Matrix, arm: Arm) -> Arm:
        return _with(arm, tuning, texts[by_identity[plan.arms[matrix.name, arm.name]]], False)

    matrices = [replace(m, arms=tuple(own(m, arm) for arm in m.arms)) for m in plan.matrices]
    seeds = set(plan.seeds.values())
    given = None if len(seeds) > 1 else next(iter(seeds))
    made = make_plan(matrices, plan.profile, plan.overrides, given, plan.arguments, plan.budget)
    made.tuned = replace(plan.tuned, choices=tuple(choices))
    return made


def _trained(plan: Plan, matrix: Matrix) -> list[Arm]:
    """One arm for everything that is trained: the first of those that share it."""
    firsts: dict[str, Arm] = {}
    for arm in matrix.arms:
        firsts.setdefault(plan.arms[matrix.name, arm.name], arm)
    return list(firsts.values())


def _with(arm: Arm, tuning: Tuning, value: str, trial: bool) -> Arm:
    made = replace(arm, set={**arm.set, tuning.key: tuning.read(value)})
    if not trial:
        return made
    name = _name(arm, tuning, value)
    return Arm(name, f"{arm.label}, {tuning.key} = {value}", made.set, match=arm.match, times=arm.times)


def _name(arm: Arm, tuning: Tuning, value: str) -> str:
    return f"{arm.name}-{tuning.key.rpartition('.')[2]}-{value}"


def _distinct(made: Plan, matrix: Matrix, arm: Arm, tuning: Tuning) -> None:
    seen: dict[str, str] = {}
    for value in tuning.values:
        identity = made.arms[matrix.name, _name(arm, tuning, value)]
        if identity in seen:
            raise UsageError(f"--tune {tuning.key}: {seen[identity]} and {value} are the same value")
        seen[identity] = value


def _losses(made: Plan, root: Path) -> dict[tuple[str, int], tuple[str, float | None]]:
    """{(identity, seed): (state, validation loss)} of the trials; "unscored" for a finished run without a loss."""
    from mmctl.evaluation import find_evaluation
    from mmctl.evaluation.suites import VALIDATION
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known, found = index(root), {}
    for run in made.runs():
        folder = RunFolder.among(known.get(run.key, []))
        state, loss = ("planned" if folder is None else folder.state()), None
        if folder is not None and state == "finished":
            scored = find_evaluation(folder, run.config, VALIDATION)
            if scored is None:
                state = "unscored"
            else:
                value = scored[1]["scores"]["validation/loss@1x"]["value"]
                finite = isinstance(value, int | float) and math.isfinite(value)
                state, loss = ("finished", float(value)) if finite else ("diverged", None)
        found[run.key] = (state, loss)
    return found


def _at_edge(value: Any, values: Sequence[Any]) -> bool:
    """Whether a number is the smallest or largest that was tried: a better one may lie beyond."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(values) and value in (min(numbers), max(numbers))


def _list(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
