"""The essay haystack: prose that every machine has, or a file of the user's.

The published one (Paul Graham's essays) is downloaded by a script; here the documentation inside the Python standard
library takes its place, sentence after sentence. `Haystack(path)` reads the published text, or any other.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import sysconfig
from functools import lru_cache
from pathlib import Path

from mmctl.errors import UsageError

ENOUGH = 400_000
"""Words after which the standard library's documentation is long enough; longer haystacks repeat it."""
LARGEST = 1 << 28
"""Bytes of the largest file read."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


class Haystack:
    """Words of running prose; `words(n)` repeats it as often as needed."""

    def __init__(self, path: str | Path | None = None) -> None:
        """`path`: a text file, or JSON with a "text" field as RULER's essays have; None: the standard library."""
        self.path = None if path is None else Path(path)
        self._words: list[str] | None = None

    def words(self, count: int) -> str:
        """The first `count` words, with single spaces."""
        if self._words is None:
            self._words = (_library() if self.path is None else _read(self.path)).split()
        there = self._words
        return " ".join((there * (-(-count // len(there))))[:count])

    def describe(self) -> dict[str, str]:
        """What was read, to be recorded with a result."""
        if self.path is None:
            return {"essay": f"documentation of the Python {platform.python_version()} standard library"}
        return {"essay": self.path.name, "sha256": hashlib.sha256(self.path.read_bytes()).hexdigest()}


def sentences(text: str) -> list[str]:
    """Text cut behind ".", "!" or "?" where a new sentence seems to begin."""
    return [part for part in _SENTENCE.split(text) if part]


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: larger than {LARGEST >> 20} MiB: expected prose for a haystack")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): expected a text file for the haystack") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise UsageError(f"{path}: is not JSON") from None
        inside = found.get("text") if isinstance(found, dict) else None
        if not isinstance(inside, str):
            raise UsageError(f'{path}: expected a JSON object with a "text" string')
        text = inside
    if not text.split():
        raise UsageError(f"{path}: is empty: expected prose for a haystack")
    return text


@lru_cache
def _library() -> str:
    """Documentation strings of the standard library's modules, in the order of their names."""
    parts: list[str] = []
    words = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                prose = [p for p in re.split(r"\n\s*\n", text) if ">>>" not in p and p.rstrip().endswith(".")]
                parts += prose
                words += sum(len(p.split()) for p in prose)
        if words > ENOUGH:
            break
    return " ".join(parts)
