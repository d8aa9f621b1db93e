"""The fault campaign: `python tests/faults/campaign.py --kills 200 --seed 0 --summary FILE` (Linux).

Sweeps of twelve tiny runs are killed at random moments and at chosen calls (fault_kills.py), and are met with full
disks, damaged files, a jumping clock and the like (fault_scenarios.py). After every fault: nothing finished is lost or
changed. At the end of every sweep: nothing was trained twice, and all results are bit for bit those of an undisturbed
sweep (fault_checks.py). Exit code 0 only if all of that held; the summary says what was done.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fault_checks as checks
import fault_kills
import fault_scenarios
import fault_sweeps as sweeps
import warm_start


class Campaign:
    """`folder` is for everything it makes; `say` is told how it goes."""

    def __init__(self, folder: Path, seed: int, seeds: str = "0,1,2,3", mlflow: bool = True) -> None:
        self.folder, self.seed, self.seeds, self.mlflow = folder, seed, seeds, mlflow
        self.kills: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.scenarios: dict[str, str] = {}
        self.broken: list[str] = []
        self.reference: dict[str, Any] = {}
        self.cards: list[tuple[str, str]] = []
        self.file: Path | None = None
        self.began = time.monotonic()

    def prepare(self) -> None:
        """The undisturbed sweep; what its processes imported is then imported here, for all that follow."""
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"  # before numpy is imported: its threads would not survive the forks
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        for name in ("MLFLOW_TRACKING_URI", "MMCTL_RUNS"):
            os.environ.pop(name, None)
        for name in BASE + (MLFLOW if self.mlflow else ()):
            importlib.import_module(name)
        case = sweeps.Case(self.folder / "undisturbed", self.seeds, mlflow=self.mlflow)
        case.prepare = lambda: _list_modules(case.folder)
        case.finish(most=1)
        self.reference = checks.results(case.root)
        case.judge(self.reference)
        if self.mlflow:
            checks.mirrored(case.root, sweeps.STEPS)
        for listed in case.folder.glob("modules-*"):
            for name in listed.read_text().split():
                try:
                    importlib.import_module(name)
                except Exception:  # some modules are only made by others
                    continue
        self.say(f"undisturbed sweep: {len(self.reference)} runs")

    def rounds(self, kills: int, each: int = 16, seconds: float = 1e9) -> None:
        """Until `kills` were done, or `seconds` have passed since the beginning."""
        number = 0
        while sum(self.kills.values()) < kills and time.monotonic() - self.began < seconds:
            draw = random.Random(f"{self.seed}-{number}")
            parents = 2 if number % 3 == 2 else 1
            case = sweeps.Case(
                self.folder / f"round-{number}",
                self.seeds,
                mlflow=self.mlflow and number % 4 == 1,
                clock=number if number % 5 == 3 else None,
            )
            if case.mlflow:
                self.store(case)
            left = kills - sum(self.kills.values())
            made = fault_kills.Round(case, min(each, left), draw, self.cards, parents)
            self.attempt(f"round-{number}", lambda made=made: self.totals.update(made.run(self.reference)), case)
            self.kills += made.counts
            self.totals.update({"commands": case.commands, "rounds": 1})
            self.say(f"round {number}: {sum(made.counts.values())} kills, {sum(self.kills.values())} in all")
            number += 1

    def store(self, case: sweeps.Case) -> None:
        """A store as `mmctl` makes it, once; making the database takes longer than a sweep."""
        source = self.folder / "store"
        if not source.exists():
            pid = warm_start.forked(lambda: _make_store(source))
            os.waitpid(pid, 0)
        _copy_store(source, case.root)

    def others(self, chosen: Sequence[str] | None = None) -> None:
        for name, scenario in fault_scenarios.SCENARIOS.items():
            if (chosen is not None and name not in chosen) or (name in fault_scenarios.MLFLOW and not self.mlflow):
                continue
            case = sweeps.Case(self.folder / name, self.seeds if name not in fault_scenarios.SMALL else "0")
            reference = {k: v for k, v in self.reference.items() if k.rpartition("seed")[2] in case.seeds.split(",")}

            def work(
                scenario: Any = scenario, case: sweeps.Case = case, reference: Any = reference, name: str = name
            ) -> None:
                case.mlflow = self.mlflow and name in fault_scenarios.MLFLOW
                self.scenarios[name] = scenario(case, reference, self)

            try:
                self.attempt(name, work, case)
            except fault_scenarios.Skipped as reason:
                self.scenarios[name] = f"skipped: {reason}"
            self.say(f"{name}: {self.scenarios.get(name, 'BROKEN')}")

    def attempt(self, name: str, work: Any, case: sweeps.Case) -> None:
        try:
            work()
        except (checks.Broken, OSError, ValueError, KeyError) as error:
            self.broken.append(f"{name}: {type(error).__name__}: {error}")
            self.say(f"BROKEN {self.broken[-1]}")
            return
        finally:
            case.stop()
        shutil.rmtree(case.folder, ignore_errors=True)  # what broke stays, to be looked at

    def summary(self) -> dict[str, Any]:
        from mmctl.training.work import versions

        return {
            "kills": sum(self.kills.values()),
            "kills_by_kind": dict(sorted(self.kills.items())),
            "sweeps": dict(self.totals),
            "scenarios": self.scenarios,
            "broken": self.broken,
            "seed": self.seed,
            "runs_in_a_sweep": len(self.reference),
            "steps_in_a_run": sweeps.STEPS,
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "versions": {**versions(), "system": f"{platform.system()} {platform.release()}", "cpus": os.cpu_count()},
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def say(self, text: str) -> None:
        """One timed line; what was done so far goes to the summary's file, for a campaign that is stopped."""
        if self.file is not None:
            self.file.write_text(json.dumps(self.summary(), indent=1) + "\n")
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", file=sys.stderr, flush=True)


BASE = (
    "torch", "numpy", "safetensors.torch", "scipy.stats", "mmctl.cli", "mmctl.cli.ablate", "mmctl.sweeps.worker",
    "mmctl.training.run", "mmctl.training.loop", "mmctl.evaluation", "mmctl.sweeps.session",
    "mmctl.sweeps.reporting.finish",
)  # fmt: skip
MLFLOW = ("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.entities")


def _list_modules(folder: Path) -> None:
    """At the end of this process, which leaves by os._exit, write down what it has imported."""
    leave = os._exit

    def end(code: int) -> None:
        names = [n for n in list(sys.modules) if n.split(".")[0] not in ("__main__", "__mp_main__")]
        (folder / f"modules-{os.getpid()}").write_text("\n".join(names))
        leave(code)

    os._exit = end  # type: ignore[assignment]


def _make_store(source: Path) -> None:
    from mmctl.runs.store import connect

    connect(source)


def _copy_store(source: Path, root: Path) -> None:
    import sqlite3

    root.mkdir(parents=True)
    shutil.copy(source / "mlflow.db", root / "mlflow.db")
    connection = sqlite3.connect(root / "mlflow.db")
    with connection:
        there = str(source.absolute())
        connection.execute(
            "update experiments set artifact_location = replace(artifact_location, ?, ?)", (there, str(root.absolute()))
        )
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--summary", type=Path, help="JSON file for what was done")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no round of kills after that")
    parser.add_argument("--only", nargs="*", help=f"of {', '.join(fault_scenarios.SCENARIOS)}; nothing: none of them")
    parser.add_argument("--seeds", default="0,1,2,3", help="seeds of a sweep, which has three runs of each")
    parser.add_argument("--no-mlflow", action="store_true", help="leave the tracking store out")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="faults-"))).absolute()
    fault_scenarios.own_mounts()
    campaign = Campaign(folder, given.seed, given.seeds, not given.no_mlflow)
    campaign.file = given.summary
    campaign.prepare()
    campaign.rounds(given.kills, seconds=given.minutes * 60)
    campaign.others(given.only)
    campaign.say("done")
    found = campaign.summary()
    print(json.dumps(found, indent=1))
    if campaign.broken:
        print(f"what broke lies in {folder}", file=sys.stderr)
    return 1 if campaign.broken or found["kills"] < given.kills else 0


if __name__ == "__main__":
    sys.exit(main())
