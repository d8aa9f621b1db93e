"""From matrices to runs: the cells of all chosen ablations, each trained once a seed, under one name."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mmctl import plugins
from mmctl.config import Config, load, parse_overrides
from mmctl.errors import UsageError
from mmctl.evaluation.changes import Changes
from mmctl.sweeps.cells import Cell, Composer, Use
from mmctl.sweeps.matrix import Matrix, shipped
from mmctl.sweeps.metrics import check_claims
from mmctl.sweeps.profiles import Profile
from mmctl.sweeps.reading import distinct, together

if TYPE_CHECKING:
    from mmctl.sweeps.tuning import Tuned

LONGEST_NAME = 80
"""Characters of a run folder's name, before the identity."""


@dataclass(frozen=True)
class Run:
    """One training: a cell with a seed."""

    cell: Cell
    seed: int

    @property
    def label(self) -> str:
        return f"{self.cell.name}/seed{self.seed}"

    @property
    def key(self) -> tuple[str, int]:
        return self.cell.identity, self.seed

    @property
    def config(self) -> Config:
        return replace(self.cell.config, seed=self.seed, name=self.cell.name)


@dataclass
class Plan:
    """A whole sweep, validated. `cells` is by identity, in order of first use; `arms` maps (ablation, arm) to
    identity."""

    profile: Profile
    matrices: list[Matrix]
    seeds: dict[str, tuple[int, ...]]
    overrides: list[str]
    cells: dict[str, Cell]
    arms: dict[tuple[str, str], str]
    passed_over: dict[str, list[str]]
    arguments: list[str] = field(default_factory=list)
    """Words of `mmctl ablate` that make this plan again (names, selection), besides profile, seeds and overrides."""
    budget: str | None = None
    """What --match made the same for every arm."""
    tuned: Tuned | None = None
    """What --tune asks for, and has chosen."""

    def runs(self) -> list[Run]:
        """Seed by seed, so that a sweep cut short has whole seeds to compare."""
        seeds = sorted({s for cell in self.cells.values() for s in cell.seeds})
        return [Run(cell, seed) for seed in seeds for cell in self.cells.values() if seed in cell.seeds]

    def cell(self, ablation: str, arm: str) -> Cell:
        return self.cells[self.arms[ablation, arm]]

    @property
    def digest(self) -> str:
        """8 hex digits naming the sweep: its cells, seeds and evaluation. Claims are not part: they live in the
        manifest."""
        content = {
            "profile": self.profile.name,
            "arms": {
                f"{m.name}/{a.name}": [self.arms[m.name, a.name], *_changes(a.evaluate)]
                for m in self.matrices
                for a in m.arms
            },
            "seeds": {name: list(seeds) for name, seeds in self.seeds.items()},
            "evaluation": [_evaluation(c.config) for c in self.cells.values()],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        return f"{self.profile.name}-{self.digest}" if self.tuned is None else self.tuned.sweep

    def command(self, ablation: str | None = None) -> str:
        """The command line that makes this sweep, or one ablation of it."""
        names, seeds = self.arguments, set(self.seeds.values())
        if ablation is not None:
            matrix = next(m for m in self.matrices if m.name == ablation)
            names = [ablation if shipped().get(ablation) == matrix.file else str(matrix.file)]
            seeds = {self.seeds[ablation]}
        words = ["mmctl", "ablate", *names, "--profile", self.profile.name]
        if len(seeds) == 1:
            numbers = seeds.pop()
            words += ["--seeds", ",".join(map(str, numbers)) + ("," if len(numbers) == 1 else "")]
        words += ["--match", self.budget] if self.budget else []
        words += self.tuned.tuning.words() if self.tuned is not None else []
        return shlex.join([*words, *plugins.words(), *self.overrides])


def make_plan(
    matrices: Sequence[Matrix],
    profile: Profile,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    arguments: Sequence[str] = (),
    budget: str | None = None,
) -> Plan:
    """Compose preset, profile, baseline, arm and the user's key=value into validated cells. Raises UsageError.

    A `model.*` override that an arm's model does not have, but another arm's has, is passed over for that arm (and
    listed in `passed_over`); one that no arm has is an error, as is one that would undo what an ablation varies.
    """
    typed = parse_overrides(overrides)
    _check_overrides(typed, matrices)
    plan = Plan(profile, list(matrices), {}, list(overrides), {}, {}, {}, list(arguments), budget)
    composer = Composer(profile, typed, list(overrides))
    problems: list[str] = []
    for matrix in matrices:
        plan.seeds[matrix.name] = tuple(seeds or matrix.seeds or profile.seeds)
        for arm in matrix.arms:
            try:
                cell = composer.cell(matrix, arm)
            except UsageError as error:
                problems.append(str(error))
                continue
            known = plan.cells.setdefault(cell.identity, cell)
            if _evaluation(known.config) != _evaluation(cell.config):
                first = known.uses[0]
                problems.append(
                    f"{matrix.name}/{arm.name}: scored at other lengths than {first.ablation}/{first.arm}, which trains "
                    "the same run: run the two ablations one after the other"
                )
            cell = known
            cell.uses.append(Use(matrix.name, arm.name, arm.evaluate))
            cell.seeds = sorted({*cell.seeds, *plan.seeds[matrix.name]})
            plan.arms[matrix.name, arm.name] = cell.identity
    if problems:
        raise UsageError(together("", distinct(problems)))
    for matrix in matrices:
        check_claims(plan, matrix, typed)
    _name_cells(plan, composer)
    plan.passed_over = {key: names for key, names in composer.passed_over.items() if names}
    for key in composer.passed_over:
        if key not in composer.used:
            load(profile.preset, [f"{key}={typed[key]}"], [profile.set])  # says what is wrong, in the loader's words
            raise UsageError(f'"{key}": no arm of this sweep has this key')
    return plan


def _name_cells(plan: Plan, composer: Composer) -> None:
    """Cells are named by the arm that first uses them; the baseline, and an arm that is just another model, by the
    model."""
    for cell in plan.cells.values():
        first = cell.uses[0]
        matrix = next(m for m in plan.matrices if m.name == first.ablation)
        arm = matrix.arm(first.arm)
        plain = composer.compose([matrix.baseline], f"{matrix.name}/baseline").identity == cell.identity
        named_by_model = plain or (set(arm.set) <= {"model.name"} and arm.match is None and not arm.times)
        name = cell.config.model.name if named_by_model else f"{first.ablation}-{first.arm}"
        cell.name = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:LONGEST_NAME]


def _check_overrides(typed: Mapping[str, Any], matrices: Sequence[Matrix]) -> None:
    for key in typed:
        if key in ("seed", "name"):
            raise UsageError(
                f'"{key}" is the sweep\'s own: ' + ("use --seeds" if key == "seed" else "cells name themselves")
            )
        for matrix in matrices:
            if any(key == k or k.startswith(key + ".") for arm in matrix.arms for k in arm.set):
                raise UsageError(
                    f'"{key}" is what ablation "{matrix.name}" varies: choose its arms with --only or --skip'
                )


def _changes(changes: Changes) -> list[Any]:
    others = {change.name: change.record() for change in changes.others}
    return [changes.remove_long_term, changes.delay, *([others] if others else [])]


def _evaluation(config: Config) -> dict[str, Any]:
    from dataclasses import asdict

    found = asdict(config.evaluation)
    for key in ("validation", "attention"):  # came after the first sweeps, which keep their names
        if not found[key]:
            del found[key]
    return found
