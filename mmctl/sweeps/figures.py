"""Draws the figures the ablations of a sweep list, from its results.json. One that cannot be drawn is said, not fatal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mmctl.errors import MmctlError


def draw(folder: Path, names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Draw each named figure once. ({name: PNG relative to the sweep's folder}, [what could not be drawn, and why])."""
    from mmctl import plots

    drawn: dict[str, str] = {}
    problems: list[str] = []
    for name in dict.fromkeys(names):
        try:
            paths = plots.figure(name).draw_sweep(folder, folder / "figures")
        except MmctlError as error:
            problems.append(f"{name}: {error}")
        except Exception as error:  # whatever goes wrong in a figure must not cost the report
            problems.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")
        else:
            drawn[name] = paths["png"].relative_to(folder).as_posix()
    return drawn, problems
