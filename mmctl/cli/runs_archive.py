"""`mmctl runs export` and `import`: finished runs as one file, merged by identity on another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmctl.cli import complete
from mmctl.cli.options import Json, Root, print_json

Checkpoints = Annotated[
    bool, typer.Option("--without-checkpoints", help="Results and scores only; such runs cannot be evaluated again.")
]


def export(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP|RUN... FILE",
            help="A sweep or runs (name-identity: all its seeds), then the archive to write: NAME.tar.gz.",
            autocompletion=complete.sweeps_and_runs,
        ),
    ],
    without_checkpoints: Checkpoints = False,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Write finished runs, with their last and best checkpoint, into one archive. Unfinished ones are left out and
    named.

    Example: mmctl runs export smoke-0a1b2c3d sweep.tar.gz
    """
    from mmctl.errors import UsageError
    from mmctl.runs import archive, runs_root
    from mmctl.runs.preflight import size

    if len(words) < 2:
        raise UsageError("expected a sweep or runs, and then the archive to write, such as sweep.tar.gz")
    target = Path(words[-1]).expanduser().absolute()
    if not target.name.endswith(archive.SUFFIXES):  # said before the runs are looked for: it may have been forgotten
        raise UsageError(f'"{words[-1]}": expected the archive to write last, a name ending in .tar.gz')
    chosen, sweeps = archive.chosen(runs_root(runs), words[:-1])
    done = archive.export(target, chosen, sweeps, with_checkpoints=not without_checkpoints)
    if as_json:
        print_json(
            {"file": target, "bytes": done.bytes, "runs": done.runs, "sweeps": done.sweeps, "left_out": done.left_out}
        )
    else:
        print(f"{target}: {len(done.runs)} runs, {size(done.bytes)}")
    for label, reason in done.left_out.items():
        print(f"mmctl: {label} left out: it {reason}", file=sys.stderr)


def import_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `mmctl runs export` wrote.")],
    without_checkpoints: Checkpoints = False,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Merge an archive's runs into the folder of runs, by identity and seed; `mmctl ablate` then skips them.

    Nothing is overwritten: a run that is here with the same result is passed over; with another result it is reported,
    nothing changes, and the exit code is 1. An unfinished run here is moved to replaced/ and the finished one takes its
    place.

    Example: mmctl runs import sweep.tar.gz
    """
    from mmctl.errors import MmctlError
    from mmctl.runs import importing, runs_root

    root = runs_root(runs)
    done = importing.merge(file.expanduser().absolute(), root, with_checkpoints=not without_checkpoints)
    if as_json:
        print_json(vars(done))
    for note in done.notes:
        print(f"mmctl: {note}", file=sys.stderr)
    for label, what in done.conflicts.items():
        print(f"mmctl: {label}: {what}", file=sys.stderr)
    if done.conflicts:
        raise MmctlError(f"{len(done.conflicts)} runs are in the way; nothing was imported")
    for label, place in done.set_aside.items():
        print(f"mmctl: {label} was not finished here; it was moved to {place}", file=sys.stderr)
    if not as_json:
        print(f"{len(done.runs)} runs imported into {root}, {len(done.already)} were here already")
