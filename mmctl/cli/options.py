"""What commands share: arguments and options, tables, JSON, and one line for a wrong option."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmctl.cli import complete

if TYPE_CHECKING:
    from rich.console import Console

Root = Annotated[
    str | None,
    typer.Option("--runs", help="Folder of runs (default: $MMCTL_RUNS, else ./runs).", show_default=False),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its folder, name, name/seedK or identity.",
        autocompletion=complete.run_names,
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead of text.")]

Sweep = Annotated[
    str | None,
    typer.Argument(metavar="SWEEP", help="Name or folder of a sweep (default: the newest).", show_default=False),
]
SweepOut = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the figure (default: the sweep's figures/).", show_default=False),
]
RunsOut = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the figure (default: figures/ of the first run).", show_default=False),
]

State = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="planned, running, finished, failed, diverged, interrupted or lost.",
        autocompletion=complete.states,
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Only runs whose name contains this.", show_default=False)]
Older = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="Only runs that did nothing for so long: 30m, 12h, 7d, 2w.",
        show_default=False,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Only runs with these settings: model.bandwidth=adaptive, or bandwidth=adaptive where one key ends so.",
        show_default=False,
        autocompletion=complete.settings,
    ),
]

PLUGIN = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Your own models or tasks: a dotted module name or a .py file; repeat it (also: $MMCTL_PLUGINS).",
        show_default=False,
    ),
]


def with_plugins(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a --plugin option, which is loaded before the command itself runs."""

    def loading(plugin: list[str] | None, run: Callable[[], Any]) -> Any:
        if plugin:
            from mmctl import plugins

            plugins.load(plugin)
        return run()

    return _with_option(command, "plugin", PLUGIN, None, loading)


def with_json_paths(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints the paths of the files it wrote, with a --json option that prints them as {"files":
    [...]}."""

    def listing(as_json: bool, run: Callable[[], Any]) -> Any:
        if not as_json:
            return run()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            done = run()
        print_json({"files": printed.getvalue().splitlines()})
        return done

    return _with_option(command, "as_json", Json, False, listing)


FILES = (".png", ".pdf", ".csv", ".json")
"""What a figure's files end in."""


def into_a_folder(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose --out, if it has one, is a folder: a name that a figure's file would have is refused."""

    @functools.wraps(command)
    def checked(*positional: Any, **named: Any) -> Any:
        out = named.get("out")
        if out is not None and Path(out).suffix.lower() in FILES:
            from mmctl.errors import UsageError

            raise UsageError(
                f"--out {out}: takes a folder, in which the figure's files are made, such as {Path(out).stem}"
            )
        return command(*positional, **named)

    return checked


def _with_option(
    command: Callable[..., Any],
    name: str,
    annotation: Any,
    default: Any,
    around: Callable[[Any, Callable[[], Any]], Any],
) -> Callable[..., Any]:
    """The command with one more option, whose value goes to `around` together with the command still to be run."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def wrapped(*positional: Any, **named: Any) -> Any:
        value = named.pop(name, default)
        return around(value, lambda: command(*positional, **named))

    option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {**command.__annotations__, name: annotation}
    return wrapped


def table(*columns: str, title: str | None = None, right: tuple[int, ...] = ()) -> Any:
    """A rich table; `right` are the columns aligned to the right."""
    from rich.table import Table

    made = Table(title=plain(title) if title else None, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number in right else "left", overflow="fold")
    return made


def plain(text: str) -> Any:
    """Text in which [brackets] are not markup, and nothing that a file holds steers the terminal."""
    from rich.text import Text

    from mmctl.errors import visible

    return Text(visible(text))


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal (a pipe, a log) nothing may be cut off or wrapped.
    return Console(width=None if stream.isatty() else 200, markup=False, highlight=False, stderr=stderr)


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN and infinities as strings."""
    import json

    from mmctl.runs.files import json_ready

    print(json.dumps(json_ready(value), indent=2, allow_nan=False))


def wrong_option(error: Any) -> str:
    """What is wrong with the command line, in one line: of a wrong option the nearest one, of a missing word the
    command's help."""
    from mmctl.errors import nearest

    given, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if type(error).__name__ == "MissingParameter" and context is not None and error.param is not None:
        missing = error.param.metavar or error.param.name.upper()
        return f"{missing}: is missing; see {context.command_path} --help"
    if type(error).__name__ != "NoSuchOption" or context is None:
        return " ".join(error.format_message().split())
    known = {name for param in context.command.get_params(context) for name in param.opts if name.startswith("-")}
    return f'"{given}": no such option of {context.command_path}{nearest(str(given), known, "options")}'


def preset_and_overrides(words: list[str] | None) -> tuple[str, list[str]]:
    """Of `[PRESET] [KEY=VALUE]...`: the preset (lab, if none is given) and the overrides. UsageError for a stray
    word."""
    from mmctl.errors import UsageError

    left = list(words or [])
    preset = left.pop(0) if left and "=" not in left[0] else "lab"
    stray = [word for word in left if "=" not in word]
    if stray:
        raise UsageError(f'"{stray[0]}": expected key=value (a preset, if any, comes first)')
    return preset, left
