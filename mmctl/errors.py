"""Errors meant for a person: one clear line, an exit code, and never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_SIGINT, EXIT_SIGTERM = 0, 1, 2, 130, 143


def printable(text: str) -> str:
    """`text` with everything that steers a terminal or hides (escape sequences, newlines, text direction) spelled
    out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def visible(text: str) -> str:
    """As `printable`, for a text of several lines or columns."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def first_line(error: BaseException) -> str:
    """What an error says in its first line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class MmctlError(Exception):
    """Something failed that the user should read about in one line (exit 1)."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str) -> None:
        # What the user typed may hold control characters; the message stays one readable line all the same.
        super().__init__(printable(message))


class UsageError(MmctlError):
    """The command, a key or a value is wrong (exit 2). Nothing has been written when it is raised."""

    exit_code = EXIT_USAGE


class OutOfMemory(MmctlError):
    """The device's memory did not hold what was asked. `fits` is the setting that would, as key=value words, such as
    "training.accumulation=4"; "" if none is known. The message names it too."""

    def __init__(self, message: str, fits: str = "") -> None:
        super().__init__(message)
        self.fits = fits


def nearest(name: str, valid: Iterable[str], what: str = "valid") -> str:
    """Suggestion for a mistyped `name`: '; did you mean "x"?', else the list of valid names (at most 12)."""
    names = sorted({str(v) for v in valid})
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.55)
    if close:
        return f'; did you mean "{close[0]}"?'
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"; {what}: {shown}" if names else ""
