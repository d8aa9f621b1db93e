"""Making a run's folder, filled beside its place and put there in one rename; and moving one out of the way."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmctl.errors import MmctlError, printable
from mmctl.runs import files, names, status
from mmctl.runs.lock import waiting_lock
from mmctl.runs.redaction import redact, redact_arguments

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.runs.folder import RunFolder


def fill(draft: Path, config: Config, overrides: Sequence[str], command: Sequence[str] | None) -> None:
    """What a run has before it starts, brought to the disk."""
    from omegaconf import OmegaConf

    from mmctl.config import to_dict
    from mmctl.runs import provenance

    (draft / "checkpoints").mkdir()
    (draft / "eval").mkdir()
    typed = "".join(printable(redact(override)) + "\n" for override in overrides)
    files.write_text(draft / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(to_dict(config))), durable=False)
    files.write_text(draft / "overrides.txt", typed, durable=False)
    origin = provenance.collect()
    if command is not None:
        origin["command"] = redact_arguments(command)
    files.write_json(draft / "provenance.json", origin, durable=False)
    status.write(draft / "status.json", status.changed(None, "planned", None, {}), durable=False)
    for inside in draft.iterdir():
        files.fsync_folder(inside) if inside.is_dir() else files.fsync_file(inside)
    files.fsync_folder(draft)


def publish(draft: Path, root: Path, path: Path) -> None:
    """Give a new run its place. Two commands may make one run under two names in the same second: one must lose."""
    place = names.Place.of(path)
    assert place is not None
    with waiting_lock(root / ".create.lock"):
        for other in names.places(root, place.identity):
            if other.seed == place.seed:
                raise MmctlError(f"run {other.label} exists already in {root}")
        os.rename(draft, path)  # refused if a folder with content is there
        files.fsync_folder(path.parent)


def set_aside(run: RunFolder, root: Path) -> Path:
    """Move a run to `root`/replaced/, so that another may take its place; returns where it is."""
    stem = f"{run.path.parent.name}-{run.path.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    target = root / "replaced" / stem
    target.parent.mkdir(parents=True, exist_ok=True)
    with run.lock():
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{stem}-{number}")
        run.path.rename(target)
    return target
