"""`mmctl train`: one run."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from mmctl.cli import complete
from mmctl.cli.options import Root, preset_and_overrides, print_json

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
    runs: Root = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, print the resolved configuration, write nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result (or the dry run's configuration) as JSON.")
    ] = False,
    processes: Annotated[
        int,
        typer.Option(help="Processes of this machine that share the run, a CUDA device each; of several: torchrun."),
    ] = 1,
) -> None:
    """Train one model: train, checkpoint, log, and evaluate at the end. Run again to resume; finished runs are kept.

    Presets: lab (~1 M parameters), micro (~10 M), smoke (minutes), paper-small, paper-large.

    Example: mmctl train lab model.bandwidth=constant training.steps=200
    """
    import sys

    from mmctl.errors import MmctlError
    from mmctl.training.environment import from_environment

    ranks = from_environment()
    try:
        code = _train(list(arguments or []), {"seed": seed, "name": name}, runs, dry_run, as_json, processes, ranks)
    except MmctlError as error:
        if ranks.size == 1:
            raise
        if ranks.speaks:
            print(f"mmctl: {error}", file=sys.stderr)
        code = error.exit_code
    ranks.leave(code)
    if code:
        raise typer.Exit(code)


def _train(
    words: list[str],
    options: dict[str, Any],
    runs: str | None,
    dry_run: bool,
    as_json: bool,
    processes: int,
    ranks: Any,
) -> int:
    """The command in one of its processes; its exit code."""
    import sys

    from mmctl.config import identity, load, to_dict
    from mmctl.errors import EXIT_DONE
    from mmctl.runs import RunFolder, runs_root
    from mmctl.runs.names import check_name

    preset, words = preset_and_overrides(words)
    words += [f"{option}={given}" for option, given in options.items() if given is not None]
    config = load(preset, words)
    if any(word.partition("=")[0].strip() == "name" for word in words):
        check_name(config.name)
    if dry_run:
        if as_json:
            print_json({"identity": identity(config), "config": to_dict(config)})
            return EXIT_DONE
        from omegaconf import OmegaConf

        print(f"# identity {identity(config)}, seed {config.seed}")
        print(OmegaConf.to_yaml(OmegaConf.create(to_dict(config))), end="")
        return EXIT_DONE
    if processes != 1:
        from mmctl.training.launch import launch, without_option

        return launch(config, processes, without_option(sys.argv[1:]), runs_root(runs))

    from mmctl.training.progress import Reporter, silent
    from mmctl.training.run import execute

    with Reporter() if ranks.first else contextlib.nullcontext(silent) as listener:
        outcome = execute(config, runs_root(runs), overrides=words, listener=listener, ranks=ranks)
    if not ranks.first:
        if outcome.reason:
            print(f"mmctl: {outcome.reason}", file=sys.stderr)
        return outcome.exit_code
    run = RunFolder.open(outcome.path)
    about = {"run": run.label, "path": str(run.path)}
    if outcome.state != "finished":
        print(f"mmctl: {run.label} {outcome.state}: {outcome.reason}", file=sys.stderr)
        if outcome.state == "interrupted":
            print("mmctl: the same command resumes it", file=sys.stderr)
        if as_json:
            print_json({**about, "state": outcome.state, "reason": outcome.reason})
        return outcome.exit_code
    if as_json:
        print_json({**about, "skipped": outcome.skipped, **run.result()})
        return EXIT_DONE
    result = run.result()
    state = "already finished" if outcome.skipped else "finished"
    losses = [f"{what} loss {_shown(result.get(key))}" for what, key in LOSSES.items()]
    print(f"{run.path}: {state}, {', '.join(losses)}")
    from mmctl.evaluation import find_evaluation, reported
    from mmctl.evaluation.report import print_scores

    for suite in reported(config):
        if found := find_evaluation(run, config, suite):  # what this command asks for, not all that was ever measured
            print_scores(found[1])
    return EXIT_DONE


def _shown(loss: object) -> str:
    """A number, or what result.json has in its place: "nan", "inf", nothing."""
    return f"{loss:.4f}" if isinstance(loss, int | float) else "missing" if loss is None else str(loss)
