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

SEEN = {
    "overview": "A row for each ablation. Left: its claims' differences in multiples of the margin that counts as no effect, "
    "with 95% intervals. Right of it, one line for each arm: a score against the length it is measured at, and the training "
    "loss against training tokens.",
    "effects": "A row for each claim of a difference: the mean over seeds as a dot with its 95% interval, the margin that "
    "counts as no effect as a grey bar, the published difference as a hollow diamond. The table of verdicts has the same "
    "numbers.",
    "extrapolation": "A row of panels for each ablation, one panel for each task: the score against the length it is "
    "measured at, one line with a band of its 95% interval for each arm. The tables of scores have the same numbers.",
    "loss": "A row for each ablation: training loss against training tokens on the left and against training FLOPs on the "
    "right, one line with a band from the lowest to the highest seed for each arm.",
    "bandwidth": "Beta against the number of stored pairs for each head, and the learned exponent alpha by layer.",
    "flops-accuracy": "Left: the score that most claims are about against forward FLOPs per token, one point with its 95% "
    "interval for each arm. Right: the published points.",
    "shots": "One panel for each task: accuracy against the number of demonstrations of the class seen before, one line with "
    "a band of its 95% interval for each model, chance as grey dashes.",
    "fine-tuning": "One panel for each task: the score at the longer context against the steps of fine-tuning there, one line "
    "with a band of its 95% interval for each model; beside recall the published numbers in grey.",
    "forget": "Top: loss against position, one panel for each state size (and for the transformer and the mosaic), one line for "
    "each training length, which is marked. Bottom: the largest loss beyond the training length over the largest within it; "
    "the forget threshold of each seed against the size of the state, with the line through them; passkey accuracy against "
    "context.",
    "forget-state": "A row for each of up to four Mamba-2 runs, one line for each head: retention of the first token, mean and "
    "variance of the state, against tokens read, the training length marked.",
    "attention-distribution": "Weight of the last query on every earlier position, one panel for each layer and memory, "
    "models side by side; of several seeds their mean with a band of its 95% interval. Flatness and peak mass stand in each.",
}
"""What is to be seen in a figure, for those who cannot see it."""


def caption(name: str, results: Mapping[str, Any]) -> tuple[str, str]:
    """(Title, alternative text) of a sweep's figure."""
    from mmctl import plots

    title = str(plots.figure(name).TITLE)
    of = f"{title}; ablations {', '.join(a['name'] for a in results['ablations'])}."
    return title, f"{of} {SEEN[name]}" if name in SEEN else of


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
    wanted = list(dict.fromkeys(names))
    dropped = [record.pop(name) for name in [*record] if name not in wanted]
    for name in wanted:
        try:
            module = plots.figure(name)
            inputs = _inputs(module, results)
            known = record.get(name, {})
            if not _current(folder, known, inputs):
                paths = module.draw_sweep(folder, folder / "figures")
                files = {kind: path.relative_to(folder).as_posix() for kind, path in paths.items()}
                dropped += [known] if known else []
                known = record[name] = {"inputs": inputs, "files": files}
                done.anew.append(name)
            done.paths[name] = known["files"]["png"]
        except MmctlError as error:
            done.problems.append(f"{name}: {error}")
        except Exception as error:  # whatever goes wrong in a figure must not cost the report
            done.problems.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")
    if done.anew or dropped:
        write_json(folder / "figures" / "drawn.json", record)
        _remove(folder, dropped, record)
    return done


def present(folder: Path, results: Mapping[str, Any]) -> dict[str, str]:
    """{name: PNG relative to the folder} of the figures that lie there already, without drawing any: those recorded, and
    of others that the results ask for, the first file that is called after one."""
    record = _recorded(folder)
    names = ["overview", *(name for ablation in results["ablations"] for name in ablation["figures"])]
    found = {}
    for name in dict.fromkeys(names):
        known = [folder / record[name]["files"]["png"]] if name in record else []
        known += sorted((folder / "figures").glob(f"{name}.png")) + sorted((folder / "figures").glob(f"{name}-*.png"))
        if (first := next((path for path in known if path.is_file()), None)) is not None:
            found[name] = first.relative_to(folder).as_posix()
    return found


def _remove(folder: Path, dropped: Iterable[Mapping[str, Any]], record: Mapping[str, Any]) -> None:
    """Files that only a dropped record names. A record is data: what it names outside figures/ is not touched."""
    kept = {path for known in record.values() for path in known["files"].values()}
    for path in {path for known in dropped for path in known["files"].values()} - kept:
        if Path(path).parent == Path("figures") and Path(path).name not in ("", ".", "..", "drawn.json"):
            (folder / path).unlink(missing_ok=True)


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
