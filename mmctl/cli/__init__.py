"""The command line. Importing it imports neither torch nor mlflow: commands import what they need when they run."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from mmctl.errors import EXIT_FAILED, EXIT_SIGINT, MmctlError, first_line

# Typer carries its own copy of click from 0.29 on; its base error is reached through what Typer exports.
CLICK_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="mmctl",
    help="The reference laboratory for Memory Mosaics: runnable ablations beside the published numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            print(f"mmctl {version('mmctl')}")
        except PackageNotFoundError:
            from mmctl import __version__

            print(f"mmctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    show: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _register() -> None:
    if app.registered_commands:
        return  # main() is called again in one process by tests only
    from mmctl.cli import ablate, bench, data, doctor, evaluate, flops, generate, plot, report, runs, train
    from mmctl.cli.options import with_json_paths, with_plugins

    app.command("train")(with_plugins(train.train))
    app.command("ablate")(with_plugins(ablate.ablate))
    app.command("eval")(with_plugins(evaluate.evaluate))
    app.command("report")(with_json_paths(with_plugins(report.report)))
    app.command("generate")(with_plugins(generate.generate))
    app.add_typer(plot.app, name="plot")
    app.add_typer(runs.app, name="runs")
    app.command("flops")(with_plugins(flops.flops))
    app.add_typer(data.app, name="data")
    app.add_typer(bench.app, name="bench")
    app.command("doctor")(with_plugins(doctor.doctor))


def _usable_streams() -> None:
    """A closed stdout or stderr is one that nobody reads; a terminal that cannot show a letter is no reason to fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def main() -> None:
    """Entry point: errors meant for a person are one line on stderr and an exit code, never a traceback."""
    _usable_streams()
    _register()
    try:
        try:
            # Not standalone, so that a wrong option, too, ends in one line of ours.
            code = app(prog_name="mmctl", standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where what goes wrong can still be said
    except MmctlError as error:
        print(f"mmctl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except CLICK_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            from mmctl.cli.options import wrong_option

            print(f"mmctl: {wrong_option(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as stop:
        print("mmctl: interrupted", file=sys.stderr)
        sys.exit(128 + getattr(stop, "signal", EXIT_SIGINT - 128))  # SIGTERM comes this way too
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; that is its right.
        _drop_stdout()
        sys.exit(EXIT_FAILED)
    except (MemoryError, OSError) as error:
        _drop_stdout()
        what = "not enough memory: " if isinstance(error, MemoryError) else ""
        print(f"mmctl: {what}{first_line(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    if isinstance(code, int) and code:
        sys.exit(code)


def _drop_stdout() -> None:
    """What is still to be written goes nowhere, so that Python does not fail again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
