"""`mmctl runs`: what there is, one run in full, and the tracking store brought up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli import runs_archive, runs_clean, runs_compare
from mmctl.cli.options import Json, Name, Older, Root, Run, State, Words, console, plain, print_json, table

if TYPE_CHECKING:
    from rich.console import Console

    from mmctl.runs import RunFolder

app = typer.Typer(
    help="List, inspect, compare, clean, move and synchronise runs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("list")
def list_runs(
    words: Words = None,
    state: State = None,
    name: Name = None,
    older_than: Older = None,
    sort: Annotated[
        str, typer.Option("--sort", help="name, identity, seed, state, attempt, step, train_loss or when.")
    ] = "name",
    reverse: Annotated[bool, typer.Option("--reverse", help="Last first.")] = False,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """List runs: name, identity, seed, state, step, training loss, when.

    Example: mmctl runs list model.bandwidth=constant --state finished --sort train_loss
    """
    from mmctl.runs import runs_root
    from mmctl.runs.filters import Filters
    from mmctl.runs.listing import rows

    root = runs_root(runs)
    filters = Filters.of(words or [], state, name, older_than)
    found = rows(root, filters, sort, reverse)
    if as_json:
        print_json(found)
        return
    if not found:
        print(f"no runs {told} in {root}" if (told := filters.told()) else f"no runs in {root}")
        return
    shown = table("run", "identity", "seed", "state", "step", "training loss", "when (UTC)", right=(2, 4, 5))
    for row in found:
        loss = row["train_loss"]
        cells = (
            row["name"], row["identity"], str(row["seed"]), row["state"], "" if row["step"] is None else str(row["step"]),
            f"{loss:.4f}" if isinstance(loss, float) else str(loss or ""), (row["when"] or "")[:16].replace("T", " "),
        )  # fmt: skip
        shown.add_row(*map(plain, cells))
    console().print(shown)
    print(f"{len(found)} run{'s' * (len(found) != 1)} in {root}", file=sys.stderr)


@app.command("show")
def show(
    run: Run,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Show one run: how it ended, its scores with 95% intervals, its configuration and files."""
    from mmctl.runs import runs_root
    from mmctl.runs.listing import details, flat
    from mmctl.runs.preflight import size

    found = details(_one(runs_root(runs), run))
    if as_json:
        print_json(found)
        return
    screen = console()
    about = table("", "", title=found["run"])
    for key in ("path", "state", "reason", "attempt", "step", "train_loss", "when"):
        if found[key] is not None:
            about.add_row(key.replace("_", " "), plain(str(found[key])))
    made = flat(found["provenance"] or {})
    versions = [f"{name} {made[key]}" for name in ("mmctl", "torch", "python") if (key := f"versions.{name}") in made]
    about.add_row("versions", plain(", ".join(versions)))
    if made.get("git.commit"):
        dirty = " with uncommitted changes" if made.get("git.dirty") else ""
        about.add_row("commit", plain(f"{str(made['git.commit'])[:12]}{dirty}"))
    for name, path in ((found["provenance"] or {}).get("kernels") or {}).items():
        about.add_row(name, plain(str(path)))
    screen.print(about)
    if found["result"]:
        shown = table("result", "", right=(1,))
        for key, value in flat(found["result"]).items():
            shown.add_row(plain(key), f"{value:.6g}" if isinstance(value, float) else plain(str(value)))
        screen.print(shown)
    _print_scores(found, screen)
    shown = table("configuration", "")
    for key, value in flat(found["config"] or {}).items():
        shown.add_row(plain(key), plain(str(value)))
    screen.print(shown)
    shown = table("file", "size", right=(1,))
    for path, count in found["files"].items():
        shown.add_row(plain(path), size(count))
    screen.print(shown)
    for problem in found["problems"]:
        print(f"mmctl: {problem}", file=sys.stderr)


@app.command("sync")
def sync(runs: Root = None, as_json: Json = False) -> None:
    """Bring the MLflow store up to the run folders: what it missed or lost, or everything if it is new.

    Repeating is harmless. A SQLite store that is damaged is set aside under another name and made again.
    """
    from mmctl.runs import mirror, runs_root, store
    from mmctl.runs.redaction import redact

    root = runs_root(runs)
    done = mirror.sync(root, lambda label: print(label, file=sys.stderr))
    address = redact(store.tracking_uri(root))
    if as_json:
        print_json({"store": address, "runs": done.runs, "parents": done.parents, "skipped": done.skipped})
        return
    for label, reason in done.skipped.items():
        print(f"mmctl: {label} left out: {reason}", file=sys.stderr)
    if not done.runs and not done.parents:
        print(f"no runs to mirror in {root}")
        return
    print(f"{len(done.runs)} runs and {len(done.parents)} parents are up to date in {address}")


def _one(root: Path, text: str) -> RunFolder:
    """The run that is meant; where several fit, what tells them apart is shown on stderr before the error."""
    from mmctl.runs import RunFolder
    from mmctl.runs.compare import apart
    from mmctl.runs.names import Ambiguous

    try:
        return RunFolder.find(root, text)
    except Ambiguous as error:
        shown = table("run", "state", "what differs")
        for label, state, what in apart(error.places):
            shown.add_row(plain(label), state, plain(what))
        console(stderr=True).print(shown)
        raise


def _print_scores(found: dict[str, Any], screen: Console) -> None:
    from mmctl.evaluation.report import print_scores

    for stem, evaluation in found["evaluations"].items():
        try:
            print_scores(evaluation, details=True, console=screen, named=stem)
        except (KeyError, TypeError, AttributeError, ValueError, AssertionError):
            found["problems"].append(f"{found['path']}/eval/{stem}.json: damaged, not an evaluation")


app.command("compare")(runs_compare.compare)
app.command("clean")(runs_clean.clean)
app.command("export")(runs_archive.export)
app.command("import")(runs_archive.import_archive)
