"""`mmctl runs`: what there is, one run in full, and the tracking store brought up to date."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="List, inspect and synchronise runs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Root = Annotated[str | None, typer.Option("--runs", help="Folder of runs (default: MMCTL_RUNS, else ./runs).")]
Json = Annotated[bool, typer.Option("--json", help="JSON for a program instead of a table.")]


@app.command("list")
def list_runs(
    state: Annotated[
        str | None,
        typer.Option("--state", help="planned, running, finished, failed, diverged, interrupted or lost."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only runs whose name contains this.")] = None,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """List runs: name, identity, seed, state, step, training loss, when."""
    from mmctl.runs import runs_root
    from mmctl.runs.listing import rows

    root = runs_root(runs)
    found = list(rows(root, state, name))
    if as_json:
        _print_json(found)
        return
    if not found:
        chosen = [f"{what} {value}" for what, value in (("in state", state), ("named like", name)) if value]
        print(f"no runs {' and '.join(chosen)} in {root}" if chosen else f"no runs in {root}")
        return
    table = _table("run", "identity", "seed", "state", "step", "training loss", "when (UTC)", right=(2, 4, 5))
    for row in found:
        loss = "" if row["train_loss"] is None else f"{row['train_loss']:.4f}"
        when = (row["when"] or "")[:16].replace("T", " ")
        step = "" if row["step"] is None else str(row["step"])
        table.add_row(*map(_plain, (row["name"], row["identity"], str(row["seed"]), row["state"], step, loss, when)))
    _console().print(table)
    print(f"{len(found)} run{'s' * (len(found) != 1)} in {root}", file=sys.stderr)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="Name, name/seedK, identity or folder of a run.")],
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Show one run: how it ended, its scores with 95% intervals, its configuration and files."""
    from mmctl.runs import RunFolder, runs_root
    from mmctl.runs.listing import details, flat
    from mmctl.runs.preflight import size

    found = details(RunFolder.find(runs_root(runs), run))
    if as_json:
        _print_json(found)
        return
    console = _console()
    about = _table("", "", title=found["run"])
    for key in ("path", "state", "reason", "attempt", "step", "train_loss", "when"):
        if found[key] is not None:
            about.add_row(key.replace("_", " "), _plain(str(found[key])))
    made = flat(found["provenance"] or {})
    versions = [f"{name} {made[key]}" for name in ("mmctl", "torch", "python") if (key := f"versions.{name}") in made]
    about.add_row("versions", _plain(", ".join(versions)))
    if made.get("git.commit"):
        dirty = " with uncommitted changes" if made.get("git.dirty") else ""
        about.add_row("commit", _plain(f"{str(made['git.commit'])[:12]}{dirty}"))
    for name, path in ((found["provenance"] or {}).get("kernels") or {}).items():
        about.add_row(name, _plain(str(path)))
    console.print(about)
    if found["result"]:
        table = _table("result", "", right=(1,))
        for key, value in flat(found["result"]).items():
            table.add_row(_plain(key), f"{value:.6g}" if isinstance(value, float) else _plain(str(value)))
        console.print(table)
    _print_scores(found, console)
    table = _table("configuration", "")
    for key, value in flat(found["config"] or {}).items():
        table.add_row(_plain(key), _plain(str(value)))
    console.print(table)
    table = _table("file", "size", right=(1,))
    for path, count in found["files"].items():
        table.add_row(_plain(path), size(count))
    console.print(table)
    for problem in found["problems"]:
        print(f"mmctl: {problem}", file=sys.stderr)


@app.command("sync")
def sync(runs: Root = None, as_json: Json = False) -> None:
    """Bring the MLflow store up to the run folders: what it missed, or everything if it is new. Repeating is harmless."""
    from mmctl.runs import mirror, runs_root, store

    root = runs_root(runs)
    done = mirror.sync(root, lambda label: print(label, file=sys.stderr))
    address = store.redact_urls(store.tracking_uri(root))
    if as_json:
        _print_json({"store": address, "runs": done.runs, "parents": done.parents, "skipped": done.skipped})
        return
    for label, reason in done.skipped.items():
        print(f"mmctl: {label} left out: {reason}", file=sys.stderr)
    if not done.runs and not done.parents:
        print(f"no runs to mirror in {root}")
        return
    print(f"{len(done.runs)} runs and {len(done.parents)} parents are up to date in {address}")


def _print_scores(found: dict[str, Any], console: Console) -> None:
    from mmctl.evaluation.report import print_scores

    for stem, evaluation in found["evaluations"].items():
        try:
            print_scores(evaluation, details=True, console=console)
        except (KeyError, TypeError, AttributeError, ValueError, AssertionError):
            found["problems"].append(f"{found['path']}/eval/{stem}.json: damaged, not an evaluation")


def _table(*columns: str, title: str | None = None, right: tuple[int, ...] = ()) -> Any:
    from rich.table import Table

    table = Table(title=_plain(title) if title else None, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return table


def _plain(text: str) -> Any:
    """Text in which [brackets] are not markup."""
    from rich.text import Text

    return Text(text)


def _console() -> Console:
    from rich.console import Console

    # Without a terminal (a pipe, a log) nothing may be cut off or wrapped.
    return Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False)


def _print_json(value: Any) -> None:
    import json

    from mmctl.runs.files import json_ready

    print(json.dumps(json_ready(value), indent=2, allow_nan=False))
