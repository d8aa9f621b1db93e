"""What is changed at evaluation time only; the trained run is reused.

Two changes belong to every model with a long-term memory: its removal, and reading it with another m. Any other is a
file with a frozen dataclass of its settings and a line in CHANGES:

    @dataclass(frozen=True)
    class Louder(Change):
        gain: float = 2.0

        def check(self, config): ...            # UsageError for a configuration it does not fit, before training

        @contextlib.contextmanager
        def applied(self, model, config):       # the model as changed inside, as it was afterwards
            ...
            yield lambda: {"peak": 3.0}         # JSON-ready notes for the evaluation's file; or None

An ablation's arm asks for it with `evaluate: {louder: {gain: 3}}`, the command line with `mmctl eval RUN louder.gain=3`.
Settings are single values or lists of them. Importing this imports neither torch nor a change.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mmctl.errors import UsageError, nearest
from mmctl.plain import typed

CHANGES: dict[str, str] = {
    "fine_tuning": "mmctl.training.fine_tuning:FineTuning",
    "forgetting": "mmctl.evaluation.forgetting:Forgetting",
    "pace": "mmctl.evaluation.pace:Pace",
}
"""Name -> "module:class", imported when a change of that name is asked for."""

LONGEST_WORDS = 40
"""Characters of settings in a file's name; longer ones are hashed: the file holds all."""

Notes = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Change:
    """Base of every registered change. Settings are its fields."""

    @property
    def name(self) -> str:
        """As in CHANGES."""
        home = f"{type(self).__module__}:{type(self).__qualname__}"
        return next(name for name, place in CHANGES.items() if place == home)

    def check(self, config: Any) -> None:
        """Raise UsageError, one line, where the run that `config` describes cannot be changed so."""

    def applied(self, model: Any, config: Any) -> contextlib.AbstractContextManager[Notes | None]:
        """Change `model`, undone on leaving; gives what makes the notes once the model has been measured."""
        raise NotImplementedError

    def added_flops(self, config: Any) -> int:
        """FLOPs it adds to one token's forward pass of the model that `config` describes."""
        return 0

    def record(self) -> dict[str, Any]:
        """Every setting, JSON-ready."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def given(self) -> dict[str, Any]:
        """The settings that are not the defaults."""
        usual = {f.name: f.default for f in fields(self)}
        return {key: value for key, value in self.record().items() if value != usual[key]}

    def words(self) -> list[str]:
        """`name.key=value` words that ask for it on the command line."""
        chosen = self.given() or dict([next(iter(self.record().items()))])
        return [f"{self.name}.{key}={typed(value)}" for key, value in chosen.items()]

    def mark(self) -> str:
        """Its part of an evaluation's file name: `+name.key=value...`, hashed where that is long or no file name."""
        words = "".join(f"+{self.name}.{key}={typed(value)}" for key, value in self.given().items())
        if len(words) <= LONGEST_WORDS and all(c.isalnum() or c in "+-_.=" for c in words):
            return words or f"+{self.name}"
        return f"+{self.name}={hashlib.sha256(words.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Changes:
    """Everything changed for one evaluation. True where something is."""

    remove_long_term: bool = False
    delay: int | None = None
    """m, in tokens."""
    others: tuple[Change, ...] = ()
    """One of a kind, in the order of CHANGES."""

    def __bool__(self) -> bool:
        return self.remove_long_term or self.delay is not None or bool(self.others)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Changes:
        """From `{remove_long_term: true, delay: 16, pace: {bank: true}}`: `record`'s inverse. UsageError."""
        found = dict(record)
        removed, delay = found.pop("remove_long_term", False), found.pop("delay", None)
        order = list(CHANGES)
        made = [make(name, settings) for name, settings in found.items()]
        return cls(removed, delay, tuple(sorted(made, key=lambda change: order.index(change.name))))

    def record(self) -> dict[str, Any]:
        """JSON-ready; what stands under "changes" in an evaluation's file."""
        others = {change.name: change.record() for change in self.others}
        return {"remove_long_term": self.remove_long_term, "delay": self.delay, **others}

    def levels(self) -> dict[str, Any]:
        """Values on the axes of an ablation."""
        found: dict[str, Any] = {"remove_long_term": True} if self.remove_long_term else {}
        if self.delay is not None:
            found["delay"] = self.delay
        for change in self.others:
            found |= {f"{change.name}.{key}": value for key, value in change.given().items()} or {change.name: True}
        return found

    def words(self) -> list[str]:
        """As `mmctl eval` takes them."""
        found = ["--remove-long-term"] if self.remove_long_term else []
        found += [f"m={self.delay}"] if self.delay is not None else []
        return found + [word for change in self.others for word in change.words()]

    def options(self) -> str:
        return " ".join(self.words())

    def said(self) -> list[str]:
        """For the eye: ["long-term memory removed", "m = 16", ...]."""
        return said(self.record())

    def mark(self) -> str:
        """What an evaluation's file name has after its suite; "" where nothing is changed."""
        removed = "+remove-long-term" if self.remove_long_term else ""
        delay = "" if self.delay is None else f"+m={self.delay}"
        return removed + delay + "".join(change.mark() for change in self.others)

    def check(self, config: Any) -> None:
        """Ask every registered change whether it fits; the model itself refuses the other two. UsageError."""
        for change in self.others:
            change.check(config)

    def added_flops(self, config: Any) -> int:
        """FLOPs that the registered changes add to one token's forward pass."""
        return sum(change.added_flops(config) for change in self.others)

    @contextlib.contextmanager
    def applied(self, model: Any, config: Any) -> Iterator[Callable[[], dict[str, Any]]]:
        """`model` as changed inside, as it was afterwards. Gives a function for the changes' notes."""
        with contextlib.ExitStack() as stack:
            if self.remove_long_term or self.delay is not None:
                own = model.evaluation_changes(remove_long_term=self.remove_long_term, delay=self.delay)
                stack.enter_context(own)
            made = {change.name: stack.enter_context(change.applied(model, config)) for change in self.others}
            yield lambda: {name: dict(notes()) for name, notes in made.items() if notes is not None}


AS_TRAINED = Changes()


def changed(record: Mapping[str, Any] | None) -> bool:
    """Whether an evaluation's "changes" (missing in files of others' making) say that anything was changed."""
    return any(value is not None and value is not False for value in (record or {}).values())


def said(record: Mapping[str, Any]) -> list[str]:
    """An evaluation's "changes" in words. A change that is no longer registered is shown by its settings."""
    parts = ["long-term memory removed"] if record.get("remove_long_term") else []
    parts += [f"m = {record['delay']}"] if record.get("delay") is not None else []
    for name, settings in record.items():
        if name not in ("remove_long_term", "delay"):
            try:
                parts += make(name, settings).words()
            except UsageError:
                parts.append(f"{name} {settings}")
    return parts


def change_class(name: str) -> type[Change]:
    """The change of that name. UsageError with the nearest one when there is none."""
    if name not in CHANGES:
        known = ["remove_long_term", "delay", *CHANGES]
        raise UsageError(f'"{name}": no such evaluation-time change{nearest(name, known, "changes")}')
    module, _, attribute = CHANGES[name].partition(":")
    found: type[Change] = getattr(importlib.import_module(module), attribute)
    return found


def make(name: str, settings: Any) -> Change:
    """A change with these settings (typed values, or text as on a command line). UsageError naming the setting."""
    from omegaconf import Container, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    cls = change_class(name)
    if not isinstance(settings, Mapping):
        first = fields(cls)[0].name
        raise UsageError(f"{name}={settings}: expected a mapping of its settings, such as {name}.{first}=...")
    tree: Any = OmegaConf.structured(cls)
    OmegaConf.set_readonly(tree, False)  # of frozen dataclasses; the object made is frozen again
    known, values = [f.name for f in fields(cls)], {}
    for key, value in settings.items():
        if key not in known:
            raise UsageError(f'"{name}.{key}": no such setting{nearest(str(key), known, "settings")}')
        try:
            if isinstance(value, str) and value.lstrip().startswith(("[", "{", "null", "~")):
                value = _read(value)
            OmegaConf.update(tree, key, value)
            found = tree[key]
            values[key] = tuple(found) if isinstance(found, Container) else found
        except (OmegaConfBaseException, ValueError, TypeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"{name}.{key}={value}: {first}") from None
    try:
        return cls(**values)
    except TypeError as error:  # a setting without a default was not given
        raise UsageError(f"{name}: {str(error).partition('() ')[2] or error}") from None


def _read(text: str) -> Any:
    """Lists and null, typed as text. ValueError."""
    from mmctl import plain

    if text.strip() in ("null", "~"):
        return None
    try:
        return plain.load(text)
    except Exception:
        raise ValueError("not a value that can be read (YAML syntax)") from None
