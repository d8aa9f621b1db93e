"""`mmctl ablate`: compose ablation matrices into runs, run what is missing, judge the claims, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mmctl.cli import complete
from mmctl.cli.options import Root

if TYPE_CHECKING:
    from mmctl.sweeps.plan import Plan

OPTIONS = {
    "fail_fast": "--fail-fast",
    "max_failures": "--max-failures",
    "status": "--status",
    "dry_run": "--dry-run",
    "force": "--force",
    "retry_failed": "--retry-failed",
    "tune": "--tune",
}
EXCLUSIVE = (
    ("fail_fast", "max_failures"),
    ("force", "tune"),
    ("status", "dry_run"),
    ("status", "force"),
    ("status", "retry_failed"),
    ("dry_run", "force"),
)
"""Options that contradict each other."""


def ablate(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]... [KEY=VALUE]...",
            help="Ablations (default: the main five), or the path of your own YAML; then overrides of every run.",
            show_default=False,
            autocompletion=complete.ablations_then_keys,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            "-p",
            help="Scale: smoke, standard, full, paper-small or paper-large. Default: the recipe of the ablation's name "
            "(regbench, recall), else smoke.",
            autocompletion=complete.profiles,
            show_default=False,
        ),
    ] = None,
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
        typer.Option("--jobs", "-j", min=0, help="Runs at once. 0: as many as cores and memory allow."),
    ] = 0,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(
            min=0, help="CUDA devices a run sees: 1, 2, or 0.5 for two runs on each. Default: 1.", show_default=False
        ),
    ] = None,
    launcher: Annotated[
        str, typer.Option("--launcher", help="Where runs are carried out: local, slurm or ray.")
    ] = "local",
    launcher_option: Annotated[
        list[str] | None,
        typer.Option("--launcher-option", metavar="KEY=VALUE", help="For the launcher; repeat.", show_default=False),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a running Ray cluster, for --launcher ray.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate every cell, print the table, write nothing.")
    ] = False,
    status: Annotated[
        bool,
        typer.Option(
            "--status",
            help="Show how far this sweep is (or the one whose folder is named), following it on a terminal; run nothing.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run finished cells anew; their old folders move to runs/replaced.")
    ] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="Also run again what failed or diverged earlier, and give what fails now one more try at the end.",
        ),
    ] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Start nothing new after the first failure.")] = False,
    max_failures: Annotated[
        int | None, typer.Option(min=1, help="Start nothing new after this many failures.", show_default=False)
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            metavar="BUDGET",
            help="Give every arm the params, flops or tokens of its ablation's first arm.",
            show_default=False,
        ),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Choose each arm's own value by a validation loss that nothing reported uses, then run with it.",
            show_default=False,
        ),
    ] = None,
    tune_seeds: Annotated[
        str | None, typer.Option(help="Seeds of every trial, written like --seeds. Default: the sweep's first.")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Also run the sweep at these settings, one at a time, and show every claim's verdict at each; repeat.",
            show_default=False,
        ),
    ] = None,
    runs: Root = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results (or the dry run's table, or the status) as JSON.")
    ] = False,
) -> None:
    """Run ablations: what is finished is kept, what is missing is run, and every claim gets a verdict.

    A cell that several ablations share is trained once. A cell that fails does not stop the others; the exit code is
    then 1. The same command goes on with what is missing, interrupted or lost; what failed or diverged is run again
    only with --retry-failed. Ctrl-C saves what is running. The same command started twice shares the work.

    Example: mmctl ablate bandwidth long-term-removal --profile smoke --seeds 5 training.steps=600
    """
    import sys

    from mmctl.errors import UsageError
    from mmctl.runs import runs_root
    from mmctl.sweeps import (
        matching,
        matrix,
        plan,
        profiles,
        selection,
        sensitivity_session,
        session,
        tuning,
        tuning_session,
    )
    from mmctl.sweeps.reporting import sensitivity

    words = list(arguments or [])
    names = [w for w in words if "=" not in w]
    overrides = [w for w in words if "=" in w]
    for one, other in EXCLUSIVE:
        if locals()[one] and locals()[other]:
            raise UsageError(f"{OPTIONS[one]} and {OPTIONS[other]}: give one of them")
    root = runs_root(runs)
    if status and len(words) == 1 and session.is_sweep(words[0], root):
        session.show_status_of(words[0], root, as_json)
        return
    scale = profiles.chosen(profile, names)
    chosen = selection.select(matrix.find(names), only or [], skip or [], scale)
    if match is not None:
        chosen = matching.matched(chosen, match)
    picked = [w for option, given in (("--only", only), ("--skip", skip)) for g in given or [] for w in (option, g)]
    numbers = profiles.parse_seeds(seeds)
    first = numbers or [seed for one in chosen for seed in one.seeds or scale.seeds]
    tuned = tuning.parse(tune or [], profiles.parse_seeds(tune_seeds), first)

    def composed(further: list[str]) -> Plan:
        asked = chosen, scale, [*overrides, *further], numbers, [*names, *picked], match
        return plan.make_plan(*asked) if tuned is None else tuning.base(*asked, tuned)

    further = sensitivity.parse(at or [], overrides, None if tuned is None else tuned.key)
    made = composed([])
    for line in matching.misses(made, match) if match else ():
        print(f"matched: {line}", file=sys.stderr)
    if ray_address is not None and launcher != "ray":
        raise UsageError(f"--ray-address {ray_address}: is for --launcher ray, not {launcher}")
    told = [*(launcher_option or []), *([f"address={ray_address}"] if ray_address is not None else [])]
    where = session.Where(launcher, session.parse_options(told), jobs, gpus_per_run)
    does: sensitivity_session.Session = session if tuned is None else tuning_session
    options = session.Options(force, retry_failed, 1 if fail_fast else max_failures)
    if further:
        sweeps = sensitivity.plans(further, composed)
        if status:
            sensitivity_session.show_status(sweeps, does, root, as_json)
        elif dry_run:
            sensitivity_session.dry_run(sweeps, does, root, where, as_json)
        elif code := sensitivity_session.run(sweeps, at or [], does, root, where, as_json, options):
            raise typer.Exit(code)
    elif status:
        does.show_status(made, root, as_json)
    elif dry_run:
        does.dry_run(made, root, where, as_json)
    elif code := does.run(made, root, where, as_json, options):
        raise typer.Exit(code)
