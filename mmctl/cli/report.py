"""`mmctl report`: a sweep's report as HTML and Markdown, or the scoreboard over all claims of many sweeps."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmctl.cli import complete
from mmctl.cli.options import Root
from mmctl.errors import MmctlError, UsageError, nearest

if TYPE_CHECKING:
    from mmctl.sweeps.reporting.document import Document
    from mmctl.sweeps.reporting.scoreboard import Source

BOARD = "scoreboard"


def report(
    sweeps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SWEEP]...",
            help="Name or folder of a sweep, or a results.json (default: the newest sweep; with --all: every one).",
            autocompletion=complete.sweeps,
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="One page over all claims of all these sweeps: the scoreboard.")
    ] = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where to write, ending in .html or .md; repeat for both (default: report.html and report.md beside the "
            "results; with --all: scoreboard.html and scoreboard.md in the folder of runs).",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
) -> None:
    """Write a sweep's report: one HTML file that holds everything, and Markdown. Trains and evaluates nothing.

    In a sweep's own folder, figures that are missing or out of date are drawn first; of a results.json elsewhere, those
    in figures/ beside it are shown.

    Examples: mmctl report smoke-bec24274; mmctl report --all evidence/*/results.json --out scoreboard.md
    """
    from mmctl.runs import runs_root

    where, given = runs_root(root), list(sweeps or [])
    if "" in given:  # as of a shell's variable that is not set: not the newest sweep
        raise UsageError('"": expected the name or folder of a sweep, or a results.json')
    for path in out or []:
        _check(path)
    if every:
        pages = _board(where, given, out or [])
    else:
        if len(given) > 1:
            raise UsageError(f'"{given[1]}": a report is of one sweep; --all puts several on one page')
        pages = _sweep(where, given[0] if given else None, out or [])
    for path, text in pages.items():
        _write(text, path)
        print(path)


def _check(path: Path) -> None:
    from mmctl.sweeps.reporting.finish import FORMS

    if path.suffix not in FORMS:
        raise UsageError(f"--out {path}: expected a name that ends in {' or '.join(sorted(FORMS))}")
    if path.is_dir():
        raise UsageError(f"--out {path}: is a folder; expected a file in it, such as {path / 'report.html'}")


def _sweep(where: Path, wanted: str | None, out: Sequence[Path]) -> dict[Path, str]:
    """{File to write: the report in its form}. Brings a sweep's own folder up to date."""
    from mmctl.plots import sources
    from mmctl.sweeps.reporting import figures, finish, preamble, sweep

    folder = _results(where, wanted).parent
    results = sources.read_results(folder)
    files = _writable(list(out) or [folder / f"report{suffix}" for suffix in finish.FORMS])
    with preamble.whole(folder / "results.json", results):
        sweep.document(results, {})  # damaged results are said before a figure of them is drawn
        names = [sweep.FIRST, *(name for ablation in results["ablations"] for name in ablation["figures"])]
        if (folder / "manifest.json").is_file():
            drawn = figures.draw(folder, names, results)
            for problem in drawn.problems:
                print(f"mmctl: figure not drawn: {problem}", file=sys.stderr)
            paths = drawn.paths
        else:
            paths = figures.present(folder, results)
        return _pages(sweep.document(results, {name: folder / path for name, path in paths.items()}), files)


def _board(where: Path, given: Sequence[str], out: Sequence[Path]) -> dict[Path, str]:
    """{File to write: the scoreboard in its form}. A sweep that is named must be readable; of all there are, one that is not is
    said."""
    from mmctl.sweeps.reporting import finish, scoreboard

    found: list[Source] = []
    unread: list[str] = []
    if given:
        found = [scoreboard.read(path) for path in dict.fromkeys(_results(where, one) for one in given)]
    elif not where.is_dir():
        raise UsageError(f"{where}: no such folder of runs; name sweeps or results.json files, or give --runs")
    else:
        for path in sorted((where / "sweeps").glob("*/results.json")):
            try:
                found.append(scoreboard.read(path))
            except MmctlError as error:
                unread.append(str(error))
                print(f"mmctl: {error}", file=sys.stderr)
    files = _writable(list(out) or [where / f"{BOARD}{suffix}" for suffix in finish.FORMS])
    words = ["mmctl", "report", "--all", *given, *(word for path in out for word in ("--out", str(path)))]
    made = scoreboard.document(found, shlex.join(words), unread)
    return _pages(made, files)


def _writable(paths: list[Path]) -> list[Path]:
    """The same; MmctlError where one cannot be written, before the figures are drawn, which takes a minute."""
    from mmctl.runs.files import check_writable

    for path in paths:
        check_writable(path)
    return paths


def _pages(made: Document, files: Sequence[Path]) -> dict[Path, str]:
    """Every form before any is written: what cannot be made leaves all files as they were."""
    from mmctl.sweeps.reporting.finish import rendered

    return {path: rendered(made, path.absolute().parent, path.suffix) for path in files}


def _results(where: Path, wanted: str | None) -> Path:
    """The results.json that is meant: by its own path, its folder, or a sweep's name."""
    from mmctl.plots.sources import find_sweep

    if wanted is not None and wanted.endswith(".json"):
        path = Path(wanted)
        if not path.is_file():
            there = [str(p) for p in path.parent.glob("*.json")] or [
                str(p) for p in path.parent.parent.glob("*/*.json")
            ]
            raise UsageError(f"{wanted}: no such file{nearest(wanted, there, 'there')}")
        if path.name != "results.json":
            raise UsageError(f"{wanted}: expected a sweep's results.json")
        return path
    return find_sweep(where, wanted) / "results.json"


def _write(text: str, path: Path) -> None:
    from mmctl.runs.files import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MmctlError(f"cannot create {path.parent}: {error.strerror or error}") from None
    write_text(path, text)
