"""Where runs lie and how they are found: `runs/<name>-<identity8>/seed<k>`. The name is only for the eye."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mmctl.errors import MmctlError, UsageError, nearest, printable

LONGEST = 80
SHOWN = 6
"""Candidates named in an error."""
_RUN = re.compile(r"(?P<name>.+)-(?P<identity>[0-9a-f]{8})")
_SEED = re.compile(r"seed(-?\d+)")


def runs_root(option: str | Path | None = None, *, whatever_it_is: bool = False) -> Path:
    """Absolute folder of all runs: the `--runs` option, else MMCTL_RUNS, else ./runs. It need not exist.
    UsageError for a file, but where the caller looks at `whatever_it_is` itself."""
    root = _absolute(str(option or os.environ.get("MMCTL_RUNS") or "runs"))
    if root.is_file() and not whatever_it_is:
        raise UsageError(f"{root}: a file; expected the folder of runs")
    return root


def _absolute(text: str) -> Path:
    """UsageError for the `~name` of nobody, and for `~` where no home is known."""
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError, ValueError) as error:
        raise UsageError(f'"{text}": {str(error).rstrip(".").lower()}') from None


def safe_name(name: str) -> str:
    """`name` as one folder name that stays inside its parent: letters, digits and `_.+=-`, not hidden, at most 80."""
    name = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9_.+=-]+", "-", name))
    return name.lstrip(".-")[:LONGEST].rstrip(".-") or "run"


def check_name(name: str) -> None:
    """UsageError for a name that a run's folder cannot be called by, with the nearest one that it can."""
    if (valid := safe_name(name)) != name:
        shown = printable(name if len(name) <= 2 * LONGEST else f"{name[:LONGEST]}...")
        raise UsageError(
            f'name="{shown}": a run\'s folder is called so: expected letters, digits and _.+=-, at most {LONGEST}, such as '
            f'"{valid}"'
        )


def folder_of(root: Path, name: str, identity: str, seed: int) -> Path:
    if not re.fullmatch(r"[0-9a-f]{8}", identity):
        raise ValueError(f"{identity!r} is no identity of 8 hex digits")
    return root / f"{safe_name(name)}-{identity}" / f"seed{int(seed)}"


@dataclass(frozen=True)
class Place:
    """A run's folder and what its path says."""

    path: Path
    name: str
    identity: str
    seed: int

    @property
    def label(self) -> str:
        return f"{self.name}-{self.identity}/seed{self.seed}"

    @classmethod
    def of(cls, path: Path) -> Place | None:
        """None if the path is not that of a run."""
        run, seed = _RUN.fullmatch(path.parent.name), _SEED.fullmatch(path.name)
        if run is None or seed is None or not run["name"].isprintable():
            return None  # a name that steers the terminal is none of ours
        return cls(path, run["name"], run["identity"], int(seed[1]))


def inside(root: Path, path: Path) -> bool:
    """Whether `path`, with symbolic links followed, lies in `root`."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False


def refuse_links(folder: Path) -> None:
    """MmctlError if something in a run's folder is a symbolic link: what is written there must land there."""
    for place in (folder, folder / "checkpoints", folder / "eval"):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise MmctlError(f"{entry.path}: a symbolic link in a run's folder; nothing is written through it")


def _folders(path: Path, root: Path) -> list[str]:
    """Folders in `path`; those that are links out of `root` are somebody else's."""
    try:
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir() and (not entry.is_symlink() or inside(root, Path(entry.path)))
            )
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def places(root: Path, identity: str | None = None) -> Iterator[Place]:
    """Every run under `root` (of one identity), ordered by name and then seed."""
    for folder in _folders(root, root):
        run = _RUN.fullmatch(folder)
        if run and identity in (None, run["identity"]):
            found = (Place.of(root / folder / child) for child in _folders(root / folder, root))
            yield from sorted((p for p in found if p), key=lambda p: p.seed)


def index(root: Path) -> dict[tuple[str, int], list[Place]]:
    """(identity, seed) -> its folders (one, unless somebody copied a run). One pass, for looking many up."""
    found: dict[tuple[str, int], list[Place]] = {}
    for place in places(root):
        found.setdefault((place.identity, place.seed), []).append(place)
    return found


class Ambiguous(UsageError):
    """Several runs fit what was typed; `places` are all of them."""

    def __init__(self, text: str, found: Sequence[Place]) -> None:
        self.places = list(found)
        labels = ", ".join(p.label for p in found[:SHOWN]) + (", ..." if len(found) > SHOWN else "")
        example = found[0].label
        super().__init__(f'run "{text}" is ambiguous: {labels}; type one of them in full, such as {example}')


def find(root: Path, text: str) -> Place:
    """The run a person means by a path, `name`, `name/seedK`, `identity`, `name-identity` or these with `/seedK`.

    UsageError in one line: the nearest names if nothing fits, the candidates (Ambiguous) if several do.
    """
    found = find_all(root, text)
    if len(found) > 1:
        raise Ambiguous(text, found)
    return found[0]


def find_all(root: Path, text: str) -> list[Place]:
    """Every run that fits, at least one, ordered by name and seed: `name-identity` means all of its seeds.
    UsageError."""
    wanted = text.strip().rstrip("/")
    if not wanted:
        raise UsageError("an empty run name; expected a name, an identity or a folder")
    for path in (_absolute(wanted), root / wanted):
        if path.is_dir() and path != root:
            if place := Place.of(path):
                return [place]
            if _RUN.fullmatch(path.name):
                return _some(text, _seeds(path))
    everything = list(places(root))
    if not everything:
        raise UsageError(f'run "{text}": there are no runs in {root}')
    head, _, tail = wanted.rpartition("/")
    seed = _SEED.fullmatch(tail) if head else None
    name = head if seed else wanted
    matches = [p for p in everything if name in (p.name, p.identity, f"{p.name}-{p.identity}")]
    if not matches and name:
        matches = [p for p in everything if safe_name(name) == p.name]
    if seed and matches:
        chosen = [p for p in matches if p.seed == int(seed[1])]
        if not chosen:
            have = ", ".join(sorted({f"seed{p.seed}" for p in matches}))
            raise UsageError(f'run "{text}": "{name}" has no {tail}; there are: {have}')
        matches = chosen
    if not matches:
        valid = {p.name for p in everything} | ({p.label for p in everything} if "/" in wanted else set())
        hint = nearest(wanted, valid, "runs")
        raise UsageError(f'run "{text}": no such run in {root}{hint}')
    return _some(text, matches)


def _seeds(folder: Path) -> Iterator[Place]:
    return (place for child in _folders(folder, folder) if (place := Place.of(folder / child)))


def _some(text: str, matches: Iterable[Place]) -> list[Place]:
    found = sorted(matches, key=lambda p: (p.name, p.identity, p.seed, str(p.path)))
    if not found:
        raise UsageError(f'run "{text}": that folder holds no seed')
    return found
