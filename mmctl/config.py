"""The one configuration loader: presets, layers and `key=value` overrides become a validated `Config`.

Each section's dataclass lives beside the code it configures; this file only assembles them, so every verb
(train, ablate, eval, plot) reads configuration the same way. A run's identity is computed here and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from omegaconf import Container, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from mmctl import data as data_package
from mmctl import models as model_package
from mmctl import plugins
from mmctl.errors import UsageError, nearest

SCHEMA = 1
"""Version of the configuration's meaning; a change of meaning without a change of keys must raise it."""

NOT_IDENTITY = ("name", "seed", "operation.", "evaluation.", "training.evaluate_every")
"""Keys (or prefixes) that cannot change what is trained; a run's folder is found without them."""

FREE = ("data.mixture", "data.loss_weights")
"""Mappings whose keys the user chooses. Given whole, such a mapping replaces; by a dotted key, it is added to."""

LARGEST_SEED = 2**63 - 1
"""What every random generator takes."""

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,4})?")
"""What operation.device may be."""

PRESETS = Path(__file__).parent / "presets"


@dataclass
class _Root:
    name: str = ""
    seed: int = 0


@dataclass
class OperationConfig:
    """How a run is carried out; nothing here can change a result, so nothing here is part of a run's identity."""

    device: str = "auto"
    """auto | cpu | cuda | cuda:N. auto takes CUDA where torch sees it."""
    log_every: int = 10
    """Steps between rows of metrics.jsonl."""
    checkpoint_every: int = 200
    """Steps between checkpoints (the last step always has one)."""
    keep: int = 2
    """Checkpoints kept on disk, newest first."""
    mlflow: bool = True
    """Mirror the run to MLflow."""

    def validate(self) -> None:
        for key in ("log_every", "checkpoint_every", "keep"):
            if getattr(self, key) < 1:
                raise UsageError(f"operation.{key}={getattr(self, key)}: expected a whole number of at least 1")
        if not DEVICE.fullmatch(self.device):
            raise UsageError(f'operation.device="{self.device}": expected auto, cpu, cuda or cuda:N')


@dataclass
class Config:
    """Everything one run needs. `model` and `data.tasks` hold the dataclasses of the registered model and tasks."""

    name: str
    seed: int
    model: Any
    data: Any
    training: Any
    evaluation: Any
    operation: OperationConfig

    def validate(self) -> None:
        """Check every section and what holds between sections. Raises UsageError, one line."""
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UsageError(f"seed={self.seed}: expected a whole number of at least 0 and at most {LARGEST_SEED}")
        for section in (self.model, self.data, self.training, self.evaluation, self.operation):
            if hasattr(section, "validate"):
                section.validate()
        if hasattr(self.model, "validate_length"):
            self.model.validate_length(self.data.length)
        if self.training.accumulation > self.data.batch:
            raise UsageError(
                f"training.accumulation={self.training.accumulation}: expected at most data.batch={self.data.batch}, "
                "whose sequences are divided among the parts"
            )


def presets() -> list[str]:
    """Names of the presets that ship with mmctl."""
    return sorted(p.stem for p in PRESETS.glob("*.yaml"))


def load(preset: str = "lab", overrides: Sequence[str] = (), layers: Sequence[Mapping[str, Any]] = ()) -> Config:
    """Compose preset, `layers` (nested or dotted mappings, in order) and `key=value` overrides; validate.

    A preset is a scale card for every model: a `model.*` key of it that the chosen model does not have, but another
    registered model has, is passed over. Layers and overrides are strict. Raises UsageError naming the key.
    """
    plugins.ensure()
    if preset not in presets():  # a name, not a path
        raise UsageError(f'preset "{preset}": no such preset{nearest(preset, presets(), "presets")}')
    card = _flatten(OmegaConf.to_container(OmegaConf.load(PRESETS / f"{preset}.yaml")))
    strict = [_flatten(layer) for layer in layers]
    typed = parse_overrides(overrides)
    name = card.get("model.name", "mosaic-v2")
    for layer in [*strict, typed]:
        name = layer.get("model.name", name)
    tree = _schema(str(name))
    _apply(tree, {k: v for k, v in card.items() if not _other_models_key(tree, k)})
    for layer in [*strict, typed]:
        _apply(tree, layer)
    return _build(tree)


def from_dict(resolved: Mapping[str, Any]) -> Config:
    """Config from what `to_dict` gave (a run's config.yaml). Strict; raises UsageError naming the key."""
    plugins.check(resolved.get("plugins"))
    values = _flatten({k: v for k, v in resolved.items() if k not in ("schema", "plugins")})
    if resolved.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"schema={resolved['schema']}: this mmctl reads schema {SCHEMA}")
    tree = _schema(str(values.get("model.name", "mosaic-v2")))
    _apply(tree, values)
    return _build(tree)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dict of everything, with the schema version: the content of config.yaml."""
    used = [plugin.record() for plugin in _plugins(config)]
    return {"schema": SCHEMA, **({"plugins": used} if used else {}), **_values(config)}


def flat(config: Config) -> dict[str, Any]:
    """All values under dotted keys."""
    return _flatten(_values(config))


def identity(config: Config) -> str:
    """8 hex digits naming what is trained: the resolved config without `NOT_IDENTITY`, with corpora by content."""
    kept = {k: v for k, v in flat(config).items() if not k.startswith(NOT_IDENTITY) and k != "data.text"}
    kept["corpora"] = data_package.fingerprint(config.data)
    kept["schema"] = SCHEMA
    if used := _plugins(config):
        kept["plugins"] = [plugin.sha256 for plugin in used]
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`key=value` strings to a dotted dict. Duplicate or nested keys are errors: the last one never wins silently."""
    typed: dict[str, Any] = {}
    for text in overrides:
        key, equals, raw = text.partition("=")
        key = key.strip()
        if not equals or not key or key.startswith("-"):
            raise UsageError(f'"{text}": expected key=value, such as training.steps=100')
        for earlier in typed:
            if earlier == key or earlier.startswith(key + ".") or key.startswith(earlier + "."):
                other = "twice" if earlier == key else f'beside "{earlier}"'
                raise UsageError(f'"{key}" is given {other}: give each key once')
        typed[key] = Raw(raw)
    return typed


class Raw(str):
    """Text typed by the user, to be parsed once the field's type is known (so that `no` stays text in a text field)."""


def _schema(model_name: str) -> DictConfig:
    """The whole typed tree for one model, with defaults; unknown keys are refused by OmegaConf's struct flag."""
    from mmctl.evaluation.config import EvaluationConfig
    from mmctl.training.config import TrainingConfig

    tree = OmegaConf.structured(_Root)
    OmegaConf.set_struct(tree, False)
    for section, cls in {
        "model": model_package.config_class(model_name),
        "data": data_package.config_class(),
        "training": TrainingConfig,
        "evaluation": EvaluationConfig,
        "operation": OperationConfig,
    }.items():
        tree[section] = OmegaConf.structured(cls)
    tree.model.name = model_name
    OmegaConf.set_struct(tree, True)
    return tree


def _apply(tree: DictConfig, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key == "model.name":
            continue  # already decided which schema this is
        _check_key(tree, key)
        _refuse_interpolation(key, value)
        parsed = _parse(tree, key, value) if isinstance(value, Raw) else value
        try:
            if isinstance(section := OmegaConf.select(tree, key), DictConfig) and not isinstance(parsed, Mapping):
                raise UsageError(f"{key}={value}: expected a mapping{_such_as(key, section)}")
            if key in FREE and isinstance(parsed, Mapping):
                _check_weights(key, parsed)
                node = OmegaConf.select(tree, key)
                with open_dict(node):
                    for name in list(node):
                        del node[name]
                    for name, entry in parsed.items():
                        node[name] = float(entry) if isinstance(entry, int) else entry
            else:
                OmegaConf.update(tree, key, parsed, force_add=key.rpartition(".")[0] in FREE)
        except OmegaConfBaseException as error:
            raise UsageError(_one_line(key, parsed, error)) from None


def _refuse_interpolation(key: str, value: Any) -> None:
    """A configuration is plain data: `${...}` would read the environment or other keys."""
    if isinstance(value, str) and "${" in value:
        raise UsageError(f"{key}={value}: ${{...}} is not read in a configuration, expected a plain value")
    for item in [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []:
        _refuse_interpolation(key, item)


def _such_as(key: str, node: DictConfig) -> str:
    """How to set what a mapping holds, for one given something else."""
    if key in FREE:
        return f', such as {key}="{{facts: 1, text: 2}}"'
    first = [str(name) for name in node][:1]
    return f"; set its keys, such as {key}.{first[0]}=..." if first else ""


def _check_weights(key: str, weights: Mapping[Any, Any]) -> None:
    for name, weight in weights.items():
        if weight is None and isinstance(name, str) and ":" in name:
            raise UsageError(f'{key}: "{name}": expected a space after the colon: {name.replace(":", ": ", 1)}')
        if not isinstance(name, str) or type(weight) not in (int, float):
            raise UsageError(f"{key}.{name}={weight}: expected a task's name and a number")


def _check_key(tree: DictConfig, key: str) -> None:
    if not _exists(tree, key):
        valid = [k for k in _flatten(OmegaConf.to_container(tree))] + list(_sections(tree))
        section, _, leaf = key.rpartition(".")
        beside = [k for k in valid if k.startswith(section + ".")] if section in _sections(tree) else valid
        # What was meant stands most likely beside it; a whole section is not what a key was meant to be.
        hint = nearest(key, beside, "keys")
        same_leaf = [k for k in valid if k.rpartition(".")[2] == leaf]
        if same_leaf:
            hint = f'; did you mean "{same_leaf[0]}"?'
        others = [m for m in model_package.MODELS if key.startswith("model.") and _has(m, key[6:])]
        if others and "did you mean" not in hint:
            hint = f"; it is a key of {', '.join(others)}"
        model = f' of model "{tree.model.name}"' if key.startswith("model.") else ""
        raise UsageError(f'"{key}": no such key{model}{hint}')


def _exists(tree: DictConfig, key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, DictConfig):
            return False
        if part in node:
            node = node[part] if not OmegaConf.is_missing(node, part) else None
        else:
            return key.rpartition(".")[0] in FREE
    return True


def _parse(tree: DictConfig, key: str, raw: str) -> Any:
    parent: Any = OmegaConf.select(tree, key.rpartition(".")[0]) if "." in key else tree
    leaf = key.rpartition(".")[2]
    node = parent._get_node(leaf) if isinstance(parent, DictConfig) and leaf in parent else None
    if node is not None and not isinstance(node, Container):
        declared = node._metadata.ref_type
        if declared is str or str in get_args(declared):
            return None if raw.lower() in ("null", "~") and node._metadata.optional else raw
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"x={raw}"]))["x"]  # type: ignore[index,call-overload]
    except Exception:
        raise UsageError(f"{key}={raw}: not a value that can be read (YAML syntax)") from None


def _one_line(key: str, value: Any, error: Exception) -> str:
    reason = str(error).splitlines()[0].strip().rstrip(".")
    return f"{key}={value}: {reason[0].lower()}{reason[1:]}"


def _other_models_key(tree: DictConfig, key: str) -> bool:
    return (
        key.startswith("model.")
        and not _exists(tree, key)
        and any(_has(model, key[6:]) for model in model_package.MODELS)
    )


def _has(model: str, field: str) -> bool:
    return field in {f.name for f in fields(model_package.config_class(model))}


def _sections(tree: DictConfig, prefix: str = "") -> Iterable[str]:
    for name in tree:
        key = str(name)
        if isinstance(tree._get_node(key), DictConfig):
            yield prefix + key
            yield from _sections(tree[key], f"{prefix}{key}.")


def _build(tree: DictConfig) -> Config:
    try:
        sections = {k: OmegaConf.to_object(tree[k]) for k in ("model", "data", "training", "evaluation", "operation")}
    except OmegaConfBaseException as error:
        raise UsageError(_one_line(getattr(error, "full_key", "") or "config", "", error)) from None
    config = Config(name=str(tree.name), seed=int(tree.seed), **sections)  # type: ignore[arg-type]
    if not config.name:
        config.name = config.model.name
    config.validate()
    config.training.resolve(config.operation.device, config.model.width)
    return config


def _flatten(mapping: Any, prefix: str = "") -> dict[str, Any]:
    flat_values: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value and f"{prefix}{key}" not in FREE:
            flat_values.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat_values[f"{prefix}{key}"] = value
    return flat_values


def _plugins(config: Config) -> list[plugins.Plugin]:
    """Plugins this configuration's model and tasks come from."""
    return plugins.used(config.model.name, config.data.tasks_in_mixture())


def _values(config: Config) -> dict[str, Any]:
    """Plain nested dict without the keys of tasks that plugins brought and this mixture leaves out: a run that uses
    nothing of a plugin is the same run without it."""
    values: dict[str, Any] = _plain(config)
    for name in plugins.tasks_of_plugins() - set(config.data.tasks_in_mixture()):
        values["data"]["tasks"].pop(name, None)
    return values


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
