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
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mmctl import data as data_package
from mmctl import plugins
from mmctl.errors import UsageError, nearest
from mmctl.schema import Raw, Schema, flatten, schema

SCHEMA = 1
"""Version of the configuration's meaning; a change of meaning without a change of keys must raise it."""

NOT_IDENTITY = (
    "name", "seed", "operation.", "evaluation.", "training.evaluate_every", "training.activation_checkpointing"
)  # fmt: skip
"""Keys (or prefixes) that cannot change what is trained; a run's folder is found without them."""

AS_BEFORE = {
    "training.compile": False, "model.value_look_ahead": True, "model.dropout": 0.0, "training.select": None,
    "training.select_every": 25, "training.select_examples": 64, "training.select_target": None,
    "training.select_stop": False,
}  # fmt: skip
"""Keys that came after the first runs, with the value that means what those did: left out of the identity at that
value, so that those runs keep theirs."""

BY_CONTENT = ("data.text", "data.tokenizer", "data.tasks.intents.train", "data.tasks.intents.test")
"""Keys that name a file: identity takes what is in it (`data.fingerprint`)."""

LARGEST_SEED = 2**63 - 1
"""What every random generator takes."""

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,4})?")
"""What operation.device may be."""

PRESETS = Path(__file__).parent / "presets"


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
    system_metrics: bool = False
    """Sample processor, memory and GPU every 10 s for the mirror (system.jsonl)."""

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
        self.training.validate_selection(self.data)
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
    card = _card(preset)
    strict = [flatten(layer) for layer in layers]
    typed = parse_overrides(overrides)
    name = card.get("model.name", "mosaic-v2")
    for layer in [*strict, typed]:
        name = layer.get("model.name", name)
    tree = schema(str(name))
    common = [(key, value) for key, value in card.items() if not tree.of_another_model(key)]
    config = _build(tree, [*common, *(item for layer in [*strict, typed] for item in layer.items())])
    if config.data.text is not None and "text" not in config.data.tasks_in_mixture():
        raise UsageError(
            f'data.text="{config.data.text}": the mixture reads no text; add data.mixture.text=1, or leave data.text out'
        )
    if config.data.tokenizer != "bytes" and "text" not in config.data.tasks_in_mixture():
        raise UsageError(
            f'data.tokenizer="{config.data.tokenizer}": the mixture reads no text; add data.mixture.text=1, or leave it out'
        )
    if config.data.text is not None:  # the run must find its corpus from any folder
        config.data.text = str(Path(config.data.text).absolute())
    return config


def from_dict(resolved: Mapping[str, Any]) -> Config:
    """Config from what `to_dict` gave (a run's config.yaml). Strict; raises UsageError naming the key."""
    plugins.check(resolved.get("plugins"))
    values = flatten({k: v for k, v in resolved.items() if k not in ("schema", "plugins")})
    if resolved.get("schema", SCHEMA) != SCHEMA:
        raise UsageError(f"schema={resolved['schema']}: this mmctl reads schema {SCHEMA}")
    return _build(schema(str(values.get("model.name", "mosaic-v2"))), list(values.items()))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dict of everything, with the schema version: the content of config.yaml."""
    used = [plugin.record() for plugin in _plugins(config)]
    return {"schema": SCHEMA, **({"plugins": used} if used else {}), **_values(config)}


def flat(config: Config) -> dict[str, Any]:
    """All values under dotted keys."""
    return flatten(_values(config))


def identity(config: Config, corpora: Mapping[str, Any] | None = None) -> str:
    """8 hex digits naming what is trained: the resolved config without `NOT_IDENTITY` and without the keys of tasks
    that are not in the mixture (so a new task changes no run), with corpora by content.

    corpora: their fingerprint when the run was made, where that is known; by default what they are now.
    """
    trained = config.data.tasks_in_mixture()
    unused = tuple(f"data.tasks.{task}." for task in data_package.TASKS if task not in trained)
    kept = {k: v for k, v in flat(config).items() if not k.startswith(NOT_IDENTITY + unused) and k not in BY_CONTENT}
    kept = {k: v for k, v in kept.items() if k not in AS_BEFORE or v != AS_BEFORE[k]}
    kept["corpora"] = data_package.fingerprint(config.data) if corpora is None else corpora
    kept["schema"] = SCHEMA
    if used := _plugins(config):
        kept["plugins"] = [plugin.sha256 for plugin in used]
    canonical = json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def separate(values: str) -> list[str]:
    """`a,b` as its values; commas inside brackets belong to a value: `[1,2],[4]` is two lists."""
    return [value.strip() for value in re.split(r",(?![^\[{]*[\]}])", values)]


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


@lru_cache
def _card(preset: str) -> dict[str, Any]:
    """A preset's values under dotted keys. Presets come with the package: they do not change while a process runs."""
    return flatten(OmegaConf.to_container(OmegaConf.load(PRESETS / f"{preset}.yaml")))


def _build(tree: Schema, values: Iterable[tuple[str, Any]]) -> Config:
    made = tree.compose(values)
    config = Config(**made)
    if not config.name:
        config.name = config.model.name
    config.validate()
    config.training.resolve(config.operation.device, config.model.width)
    return config


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
