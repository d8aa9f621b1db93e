"""What the processes of a run are told by whoever starts them, torchrun or `mmctl train --processes`."""

from __future__ import annotations

import os

from mmctl.errors import UsageError
from mmctl.training.ranks import ALONE, Ranks

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process it starts."""
LAUNCHER = "MMCTL_LAUNCHER"
"""Environment variable with the process of `mmctl train --processes`, which its processes end with."""


def from_environment() -> Ranks:
    """This process's place among those torchrun started, not yet connected; `ALONE` outside of it.

    UsageError when the environment holds only part of what torchrun sets, or no numbers.
    """
    if int_of("WORLD_SIZE") in (None, 1):
        return ALONE
    missing = [name for name in ENVIRONMENT if name not in os.environ]
    if missing:
        raise UsageError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}, but {', '.join(missing)} not set: start with torchrun"
        )
    from mmctl.training.distributed import Group

    end_with_launcher()
    return Group(int_of("RANK") or 0, int_of("WORLD_SIZE") or 1, int_of("LOCAL_RANK") or 0)


def int_of(name: str) -> int | None:
    """An environment variable as a whole number; None if it is not set."""
    text = os.environ.get(name)
    if text is None or text.isdecimal():
        return int(text) if text else None
    raise UsageError(f"{name}={text}: expected a whole number, as torchrun sets it")


def end_with_launcher() -> None:
    """End when `mmctl train --processes` dies, if that is what started this process."""
    parent = os.environ.get(LAUNCHER, "")
    if parent.isdecimal() and os.getppid() == int(parent):
        from mmctl.runs.process import end_with_parent

        end_with_parent()
