"""What a shell may complete: presets, ablations, runs, sweeps, configuration keys and their values.

Everything here is quick: torch is never imported. A model's keys stand in the model's own file, which imports torch, so
they are read from its source. Nothing raises: what cannot be read is not offered.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Found = Iterator[str]


def _quiet(find: Callable[..., Found]) -> Callable[[Any, str], list[str]]:
    """A completion that offers nothing rather than failing in the middle of somebody's typing."""

    def offered(ctx: Any, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception):
            return list(find(ctx, incomplete))
        return []

    return offered


def _presets() -> list[str]:
    return sorted(p.stem for p in (Path(__file__).parents[1] / "presets").glob("*.yaml"))


def _ablations() -> list[str]:
    spec = find_spec("mmctl.ablations")
    places = list(spec.submodule_search_locations or []) if spec else []
    return sorted(p.stem for place in places for p in Path(place).glob("*.yaml"))


def _root(ctx: Any) -> Path:
    from mmctl.runs.names import runs_root

    return runs_root(ctx.params.get("runs") or ctx.params.get("root"))


@_quiet
def states(ctx: Any, incomplete: str) -> Found:
    from mmctl.runs.status import STATES

    yield from STATES


@_quiet
def run_names(ctx: Any, incomplete: str) -> Found:
    """`name-identity/seedK` of every run, and `name-identity` for all its seeds."""
    from mmctl.runs.names import places

    seen: set[str] = set()
    for place in places(_root(ctx)):
        if (whole := place.label.partition("/")[0]) not in seen:
            seen.add(whole)
            yield whole
        yield place.label


@_quiet
def sweeps_and_runs(ctx: Any, incomplete: str) -> Found:
    yield from sorted(p.parent.name for p in (_root(ctx) / "sweeps").glob("*/manifest.json"))
    yield from run_names(ctx, incomplete)


@_quiet
def sweeps(ctx: Any, incomplete: str) -> Found:
    yield from sorted(p.parent.name for p in (_root(ctx) / "sweeps").glob("*/results.json"))


@_quiet
def preset_then_keys(ctx: Any, incomplete: str) -> Found:
    """For `[PRESET] [KEY=VALUE]...`."""
    if not _words(ctx):
        yield from _presets()
    yield from _overrides(ctx, incomplete)


@_quiet
def ablations_then_keys(ctx: Any, incomplete: str) -> Found:
    """For `[NAME]... [KEY=VALUE]...`."""
    yield from (name for name in _ablations() if name not in _words(ctx))
    yield from _overrides(ctx, incomplete)


@_quiet
def settings(ctx: Any, incomplete: str) -> Found:
    """For `[KEY=VALUE]...` of any model."""
    yield from _overrides(ctx, incomplete)


@_quiet
def evaluation_keys(ctx: Any, incomplete: str) -> Found:
    yield from _offer({k: v for k, v in keys(None).items() if k.startswith("evaluation.")} | {"m": []}, ctx, incomplete)


@_quiet
def suites(ctx: Any, incomplete: str) -> Found:
    from mmctl.cli.published import SUITES
    from mmctl.evaluation.suites import ATTENTION, DIMENSIONS

    yield from (*DIMENSIONS, ATTENTION, *SUITES)


@_quiet
def profiles(ctx: Any, incomplete: str) -> Found:
    from mmctl.sweeps.profiles import PROFILES

    yield from PROFILES


def _words(ctx: Any) -> list[str]:
    """Arguments typed so far, options left out."""
    found: list[str] = []
    for name, value in ctx.params.items():
        if isinstance(value, list | tuple) and name in ("arguments", "words", "chosen"):
            found += [str(v) for v in value]
    return found


def _overrides(ctx: Any, incomplete: str) -> Found:
    named = [word.partition("=")[2] for word in _words(ctx) if word.startswith("model.name=")]
    yield from _offer(keys(named[-1] if named else None), ctx, incomplete)


def _offer(known: dict[str, list[str]], ctx: Any, incomplete: str) -> Found:
    """Keys with their "=", or a key's values once it is the only one. bash takes `=` for the end of a word, so there
    the value is completed alone."""
    words = _words(ctx)
    after = _key_before_equals(words)
    if after is not None:
        yield from known.get(after, [])
        return
    typed, equals, _ = incomplete.partition("=")
    fitting = [key for key in known if (key == typed if equals else key.startswith(typed))]
    for key in fitting:
        values = known[key] if len(fitting) == 1 else []
        yield from (f"{key}={value}" for value in values or [""])


def _key_before_equals(words: list[str]) -> str | None:
    """The key whose value is being typed, where the shell has cut the word at the `=`."""
    if words and words[-1] == "=":
        return words[-2] if len(words) > 1 else None
    with contextlib.suppress(KeyError, ValueError, IndexError):
        split = shlex.split(os.environ["COMP_WORDS"])
        if split[int(os.environ["COMP_CWORD"])] == "=" and words:
            return words[-1]
    return None


def keys(model: str | None) -> dict[str, list[str]]:
    """Configuration key -> the values worth offering (choices, or the default), for one model or for all of them."""
    from mmctl.config import OperationConfig
    from mmctl.data.config import DataConfig
    from mmctl.evaluation.config import EvaluationConfig
    from mmctl.models import MODELS
    from mmctl.training.config import TrainingConfig

    found: dict[str, list[str]] = {"name": [], "seed": ["0"], "model.name": list(MODELS)}
    for name in [model] if model in MODELS else list(MODELS):
        entry = MODELS[name]
        if isinstance(entry, str):
            found |= {f"model.{k}": v for k, v in _in_source(*entry.split(":")).items() if k != "name"}
    data = DataConfig()
    for section, config in (("training", TrainingConfig()), ("evaluation", EvaluationConfig()), ("data", data),
                            ("operation", OperationConfig())):  # fmt: skip
        found |= {f"{section}.{f.name}": _worth(getattr(config, f.name)) for f in fields(config) if f.name != "tasks"}
    for task in fields(data.tasks):
        own = getattr(data.tasks, task.name)
        found |= {f"data.tasks.{task.name}.{f.name}": _worth(getattr(own, f.name)) for f in fields(own)}
        found[f"data.mixture.{task.name}"] = ["1.0"]
    found["training.precision"] = _choices("mmctl.training.config").get("training.precision", [])
    found["operation.device"] = ["auto", "cpu", "cuda"]
    return found


def _worth(default: Any) -> list[str]:
    if isinstance(default, bool):
        return ["true", "false"]
    return [str(default)] if isinstance(default, int | float | str) else []


def _in_source(module: str, class_name: str) -> dict[str, list[str]]:
    """Fields of the dataclass that a model's class calls its Config, with their choices, from the source alone."""
    trees = {name: _parsed(name) for name in (module, "mmctl.models.config", "mmctl.models.transformer")}
    classes = {c.name: c for tree in trees.values() for c in ast.walk(tree) if isinstance(c, ast.ClassDef)}
    choices = {k: v for name in trees for k, v in _choices(name).items()}
    found: dict[str, list[str]] = {}
    for cls in _ancestors(classes, _config_of(classes[class_name])):
        for line in cls.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                if "ClassVar" in ast.unparse(line.annotation):  # the class's own, not a field
                    continue
                name = line.target.id
                default = line.value.value if isinstance(line.value, ast.Constant) else None
                found[name] = choices.get(f"model.{name}") or _worth(default)
    return found


def _config_of(model: ast.ClassDef) -> str:
    for line in model.body:
        targets = (
            line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == "Config" for t in targets) and isinstance(line.value, ast.Name):  # type: ignore[attr-defined]
            return line.value.id  # type: ignore[attr-defined]
    return "ModelConfig"


def _ancestors(classes: dict[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    """The class's bases that are known, furthest first, then itself."""
    if name not in classes:
        return
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            yield from _ancestors(classes, base.id)
    yield classes[name]


@lru_cache
def _choices(module: str) -> dict[str, list[str]]:
    """Key -> valid values, from the module's calls of one_of(key, value, valid)."""
    found = {}
    for call in ast.walk(_parsed(module)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "one_of":
            with contextlib.suppress(ValueError, IndexError):
                found[ast.literal_eval(call.args[0])] = list(ast.literal_eval(call.args[2]))
    return found


@lru_cache
def _parsed(module: str) -> ast.Module:
    # The file beside this package, not find_spec: that would import the module's parents.
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))
