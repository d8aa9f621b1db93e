"""`mmctl eval`: measure a trained run, as it is or with evaluation-time changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli import complete
from mmctl.cli.options import Device, Root, Run, print_json

if TYPE_CHECKING:
    from mmctl.evaluation.changes import Changes

MOST_REASONS = 3
"""Reasons in the line that says that nothing could be measured."""


def evaluate(
    run: Run,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="evaluation.* keys, m=M to read long-term memory with another delay, and other evaluation-time "
            "changes, such as pace.bank=true.",
            show_default=False,
            autocompletion=complete.evaluation_keys,
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            "-s",
            help="persistent, new-knowledge or in-context; attention (where the last query looks, with "
            "evaluation.attention=N); or a published one: ruler, classification, lm-eval. Repeat it. Default: the run's own.",
            autocompletion=complete.suites,
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these tasks of the suites, trained on or not; commas between, or repeat.", show_default=False
        ),
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Also the suites' tasks that the run was not trained on.")
    ] = False,
    length: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="ruler: prompt lengths in tokens.", show_default=False)
    ] = None,
    shots: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="classification, lm-eval: shots.", show_default=False)
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(help="Published suites: samples of each task (default 500; lm-eval: all).", show_default=False),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Published suites: banking77, clinc150, goemotions, tacred; qa_1, qa_2, essay (ruler); tasks (lm-eval).",
            show_default=False,
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="classification: only so many classes.", show_default=False)
    ] = None,
    position: Annotated[
        str, typer.Option(help="ruler: place of the document asked about: ruler, uniform or sweep.")
    ] = "ruler",
    remove_long_term: Annotated[
        bool, typer.Option("--remove-long-term", help="Take the long-term memories' outputs away.")
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Show every score: losses, shots, quarters.")] = False,
    device: Device = "auto",
    runs: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evaluations as a JSON list on stdout.")] = False,
) -> None:
    """Evaluate a run's newest checkpoint at multiples of its training length, and keep the scores in its folder.

    Suites measure the tasks a run was trained on; --untrained and --tasks measure others. data.tasks.* keys may be
    given for tasks it was not trained on.

    Example: mmctl eval lab/seed0 --suite in-context --remove-long-term

    Example: mmctl eval lab/seed0 --tasks passkey evaluation.lengths=[4,8]

    Example: mmctl eval lab/seed0 --suite ruler --tasks niah_single_1,qa_1 --length 1024,2048 --samples 50
    """
    import json
    import sys

    from mmctl.cli import published
    from mmctl.config import parse_overrides
    from mmctl.errors import MmctlError, UsageError, nearest
    from mmctl.evaluation import evaluate as measure
    from mmctl.evaluation import file_stem, reported
    from mmctl.evaluation.corpora import check_corpora
    from mmctl.evaluation.report import print_scores
    from mmctl.evaluation.suites import ATTENTION, SUITES, settings_mark, tasks_of
    from mmctl.runs import RunFolder, runs_root
    from mmctl.runs.memory import check_lengths

    folder = RunFolder.find(runs_root(runs), run)
    own = folder.config()
    changes, overrides = split_arguments(list(arguments or []), own.data.tasks_in_mixture(), remove_long_term)
    picked = published.listed("--tasks", tasks)
    named = list(dict.fromkeys(suite or []))
    special = [name for name in named if name in published.SUITES]
    if special:
        asked = published.Asked(picked, length, shots, samples, data or [], classes, position)
        asked.check(named)
    elif any((length, shots, samples, data, classes)) or position != "ruler":
        raise UsageError(f"--length, --shots, --samples, --data, --classes, --position: belong to {published.NAMES}")
    else:
        named = named or suites_of(picked)
        for name in named:
            if name not in (*SUITES, ATTENTION):  # said before the model is loaded, beside all there are
                known = [*SUITES, ATTENTION, *published.SUITES]
                raise UsageError(f'suite "{name}": no such suite{nearest(name, known, "suites")}')
        check_tasks(picked, named)
    config = with_overrides(own, overrides)
    changes.check(own)
    check_attention(config.evaluation.attention, named, changes, "evaluation.attention" in parse_overrides(overrides))

    import torch

    from mmctl.training.progress import Progress, Reporter
    from mmctl.training.run import load_trained, pick_device

    place = pick_device(device)
    if place == "cpu" and not special:
        check_lengths(config)
    torch.set_num_threads(config.training.threads)
    suites = named or reported(config, changes)
    check_corpora(folder, config, [] if special else picked or [t for name in suites for t in tasks_of(config, name)])
    model, trained_as, step = load_trained(folder, place)
    mark = mark_of({k: v for k, v in parse_overrides(overrides).items() if "tasks." in k})
    mark += mark_of({"tasks": "-".join(picked)}) if picked and not special else ""
    if not folder.finished:
        mark += f"+step={step}"
    results: dict[str, dict[str, Any]] = {}
    with Reporter() as listener:
        for name in suites:

            def told(what: str, done: int, total: int) -> None:
                listener(Progress(folder.label, f"evaluating {what}", done, total))

            if special:
                with changes.applied(model, own) as notes:
                    result = published.measure(name, folder, model, asked, config, told)
                    result |= {"change_notes": made} if (made := notes()) else {}
                result["changes"] = changes.record()
                also = mark_of({"settings": json.dumps(result["settings"], sort_keys=True)})
            else:
                result = measure(
                    model,
                    config,
                    name,
                    changes=changes,
                    device=place,
                    untrained=untrained,
                    tasks=picked or None,
                    progress=told,
                )
                # Measured on tasks it was not trained on, too: another evaluation than the run's own.
                also = "+untrained" if result["untrained"] else ""
            result["step"] = step
            results[file_stem(name, changes) + also + settings_mark(trained_as, config, name) + mark] = result
    measured = {stem: result for stem, result in results.items() if result["scores"]}
    for stem, result in measured.items():
        folder.write_evaluation(stem, result)
    if measured:
        mirror(folder, config)
    if as_json:
        print_json(list(results.values()))
    else:
        if special:
            published.show(results.values(), details)
        else:
            print_scores(*results.values(), details=details)
        for stem in measured:
            print(folder.path / "eval" / f"{stem}.json", file=sys.stderr)
    if not measured:
        reasons = [f"{what}: {why}" for r in results.values() for what, why in r["skipped"].items()]
        shown = "; ".join(reasons[:MOST_REASONS]) or "no suite asked for"
        more = f"; and {len(reasons) - MOST_REASONS} more" if len(reasons) > MOST_REASONS else ""
        raise MmctlError(f"{folder.label}: nothing could be measured ({shown}{more})")


def split_arguments(
    words: list[str], trained: Sequence[str] = (), remove_long_term: bool = False
) -> tuple[Changes, list[str]]:
    """What is changed, and the overrides: evaluation.*, and data.tasks.* of tasks not `trained` on. UsageError for
    anything else: a trained run is what it is."""
    from dataclasses import fields

    from mmctl.config import parse_overrides
    from mmctl.data import TASKS
    from mmctl.errors import UsageError, nearest
    from mmctl.evaluation import EvaluationConfig
    from mmctl.evaluation.changes import CHANGES, Changes

    typed = parse_overrides(words)
    valid = ["m", *(f"evaluation.{f.name}" for f in fields(EvaluationConfig))]
    others: dict[str, dict[str, str]] = {}
    for key, value in typed.items():
        name, dot, leaf = key.partition(".")
        if name in CHANGES:
            if not dot:
                raise UsageError(f"{key}={value}: expected {key}.SETTING=VALUE")
            others.setdefault(name, {})[leaf] = str(value)
            continue
        task = key.removeprefix("data.tasks.").partition(".")[0] if key.startswith("data.tasks.") else None
        if task in trained:
            raise UsageError(f'"{key}": the run was trained on {task} as it is; mmctl train makes another')
        if key not in valid and task not in TASKS:
            raise UsageError(
                f'"{key}": mmctl eval takes m=M, evaluation.*, data.tasks.* and {", ".join(f"{c}.*" for c in CHANGES)} '
                f"keys{nearest(key, [*valid, *(f'{c}.' for c in CHANGES)], 'keys')}"
            )
    delay = None
    if "m" in typed:
        text = str(typed["m"]).strip()
        if not (text.isascii() and text.isdigit() and int(text) >= 1):
            raise UsageError(f"m={text}: expected a whole number of at least 1")
        delay = int(text)
    changes = Changes.of({"remove_long_term": remove_long_term, "delay": delay, **others})
    kept = [
        word for word in words if (k := word.partition("=")[0].strip()) != "m" and k.partition(".")[0] not in others
    ]
    return changes, kept


def with_overrides(config: Any, overrides: list[str]) -> Any:
    """The run's configuration with other evaluation settings, validated."""
    from mmctl.config import from_dict, parse_overrides, to_dict

    return from_dict({**to_dict(config), **parse_overrides(overrides)})


def suites_of(tasks: Sequence[str]) -> list[str]:
    """Suites that these tasks belong to. UsageError with the nearest name for one that is no task."""
    from mmctl.data import task_class

    return list(dict.fromkeys(task_class(name).dimension for name in tasks))


def check_tasks(tasks: Sequence[str], suites: Sequence[str]) -> None:
    from mmctl.data import task_class
    from mmctl.errors import UsageError

    for name in tasks:
        if task_class(name).dimension not in suites:
            raise UsageError(
                f"--tasks {name}: belongs to suite {task_class(name).dimension}, not to {', '.join(suites)}"
            )


def check_attention(near: int, suites: Sequence[str], changes: Changes, typed: bool) -> None:
    """UsageError where attention is asked for, as a suite or by its setting (`typed`), and would not be measured."""
    from mmctl.errors import UsageError
    from mmctl.evaluation.suites import ATTENTION

    key = f"evaluation.attention={near}"
    if ATTENTION in suites and not near:
        raise UsageError(
            "--suite attention: expected evaluation.attention=N beside it, how many positions before the last count as near"
        )
    if (ATTENTION in suites or (typed and near)) and changes:
        raise UsageError(
            f"{key}: where the last query looks is measured of the model as it was trained, without changes"
        )
    if typed and near and suites and ATTENTION not in suites:
        raise UsageError(f"{key}: measured by --suite attention, and here only {', '.join(suites)} would be")


def mark_of(settings: Mapping[str, Any]) -> str:
    """What such settings add to a file's name: in words, or hashed where they are long."""
    import hashlib

    from mmctl.evaluation.suites import LONGEST_MARK

    words = "".join(f"+{key.removeprefix('data.tasks.')}={value}" for key, value in sorted(settings.items()))
    plain = len(words) <= LONGEST_MARK and "/" not in words
    return words if plain else f"+settings={hashlib.sha256(words.encode()).hexdigest()[:8]}"


def mirror(folder: Any, config: Any) -> None:
    """Bring the run's MLflow run up to its folder, which holds the new scores; its state there stays what it is."""
    state = folder.state()
    if not config.operation.mlflow or state in ("planned", "running"):
        return  # a run in progress is followed by its own process
    from mmctl.runs import Mirror

    Mirror.start(folder).finish(state)
