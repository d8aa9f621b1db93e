"""`mmctl doctor`: is this machine ready, and what would run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mmctl.cli import complete
from mmctl.cli.options import Json, Root, console, plain, preset_and_overrides, print_json

if TYPE_CHECKING:
    from mmctl.doctor.machine import Line

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="What you are about to train: then also which device, kernels, memory and disk it would take.",
            show_default=False,
            autocompletion=complete.preset_then_keys,
        ),
    ] = None,
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Check this machine: device, versions, Triton, disk, tracking store and the rest; each ok, warn or fail.

    Exits 1 if a check fails. Nothing is changed.

    Example: mmctl doctor lab model.name=transformer
    """
    from dataclasses import asdict

    from mmctl.config import load
    from mmctl.doctor import machine
    from mmctl.doctor.would_run import would_run
    from mmctl.errors import EXIT_FAILED
    from mmctl.runs import runs_root

    root = runs_root(runs, whatever_it_is=True)
    config = load(*preset_and_overrides(arguments)) if arguments else None
    lines = []
    for line in machine.examine(root):
        lines.append(line)
        if not as_json:
            _show(line)
    planned, values = would_run(config, root) if config is not None else ([], None)
    if not as_json and planned:
        print("\nwould run:")
        for line in planned:
            _show(line)
    failed = [line.check for line in [*lines, *planned] if line.state == "fail"]
    if as_json:
        print_json(
            {
                "ok": not failed,
                "checks": [asdict(line) for line in lines],
                "would_run": None if values is None else {**values, "checks": [asdict(line) for line in planned]},
            }
        )
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _show(line: Line) -> None:
    screen = console()
    text = plain(f"{line.state:<4}  {line.check:<14}  {line.found}")
    text.stylize(COLOURS[line.state], 0, 4)
    screen.print(text, soft_wrap=True)
    if line.todo:
        screen.print(plain(f"{'':<22}{line.todo}"), soft_wrap=True)
