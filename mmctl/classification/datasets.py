"""Texts with classes, from the files in which Banking77, CLINC150, GoEmotions and TACRED are published."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmctl.errors import MmctlError, UsageError, first_line, nearest

LARGEST = 1 << 29
"""Bytes of the largest file read."""
LONGEST_LINE = 1 << 20
"""Characters of the longest text: a longer one is no query but a damaged file."""

Pairs = list[tuple[str, str]]
"""(text, class)"""


@dataclass(frozen=True)
class Examples:
    """One data set: what may be shown and what is asked."""

    name: str
    """banking77, clinc150, goemotions, tacred, or own: decides the prompt."""
    train: Pairs
    test: Pairs
    sha256: str
    """Of the files' content."""

    @property
    def classes(self) -> list[str]:
        """Classes of which there is an example to show, sorted."""
        return sorted({label for _, label in self.train})


def read(source: str) -> Examples:
    """`NAME=PATH`, or `NAME=hf:REPOSITORY` from Hugging Face. UsageError, one line, for what is no such data set."""
    name, equals, where = source.partition("=")
    if name not in DATASETS:
        raise UsageError(f'"{source}": no such data set{nearest(name, DATASETS, "data sets")}; expected NAME=PATH')
    if not equals or not where:
        raise UsageError(f'"{source}": expected {name}=PATH, or {name}=hf:REPOSITORY')
    found = _hugging_face(name, where[3:]) if where.startswith("hf:") else _files(name, Path(where))
    if not found.train:
        raise UsageError(f"{where}: no training example of {name} in it")
    unknown = sorted({label for _, label in found.test} - set(found.classes))
    if unknown:
        raise UsageError(f'{where}: test class "{unknown[0][:60]}" has no training example to show')
    return found


def _files(name: str, path: Path) -> Examples:
    digest = hashlib.sha256()

    def content(*names: str) -> tuple[Path, str]:
        if not path.exists():
            raise UsageError(f"{path}: no such folder or file; expected {' and '.join(DATASET_FILES[name])} of {name}")
        if path.is_file() and len(DATASET_FILES[name]) > 1:
            raise UsageError(f"{path}: expected the folder with {' and '.join(DATASET_FILES[name])} of {name}")
        places = [path] if path.is_file() else [path / n for n in names]
        place = next((p for p in places if p.is_file()), None)
        if place is None:
            raise UsageError(f"{path}: expected {' or '.join(names)} of {name} in it")
        try:
            if place.stat().st_size > LARGEST:
                raise UsageError(f"{place}: larger than {LARGEST >> 20} MiB")
            data = place.read_bytes()
            text = data.decode("utf-8-sig")
        except OSError as error:
            raise UsageError(f"{place}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{place}: is not UTF-8 text (byte {error.start})") from None
        digest.update(data)
        return place, text

    train, test = DATASETS[name](content)
    return Examples(name, train, test, digest.hexdigest())


Content = Callable[..., tuple[Path, str]]


def _banking77(content: Content) -> tuple[Pairs, Pairs]:
    """train.csv and test.csv, columns text and category; the user's own queries too."""
    return tuple(_csv(*content(f"{split}.csv"), ("text", "category")) for split in ("train", "test"))  # type: ignore[return-value]


def _csv(place: Path, text: str, columns: tuple[str, str], delimiter: str = ",") -> Pairs:
    csv.field_size_limit(LONGEST_LINE)
    try:
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise UsageError(f"{place}: is not CSV ({error})") from None
    there = list(rows[0]) if rows else []
    for column in columns:
        if column not in there:
            raise UsageError(f'{place}: no column "{column}"; expected {" and ".join(columns)}')
    pairs = [(row[columns[0]], row[columns[1]]) for row in rows]
    for number, pair in enumerate(pairs, start=2):
        if not all(pair):
            raise UsageError(f"{place}: row {number} is incomplete: expected {' and '.join(columns)}")
    return pairs


def _json(place: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{place}: is not JSON") from None


def _clinc150(content: Content) -> tuple[Pairs, Pairs]:
    """data_full.json: train, val and test lists of [text, intent]; what is out of scope is left out."""
    place, text = content("data_full.json")
    found = _json(place, text)
    splits = []
    for split in ("train", "test"):
        rows = found.get(split) if isinstance(found, dict) else None
        if not isinstance(rows, list) or not all(
            isinstance(r, list) and len(r) == 2 and all(isinstance(v, str) for v in r) for r in rows
        ):
            raise UsageError(f'{place}: expected a list "{split}" of [text, intent] pairs, as CLINC150 has it')
        splits.append([(t, label) for t, label in rows])
    return splits[0], splits[1]


def _goemotions(content: Content) -> tuple[Pairs, Pairs]:
    """train.tsv and test.tsv (text, class numbers, id) with emotions.txt; comments of several emotions are left out."""
    _, names = content("emotions.txt")
    emotions = names.split()
    splits = []
    for split in ("train", "test"):
        place, text = content(f"{split}.tsv")
        pairs: Pairs = []
        for number, line in enumerate(text.splitlines(), start=1):
            parts = line.split("\t")
            if len(parts) != 3 or not re.fullmatch(r"\d+(,\d+)*", parts[1]):
                raise UsageError(f"{place}: row {number}: expected text, emotion numbers and id, between tabs")
            labels = [int(n) for n in parts[1].split(",")]
            if max(labels) >= len(emotions):
                raise UsageError(f"{place}: row {number}: emotion {max(labels)}, but emotions.txt has {len(emotions)}")
            if len(labels) == 1:
                pairs.append((parts[0], emotions[labels[0]]))
        splits.append(pairs)
    return splits[0], splits[1]


def _tacred(content: Content) -> tuple[Pairs, Pairs]:
    """train.json and test.json: token, subj_start, subj_end, obj_start, obj_end, relation; `no_relation` is left
    out."""
    splits = []
    for split in ("train", "test"):
        place, text = content(f"{split}.json")
        rows = _json(place, text)
        pairs: Pairs = []
        for number, row in enumerate(rows if isinstance(rows, list) else [None], start=1):
            try:
                words = row["token"]
                ends = [(int(row[f"{who}_start"]), int(row[f"{who}_end"])) for who in ("subj", "obj")]
                subject, other = (" ".join(words[first : last + 1]) for first, last in ends)
                relation = str(row["relation"])
                sentence = " ".join(words)
            except (KeyError, TypeError, ValueError):
                raise UsageError(
                    f"{place}: example {number}: expected token, subj_start .. obj_end and relation"
                ) from None
            if relation != "no_relation":
                pairs.append((f"{sentence}\t{subject}\t{other}", relation))
        splits.append(pairs)
    return splits[0], splits[1]


DATASET_FILES = {
    "banking77": ("train.csv", "test.csv"),
    "clinc150": ("data_full.json",),
    "goemotions": ("train.tsv", "test.tsv", "emotions.txt"),
    "tacred": ("train.json", "test.json"),
    "own": ("train.csv", "test.csv"),
}
"""Files of each; a data set in one file may be given by that file's path."""

DATASETS: dict[str, Callable[[Content], tuple[Pairs, Pairs]]] = {
    "banking77": _banking77,
    "clinc150": _clinc150,
    "goemotions": _goemotions,
    "tacred": _tacred,
    "own": _banking77,
}


def _hugging_face(name: str, repository: str) -> Examples:
    """Columns text and label (a class label feature), splits train and test."""
    try:
        import datasets  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise MmctlError(
            f"{name}=hf:{repository}: needs the package datasets (pip install datasets); or give the files' folder"
        ) from None
    try:
        found = datasets.load_dataset(repository)
    except Exception as error:  # the library raises whatever its storage does
        raise MmctlError(f"{name}=hf:{repository}: cannot be loaded ({first_line(error)[:150]})") from None
    splits, digest = [], hashlib.sha256()
    for split in ("train", "test"):
        if split not in found:
            raise UsageError(f'hf:{repository}: no split "{split}"; it has {", ".join(map(str, found))}')
        rows = found[split]
        columns = (
            [c for c in ("text", "query", "comment_text") if c in rows.column_names],
            [c for c in ("label", "intent", "category") if c in rows.column_names],
        )
        if not all(columns):
            raise UsageError(f"hf:{repository}: expected columns text and label; it has {', '.join(rows.column_names)}")
        text, label = columns[0][0], columns[1][0]
        names = getattr(rows.features[label], "names", None)
        pairs = [(str(r[text]), names[r[label]] if names else str(r[label])) for r in rows]
        digest.update(json.dumps(pairs).encode())
        splits.append(pairs)
    return Examples(name, splits[0], splits[1], digest.hexdigest())
