"""What `mmctl ablate` does once there is a plan: show what it would cost, show how far it is, or run it and report."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mmctl.errors import EXIT_DONE, MmctlError, UsageError
from mmctl.sweeps.todo import Options, summary

if TYPE_CHECKING:
    from mmctl.sweeps import progress
    from mmctl.sweeps.launchers import Resources
    from mmctl.sweeps.plan import Plan

STOPPED = "mmctl: stopped; the same command, typed again, goes on"
"""Not in words to copy: a plan knows neither --runs and --jobs nor the settings of --at."""


@dataclass(frozen=True)
class Where:
    """Where runs are carried out, as asked. jobs 0: as many as fit; gpus None: one device each, where there are any."""

    launcher: str = "local"
    options: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 0
    gpus: float | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether runs are for other machines than this one."""
        return self.launcher == "slurm" or (self.launcher == "ray" and "address" in self.options)


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """`--launcher-option key=value`. UsageError for what is not, or is given twice."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f'--launcher-option "{word}": expected key=value')
        if key.strip() in found:
            raise UsageError(f'--launcher-option "{key.strip()}" is given twice')
        found[key.strip()] = value
    return found


def dry_run(plan: Plan, root: Path, where: Where, as_json: bool) -> None:
    """Every cell is validated already: print what the sweep would run, and what it would take. Writes nothing."""
    from mmctl.sweeps import estimates, evaluating, launchers, preflight
    from mmctl.sweeps.reporting import terminal

    launchers.check(where.launcher, where.options)
    try:
        resources, notes = preflight.resources(plan, where.jobs, where.gpus, where.elsewhere)
        rows, totals = estimates.table(plan, root, resources.jobs)
        preflight.check_disk(root, totals["bytes"], totals["missing"])
    except UsageError:
        raise
    except MmctlError as error:  # too large for this machine: what it would take is worth seeing all the same
        rows, totals = estimates.table(plan, root, where.jobs or 1)
        notes = [f"not on this machine: {error}"]
    notes = [*notes, *evaluating.outdated(plan, root)]
    made = [(matrix.name, entry) for matrix in plan.matrices for entry in matrix.across]
    if as_json:
        across = [{"ablation": name, **entry.record()} for name, entry in made]
        print(json.dumps({**totals, "notes": notes, "plan": rows, **({"across": across} if across else {})}, indent=2))
        return
    terminal.show(terminal.plan_table(rows, totals))
    for name, entry in made:
        print(f"across arms: {name}/{', '.join(entry.derived())}: {entry.record()['about']}")
    for matrix in plan.matrices:
        for arm, reason in matrix.excluded:
            print(f"left out: {matrix.name}/{arm.name} ({reason})")
    for key, arms in plan.passed_over.items():
        print(f"passed over: {key} does not exist in the models of {', '.join(arms)}")
    for note in notes:
        print(note)


def show_status(plan: Plan, root: Path, as_json: bool) -> None:
    from mmctl.sweeps import progress

    asked = progress.of_plan(plan)
    show(lambda: progress.look(plan.name, asked, root), as_json)


def show_status_of(name: str, root: Path, as_json: bool) -> None:
    """Of a sweep by its folder's name, from its manifest."""
    from mmctl.sweeps import manifest, progress

    folder = root / "sweeps" / name
    asked = progress.of_manifest(manifest.read(folder), folder / "manifest.json")
    if (folder / "results.json").is_file():  # with --tune: what was chosen once the trials had ended
        known = {(one.identity, one.seed) for one in asked}
        asked += [one for one in progress.of_results(folder / "results.json") if (one.identity, one.seed) not in known]
    show(lambda: progress.look(name, asked, root), as_json)


def is_sweep(name: str, root: Path) -> bool:
    """Whether `name` is what a sweep's folder is called."""
    return Path(name).name == name and (root / "sweeps" / name / "manifest.json").is_file()


def run(plan: Plan, root: Path, where: Where, as_json: bool, options: Options) -> int:
    """Run what is missing, report, and say what is left. Returns the exit code."""
    from mmctl.sweeps import live, manifest, tracking
    from mmctl.sweeps.execute import Sweep
    from mmctl.sweeps.launchers import launcher
    from mmctl.sweeps.reporting import finish, terminal
    from mmctl.sweeps.results import versions

    resting, resources, notes = prepared(plan, root, where, options)
    folder = manifest.folder(plan, root)
    with launcher(where.launcher, resources, folder, where.options) as place:
        fixed = manifest.write(plan, root, versions())
        for note in notes:
            print(f"mmctl: {note}", file=sys.stderr)
        with tracking.start(plan, root, folder, resting) as tracked:
            outcome = Sweep(plan, root, place, live.board(), options, tracked.parent_run_id).run()
            place.close()
            if outcome.stopped_by is not None:
                tracked.finish("interrupted", [])
                print(STOPPED, file=sys.stderr)
                return outcome.exit_code
            if not resting:
                print("mmctl: writing the report and its figures", file=sys.stderr)
            done = finish.finish(plan, root, folder, fixed, outcome.failures)
            results = done.results
            if done.written or not resting:
                tracked.results(results)
                tracked.finish("failed" if outcome.failures else "finished", _artifacts(folder))
            else:
                print(
                    f"mmctl: nothing has changed since {results['date']}: all files are as they were", file=sys.stderr
                )
    for problem in done.problems:
        print(f"mmctl: figure not drawn: {problem}", file=sys.stderr)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        if any(ablation["claims"] for ablation in results["ablations"]):
            terminal.show(terminal.verdict_table(results))
        else:
            print("no claims to judge: the scores of every arm are in the report")
        print(f"report: {folder / 'report.md'}, and report.html beside it")
        if tracked.where:
            print(f"MLflow: {tracked.where}")
    for failure in outcome.failures:
        print(f"mmctl: {failure['label']} {failure['state']}: {failure['reason']}", file=sys.stderr)
    if outcome.exit_code != EXIT_DONE:
        missing = len(outcome.failures) + outcome.left
        for line in summary(outcome.failures, missing, len(plan.runs())):
            print(f"mmctl: {line}", file=sys.stderr)
    return outcome.exit_code


def prepared(plan: Plan, root: Path, where: Where, options: Options) -> tuple[bool, Resources, list[str]]:
    """Whether nothing is to be run, what each run gets, and what to tell the user. Raises what cannot be done here."""
    from mmctl.sweeps import estimates, evaluating, launchers, preflight
    from mmctl.sweeps.launchers import Resources
    from mmctl.sweeps.todo import idle

    launchers.check(where.launcher, where.options)  # before a machine's size is complained about
    if idle(plan, root, options):  # runs of another machine can be reported on one that could not make them
        return True, Resources(), evaluating.outdated(plan, root)
    resources, notes = preflight.resources(plan, where.jobs, where.gpus, where.elsewhere)
    _, totals = estimates.table(plan, root, resources.jobs)
    preflight.check_disk(root, totals["bytes"], totals["missing"])
    return False, resources, [*notes, *([] if options.force else evaluating.outdated(plan, root))]


def show(see: progress.See, as_json: bool) -> None:
    """How far a sweep is, following it on a terminal."""
    from mmctl.sweeps import progress

    if as_json:
        print(json.dumps(see(), indent=2))
    else:
        progress.watch(see)


def _artifacts(folder: Path) -> list[Path]:
    wanted = ("report.*", "results.json", "numbers.csv", "manifest.json", "figures/*")
    return [path for pattern in wanted for path in sorted(folder.glob(pattern)) if path.is_file()]
