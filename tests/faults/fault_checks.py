"""What must hold after a fault: nothing finished is lost or changed, nothing is trained twice, the results are the
same."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

TIMING = {"seconds", "time", "date", "created"}
"""Keys, at any depth, whose values are times and may differ."""


class Broken(AssertionError):
    """An invariant that does not hold; the message says which, where."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def finished(root: Path) -> dict[str, dict[str, str]]:
    """Hash of every lasting file of every finished run."""
    found = {}
    for result in root.glob("*/seed*/result.json"):
        run = result.parent
        files = [result, run / "config.yaml", run / "metrics.jsonl", run / "provenance.json"]
        files += [p for p in run.glob("eval/[!.]*.json")] + [p for p in run.glob("checkpoints/step_*/*")]
        found[f"{run.parent.name}/{run.name}"] = {str(p.relative_to(run)): digest(p) for p in files if p.is_file()}
    return found


def kept(before: dict[str, dict[str, str]], root: Path) -> dict[str, dict[str, str]]:
    """What is finished now. Broken if anything of `before` is gone or differs; more evaluations may have come."""
    now = finished(root)
    for run, files in before.items():
        if run not in now:
            raise Broken(f"{run}: its result is gone")
        for name, value in files.items():
            if now[run].get(name) != value:
                raise Broken(f"{run}: {name} of a finished run {'changed' if name in now[run] else 'is gone'}")
    return now


def trained_once(events: list[list[str]]) -> dict[str, int]:
    """Read a journal. Broken unless every start goes on from the last saved step, by one process at a time, and nothing
    is trained once there is a result. Returns how many runs, starts, steps, and steps done again there were."""
    saved: dict[str, int] = {}
    owner: dict[str, str] = {}
    at: dict[str, int] = {}
    seen: dict[str, int] = {}
    done: set[str] = set()
    gone: set[tuple[str, str]] = set()
    starts = steps = again = 0
    for pid, event, subject, *rest in events:
        if event == "rewound":  # its newer checkpoints were damaged
            saved[subject] = int(rest[0])
        elif event == "unfinished":  # its result was damaged
            done.discard(subject)
        if event not in ("begin", "step", "saved", "result"):
            continue
        if subject in done:
            raise Broken(f"{subject}: {event} {' '.join(rest)} after its result")
        if event == "begin":
            starts += 1
            if int(rest[0]) != saved.get(subject, 0):
                raise Broken(f"{subject}: begun from step {rest[0]}, the last saved one is {saved.get(subject, 0)}")
            if owner.get(subject) not in (None, pid):
                gone.add((subject, owner[subject]))
            owner[subject], at[subject] = pid, int(rest[0])
            continue
        if (subject, pid) in gone or owner.get(subject, pid) != pid:
            raise Broken(f"{subject}: {event} by process {pid}, which had lost the run to {owner.get(subject)}")
        if event == "step":
            if int(rest[0]) != at[subject] + 1:
                raise Broken(f"{subject}: step {rest[0]} after step {at[subject]}")
            at[subject] += 1
            steps += 1
            again += at[subject] <= seen.get(subject, 0)
            seen[subject] = max(at[subject], seen.get(subject, 0))
        elif event == "saved":
            saved[subject] = int(rest[0])
        else:
            done.add(subject)
    return {"runs": len(done), "starts": starts, "steps": steps, "steps_again": again}


def results(root: Path) -> dict[str, Any]:
    """All that a sweep found, timing left out: for `==` with that of an undisturbed one."""
    found: dict[str, Any] = {}
    for path in sorted(root.glob("*/seed*/config.yaml")):
        run = path.parent
        last = max(run.glob("checkpoints/step_*"), key=lambda p: int(p.name.split("_")[1].split(".")[0]))
        config = [line for line in path.read_text().splitlines() if "mlflow:" not in line]  # whether it is mirrored
        entry: dict[str, Any] = {"config": config, "last": last.name}
        entry |= {p.name: digest(p) for p in sorted(last.glob("*.safetensors"))}
        entry["state"] = plain(json.loads((last / "state.json").read_text()))
        entry["state"]["state"].pop("metrics", None)  # a copy of metrics.jsonl, times and all
        entry["metrics"] = [plain(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
        entry["result"] = plain(json.loads((run / "result.json").read_text()))
        entry["eval"] = {p.name: plain(json.loads(p.read_text())) for p in sorted(run.glob("eval/[!.]*.json"))}
        found[f"{run.parent.name}/{run.name}"] = entry
    return found


def same(root: Path, reference: dict[str, Any]) -> None:
    """Broken, naming the first difference, unless the sweep under `root` found what `reference` says."""
    now = results(root)
    if now.keys() != reference.keys():
        raise Broken(f"other runs than in the undisturbed sweep: {sorted(now.keys() ^ reference.keys())}")
    for run, entry in reference.items():
        for key, value in entry.items():
            if now[run].get(key) != value:
                raise Broken(f"{run}: {key} differs from the undisturbed sweep's")


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in TIMING}
    return [plain(v) for v in value] if isinstance(value, list) else value


def mirrored(root: Path, steps: int) -> None:
    """Broken unless the store has each run once, finished, with each step's loss once."""
    connection = sqlite3.connect(root / "mlflow.db")
    try:
        rows = connection.execute("select name, status, run_uuid from runs where lifecycle_stage = 'active'").fetchall()
        wanted = {f"{p.parent.parent.name}/{p.parent.name}" for p in root.glob("*/seed*/result.json")}
        wanted |= {p.name for p in (root / "sweeps").iterdir()}
        if sorted(name for name, _, _ in rows) != sorted(wanted):
            raise Broken(f"the store's runs are {sorted(n for n, _, _ in rows)}, not one of each of {sorted(wanted)}")
        for name, status, uid in rows:
            if status != "FINISHED":
                raise Broken(f"{name} is {status} in the store")
            query = "select step, count(*) from metrics where run_uuid = ? and key = 'loss' group by step"
            if "/" in name and connection.execute(query, (uid,)).fetchall() != [(n, 1) for n in range(1, steps + 1)]:
                raise Broken(f"{name}: the store does not have each step's loss once")
    finally:
        connection.close()
