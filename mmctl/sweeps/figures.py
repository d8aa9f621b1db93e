"""Draws the figures the ablations of a sweep list, from its results.json. One that cannot be drawn is said, not fatal.

`figures/drawn.json` records what each was drawn from: a figure is drawn again only when that is not what it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from mmctl.errors import MmctlError


@dataclass
class Drawn:
    """`paths`: {name: PNG relative to the sweep's folder}; `anew`: those drawn now; `problems`: what could not be."""

    paths: dict[str, str] = field(default_factory=dict)
    anew: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def draw(folder: Path, names: Iterable[str], results: Mapping[str, Any]) -> Drawn:
    """Bring each named figure up to date with `results`, which stand in the sweep's folder."""
    from mmctl import plots
    from mmctl.runs.files import write_json

    record, done = _recorded(folder), Drawn()
    for name in dict.fromkeys(names):
        try:
            module = plots.figure(name)
            inputs = _inputs(module, results)
            known = record.get(name, {})
            if not _current(folder, known, inputs):
                paths = module.draw_sweep(folder, folder / "figures")
                files = {kind: path.relative_to(folder).as_posix() for kind, path in paths.items()}
                known = record[name] = {"inputs": inputs, "files": files}
                done.anew.append(name)
            done.paths[name] = known["files"]["png"]
        except MmctlError as error:
            done.problems.append(f"{name}: {error}")
        except Exception as error:  # whatever goes wrong in a figure must not cost the report
            done.problems.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")
    if done.anew:
        write_json(folder / "figures" / "drawn.json", record)
    return done


def _inputs(module: ModuleType, results: Mapping[str, Any]) -> str:
    """SHA-256 of what the figure shows and of the code that draws it.

    A figure's module may say with `shows(results)` which part of the results that is; without, it is all but their
    date.
    """
    shown = module.shows(results) if hasattr(module, "shows") else {k: v for k, v in results.items() if k != "date"}
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode())
    for path in sorted(Path(str(module.__file__)).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _current(folder: Path, known: Any, inputs: str) -> bool:
    return bool(known) and known["inputs"] == inputs and all((folder / p).is_file() for p in known["files"].values())


def _recorded(folder: Path) -> dict[str, Any]:
    """What is known of earlier drawings; a missing or damaged record only means drawing again."""
    from mmctl.runs.files import read_object

    try:
        found = read_object(folder / "figures" / "drawn.json")
    except MmctlError:
        return {}
    return {k: v for k, v in found.items() if isinstance(v, dict) and {"inputs", "files"} <= v.keys()}
