"""`mmctl eval`: measure a trained run, as it is or with evaluation-time changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmctl.cli import complete


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run: its folder, name, name/seedK or identity.",
            autocompletion=complete.run_names,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="evaluation.* keys, and m=M to read long-term memory with another delay.",
            show_default=False,
            autocompletion=complete.evaluation_keys,
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            "-s",
            help="persistent, new-knowledge or in-context; repeat it. Default: the run's own.",
            autocompletion=complete.suites,
        ),
    ] = None,
    remove_long_term: Annotated[
        bool, typer.Option("--remove-long-term", help="Take the long-term memories' outputs away.")
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Show every score: losses, shots, quarters.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Where runs are (default: $MMCTL_RUNS, else ./runs).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evaluations as a JSON list on stdout.")] = False,
) -> None:
    """Evaluate a run's newest checkpoint at multiples of its training length, and keep the scores in its folder.

    A suite given by name is also measured on tasks the run was not trained on.

    Example: mmctl eval lab/seed0 --suite in-context --remove-long-term
    """
    import json
    import sys

    from mmctl.errors import MmctlError
    from mmctl.evaluation import evaluate as measure
    from mmctl.evaluation import file_stem, wanted_suites
    from mmctl.evaluation.report import print_scores
    from mmctl.evaluation.suites import settings_mark, suite_tasks
    from mmctl.runs import RunFolder, runs_root
    from mmctl.runs.files import json_ready

    delay, overrides = split_arguments(list(arguments or []))
    named = list(dict.fromkeys(suite or []))
    for name in named:
        suite_tasks(name)  # a wrong name is said before the model is loaded
    folder = RunFolder.find(runs_root(runs), run)
    config = with_overrides(folder.config(), overrides)

    import torch

    from mmctl.training.progress import Progress, Reporter
    from mmctl.training.run import load_trained, pick_device

    place = pick_device(device)
    torch.set_num_threads(config.training.threads)
    suites = named or wanted_suites(config)
    check_corpora(folder, config, suites)
    model, trained_as, step = load_trained(folder, place)
    mark = settings_mark(trained_as, config)
    if not folder.finished:
        mark += f"+step={step}"
    results: dict[str, dict[str, Any]] = {}
    with Reporter() as listener:
        for name in suites:
            result = measure(
                model,
                config,
                name,
                remove_long_term=remove_long_term,
                delay=delay,
                device=place,
                untrained=bool(named),
                progress=lambda what, done, total: listener(Progress(folder.label, f"evaluating {what}", done, total)),
            )
            result["step"] = step
            # Measured on tasks it was not trained on, too: another evaluation than the run's own.
            also = "+untrained" if result["untrained"] else ""
            results[file_stem(name, remove_long_term, delay) + also + mark] = result
    measured = {stem: result for stem, result in results.items() if result["scores"]}
    for stem, result in measured.items():
        folder.write_evaluation(stem, result)
    if measured:
        mirror(folder, config)
    if as_json:
        print(json.dumps(json_ready(list(results.values())), indent=2, allow_nan=False))
    else:
        print_scores(*results.values(), details=details)
        for stem in measured:
            print(folder.path / "eval" / f"{stem}.json", file=sys.stderr)
    if not measured:
        reasons = "; ".join(f"{what}: {why}" for r in results.values() for what, why in r["skipped"].items())
        raise MmctlError(f"{folder.label}: nothing could be measured ({reasons or 'no suite asked for'})")


def split_arguments(words: list[str]) -> tuple[int | None, list[str]]:
    """m and the `evaluation.*` overrides. UsageError for anything else: a trained run is what it is."""
    from dataclasses import fields

    from mmctl.config import parse_overrides
    from mmctl.errors import UsageError, nearest
    from mmctl.evaluation import EvaluationConfig

    typed = parse_overrides(words)
    valid = ["m", *(f"evaluation.{f.name}" for f in fields(EvaluationConfig))]
    for key in typed:
        if key not in valid:
            raise UsageError(f'"{key}": mmctl eval takes m=M and evaluation.* keys{nearest(key, valid, "keys")}')
    if "m" not in typed:
        return None, words
    text = str(typed["m"]).strip()
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise UsageError(f"m={text}: expected a whole number of at least 1")
    return int(text), [word for word in words if word.partition("=")[0].strip() != "m"]


def with_overrides(config: Any, overrides: list[str]) -> Any:
    """The run's configuration with other evaluation settings, validated."""
    from mmctl.config import from_dict, parse_overrides, to_dict

    return from_dict({**to_dict(config), **parse_overrides(overrides)})


def check_corpora(folder: Any, config: Any, suites: list[str]) -> None:
    """MmctlError if a suite reads a corpus whose content is no longer what the run was trained on: text that it calls
    held out may have been trained on. Runs that did not record their corpora are not checked."""
    from mmctl.data import build_task
    from mmctl.errors import MmctlError
    from mmctl.evaluation.suites import suite_tasks

    recorded = folder.provenance().get("corpora") or {}
    for suite in suites:
        for task in suite_tasks(suite):
            if task in recorded and build_task(task, config.data).fingerprint() != recorded[task]:
                raise MmctlError(
                    f"{folder.label}: the corpus of {task} (data.text={config.data.text or 'null'}) is not the one it was "
                    f"trained on, so nothing in it is known to be held out; --suite measures suites without {task}"
                )


def mirror(folder: Any, config: Any) -> None:
    """Bring the run's MLflow run up to its folder, which holds the new scores; its state there stays what it is."""
    state = folder.state()
    if not config.operation.mlflow or state in ("planned", "running"):
        return  # a run in progress is followed by its own process
    from mmctl.runs import Mirror

    Mirror.start(folder).finish(state)
