"""`mmctl train`: one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmctl.cli import complete

LOSSES = {"training": "train_loss", "held-out": "held_out_loss"}


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="A preset (default: lab), then overrides.",
            autocompletion=complete.preset_then_keys,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights, data order and stochastic mask (default: 0).", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run's folder (default: the model's name).", show_default=False)
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where runs land (default: $MMCTL_RUNS, else ./runs).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, print the resolved configuration, write nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result (or the dry run's configuration) as JSON.")
    ] = False,
) -> None:
    """Train one model: train, checkpoint, log, and evaluate at the end. Run again to resume; finished runs are kept.

    Presets: lab (~1 M parameters), micro (~10 M), smoke (minutes), paper-small, paper-large.

    Example: mmctl train lab model.bandwidth=constant training.steps=200
    """
    import json
    import sys

    from mmctl.config import identity, load, to_dict
    from mmctl.errors import UsageError
    from mmctl.runs import RunFolder, runs_root

    words = list(arguments or [])
    preset = "lab"
    if words and "=" not in words[0]:
        preset = words.pop(0)
    stray = [w for w in words if "=" not in w]
    if stray:
        raise UsageError(f'"{stray[0]}": expected key=value (a preset, if any, comes first)')
    for option, given in (("seed", seed), ("name", name)):
        if given is not None:
            words.append(f"{option}={given}")
    config = load(preset, words)
    if dry_run:
        if as_json:
            print(json.dumps({"identity": identity(config), "config": to_dict(config)}, indent=2))
            return
        from omegaconf import OmegaConf

        print(f"# identity {identity(config)}, seed {config.seed}")
        print(OmegaConf.to_yaml(OmegaConf.create(to_dict(config))), end="")
        return

    from mmctl.training.progress import Reporter
    from mmctl.training.run import execute

    with Reporter() as listener:
        outcome = execute(config, runs_root(runs), overrides=words, listener=listener)
    run = RunFolder.open(outcome.path)
    if outcome.state != "finished":
        print(f"mmctl: {run.label} {outcome.state}: {outcome.reason}", file=sys.stderr)
        if outcome.state == "interrupted":
            print("mmctl: the same command resumes it", file=sys.stderr)
        if as_json:
            print(json.dumps({"run": str(run.path), "state": outcome.state, "reason": outcome.reason}, indent=2))
        raise typer.Exit(outcome.exit_code)
    if as_json:
        print(json.dumps({"run": str(run.path), "skipped": outcome.skipped, **run.result()}, indent=2))
        return
    result = run.result()
    state = "already finished" if outcome.skipped else "finished"
    losses = [f"{what} loss {_shown(result.get(key))}" for what, key in LOSSES.items()]
    print(f"{run.path}: {state}, {', '.join(losses)}")
    from mmctl.evaluation import find_evaluation, wanted_suites
    from mmctl.evaluation.report import print_scores

    for suite in wanted_suites(config):
        if found := find_evaluation(run, config, suite):  # what this command asks for, not all that was ever measured
            print_scores(found[1])


def _shown(loss: object) -> str:
    """A number, or what result.json has in its place: "nan", "inf", nothing."""
    return f"{loss:.4f}" if isinstance(loss, int | float) else "missing" if loss is None else str(loss)
