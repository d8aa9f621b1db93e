"""The command line in this process: what a shell would see, without the seconds that a process with torch takes."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass

from mmctl.cli import main


@dataclass
class Done:
    code: int
    out: str
    err: str


def mmctl(*words: object) -> Done:
    """`mmctl WORD...`: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    before, code = sys.argv, 0
    sys.argv = ["mmctl", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())
