"""Strict reading of a YAML file: every key is known and of its kind, or there is one line saying which are not and why.

What is wrong in several places is said together: `take` keeps a section's problems and goes on, `done` raises them all.
What compares values with each other comes after `done`, when there are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from mmctl.errors import UsageError, nearest, printable

LARGEST = 1_000_000
"""Bytes beyond which a file is not a matrix."""
LISTED = 8
"""Valid names that are all listed, even beside the nearest one."""


MOST_SAID = 8
"""Problems named in one line."""

T = TypeVar("T")


class Problems(UsageError):
    """What is wrong with a file: `items`, each "place: message"."""

    def __init__(self, file: Path | str, items: list[str]) -> None:
        super().__init__(together(file, items))
        self.items = items


def together(file: Path | str, items: list[str]) -> str:
    """One line for one problem or several."""
    prefix = f"{file}: " if str(file) else ""
    if len(items) == 1:
        return prefix + items[0]
    said = "; ".join(f"({i}) {item}" for i, item in enumerate(items[:MOST_SAID], 1))
    more = f"; and {len(items) - MOST_SAID} more" if len(items) > MOST_SAID else ""
    return f"{prefix}{len(items)} errors: {said}{more}"


def distinct(problems: list[str]) -> list[str]:
    """Problems of arms, "ablation/arm: message": one message once, however many arms it befalls."""
    return list({problem.partition(": ")[2] or problem: problem for problem in reversed(problems)}.values())[::-1]


class Section:
    """A mapping of a YAML file under a dotted path. `take` consumes keys; `done` refuses what is left over or wrong."""

    def __init__(self, file: Path | str, where: str, values: Any) -> None:
        self.file, self.where = file, where
        self.values: dict[str, Any] = {}
        self.asked: list[str] = []
        self.problems: list[str] = []
        if not isinstance(values, Mapping):
            self.fail("", f"expected a mapping of keys, got {kind(values)}")
        for key, value in values.items():
            if not isinstance(key, str):
                self.fail("", f"expected text as keys, got {kind(key)} {key!r}")
            self.values[key] = value

    def fail(self, key: str, message: str) -> NoReturn:
        place = ".".join(p for p in (self.where, key) if p)
        raise Problems(self.file, [" ".join((f"{place}: {message}" if place else message).split())])

    def has(self, key: str) -> bool:
        self.asked.append(key)
        return key in self.values

    def attempt(self, what: Callable[[], T], otherwise: T) -> T:
        """what(), or `otherwise` with its problems kept for `done`."""
        try:
            return what()
        except Problems as error:
            self.problems += [item for item in error.items if item not in self.problems]
            return otherwise

    def take(self, key: str, check: Callable[[Section, str, Any], Any], default: Any = ...) -> Any:
        """The key's value through `check`, or `default`; without a default the key must be there.

        None where that fails: the problem is kept, and raised by `done`.
        """
        return self.attempt(lambda: self._take(key, check, default), None)

    def _take(self, key: str, check: Callable[[Section, str, Any], Any], default: Any) -> Any:
        self.asked.append(key)
        if key not in self.values or (self.values[key] is None and default is not ...):
            if default is ...:
                # A mistyped key explains a missing one better than its absence does.
                stray = [k for k in self.values if k not in self.asked]
                close = _suggest(key, stray) if stray else ""
                self.asked += [k for k in stray if f'"{k}"' in close]
                self.fail(key, "is missing" + close)
            return default
        return check(self, key, self.values[key])

    def done(self) -> None:
        """Raise what `take` found wrong, and the keys that nobody asked for."""
        for key in self.values:
            if key not in self.asked:
                self.attempt(partial(self.fail, key, f"no such key{nearest(key, self.asked, 'keys')}"), None)
        if self.problems:
            raise Problems(self.file, self.problems)


def load(path: Path) -> Section:
    """The file as a Section. UsageError, one line, if it cannot be read as YAML (through OmegaConf: 1e-3 is a
    number)."""
    from mmctl import plain

    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than {LARGEST} bytes, not an ablation")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        values = plain.load(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None
    except Exception as error:
        raise UsageError(f"{path}: not readable as YAML: {_first_line(error)}") from None
    refuse_interpolation(path, "", values)
    return Section(path, "", values)


def refuse_interpolation(file: Path | str, where: str, value: Any) -> None:
    """A matrix is plain data: `${...}` would read the environment or other keys, so it is refused."""
    if isinstance(value, str) and "${" in value:
        raise UsageError(f"{file}: {where}: ${{...}} is not read in an ablation")
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_interpolation(file, f"{where}.{key}".lstrip("."), item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            refuse_interpolation(file, f"{where}[{number}]", item)


def text(section: Section, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        section.fail(key, f"expected text, got {kind(value)}")
    return printable(" ".join(value.split()))


def name(section: Section, key: str, value: Any) -> str:
    """A name that is safe in folder names and on a command line."""
    value = text(section, key, value)
    if len(value) > 60 or not all(c.isalnum() or c in "-_.=+" for c in value) or not value[0].isalnum():
        section.fail(key, f'"{value}": expected a name of letters, digits and - _ . = + (at most 60)')
    return value


def flag(section: Section, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        section.fail(key, f"expected true or false, got {kind(value)}")
    return value


def whole(section: Section, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        section.fail(key, f"expected a whole number, got {kind(value)}")
    return value


def number(section: Section, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        section.fail(key, f"expected a number, got {kind(value)}")
    return float(value)


def positive(section: Section, key: str, value: Any) -> float:
    value = number(section, key, value)
    if value <= 0:
        section.fail(key, f"{value:g}: expected more than 0")
    return value


def one_of(*valid: str) -> Callable[[Section, str, Any], str]:
    def check(section: Section, key: str, value: Any) -> str:
        if not isinstance(value, str) or value not in valid:
            close = _suggest(value, valid)
            which = f"{len(valid)} names" if close and len(valid) > LISTED else ", ".join(valid)
            section.fail(key, f'"{value}": expected one of {which}{close}')
        return value

    return check


def list_of(check: Callable[[Section, str, Any], Any], least: int = 0) -> Callable[[Section, str, Any], list[Any]]:
    def read(section: Section, key: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            section.fail(key, f"expected a list, got {kind(value)}")
        if len(value) < least:
            section.fail(key, f"expected at least {least} item{'s' * (least != 1)}, got {len(value)}")
        items, problems = [], []
        for i, item in enumerate(value):
            try:
                items.append(check(section, f"{key}[{i}]", item))
            except Problems as error:
                problems += error.items
        if problems:
            raise Problems(section.file, problems)
        return items

    return read


def section(parent: Section, key: str, value: Any) -> Section:
    return Section(parent.file, ".".join(p for p in (parent.where, key) if p), value)


def settings(parent: Section, key: str, value: Any, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """`{dotted.key: value}` for the configuration loader, nested mappings flattened. Values are checked by that
    loader. also: keys allowed here that are not of model, data or training."""
    flat: dict[str, Any] = {}

    def walk(part: Section, prefix: str) -> None:
        for k, v in part.values.items():
            dotted = f"{prefix}{k}"
            if isinstance(v, Mapping) and dotted in ("model", "data", "training"):
                walk(Section(part.file, f"{part.where}.{k}", v), dotted + ".")
            elif dotted in flat:
                part.fail(k, f'"{dotted}" is given twice')
            else:
                flat[dotted] = v

    walk(section(parent, key, value), "")
    for dotted in flat:
        if dotted not in also and dotted.partition(".")[0] in ("seed", "name", "operation", "evaluation"):
            parent.fail(key, f'"{dotted}" is not the ablation\'s to set: arms differ in model, data or training')
    return flat


def kind(value: Any) -> str:
    """What a YAML value is, in words."""
    if value is None:
        return "nothing"
    if isinstance(value, str) and not value.strip():
        return "empty text"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), type(value).__name__)


def unique(section: Section, key: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for item in names:
        if item in seen:
            section.fail(key, f'"{item}" stands there twice')
        seen.add(item)


def _suggest(value: Any, valid: Iterable[str]) -> str:
    hint = nearest(str(value), valid)
    return hint if "did you mean" in hint else ""


def _first_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error) or type(error).__name__
    first = " ".join(str(problem).splitlines()[:1]) or type(error).__name__
    return f"{first} (line {mark.line + 1})" if mark is not None else first
