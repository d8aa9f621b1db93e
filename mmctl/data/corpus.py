"""Real text as bytes: finding it, reading it strictly, dividing it into train and held-out, and hashing it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mmctl.errors import UsageError

Documents = list[tuple[str, bytes]]
"""(name, content) of each document."""

LARGEST = 4 << 30
"""Bytes of one compressed file of text: a few kilobytes of gzip can stand for more than any memory."""
FEW_DOCUMENTS = 20
"""With fewer documents than this, each one's end is held out instead of whole documents."""
STDLIB_SUFFIXES = (".py", ".txt", ".rst")
STDLIB_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib-dynload"}
"""Installed packages are not the library, and distributions differ in which tests they ship."""


@dataclass
class Part:
    """Concatenated documents."""

    stream: np.ndarray
    """(N,) uint8."""
    starts: np.ndarray
    """(D,) int64: where each document starts, ascending from 0."""
    names: list[str]
    """What each document is called, for checking the division."""


@dataclass
class Corpus:
    """A divided corpus. No document, and no two documents of equal content, are in both parts."""

    label: str
    """How messages call it."""
    train: Part
    held_out: Part
    version: str
    """Python version for the standard library, else ""."""

    def part(self, split: str) -> Part:
        return self.train if split == "train" else self.held_out

    @property
    def size(self) -> int:
        """Bytes in both parts."""
        return len(self.train.stream) + len(self.held_out.stream)

    @cached_property
    def sha256(self) -> str:
        """Hash of both parts and of where their documents start: everything a window can be."""
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            digest.update(len(part.stream).to_bytes(8, "little"))
            digest.update(part.starts.astype("<i8").tobytes())
            digest.update(part.stream.tobytes())
        return digest.hexdigest()


_cache: dict[tuple[object, ...], Corpus] = {}


def load_corpus(text: str | None, held_out: float) -> Corpus:
    """The corpus of data.text (None: Python's standard library), read once per process and state of the files.

    Raises UsageError, one line naming the file, for text that is missing, unreadable, empty, binary or not UTF-8.
    """
    key: tuple[object, ...] = (text, held_out)
    # The library is not looked at again: it changes only with the Python that runs this process.
    files = list_files(text) if text is not None else stdlib_files() if key not in _cache else []
    if text is not None:
        key = (text, held_out, *((str(path), *_stat(path)) for _, path in files))
    if key not in _cache:
        documents = list(_read_stdlib(files) if text is None else _read_all(files))
        label = f"the Python {platform.python_version()} standard library" if text is None else f'data.text="{text}"'
        train, held = divide(documents, held_out)
        if not train or not held:
            raise UsageError(f"{label}: too little text to hold a part out ({sum(len(d) for _, d in documents)} bytes)")
        _cache[key] = Corpus(label, _join(train), _join(held), platform.python_version() if text is None else "")
    return _cache[key]


def stdlib_files() -> list[tuple[str, Path]]:
    """(relative name, path) of the standard library's sources and documentation, about 13 MB, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        (name, path)
        for name, path in _walk(root, STDLIB_SKIPPED)
        # The build configuration (config-3.x-<platform>, _sysconfigdata_*) differs from machine to machine.
        if path.suffix in STDLIB_SUFFIXES and not name.startswith(("config-", "_sysconfigdata"))
    ]
    if not files:
        raise UsageError(
            f'no Python sources under "{root}" (this Python has no readable standard library): '
            "give a corpus with data.text=PATH, or leave text out with data.mixture.text=0"
        )
    return files


def list_files(text: str) -> list[tuple[str, Path]]:
    """(relative name, path) of the files data.text names: one file, or all under a folder but hidden ones and what
    Python compiled."""
    try:
        path = Path(text).expanduser()
        exists, folder, regular = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the ~name of nobody
        raise UsageError(f'data.text="{text}": cannot be looked up ({_why(error)})') from None
    if not exists:
        raise UsageError(f'data.text="{text}": no such file or folder')
    if folder:
        files = list(_walk(path, {"__pycache__"}))
        if not files:
            raise UsageError(f'data.text="{text}": the folder holds no files')
        return files
    if not regular:
        raise UsageError(f'data.text="{text}": neither a regular file nor a folder')
    return [(path.name, path)]


def divide(documents: Documents, held_out: float) -> tuple[Documents, Documents]:
    """Train and held-out documents. Which part a document falls in depends on its name alone, never on the others.

    Copies of the same content are kept once. Fewer than FEW_DOCUMENTS: the last `held_out` of each one's bytes.
    """
    unique: dict[bytes, tuple[str, bytes]] = {}
    for name, content in documents:
        if content:
            unique.setdefault(hashlib.sha256(content).digest(), (name, content))
    kept = list(unique.values())
    if len(kept) >= FEW_DOCUMENTS:
        is_held = [_fraction(name) < held_out for name, _ in kept]
        if any(is_held) and not all(is_held):
            return (
                [d for d, held in zip(kept, is_held, strict=True) if not held],
                [d for d, held in zip(kept, is_held, strict=True) if held],
            )
    cuts = [(name, content, len(content) - round(len(content) * held_out)) for name, content in kept]
    return (
        [(name, content[:cut]) for name, content, cut in cuts if cut],
        [(name, content[cut:]) for name, content, cut in cuts if cut < len(content)],
    )


def _fraction(name: str) -> float:
    """A number in [0, 1) that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64


def _walk(root: Path, skipped: set[str]) -> Iterator[tuple[str, Path]]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(f for f in subfolders if f not in skipped and not f.startswith("."))
        for name in sorted(n for n in names if not n.startswith(".")):
            path = Path(folder, name)
            if path.is_file():
                yield path.relative_to(root).as_posix(), path


def _read_stdlib(files: list[tuple[str, Path]]) -> Iterator[tuple[str, bytes]]:
    """The library holds a few files in other encodings: those, and only those, are left out."""
    for name, path in files:
        content = _bytes(path)
        if b"\0" not in content and _decodes(content) is None:
            yield name, content


def _read_all(files: list[tuple[str, Path]]) -> Iterator[tuple[str, bytes]]:
    total = 0
    for name, path in files:
        content = _bytes(path)
        plain = path.name.removesuffix(".gz")
        if b"\0" in content:
            raise UsageError(f'data.text: "{path}" is binary (it holds a zero byte), expected UTF-8 text')
        wrong = _decodes(content)
        if wrong is not None:
            raise UsageError(
                f'data.text: "{path}" is not UTF-8 text (byte 0x{content[wrong]:02x} at {wrong}); convert it, '
                "for instance with iconv -t UTF-8"
            )
        total += len(content.strip())
        if plain.endswith((".jsonl", ".ndjson")):
            yield from _read_jsonl(path, content)
        else:
            yield name, content
    if not total:
        what = f'"{files[0][1]}" is empty' if len(files) == 1 else f"the {len(files)} files are empty"
        raise UsageError(f"data.text: {what}, expected text")


def _read_jsonl(path: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    """One document a line. Named by content, so that a line's part does not depend on the lines before it."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            document = text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            expected = 'expected a JSON object with a "text" string'
            raise UsageError(f'data.text: "{path}" line {number}: {expected}') from None
        yield hashlib.sha256(document).hexdigest(), document


def _bytes(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as stream:
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f'data.text: "{path}" holds more than {LARGEST:,} bytes, larger than a file is read')
        return content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f'data.text: "{path}" cannot be read ({_why(error)})') from None


def _decodes(content: bytes) -> int | None:
    """Position of the first byte that is not UTF-8, None when all are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f'data.text: "{path}" cannot be read ({_why(error)})') from None
    return found.st_size, found.st_mtime_ns


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def _join(documents: Documents) -> Part:
    sizes = np.array([len(content) for _, content in documents], dtype=np.int64)
    stream = np.frombuffer(b"".join(content for _, content in documents), dtype=np.uint8)
    return Part(stream, np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64), [name for name, _ in documents])
