"""Which runs are meant: by configuration key, state, age and name. Every command that takes several runs asks here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.runs import status
from mmctl.runs.folder import RunFolder

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_OWN_LINES = re.compile(r"^(seed|name): .*$", re.MULTILINE)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


@dataclass(frozen=True)
class Filters:
    """What a run must be; None or empty: anything. `older_than` is in seconds since it last did something.

    `values`: configuration key (full, or an ending of one that names a single key, such as `bandwidth`) -> value as
    typed.
    """

    state: str | None = None
    name: str | None = None
    older_than: float | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        words: Sequence[str] = (),
        state: str | None = None,
        name: str | None = None,
        older_than: str | None = None,
    ) -> Filters:
        """From what was typed: `key=value` words, a state, part of a name, an age such as 7d. UsageError in one
        line."""
        if state is not None and state not in status.STATES:
            raise UsageError(f'state "{state}": no such state{nearest(state, status.STATES, "states")}')
        values: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not key.strip():
                raise UsageError(f'"{word}": expected key=value, such as model.bandwidth=adaptive')
            if key.strip() in values:
                raise UsageError(f'"{key.strip()}" is given twice: give each key once')
            values[key.strip()] = value.strip()
        return cls(state, name, None if older_than is None else age(older_than), values)

    def told(self) -> str:
        """In words, after "runs": "in state failed and with seed=1"; "" for all."""
        parts = [f"{what} {value}" for what, value in (("in state", self.state), ("named like", self.name)) if value]
        if self.older_than is not None:
            parts.append(f"older than {self.older_than / 86400:g} days")
        parts += [f"with {key}={value}" for key, value in self.values.items()]
        return " and ".join(parts)


ALL = Filters()
"""Every run."""


def age(text: str) -> float:
    """Seconds of `30m`, `12h`, `7d`, `2w`. UsageError for anything else."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'--older-than "{text}": expected a number and a unit ({", ".join(UNITS)}), such as 7d')
    return float(match[1]) * UNITS[match[2]]


def last_sign(run: RunFolder) -> float | None:
    """Unix seconds at which the run ended, or last gave a sign of life; None if nothing says so."""
    record = run.status
    for key in ("ended", "heartbeat", "created"):
        if isinstance(value := record.get(key), int | float) and not isinstance(value, bool):
            return float(value)
    return None


def select(root: Path, filters: Filters, runs: Iterable[RunFolder] | None = None) -> Iterator[RunFolder]:
    """The runs under `root` (or of `runs`) that fit, by name and seed. UsageError for a key that no run has.

    A run whose configuration or state cannot be read fits no condition on it.
    """
    chosen = list(RunFolder.all(root)) if runs is None else list(runs)
    chosen = [run for run in chosen if filters.name is None or filters.name in run.name]
    if filters.values:
        chosen = _with_values(chosen, filters.values)
    now = time.time()
    for run in chosen:
        if filters.older_than is not None:
            moment = last_sign(run)
            if moment is None or now - moment < filters.older_than:
                continue
        if filters.state is None or run.state() == filters.state:
            yield run


def _with_values(runs: Sequence[RunFolder], wanted: Mapping[str, str]) -> list[RunFolder]:
    known = configurations(runs)
    if not known:
        return []
    keys = {key for config in known.values() for key in config}
    conditions = {_full_key(key, keys): value for key, value in wanted.items()}
    return [
        run
        for run in runs
        if run.label in known
        and all(key in known[run.label] and same(known[run.label][key], text) for key, text in conditions.items())
    ]


def configurations(runs: Iterable[RunFolder]) -> dict[str, dict[str, Any]]:
    """Label -> configuration under dotted keys; runs whose config.yaml cannot be read are left out.

    Runs that differ in seed and name only are parsed once: that takes milliseconds, and sweeps have hundreds of them.
    """
    from mmctl.runs.listing import flat

    parsed: dict[str, dict[str, Any]] = {}
    known: dict[str, dict[str, Any]] = {}
    for run in runs:
        try:
            text = _OWN_LINES.sub("", (run.path / "config.yaml").read_text(encoding="utf-8"))
            if text not in parsed:
                parsed[text] = flat(run.config_dict())
        except (MmctlError, OSError, ValueError):
            continue
        known[run.label] = {**parsed[text], "seed": run.seed, "name": run.name}
    return known


def _full_key(typed: str, keys: set[str]) -> str:
    """`typed`, or the one key that ends in `.typed`. UsageError, with the nearest key, if there is none or several."""
    if typed in keys:
        return typed
    ends = sorted(key for key in keys if key.endswith(f".{typed}"))
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UsageError(f'"{typed}" is ambiguous: {", ".join(ends)}')
    leaf = typed.rpartition(".")[2]
    beside = [key for key in keys if key.rpartition(".")[2] == leaf]
    raise UsageError(f'"{typed}": no run has such a key{nearest(typed, beside or keys, "keys")}')


def same(value: Any, text: str) -> bool:
    """Whether a configuration's value is what was typed: numbers as numbers (1e-3 is 0.001), null, true, lists."""
    if isinstance(value, bool) or value is None:
        return text.lower() == {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        try:
            return float(text) == float(value)
        except ValueError:
            return False
    if isinstance(value, list):
        words = [word.strip() for word in text.strip("[]").split(",") if word.strip()]
        return len(words) == len(value) and all(same(v, w) for v, w in zip(value, words, strict=True))
    return str(value) == text
