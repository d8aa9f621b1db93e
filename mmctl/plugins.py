"""Users' own models and tasks: a module of theirs, named on the command line, adds to the two registries.

    MODELS = {"two-heads": TwoHeads}   # classes as mmctl/models/ has them
    TASKS = {"copy": Copy}             # classes as mmctl/data/ has them

`--plugin my_module` (a dotted name, or the path of a .py file) or MMCTL_PLUGINS, names separated as in PATH, which is
also how worker processes learn of them. Nothing is ever imported because a run's folder or a configuration asks for it.

A run that uses a plugin's model or task records the plugin's name and the SHA-256 of its source in its configuration,
and its identity holds that hash: other source, another run. Runs that use nothing of it are not touched by its being
loaded. Importing this module imports neither torch nor a plugin.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mmctl.errors import UsageError, nearest

VARIABLE = "MMCTL_PLUGINS"
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
_TASK = re.compile(r"[a-z][a-z0-9_]{0,59}")


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin. `name` is what configurations record, `word` what loads it again from anywhere on this
    machine."""

    name: str
    word: str
    path: Path
    sha256: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]

    def record(self) -> dict[str, str]:
        """Its entry in a run's configuration."""
        return {"plugin": self.name, "sha256": self.sha256}


_loaded: dict[str, Plugin] = {}
"""Name -> plugin, in order of loading."""
_read_from_environment: str = ""


def loaded() -> list[Plugin]:
    """The plugins of this process, those of MMCTL_PLUGINS included."""
    ensure()
    return list(_loaded.values())


def ensure() -> None:
    """Load what MMCTL_PLUGINS names and is not loaded yet."""
    global _read_from_environment
    text = os.environ.get(VARIABLE, "")
    if text == _read_from_environment:
        return
    for word in filter(None, (part.strip() for part in text.split(os.pathsep))):
        _load(word, VARIABLE)
    _read_from_environment = text


def load(words: Iterable[str], option: str = "--plugin") -> list[Plugin]:
    """Load plugins (dotted module names or .py files) and leave them to worker processes through MMCTL_PLUGINS.

    Loading one twice does nothing. UsageError in one line, with nothing registered of that plugin, if it cannot be
    found or imported, registers nothing, or registers a name that is taken.
    """
    global _read_from_environment
    ensure()
    found = [_load(word, option) for word in words]
    named = dict.fromkeys(plugin.word for plugin in _loaded.values())
    os.environ[VARIABLE] = _read_from_environment = os.pathsep.join(named)
    return found


def used(model: str, tasks: Iterable[str]) -> list[Plugin]:
    """The loaded plugins that a run of this model and these tasks depends on, by name."""
    names = set(tasks)
    return sorted((p for p in _loaded.values() if model in p.models or names & set(p.tasks)), key=lambda p: p.name)


def tasks_of_plugins() -> set[str]:
    """Names of the tasks that plugins brought."""
    return {task for plugin in _loaded.values() for task in plugin.tasks}


def named() -> list[str]:
    """What `load` takes to load the same plugins in another process."""
    return [plugin.word for plugin in _loaded.values()]


def words() -> list[str]:
    """The options of a command line that loads the same plugins."""
    return [word for name in named() for word in ("--plugin", name)]


def check(recorded: Any) -> None:
    """UsageError unless every plugin in a configuration's `plugins` is loaded with the same source."""
    ensure()
    if recorded in (None, []):
        return
    if not isinstance(recorded, list) or not all(isinstance(r, Mapping) and "plugin" in r for r in recorded):
        raise UsageError(f"plugins={recorded}: expected a list of {{plugin, sha256}}")
    for entry in recorded:
        name, sha256 = str(entry["plugin"]), str(entry.get("sha256", ""))
        if any(plugin.sha256 == sha256 for plugin in _loaded.values()):
            continue  # whatever it is called now: a file may be named as a module, and the other way round
        plugin = _loaded.get(name)
        if plugin is None:
            others = f"; loaded: {', '.join(_loaded)}" if _loaded else ""
            raise UsageError(f"needs the plugin {name}: give it with --plugin or in {VARIABLE}{others}")
        raise UsageError(
            f"made with other source of the plugin {name} (SHA-256 {sha256[:12]}..., {plugin.path} has "
            f"{plugin.sha256[:12]}...): load the file as it was"
        )


def _load(word: str, option: str) -> Plugin:
    where = f"{option} {word}"
    path = _file(word, where) if word.endswith(".py") or "/" in word or os.sep in word else None
    for plugin in _loaded.values():
        if plugin.word == (str(path) if path else word):
            return plugin
    name = path.name if path else word
    if name in _loaded:
        raise UsageError(f"{where}: another plugin is called {name} ({_loaded[name].path}); rename one of the files")
    module = _import(f"mmctl_plugin_{path.stem}" if path else word, path, where)
    source = Path(module.__file__ or "")
    models, tasks = _declared(module, "MODELS", where), _declared(module, "TASKS", where)
    if not models and not tasks:
        raise UsageError(f"{where}: registers nothing; expected MODELS = {{name: class}} or TASKS = {{name: class}}")
    _check_models(models, where)
    _check_tasks(tasks, where)
    from mmctl import data as data_package
    from mmctl import models as model_package

    plugin = Plugin(name, str(path or word), source, _sha256(source), tuple(models), tuple(tasks))
    model_package.MODELS.update(models)
    data_package.TASKS.update(tasks)
    _loaded[name] = plugin
    return plugin


def _file(word: str, where: str) -> Path:
    try:
        path = Path(word).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{where}: {error}") from None
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"{where}: no such file{nearest(path.name, beside, 'there are')}")
    if path.suffix != ".py":
        raise UsageError(f"{where}: expected a .py file or a dotted module name")
    return path


def _import(name: str, path: Path | None, where: str) -> ModuleType:
    try:
        if path is not None:
            spec = importlib.util.spec_from_file_location(name, path)
        else:
            if not _DOTTED.fullmatch(name):
                raise UsageError(f"{where}: expected a dotted module name or the path of a .py file")
            if os.getcwd() not in sys.path:
                sys.path.append(os.getcwd())  # last, so that nothing lying there can stand in for a library
            spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None or not spec.origin:
            beside = [p.stem for p in Path.cwd().glob("*.py")]
            raise UsageError(f"{where}: no such module here or on Python's path{nearest(name, beside, 'here')}")
        if path is None:
            return importlib.import_module(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        sys.modules.pop(name, None)
        if path is None and error.name and name.startswith(error.name):
            raise UsageError(f"{where}: no module {error.name} here or on Python's path") from None
        raise UsageError(f"{where}: cannot be imported: {_told(error)}") from None
    except Exception as error:  # whatever a user's module raises
        sys.modules.pop(name, None)
        raise UsageError(f"{where}: cannot be imported: {_told(error)}") from None


def _told(error: Exception) -> str:
    """Kind, first line and place of an error in somebody's module."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({Path(error.filename or '?').name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}{place}"


def _declared(module: ModuleType, attribute: str, where: str) -> dict[str, type]:
    value = getattr(module, attribute, {})
    if not isinstance(value, Mapping) or not all(isinstance(c, type) for c in value.values()):
        raise UsageError(f"{where}: {attribute}: expected a mapping of names to classes")
    return dict(value)


def _check_models(models: Mapping[str, type], where: str) -> None:
    if not models:
        return
    from mmctl.models import MODELS
    from mmctl.models.base import Model
    from mmctl.models.config import ModelConfig

    for name, cls in models.items():
        _check_name(name, _MODEL, "model", MODELS, where)
        if not issubclass(cls, Model):
            raise UsageError(f'{where}: model "{name}": {cls.__name__} is no subclass of mmctl.models.base.Model')
        if cls.costs is Model.costs:
            told = "has no costs(config, ask): its parameters and FLOPs are counted from it, see mmctl/models/flops.py"
            raise UsageError(f'{where}: model "{name}": {cls.__name__} {told}')
        config: Any = cls.Config
        if not (isinstance(config, type) and is_dataclass(config) and issubclass(config, ModelConfig)):
            raise UsageError(f'{where}: model "{name}": {cls.__name__}.Config is no dataclass derived from ModelConfig')


def _check_tasks(tasks: Mapping[str, type], where: str) -> None:
    if not tasks:
        return
    from mmctl.data import TASKS
    from mmctl.data.task import Task, TaskConfig
    from mmctl.evaluation.suites import DIMENSIONS

    for name, cls in tasks.items():
        _check_name(name, _TASK, "task", TASKS, where)
        if not issubclass(cls, Task):
            raise UsageError(f'{where}: task "{name}": {cls.__name__} is no subclass of mmctl.data.task.Task')
        if cls.sample is Task.sample:
            raise UsageError(f'{where}: task "{name}": {cls.__name__} has no sample(rng, count, length, split)')
        if getattr(cls, "name", None) != name:
            raise UsageError(f'{where}: task "{name}": {cls.__name__}.name is not "{name}"')
        if getattr(cls, "dimension", None) not in DIMENSIONS:
            raise UsageError(f'{where}: task "{name}": {cls.__name__}.dimension: expected {", ".join(DIMENSIONS)}')
        config: Any = cls.Config
        if not (isinstance(config, type) and is_dataclass(config) and issubclass(config, TaskConfig)):
            raise UsageError(f'{where}: task "{name}": {cls.__name__}.Config is no dataclass derived from TaskConfig')


def _check_name(name: Any, allowed: re.Pattern[str], what: str, taken: Mapping[str, Any], where: str) -> None:
    if not isinstance(name, str) or not allowed.fullmatch(name):
        raise UsageError(f"{where}: {name!r} is no name for a {what}; expected {allowed.pattern}")
    if name in taken:
        owner = next((p.name for p in _loaded.values() if name in (*p.models, *p.tasks)), "mmctl itself")
        raise UsageError(f'{where}: the {what} "{name}" comes with {owner} already; choose another name')


def _sha256(source: Path) -> str:
    """Of the file; of a package, of all its Python files with their places in it."""
    if source.name != "__init__.py":
        return hashlib.sha256(source.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for path in sorted(source.parent.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source.parent).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def provenance(found: Sequence[Plugin] | None = None) -> list[dict[str, Any]]:
    """What provenance.json says of the loaded plugins: name, hash, file, and what they brought."""
    every = loaded() if found is None else found
    return [{**p.record(), "path": str(p.path), "models": list(p.models), "tasks": list(p.tasks)} for p in every]
