"""A sweep in the terminal: the plan of a dry run, and the verdicts at the end. Both on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmctl.sweeps import words
from mmctl.training.progress import clock

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {"reproduced": "green", "opposite": "red", "no effect": "yellow", "not run": "dim", "underpowered": "dim"}


def verdict_table(results: Mapping[str, Any]) -> Table:
    """Claim, published beside ours, n, verdict."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{results['sweep']}: verdicts", title_justify="left", expand=False)
    for name in ("claim", "published", "ours [95% interval]", "unit", "n", "verdict"):
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold")
    for ablation in results["ablations"]:
        for claim in ablation["claims"]:
            difference = claim["difference"]
            signed = claim["control"] is not None
            value = words.MISSING
            if difference is not None:
                value = f"{difference['mean']:{'+' if signed else ''}.3f}"
                pair = difference["interval"]
                value += (
                    ""
                    if pair is None
                    else f" [{pair[0]:{'+' if signed else ''}.3f}, {pair[1]:{'+' if signed else ''}.3f}]"
                )
            mark = (" *" if claim["unmatched"] else "") + (" (both at chance)" if claim["at_chance"] else "")
            table.add_row(
                Text(f"{ablation['name']}/{claim['id']}"),
                Text(words.published(claim)),
                Text(value),
                Text(claim["unit"].partition(" (")[0]),
                Text(str(difference["n"] if difference else 0)),
                Text(claim["verdict"] + mark, style=COLOURS.get(claim["verdict"], "")),
            )
        table.add_section()
    if any(c["unmatched"] for a in results["ablations"] for c in a["claims"]):
        table.caption = "* parameters, FLOPs or tokens differ by more than 1%: see the report"
    return table


def plan_table(rows: Sequence[Mapping[str, Any]], totals: Mapping[str, Any]) -> Table:
    """What a dry run shows: a row a run."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{totals['sweep']}: {totals['runs']} runs of {totals['cells']} cells", title_justify="left")
    columns = {
        "cell": "left", "ablations": "left", "seed": "right", "state": "left", "params": "right",
        "FLOPs/token": "right", "tokens": "right", "time": "right", "disk": "right",
    }  # fmt: skip
    for name, side in columns.items():
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(
            *map(
                Text,
                (
                    row["cell"],
                    ", ".join(row["ablations"]),
                    str(row["seed"]),
                    row["state"],
                    words.large(row["parameters"]),
                    words.large(row["flops_per_token"]["executed"]),
                    words.large(row["training_tokens"]),
                    clock(row["seconds"]),
                    words.size(row["bytes"]),
                ),
            )
        )
    left = "missing: " + (f"{totals['missing']} runs" if totals["missing"] else "nothing")
    table.caption = (
        f"{left}, about {clock(totals['seconds'])} on {totals['jobs']} worker{'s' * (totals['jobs'] != 1)}"
        f" ({totals['basis']}), {words.size(totals['bytes'])} of disk; FLOPs: forward, executed"
    )
    return table


def show(table: Table) -> None:
    """Print to stdout, wide enough not to fold every word when stdout is no terminal."""
    import sys

    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
