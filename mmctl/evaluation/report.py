"""Scores for the eye: one table an evaluation, a row a score, a column a length."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmctl.errors import printable
from mmctl.evaluation.changes import said

_NAME = re.compile(r"(?P<row>.+)@(?P<multiple>\d+)x")
_DETAIL = re.compile(r"(?!text/loss$).*/(accuracy-shots\d+|accuracy-far|loss-quarter\d|loss-part\d+|loss)")
"""Left out of the short table: shots, far queries, quarters and other parts, and the loss of a task that is read by its accuracy."""


def title(evaluation: dict[str, Any]) -> str:
    """Suite and evaluation-time changes in words."""
    return ", ".join([evaluation["suite"], *said(evaluation["changes"])])


def rows(evaluation: dict[str, Any], details: bool = True) -> tuple[list[int], list[tuple[str, dict[int, dict]]]]:
    """The lengths (multiples), and for each score, in order, its entries by length."""
    found: dict[str, dict[int, dict]] = {}
    for name, score in evaluation["scores"].items():
        match = _NAME.fullmatch(name)
        assert match, name
        if details or not _DETAIL.fullmatch(match["row"]):
            found.setdefault(match["row"], {})[int(match["multiple"])] = score
    lengths = sorted({multiple for by_length in found.values() for multiple in by_length})
    return lengths, list(found.items())


def cell(score: dict[str, Any] | None) -> str:
    """Value with its 95% interval, "-" where it was not measured."""
    if score is None:
        return "-"
    bounds = score["interval"]
    spread = "" if bounds is None else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
    return f"{score['value']:.3f}{spread}"


def is_detail(score: str) -> bool:
    """Whether a score ("<task>/<name>@<multiple>x") is left out of short tables: losses of tasks read by accuracy,
    shots."""
    return bool(_DETAIL.fullmatch(score.partition("@")[0]))


def table(evaluation: dict[str, Any], details: bool = False, named: str | None = None) -> Table:
    """One evaluation as a table; `details` adds losses, shots and quarters, `named` replaces the title."""
    length = evaluation["settings"]["training_length"]
    lengths, scores = rows(evaluation, details)
    known = any(score["interval"] is not None for score in evaluation["scores"].values())
    drawn = Table(
        title=_plain(named or title(evaluation)),
        title_justify="left",
        caption="95% intervals, bootstrap over examples" if known else None,
    )
    drawn.add_column("score", no_wrap=True)
    for multiple in lengths:
        drawn.add_column(f"{multiple}x ({multiple * length})", justify="right")
    drawn.add_column("chance", justify="right")
    for name, by_length in scores:
        chance = None
        if "accuracy" in name and not name.endswith("-shots0"):  # nothing of its class is known yet
            chances = [evaluation["tasks"][f"{name.partition('/')[0]}@{multiple}x"]["chance"] for multiple in by_length]
            chance = _range([c for c in chances if c is not None])
        drawn.add_row(_plain(name), *(cell(by_length.get(multiple)) for multiple in lengths), chance or "")
    return drawn


def print_scores(
    *evaluations: dict[str, Any], details: bool = False, console: Console | None = None, named: str | None = None
) -> None:
    """Tables on stdout; what was left out, with its reason, on stderr."""
    # Without a terminal (a pipe, a log) nothing may be cut off or wrapped.
    console = console or Console(width=None if sys.stdout.isatty() else 160)
    for evaluation in evaluations:
        if evaluation["scores"]:
            console.print(table(evaluation, details, named))
        for what, reason in evaluation["skipped"].items():
            print(printable(f"{evaluation['suite']}: {what} not measured: {reason}"), file=sys.stderr)


def _plain(text: Any) -> Text:
    """Neither markup nor anything that steers the terminal: an evaluation may come from somebody else."""
    return Text(printable(str(text)))


def _range(values: Iterable[float]) -> str:
    """A value, or "highest-lowest" when it changes with length."""
    values = list(values)
    if not values:
        return ""
    high, low = f"{max(values):.3f}", f"{min(values):.3f}"
    return high if high == low else f"{high} - {low}"
