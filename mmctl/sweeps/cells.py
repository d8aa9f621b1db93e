"""Cells: what an arm trains, composed and validated by the one configuration loader.

A *cell* is what an arm trains, whatever its seed. Arms of several ablations that resolve to the same identity share the
cell; arms that change something at evaluation time only share the cell of their training-time settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mmctl import plugins
from mmctl.config import Config, flat, identity, load
from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import Changes
from mmctl.models import MODELS
from mmctl.plain import typed
from mmctl.schema import flatten, schema
from mmctl.sweeps.matrix import Arm, Match, Matrix
from mmctl.sweeps.profiles import Profile


@dataclass(frozen=True)
class Use:
    """An arm of an ablation that a cell serves, and what that arm changes at evaluation time."""

    ablation: str
    arm: str
    changes: Changes = field(default_factory=Changes)


@dataclass
class Cell:
    """What is trained once a seed. `config` carries the first seed; `overrides` is what the user typed that applies."""

    identity: str
    config: Config
    overrides: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    """What profile, baseline and arm set, under dotted keys."""
    name: str = ""
    uses: list[Use] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def train_words(self, seed: int) -> list[str]:
        """The `key=value` words that make one of this cell's runs of the profile's preset."""
        return [*(f"{key}={typed(value)}" for key, value in self.settings.items()), *self.overrides, f"seed={seed}"]

    def train_command(self, profile: Profile, seed: int) -> str:
        """`mmctl train` for one of this cell's runs: the same identity, so the same run."""
        return shlex.join(["mmctl", "train", profile.preset, *self.train_words(seed), *plugins.words()])

    def changes(self, seed: int, seeds: Mapping[str, Sequence[int]]) -> list[Changes]:
        """The evaluation-time changes some ablation asks of this cell's run with `seed`."""
        asked = [u.changes for u in self.uses if u.changes and seed in seeds[u.ablation]]
        return list(dict.fromkeys(asked))


class Composer:
    def __init__(self, profile: Profile, typed: Mapping[str, Any], overrides: list[str]) -> None:
        self.profile, self.typed, self.overrides = profile, typed, overrides
        self.passed_over: dict[str, list[str]] = {}
        self.used: set[str] = set()
        self.cache: dict[str, Cell] = {}

    def cell(self, matrix: Matrix, arm: Arm) -> Cell:
        extra: dict[str, Any] = {}
        where = f"{matrix.name}/{arm.name}"
        if arm.match is not None:
            target = self.compose([matrix.baseline, _sibling(matrix, arm.match.of).set], where)
            extra |= self.matched(matrix, arm, arm.match, target, where)
        if arm.times:
            extra |= self.multiplied(matrix, arm, where)
        cell = self.compose([matrix.baseline, {**arm.set, **extra}], where)
        if arm.evaluate:
            _check_changes(cell.config, arm.evaluate, where)
        return replace(cell, uses=[], seeds=[])

    def compose(self, layers: list[Mapping[str, Any]], where: str) -> Cell:
        cached = json.dumps(layers, sort_keys=True, default=str)
        if cached not in self.cache:
            self.cache[cached] = self._compose(layers, where)
        return self.cache[cached]

    def _compose(self, layers: list[Mapping[str, Any]], where: str) -> Cell:
        name = _model_name(self.profile, layers, self.typed)
        kept = []
        for text, key in zip(self.overrides, self.typed, strict=True):
            if name in MODELS and schema(name).of_another_model(key):
                self.passed_over.setdefault(key, []).append(where)
            else:
                self.used.add(key)
                kept.append(text)
        # Only a matched key can be both typed and set by the arm (others were refused): there the match is the point.
        kept = [text for text in kept if len(layers) < 2 or text.partition("=")[0].strip() not in layers[-1]]
        try:
            config = load(self.profile.preset, kept, [self.profile.set, *layers])
            settle(config)
            named = identity(config)  # reads the corpora
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
        settings = {k: v for layer in (self.profile.set, *layers) for k, v in flatten(layer).items()}
        for text in kept:
            settings.pop(text.partition("=")[0].strip(), None)
        return Cell(named, config, kept, settings)

    def multiplied(self, matrix: Matrix, arm: Arm, where: str) -> dict[str, int]:
        """What the arm's `times` make of the values it would else have."""
        values = flat(self.compose([matrix.baseline, arm.set], where).config)
        for key in arm.times:
            if type(values.get(key)) is not int:
                whole = [k for k, v in values.items() if type(v) is int]
                raise UsageError(
                    f"{where}: times.{key}: no whole number of the configuration{nearest(key, whole, 'keys')}"
                )
        return {key: values[key] * factor for key, factor in arm.times.items()}

    def matched(self, matrix: Matrix, arm: Arm, match: Match, target: Cell, where: str) -> dict[str, int]:
        """The sizes with which the arm comes closest to the target, key by key."""
        config = self.compose([matrix.baseline, arm.set], where).config
        wanted, found = cost(target.config, match.what), {}
        for key in match.keys:
            found[key] = _closest(config, key, match, wanted, where)
            config = replace(config, model=replace(config.model, **{key.removeprefix("model."): found[key]}))
        return found


def cost(config: Config, what: str) -> float:
    """Parameters, or FLOPs per token over the training length (executed)."""
    from mmctl.models import flops

    if what == "parameters":
        return parameters(config)
    return flops.flops_per_token(config.model, config.data.vocabulary, config.data.length, "executed")


def _closest(config: Config, key: str, match: Match, wanted: float, where: str) -> int:
    """The whole number for `key` whose cost is closest to `wanted`, by bisection."""
    field_name = key.removeprefix("model.")
    if type(getattr(config.model, field_name, None)) is not int or field_name == key:
        sizes = [f"model.{k}" for k, v in vars(config.model).items() if type(v) is int]
        raise UsageError(f'{where}: match.key "{key}": no size of the model{nearest(key, sizes, "sizes")}')

    def count(value: int) -> float:
        return cost(replace(config, model=replace(config.model, **{field_name: value})), match.what)

    low, high = 1, 2
    if count(low) == count(high):
        raise UsageError(f"{where}: {key} does not change the number of {match.what}")
    if count(low) >= wanted:
        raise UsageError(f"{where}: {key} cannot be small enough to match {match.of} in {match.what}")
    while count(high) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    return min((low, high), key=lambda value: abs(count(value) - wanted))


def settle(config: Config) -> None:
    """Resolve what depends on this machine (precision=auto) before the identity is taken, as training does."""
    from mmctl.training.run import pick_device

    config.training.resolve(pick_device(config.operation.device), config.model.width)


def parameters(config: Config, remove_long_term: bool = False) -> int:
    from mmctl.models import flops

    return flops.parameters(config.model, config.data.vocabulary, remove_long_term=remove_long_term)


def _sibling(matrix: Matrix, name: str) -> Arm:
    return next(a for a in [*matrix.arms, *matrix.siblings] if a.name == name)


def dwarf(config: Config, layers: int = 1) -> Config:
    """The same kind of model with the smallest sizes, to ask what does not depend on them without building it whole."""
    sizes = {"layers": layers, "width": 2 * config.model.heads, "ffn_width": 2, "persistent_slots": 2}
    own = {f.name for f in fields(config.model)}
    small = replace(config.model, **{key: value for key, value in sizes.items() if key in own})
    return replace(config, model=small, data=replace(config.data, vocabulary=2))


def _check_changes(config: Config, changes: Changes, where: str) -> None:
    """Refuse before training what the model would refuse after it: asks a dwarf of the same kind."""
    from mmctl import models

    model = models.build(dwarf(config))
    try:
        with model.evaluation_changes(remove_long_term=changes.remove_long_term, delay=changes.delay):
            changes.check(config)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _model_name(profile: Profile, layers: Sequence[Mapping[str, Any]], typed: Mapping[str, Any]) -> str:
    name = "mosaic-v2"
    for layer in (profile.set, *layers, typed):
        name = str(flatten(layer).get("model.name", name))
    return name
