"""A sweep in the terminal: the plan of a dry run, and the verdicts at the end. Both on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmctl.runs.preflight import size
from mmctl.sweeps import verdicts
from mmctl.sweeps.reporting import words
from mmctl.sweeps.units import Scale, scale_of
from mmctl.training.progress import clock

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {
    verdicts.REPRODUCED: "green",
    verdicts.SUPPORTED: "green",
    verdicts.REPRODUCED + verdicts.AGAINST_CHANCE: "yellow",
    verdicts.SUPPORTED + verdicts.AGAINST_CHANCE: "yellow",
    verdicts.INSIDE: "green",
    verdicts.OPPOSITE: "red",
    verdicts.POSITIVE: "red",
    verdicts.NEGATIVE: "red",
    verdicts.OUTSIDE: "red",
    verdicts.PARTLY: "red",
    verdicts.NO_EFFECT: "yellow",
    verdicts.UNMOVED: "yellow",
    verdicts.AT_CHANCE: "yellow",
    verdicts.NOT_RUN: "dim",
    verdicts.UNDERPOWERED: "dim",
    verdicts.INCONCLUSIVE: "dim",
}


def verdict_table(results: Mapping[str, Any]) -> Table:
    """Claim, published beside ours, n, verdict."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{results['sweep']}: verdicts", title_justify="left", expand=False)
    for name in ("claim", "published", "ours [95% interval]", "unit", "n", "verdict"):
        most = 28 if name == "published" else None  # the longest words, and the ones best read in the report
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold", max_width=most)
    starred = False
    for ablation in results["ablations"]:
        for claim in ablation["claims"]:
            scale, signed = scale_of(claim["metric"]), claim["control"] is not None
            values = [(p["part"] + " ", p["difference"]) for p in claim["parts"]] or [("", claim["difference"])]
            star = " *" if words.marks(claim) else ""
            starred = starred or bool(star)
            n = claim["difference"]["n"] if claim["difference"] else 0
            table.add_row(
                Text(f"{ablation['name']}/{claim['id']}"),
                Text(words.published(claim)),
                Text("\n".join(layer + _value(difference, scale, signed) for layer, difference in values)),
                Text(scale.of_difference if signed else scale.unit),
                Text(str(n)),
                Text(claim["verdict"] + star, style=COLOURS.get(claim["verdict"], "")),
            )
        table.add_section()
    table.caption = (
        "mean of treatment minus control over n seeds, 95% intervals; verdicts on a direction: Holm-corrected over this "
        f"report's {results['family']} such claims" + ("; *: see the report for a remark" if starred else "")
    )
    table.caption_justify = "left"
    return table


def _value(difference: Mapping[str, Any] | None, scale: Scale, signed: bool) -> str:
    if difference is None:
        return words.MISSING
    return f"{scale.value(difference['mean'], signed)} {words.interval(difference['interval'], scale, signed)}"


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
                    size(row["bytes"]),
                ),
            )
        )
    left = "missing: " + (f"{totals['missing']} runs" if totals["missing"] else "nothing")
    table.caption = (
        f"{left}, about {clock(totals['seconds'])} on {totals['jobs']} worker{'s' * (totals['jobs'] != 1)}"
        f" ({totals['basis']}), {size(totals['bytes'])} of disk; FLOPs: forward, executed"
    )
    return table


def show(table: Table) -> None:
    """Print to stdout, wide enough not to fold every word when stdout is no terminal."""
    import sys

    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
