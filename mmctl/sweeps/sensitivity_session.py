"""What `mmctl ablate --at` does: the sweep at every setting, one after the other, and the table of their verdicts."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mmctl.sweeps.plan import Plan
from mmctl.sweeps.reporting import sensitivity
from mmctl.sweeps.session import Where
from mmctl.sweeps.todo import Options

if TYPE_CHECKING:
    from rich.table import Table


class Session(Protocol):
    """What is done with each setting's sweep: session.py, or tuning_session.py with --tune."""

    def run(self, plan: Plan, root: Path, where: Where, as_json: bool, options: Options) -> int: ...
    def dry_run(self, plan: Plan, root: Path, where: Where, as_json: bool) -> None: ...
    def show_status(self, plan: Plan, root: Path, as_json: bool) -> None: ...


def run(
    sweeps: Mapping[str, Plan],
    given: Sequence[str],
    does: Session,
    root: Path,
    where: Where,
    as_json: bool,
    options: Options,
) -> int:
    """Every setting's sweep, then the table; the exit code is the first that is not 0. A signal ends it at once, with what
    there is; the same command goes on."""
    from mmctl.runs.files import read_object, write_json, write_text
    from mmctl.sweeps.reporting.finish import FORMS

    code, results = 0, {}
    for setting, plan in sweeps.items():
        print(f"mmctl: {setting}: sweep {plan.name}", file=sys.stderr)
        with contextlib.redirect_stdout(sys.stderr):  # each sweep's own verdicts; the table is the result
            ended = does.run(plan, root, where, False, options)
        code = code or ended
        if ended >= 128:
            return ended
        written = root / "sweeps" / plan.name / "results.json"
        if written.is_file():
            results[setting] = read_object(written)
    if not results:
        return code
    found = sensitivity.table_of(results, command(sweeps, given))
    folder = sensitivity.folder(sweeps, root)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sensitivity.json", found)
    write_text(folder / "sensitivity.csv", sensitivity.as_csv(found))
    made = sensitivity.document(found)
    for suffix, form in FORMS.items():
        write_text(folder / f"sensitivity{suffix}", form(made, folder))
    if as_json:
        print(json.dumps(found, indent=2))
        return code
    from mmctl.sweeps.reporting import terminal

    terminal.show(_table(found))
    print(f"report: {folder / 'sensitivity.md'}")
    return code


def dry_run(sweeps: Mapping[str, Plan], does: Session, root: Path, where: Where, as_json: bool) -> None:
    """Every setting's plan. Runs that two settings share stand in both: they are trained once."""
    _each(sweeps, lambda plan, form: does.dry_run(plan, root, where, form), as_json)


def show_status(sweeps: Mapping[str, Plan], does: Session, root: Path, as_json: bool) -> None:
    _each(sweeps, lambda plan, form: does.show_status(plan, root, form), as_json)


def command(sweeps: Mapping[str, Plan], given: Sequence[str]) -> str:
    """The command line that makes the table."""
    return shlex.join([*shlex.split(next(iter(sweeps.values())).command()), *(w for at in given for w in ("--at", at))])


def _each(sweeps: Mapping[str, Plan], show: Callable[[Plan, bool], None], as_json: bool) -> None:
    found: dict[str, Any] = {}
    for setting, plan in sweeps.items():
        if not as_json:
            print(f"{setting}:", flush=True)
            show(plan, False)
            continue
        with contextlib.redirect_stdout(io.StringIO()) as told:
            show(plan, True)
        found[setting] = json.loads(told.getvalue())
    if as_json:
        print(json.dumps(found, indent=2))


def _table(found: Mapping[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from mmctl.sweeps.reporting.terminal import COLOURS

    table = Table(title="verdicts by setting", title_justify="left", expand=False)
    for name in ("claim", *found["settings"], "same"):
        table.add_column(Text(name), overflow="fold")
    for claim in found["claims"]:
        entries = [claim["at"].get(setting) for setting in found["settings"]]
        said = [Text(e["verdict"], style=COLOURS.get(e["verdict"], "")) if e else Text("missing") for e in entries]
        table.add_row(Text(f"{claim['ablation']}/{claim['id']}"), *said, Text("yes" if claim["agree"] else "no"))
    return table
