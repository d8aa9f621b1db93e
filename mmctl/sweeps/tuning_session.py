"""What `mmctl ablate --tune` does: show what the trials would cost, show how far they are, or run them, choose, and go on
with the sweep as it then is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmctl.errors import EXIT_FAILED
from mmctl.sweeps import session, tuning
from mmctl.sweeps.plan import Plan
from mmctl.sweeps.reporting.tuning import shown
from mmctl.sweeps.session import Where
from mmctl.sweeps.todo import Options, summary


def run(plan: Plan, root: Path, where: Where, as_json: bool, options: Options) -> int:
    """Trials, choice, sweep and report; the exit code. `plan` is tuning.base's."""
    assert plan.tuned is not None
    trials = tuning.trials(plan, plan.tuned.tuning)
    code, failures = _try(plan, trials, root, where, options)
    if code >= 128:  # a signal
        return code
    broken = [f for f in failures if f["state"] != "diverged"]
    choices = None if broken else tuning.choose(plan, trials, root)
    if choices is None:
        for failure in broken:
            print(f"mmctl: {failure['label']} {failure['state']}: {failure['reason']}", file=sys.stderr)
        for line in summary(broken, len(broken), len(trials.runs())):
            print(f"mmctl: {line}", file=sys.stderr)
        print("mmctl: nothing is chosen before every trial has ended", file=sys.stderr)
        return EXIT_FAILED
    for choice in choices:
        print(f"mmctl: {said(choice, plan.tuned.tuning.key)}", file=sys.stderr)
    return session.run(tuning.chosen(plan, choices), root, where, as_json, options)


def _try(plan: Plan, trials: Plan, root: Path, where: Where, options: Options) -> tuple[int, list[dict[str, Any]]]:
    """Run the trials that are missing, after the claims have been registered: (exit code, what failed or diverged)."""
    from mmctl.sweeps import live, manifest, tracking
    from mmctl.sweeps.execute import Sweep
    from mmctl.sweeps.launchers import launcher
    from mmctl.sweeps.results import versions

    resting, resources, notes = session.prepared(trials, root, where, options)
    folder = manifest.folder(plan, root)
    with launcher(where.launcher, resources, folder, where.options) as place:
        manifest.write(registered(plan, trials), root, versions())
        for note in notes:
            print(f"mmctl: {note}", file=sys.stderr)
        with tracking.start(trials, root, folder, resting) as tracked:
            outcome = Sweep(trials, root, place, live.board(), options, tracked.parent_run_id).run()
            place.close()
            if outcome.stopped_by is not None:
                tracked.finish("interrupted", [])
                print(session.STOPPED, file=sys.stderr)
            elif not resting:
                tracked.finish("finished", [])
    return outcome.exit_code, outcome.failures


def registered(plan: Plan, trials: Plan) -> Plan:
    """What the manifest fixes before the first trial: the sweep's claims and seeds, and the trials as its cells. What an
    arm will train is not known yet."""
    return replace(plan, cells=trials.cells, arms=dict.fromkeys(plan.arms))  # type: ignore[arg-type]


def dry_run(plan: Plan, root: Path, where: Where, as_json: bool) -> None:
    """The trials' table and cost, then what the chosen values add: the other seeds, at the same cost a run."""
    from mmctl.sweeps import estimates, preflight
    from mmctl.sweeps.reporting import terminal
    from mmctl.training.progress import clock

    assert plan.tuned is not None
    trials = tuning.trials(plan, plan.tuned.tuning)
    choices = tuning.choose(plan, trials, root)
    after = plan if choices is None else tuning.chosen(plan, choices)
    resources, _ = preflight.resources(trials, where.jobs, where.gpus, where.elsewhere)
    rows, totals = estimates.table(after, root, resources.jobs)
    if choices is None:  # a trial with one of these seeds will be the run that the choice asks for
        tried = set(plan.tuned.tuning.seeds)
        rows = [row | {"missing": True} for row in rows if row["seed"] not in tried]
        seconds = sum(row["seconds"] for row in rows) / resources.jobs
    else:
        rows, seconds = [row for row in rows if row["missing"]], totals["seconds"]
    if as_json:
        tried_rows, tried_totals = estimates.table(trials, root, resources.jobs)
        told = {"missing": len(rows), "seconds": seconds, "choices": choices}
        print(json.dumps({"trials": {**tried_totals, "plan": tried_rows}, "after": told}, indent=2))
        return
    session.dry_run(trials, root, where, False)
    for choice in choices or ():
        print(said(choice, plan.tuned.tuning.key))
    print(f"then, with each arm's chosen {plan.tuned.tuning.key}: {len(rows)} more runs, about {clock(seconds)}")
    if choices is not None:
        terminal.show(terminal.plan_table(*estimates.table(after, root, resources.jobs)))


def show_status(plan: Plan, root: Path, as_json: bool) -> None:
    """Trials, and once values are chosen the sweep's own runs."""
    from mmctl.sweeps import progress

    assert plan.tuned is not None
    trials = tuning.trials(plan, plan.tuned.tuning)

    def see() -> dict[str, Any]:
        choices = tuning.choose(plan, trials, root)
        asked = {(a.identity, a.seed): a for a in progress.of_plan(trials)}
        if choices is not None:
            asked |= {(a.identity, a.seed): a for a in progress.of_plan(tuning.chosen(plan, choices))}
        return progress.look(plan.name, asked.values(), root)

    session.show(see, as_json)


def said(choice: Mapping[str, Any], key: str) -> str:
    """One line: what was chosen for an arm, and whether a better value may lie beyond the grid."""
    tried = ", ".join(shown(one["value"]) for one in choice["tried"])
    edge = f" (the edge of {tried}: a better one may lie beyond)" if choice["edge"] else f" (of {tried})"
    return f"{choice['ablation']}/{choice['arm']}: {key} = {shown(choice['chosen'])}{edge}"
