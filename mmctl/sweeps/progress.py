"""`mmctl ablate --status`: how far a sweep is, read from its run folders by a process that takes no part in it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError
from mmctl.training.progress import clock

if TYPE_CHECKING:
    from rich.table import Table

    from mmctl.runs import RunFolder
    from mmctl.sweeps.plan import Plan

See = Callable[[], dict[str, Any]]
REFRESH_SECONDS = 2.0
EVERY_STATE = ("finished", "running", "planned", "interrupted", "lost", "failed", "diverged")
COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "lost": "yellow"}


@dataclass(frozen=True)
class Asked:
    """A run that the sweep is about. `steps` is None where only the sweep's manifest is known."""

    cell: str
    identity: str
    seed: int
    steps: int | None = None


def of_plan(plan: Plan) -> list[Asked]:
    return [Asked(r.cell.name, r.cell.identity, r.seed, r.cell.config.training.steps) for r in plan.runs()]


def of_manifest(manifest: Mapping[str, Any], path: Path) -> list[Asked]:
    """MmctlError, one line, if the manifest does not say which cells and seeds there are."""
    try:
        cells = [(str(c["name"]), str(c["identity"]), [int(s) for s in c["seeds"]]) for c in manifest["cells"]]
    except (KeyError, TypeError, ValueError):
        raise MmctlError(f"{path}: damaged, its cells cannot be read") from None
    seeds = sorted({seed for _, _, own in cells for seed in own})
    return [Asked(name, identity, seed) for seed in seeds for name, identity, own in cells if seed in own]


def of_results(path: Path) -> list[Asked]:
    """What a sweep's results are about; none if they are damaged."""
    from mmctl.runs.files import read_object

    try:
        runs = read_object(path)["runs"]
        return [Asked(str(run["label"]).rpartition("/")[0], str(run["identity"]), int(run["seed"])) for run in runs]
    except (MmctlError, KeyError, TypeError, ValueError):
        return []


def look(sweep: str, asked: Iterable[Asked], root: Path) -> dict[str, Any]:
    """{"sweep", "counts", "seconds_left", "runs": [a row each]}, JSON-ready; None where a number is not known."""
    from mmctl.runs import RunFolder
    from mmctl.runs.names import index

    known = index(root)
    rows = [_row(one, RunFolder.among(known.get((one.identity, one.seed), [])), root) for one in asked]
    counts = {state: sum(row["state"] == state for row in rows) for state in EVERY_STATE}
    return {"sweep": sweep, "counts": counts, "seconds_left": _left(rows), "runs": rows}


def _row(asked: Asked, folder: RunFolder | None, root: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"cell": asked.cell, "identity": asked.identity, "seed": asked.seed, "state": "planned"}
    row |= {"attempt": 0, "step": None, "steps": asked.steps, "loss": None, "seconds": None, "seconds_left": None}
    row |= {"reason": None, "where": None, "path": None}
    if folder is None:
        return row
    record, last = folder.status, folder.last_metrics()
    row |= {"state": folder.state(), "attempt": record.get("attempt", 0), "reason": record.get("reason")}
    row["path"] = str(folder.path.relative_to(root))
    if row["state"] == "finished":
        result = folder.result()
        row |= {"step": result.get("steps"), "steps": result.get("steps"), "reason": None}
        loss = result.get("train_loss", last.get("loss"))  # a model chosen among checkpoints has none of its own
        row |= {"loss": _number(loss), "seconds": _number(result.get("seconds"))}
        return row
    if row["steps"] is None:
        with contextlib.suppress(MmctlError, KeyError, TypeError):
            row["steps"] = folder.config_dict()["training"]["steps"]
    steps = [s for s in (record.get("step"), last.get("step")) if isinstance(s, int)]
    row |= {"step": max(steps, default=None), "loss": _number(last.get("loss"))}
    row["seconds"] = _number(last.get("seconds"))
    if row["state"] == "running":
        row["where"] = f"{record.get('host')}:{record.get('pid')}"
    done, seconds = last.get("step"), row["seconds"]
    if isinstance(row["steps"], int) and isinstance(done, int) and done > 0 and seconds:
        row["seconds_left"] = max(0.0, (row["steps"] - done) * seconds / done)
    return row


def _left(rows: list[dict[str, Any]]) -> float | None:
    """Seconds until all that is not at an end has run, on as many workers as run now; None where nothing tells."""
    running = [row for row in rows if row["state"] == "running"]
    waiting = [row for row in rows if row["state"] in ("planned", "interrupted", "lost")]
    if not running and not waiting:
        return 0.0
    whole = [row["seconds"] for row in rows if row["state"] == "finished" and row["seconds"]]
    whole = whole or [
        r["seconds"] + r["seconds_left"] for r in running if r["seconds"] and r["seconds_left"] is not None
    ]
    if not running or not whole:
        return None
    mean = sum(whole) / len(whole)
    left = [row["seconds_left"] for row in (*running, *waiting)]
    return sum(mean if one is None else one for one in left) / len(running)


def heading(seen: Mapping[str, Any]) -> str:
    """One line: how many runs are in which state, and the time left."""
    counts = [f"{count} {state}" for state, count in seen["counts"].items() if count]
    left = seen["seconds_left"]
    if left:
        counts.append(f"about {clock(left)} left")
    elif left is None:
        counts.append("nothing is running" if not seen["counts"]["running"] else "time left not known yet")
    return f"{seen['sweep']}: {len(seen['runs'])} runs: {', '.join(counts)}"


def table(seen: Mapping[str, Any], most: int | None = None) -> Table:
    """A row a run; with `most`, those that run, wait to be resumed or failed first, and how many are not shown."""
    from rich.table import Table
    from rich.text import Text

    rows = list(seen["runs"])
    shown = table_order(rows)[:most] if most is not None and len(rows) > most else rows
    made = Table(title=Text(heading(seen)), title_justify="left", title_style="")
    sides = {
        "cell": "left",
        "seed": "right",
        "state": "left",
        "progress": "right",
        "loss": "right",
        "time left": "right",
    }
    for name, side in {**sides, "tries": "right", "reason": "left"}.items():
        made.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in shown:
        words = (row["cell"], str(row["seed"]), row["state"], _progress(row), *_numbers(row))
        made.add_row(*(Text(w, style=COLOURS.get(w, "") if w == row["state"] else "") for w in words))
    if len(shown) < len(rows):
        made.caption = f"and {len(rows) - len(shown)} more (mmctl ablate ... --status | less shows all)"
    return made


def table_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = ("running", "lost", "interrupted", "failed", "diverged", "planned", "finished")
    return sorted(rows, key=lambda row: first.index(row["state"]))


def watch(see: See) -> None:
    """A table that follows the sweep while anything runs, on a terminal; once and plainly where stdout is none."""
    from rich.console import Console
    from rich.live import Live

    seen = see()
    if not sys.stdout.isatty():
        Console(width=160).print(table(seen))
        return
    console = Console()
    if not seen["counts"]["running"]:
        console.print(table(seen))
        return

    def fitting() -> Table:
        return table(seen, max(5, console.height - 7))

    with Live(fitting(), console=console, auto_refresh=False) as live:
        while seen["counts"]["running"]:
            time.sleep(REFRESH_SECONDS)
            seen = see()
            live.update(fitting(), refresh=True)


def _progress(row: Mapping[str, Any]) -> str:
    if row["step"] is None:
        return ""
    if not row["steps"]:
        return str(row["step"])
    return f"{row['step']}/{row['steps']} ({100 * row['step'] // row['steps']}%)"


def _numbers(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
    left = "" if row["seconds_left"] is None or row["state"] == "finished" else clock(row["seconds_left"])
    return loss, left, str(row["attempt"] or ""), " ".join(str(row["reason"] or "").split())


def _number(value: Any) -> float | None:
    """Finite numbers only: what a file says is "nan" or missing has no place in a sum."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None
