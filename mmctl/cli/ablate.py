"""`mmctl ablate`: compose ablation matrices into runs, run what is missing, judge the claims, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli import complete

if TYPE_CHECKING:
    from mmctl.sweeps.plan import Plan


def ablate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]... [KEY=VALUE]...",
            help="Ablations (default: all that come with mmctl; or the path of your own YAML), then overrides of every run.",
            show_default=False,
            autocompletion=complete.ablations_then_keys,
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            "-p",
            help="Scale: smoke, standard, full, paper-small or paper-large.",
            autocompletion=complete.profiles,
        ),
    ] = "smoke",
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds (5), or which (0,1,4). Default: the ablation's or the profile's.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these ablations, arms or axis values (bandwidth, constant, model.bandwidth=constant); repeat."
        ),
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="All but these; written like --only.")] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=0, help="Runs at once. 0: as many as the cores allow with each run's threads."
        ),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate every cell, print the table, write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run finished cells anew; their old folders move to runs/replaced.")
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="Also run diverged cells again, and give what fails now one more try at the end."
        ),
    ] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Start nothing new after the first failure.")] = False,
    max_failures: Annotated[
        int | None, typer.Option(min=1, help="Start nothing new after this many failures.", show_default=False)
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where runs land (default: $MMCTL_RUNS, else ./runs).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results (or the dry run's table) as JSON.")
    ] = False,
) -> None:
    """Run ablations: what is finished is kept, what is missing is run, and every claim gets a verdict.

    A cell that several ablations share is trained once. A cell that fails does not stop the others; the exit code is
    then 1, and the same command runs what is still missing. Ctrl-C saves what is running.

    Example: mmctl ablate bandwidth long-term-removal --profile smoke --seeds 5 training.steps=600
    """
    from mmctl.errors import UsageError
    from mmctl.runs import runs_root
    from mmctl.sweeps import matrix, plan, profiles, selection

    words = list(arguments or [])
    names = [w for w in words if "=" not in w]
    overrides = [w for w in words if "=" in w]
    if fail_fast and max_failures is not None:
        raise UsageError("--fail-fast is --max-failures 1: give one of them")
    scale = profiles.profile(profile)
    chosen = selection.select(matrix.find(names), only or [], skip or [])
    picked = [w for option, given in (("--only", only), ("--skip", skip)) for g in given or [] for w in (option, g)]
    made = plan.make_plan(chosen, scale, overrides, profiles.parse_seeds(seeds), [*names, *picked])
    root = runs_root(runs)
    at_once = _jobs(made, jobs)
    if dry_run:
        _dry_run(made, root, at_once, as_json)
        return
    limit = 1 if fail_fast else max_failures
    _run(made, root, at_once, as_json, force=force, retry_failed=retry_failed, max_failures=limit)


def _jobs(made: Plan, asked: int) -> int:
    from mmctl.sweeps.resources import cores

    threads = max(cell.config.training.threads for cell in made.cells.values())
    return min(asked or max(1, cores() // threads), len(made.runs()))


def _dry_run(made: Plan, root: Path, jobs: int, as_json: bool) -> None:
    import json

    from mmctl.sweeps import estimates, terminal

    rows, totals = estimates.table(made, root, jobs)
    if as_json:
        print(json.dumps({**totals, "plan": rows}, indent=2))
        return
    terminal.show(terminal.plan_table(rows, totals))
    for matrix in made.matrices:
        for arm, reason in matrix.excluded:
            print(f"left out: {matrix.name}/{arm.name} ({reason})")
    for key, arms in made.passed_over.items():
        print(f"passed over: {key} does not exist in the models of {', '.join(arms)}")


def _run(made: Plan, root: Path, jobs: int, as_json: bool, **options: Any) -> None:
    import json
    import sys

    from mmctl.sweeps import finish, live, manifest, terminal, tracking
    from mmctl.sweeps.execute import Options, Sweep, idle
    from mmctl.sweeps.launchers import Resources, launcher
    from mmctl.sweeps.results import versions

    folder = manifest.folder(made, root)
    fixed = manifest.write(made, root, versions())
    board = live.board()
    resting = idle(made, root, Options(**options))
    threads = max(cell.config.training.threads for cell in made.cells.values())
    with tracking.start(made, root, folder, resting) as tracked:
        with launcher("local", Resources(jobs, threads), folder) as place:
            outcome = Sweep(made, root, place, board, Options(**options), tracked.parent_run_id).run()
        if outcome.stopped_by is not None:
            tracked.finish("interrupted", [])
            print(f"mmctl: stopped; the same command goes on: {made.command()}", file=sys.stderr)
            raise typer.Exit(outcome.exit_code)
        done = finish.finish(made, root, folder, fixed, outcome.failures)
        results = done.results
        if done.written or not resting:
            tracked.results(results)
            tracked.finish("failed" if outcome.failures else "finished", _artifacts(folder))
        else:
            print(f"mmctl: nothing has changed since {results['date']}: all files are as they were", file=sys.stderr)
    for problem in done.problems:
        print(f"mmctl: figure not drawn: {problem}", file=sys.stderr)
    if as_json:
        print(json.dumps(results, indent=2))
    else:
        terminal.show(terminal.verdict_table(results))
        print(f"report: {folder / 'report.md'}")
        if tracked.where:
            print(f"MLflow: {tracked.where}")
    for failure in outcome.failures:
        print(f"mmctl: {failure['label']} {failure['state']}: {failure['reason']}", file=sys.stderr)
    if outcome.exit_code:
        left = len(outcome.failures)
        print(
            f"mmctl: {left} of {len(made.runs())} runs not finished; the same command runs them again", file=sys.stderr
        )
        raise typer.Exit(outcome.exit_code)


def _artifacts(folder: Path) -> list[Path]:
    names = ("report.md", "results.json", "numbers.csv", "manifest.json")
    return [p for p in (*(folder / n for n in names), *sorted((folder / "figures").glob("*"))) if p.is_file()]
