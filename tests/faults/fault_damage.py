"""Damage to the files of a half-done sweep of which nothing runs; what it undoes is told to the journal.

An event "rewound RUN STEP" says from which step the run can go on, "unfinished RUN" that its result is no more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from fault_hooks import halve, label
from fault_sweeps import Case


def ready(case: Case) -> bool:
    """A run has a result, and another one has two checkpoints and none."""
    return bool(_finished(case)) and bool(_unfinished(case))


def _finished(case: Case) -> list[Path]:
    return sorted(p.parent for p in case.root.glob("*/seed*/result.json"))


def _unfinished(case: Case) -> list[Path]:
    runs = [p.parent for p in case.root.glob("*/seed*/status.json") if not (p.parent / "result.json").exists()]
    return sorted(run for run in runs if len(_steps(run)) >= 2)


def _steps(run: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in run.glob("checkpoints/step_*") if p.name[5:].isdigit())


def _each(case: Case, name: str, harm: Callable[[Path], None]) -> None:
    for run in _unfinished(case):
        harm(run / name)


def _checkpoint(file: str, harm: Callable[[Path], None], every: bool = False) -> Callable[[Case], None]:
    def work(case: Case) -> None:
        for run in _unfinished(case):
            steps = _steps(run)
            for step in steps if every else steps[-1:]:
                harm(run / "checkpoints" / f"step_{step}" / file)
            case.journal.write("rewound", label(run), 0 if every else steps[-2])

    return work


def _result(harm: Callable[[Path], None]) -> Callable[[Case], None]:
    def work(case: Case) -> None:
        run = _finished(case)[0]
        harm(run / "result.json")
        case.before.pop(label(run), None)
        case.journal.write("unfinished", label(run))

    return work


def _evaluation(case: Case) -> None:
    run = _finished(case)[0]
    for path in run.glob("eval/*.json"):
        halve(path)
    case.before.pop(label(run), None)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 0x10
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def wrong(path: Path) -> None:
    path.write_text('{"state": "running", "attempt": "many", "pid": [], "host": 7, "heartbeat": "soon", "earlier": 5}')


def head(path: Path) -> None:
    """The first lines become one that is not JSON."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\0" * 100 + b"\n" + b"".join(lines[3:]))


KINDS: dict[str, Callable[[Case], None]] = {
    **{f"status {n}": lambda c, h=h: _each(c, "status.json", h) for n, h in (("halved", halve), ("wrong", wrong))},
    "status garbage": lambda c: _each(c, "status.json", garbage),
    "status missing": lambda c: _each(c, "status.json", Path.unlink),
    "lock garbage": lambda c: _each(c, "lock", garbage),
    "metrics torn": lambda c: _each(c, "metrics.jsonl", lambda p: p.write_bytes(p.read_bytes()[:-40])),
    "metrics halved": lambda c: _each(c, "metrics.jsonl", halve),
    "metrics head": lambda c: _each(c, "metrics.jsonl", head),
    "metrics missing": lambda c: _each(c, "metrics.jsonl", Path.unlink),
    "weights flipped": _checkpoint("model.safetensors", flip),
    "optimizer halved": _checkpoint("optimizer.safetensors", halve),
    "checkpoint state empty": _checkpoint("state.json", empty),
    "manifest missing": _checkpoint("manifest.json", Path.unlink),
    "all weights flipped": _checkpoint("model.safetensors", flip, every=True),
    "all weights halved": _checkpoint("model.safetensors", halve, every=True),
    "no checkpoints": _checkpoint("", shutil.rmtree, every=True),
    "result halved": _result(halve),
    "result missing": _result(Path.unlink),
    "evaluations halved": _evaluation,
}
