"""The typed tree of the configuration: which keys there are, what a value must be, and what was probably meant.

OmegaConf checks and converts, key by key; since no key's kind depends on another's value, each (key, value) is
converted once in a process and a configuration is then put together from plain dataclasses. A sweep of a thousand cells
asks for the same few hundred values over and over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, get_args

from omegaconf import Container, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from mmctl import data as data_package
from mmctl import models as model_package
from mmctl import plain
from mmctl.errors import UsageError, nearest

FREE = ("data.mixture", "data.loss_weights")
"""Mappings whose keys the user chooses. Given whole, such a mapping replaces; by a dotted key, it is added to."""

SECTIONS = ("model", "data", "training", "evaluation", "operation")

MOST_REMEMBERED = 100_000
"""Converted values kept; beyond that all are forgotten."""


class Raw(str):
    """Text typed by the user, to be parsed once the field's type is known (so that `no` stays text in a text field)."""


@dataclass
class _Root:
    name: str = ""
    seed: int = 0


def schema(model_name: str) -> Schema:
    """The tree for one model, made once for the classes registered now. UsageError when there is no such model."""
    data: Any = data_package.config_class()
    return _schema(model_name, model_package.config_class(model_name), data)


class Schema:
    def __init__(self, model_name: str, model: type, data: type) -> None:
        from mmctl.config import OperationConfig
        from mmctl.evaluation.config import EvaluationConfig
        from mmctl.training.config import TrainingConfig

        tree = OmegaConf.structured(_Root)
        OmegaConf.set_struct(tree, False)
        classes = (model, data, TrainingConfig, EvaluationConfig, OperationConfig)
        for section, cls in zip(SECTIONS, classes, strict=True):
            tree[section] = OmegaConf.structured(cls)
        tree.model.name = model_name
        OmegaConf.set_struct(tree, True)  # unknown keys are refused
        self.tree: DictConfig = tree
        """Scratch: holds whatever was converted last."""
        self.defaults = {"name": "", "seed": 0, **{s: OmegaConf.to_object(tree[s]) for s in SECTIONS}}
        self._free = {key: OmegaConf.to_container(OmegaConf.select(tree, key)) for key in FREE}
        self._converted: dict[tuple[Any, ...], Any] = {}
        self._of_another: dict[str, bool] = {}

    def compose(self, values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Name, seed and sections, with `values` (dotted key, value) set over the defaults in order. UsageError."""
        made = {key: _copy(value) for key, value in self.defaults.items()}
        for key, value in values:
            if key != "model.name":  # has decided already which schema this is
                for leaf, converted in self.convert(key, value):
                    _set(made, leaf, converted)
        return made

    def convert(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        """(key, converted value) of the leaves that `key=value` sets: one, or those of a mapping given for a
        section."""
        memory = (key, type(value), value) if isinstance(value, str | int | float | bool | None) else None
        if memory is None or memory not in self._converted:
            found = list(self._convert(key, value))
            if memory is None:
                yield from found
                return
            if len(self._converted) >= MOST_REMEMBERED:
                self._converted.clear()
            self._converted[memory] = found
        yield from ((leaf, _copy(converted)) for leaf, converted in self._converted[memory])

    def of_another_model(self, key: str) -> bool:
        """Whether this is a model.* key that this model lacks and another registered model has."""
        if not key.startswith("model."):
            return False
        if key not in self._of_another:
            self._of_another[key] = not self._exists(key) and any(_has(m, key[6:]) for m in model_package.MODELS)
        return self._of_another[key]

    def _convert(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        self._check_key(key)
        _refuse_interpolation(key, value)
        parsed = self._parse(key, value) if isinstance(value, Raw) else value
        if isinstance(section := OmegaConf.select(self.tree, key), DictConfig):
            if not isinstance(parsed, Mapping):
                raise UsageError(f"{key}={value}: expected a mapping{_such_as(key, section)}")
            if key in FREE:
                yield key, _weights(key, parsed)
                return
            for name, item in parsed.items():
                if not isinstance(name, str):
                    raise UsageError(f"{key}={value}: expected the names of keys, got {name!r}")
                yield from self._convert(f"{key}.{name}", item)
            return
        try:
            parent = key.rpartition(".")[0]
            OmegaConf.update(self.tree, key, parsed, force_add=parent in FREE)
            found = OmegaConf.select(self.tree, key)
            plain_value = OmegaConf.to_container(found) if isinstance(found, Container) else found
            if isinstance(plain_value, list) and any(isinstance(item, list | dict | None) for item in plain_value):
                raise UsageError(f"{key}={parsed}: expected a list of single values")
            yield key, plain_value
            if parent in FREE:  # what one cell adds must not be a key of the next
                node = OmegaConf.select(self.tree, parent)
                with open_dict(node):
                    node.clear()
                    node.update(self._free[parent])
        except OmegaConfBaseException as error:
            raise UsageError(_one_line(key, parsed, error)) from None

    def _check_key(self, key: str) -> None:
        if self._exists(key):
            return
        tree = self.tree
        valid = [*flatten(OmegaConf.to_container(tree)), *_sections(tree)]
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

    def _exists(self, key: str) -> bool:
        node: Any = self.tree
        for part in key.split("."):
            if not isinstance(node, DictConfig):
                return False
            if part in node:
                node = node[part] if not OmegaConf.is_missing(node, part) else None
            else:
                return key.rpartition(".")[0] in FREE
        return True

    def _parse(self, key: str, raw: str) -> Any:
        parent: Any = OmegaConf.select(self.tree, key.rpartition(".")[0]) if "." in key else self.tree
        leaf = key.rpartition(".")[2]
        node = parent._get_node(leaf) if isinstance(parent, DictConfig) and leaf in parent else None
        if node is not None and not isinstance(node, Container):
            declared = node._metadata.ref_type
            if declared is str or str in get_args(declared):
                return None if raw.lower() in ("null", "~") and node._metadata.optional else raw
        try:
            plain.check(str(raw))
            return OmegaConf.to_container(OmegaConf.from_dotlist([f"x={raw}"]))["x"]  # type: ignore[index,call-overload]
        except plain.NotPlain as error:
            raise UsageError(f"{key}={raw[:80]}: {error}") from None
        except Exception:
            raise UsageError(f"{key}={raw[:80]}: not a value that can be read (YAML syntax)") from None


@lru_cache(maxsize=64)
def _schema(model_name: str, model: Any, data: Any) -> Schema:
    return Schema(model_name, model, data)


def flatten(mapping: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings under dotted keys; those in FREE stay whole."""
    flat_values: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value and f"{prefix}{key}" not in FREE:
            flat_values.update(flatten(value, f"{prefix}{key}."))
        else:
            flat_values[f"{prefix}{key}"] = value
    return flat_values


def _copy(value: Any) -> Any:
    """Its own containers and dataclasses all the way down."""
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copy(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _copy(getattr(value, f.name)) for f in fields(value)})
    return value


def _set(made: dict[str, Any], key: str, value: Any) -> None:
    holder: Any = made
    *places, leaf = key.split(".")
    for place in places:
        holder = holder[place] if isinstance(holder, dict) else getattr(holder, place)
    if isinstance(holder, dict):
        holder[leaf] = value
    else:
        setattr(holder, leaf, value)


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


def _weights(key: str, weights: Mapping[Any, Any]) -> dict[str, float]:
    for name, weight in weights.items():
        if weight is None and isinstance(name, str) and ":" in name:
            raise UsageError(f'{key}: "{name}": expected a space after the colon: {name.replace(":", ": ", 1)}')
        if not isinstance(name, str) or type(weight) not in (int, float):
            raise UsageError(f"{key}.{name}={weight}: expected a task's name and a number")
    try:
        return {name: float(weight) for name, weight in weights.items()}
    except OverflowError:
        raise UsageError(f"{key}: a weight is too large a number") from None


def _one_line(key: str, value: Any, error: Exception) -> str:
    reason = str(error).splitlines()[0].strip().rstrip(".")
    return f"{key}={value}: {reason[0].lower()}{reason[1:]}"


def _has(model: str, field: str) -> bool:
    return field in {f.name for f in fields(model_package.config_class(model))}


def _sections(tree: DictConfig, prefix: str = "") -> Iterable[str]:
    for name in tree:
        key = str(name)
        if isinstance(tree._get_node(key), DictConfig):
            yield prefix + key
            yield from _sections(tree[key], f"{prefix}{key}.")
