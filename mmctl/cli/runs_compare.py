"""`mmctl runs compare`: what differs between runs, and what it did."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from mmctl.cli import complete
from mmctl.cli.options import Json, Root, console, plain, print_json, table


def compare(
    chosen: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="Runs: name/seedK is one, name-identity all its seeds. The first is what the others are compared with.",
            autocompletion=complete.run_names,
        ),
    ],
    score: Annotated[
        str | None, typer.Option("--score", help="Only scores whose name contains this.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also losses of tasks, shots and quarters.")] = False,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Compare runs: settings that differ, costs, and scores with their paired differences from the first.

    Intervals are 95%: over the seeds both have (Student's t), or over examples where they share one seed.

    Example: mmctl runs compare mosaic-v2-0a1b2c3d transformer-4e5f6a7b --score recall
    """
    from mmctl.runs import compare as comparing
    from mmctl.runs import runs_root

    found = comparing.compare(comparing.groups(runs_root(runs), chosen))
    if score is not None:
        found["scores"] = [row for row in found["scores"] if score in row["score"]]
    if as_json:
        print_json(found)
        return
    _print(found, every or score is not None)


def _print(found: Mapping[str, Any], every: bool) -> None:
    from mmctl.evaluation.report import is_detail

    screen, groups = console(), found["runs"]
    heads = [chr(ord("A") + n) if n < 26 else str(n) for n in range(len(groups))]
    for head, group in zip(heads, groups, strict=True):
        seeds = f"seeds {', '.join(map(str, group['seeds']))}" if group["seeds"] else "no seed finished"
        print(f"{head}: {group['run']} ({seeds})")
        for label, state in group["unfinished"].items():
            print(f"mmctl: {label} is {state} and left out", file=sys.stderr)
    numbers = tuple(range(1, len(heads) + 1))
    shown = table("settings that differ", *heads)
    for key, values in found["differences"].items():
        shown.add_row(plain(key), *(plain("-" if v is None else str(v)) for v in values))
    if found["differences"]:
        screen.print(shown)
    else:
        print("no setting differs")
    shown = table("cost", *heads, right=numbers)
    for key in groups[0]["cost"]:
        shown.add_row(plain(key), *(_count(group["cost"][key]) for group in groups))
    screen.print(shown)
    heading = [h for n, head in enumerate(heads) for h in ([head] if n == 0 else [head, f"{head} - {heads[0]}"])]
    evaluations: dict[str, int] = {}
    for row in found["scores"]:
        evaluations[row["evaluation"]] = max(
            evaluations.get(row["evaluation"], 0), sum(v is not None for v in row["values"])
        )
    alone = [name for name, count in evaluations.items() if count < 2]
    unpaired: set[str] = set()
    for evaluation in [name for name in evaluations if name not in alone]:
        shown = table(evaluation, *heading, right=tuple(range(1, len(heading) + 1)))
        for row in found["scores"]:
            if row["evaluation"] != evaluation or (is_detail(row["score"]) and not every):
                continue
            cells = []
            for number, (value, difference) in enumerate(zip(row["values"], row["differences"], strict=True)):
                cells.append(_value(value))
                if number:
                    cells.append(_difference(difference))
                    if difference is None and value is not None and row["values"][0] is not None:
                        unpaired.add(heads[number])
            shown.add_row(plain(row["score"]), *map(plain, cells))
        if shown.row_count:
            screen.print(shown)
    for head in sorted(unpaired):
        print(
            f"mmctl: {head} shares no seed with {heads[0]}: nothing pairs up, so no difference is given",
            file=sys.stderr,
        )
    if alone:
        print(f"mmctl: made of only one of them: {', '.join(alone)}", file=sys.stderr)
    if len(alone) == len(evaluations):
        print("no scores in common")


def _value(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    return f"{value['mean']:.4f}{_interval(value['interval'])}" + (f", n={value['n']}" if value["n"] > 1 else "")


def _difference(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "-"
    over = f"{value['n']} seed{'s' * (value['n'] != 1)}" if value["over"] == "seeds" else "examples"
    return f"{value['mean']:+.4f}{_interval(value['interval'])} over {over}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f" [{bounds[0]:.4f}, {bounds[1]:.4f}]"


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if value < 1000 and value != int(value) else f"{value:,.0f}"
