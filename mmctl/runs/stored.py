"""Reading the configuration that a run's folder keeps: never evaluated, never completed, never taken for another's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.errors import MmctlError, UsageError, first_line

if TYPE_CHECKING:
    from mmctl.config import Config
    from mmctl.runs.folder import RunFolder


def config_dict(path: Path) -> dict[str, Any]:
    """config.yaml as written. MmctlError in one line if damaged."""
    from mmctl import plain

    try:
        content = plain.load(path.read_text(encoding="utf-8"))  # nothing in a run's folder is evaluated
    except FileNotFoundError:
        raise MmctlError(f"{path}: no such file") from None
    except Exception as error:  # YAML and OmegaConf raise many kinds
        raise MmctlError(f"{path}: damaged: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise MmctlError(f"{path}: damaged: no mapping of keys")
    return content


def config(run: RunFolder) -> Config:
    """What config.yaml says, checked: nothing lost, nothing changed since the run was made."""
    from mmctl.config import Config, from_dict

    content = run.config_dict()
    # Defaults must never stand in for what a damaged file has lost.
    lost = [key for key in ("schema", *(f.name for f in fields(Config))) if key not in content]
    if lost:
        raise MmctlError(f"{run.path / 'config.yaml'}: damaged: {', '.join(lost)} missing")
    try:
        made = from_dict(content)
        check_identity(run, made)
    except UsageError as error:
        raise MmctlError(f"{run.path / 'config.yaml'}: {error}") from None
    if (run.path / "tokenizer.json").is_file():
        made.data.tokenizer = str(run.path / "tokenizer.json")  # the one it was trained with
    return made


def check_identity(run: RunFolder, config: Config) -> None:
    """MmctlError if these are not the settings that the run was made with: an edit by hand would pass for a result.

    Keys that came later are filled in with what they meant before (config.AS_BEFORE), so older runs keep their
    identity.
    """
    from mmctl.config import identity

    try:
        corpora = run.provenance().get("corpora")
    except MmctlError:
        corpora = None
    try:
        found = identity(config, corpora if isinstance(corpora, dict) else None)
    except UsageError:
        return  # its corpus is not here any more
    if found != run.identity or config.seed != run.seed:
        raise MmctlError(
            f"{run.path / 'config.yaml'}: changed since the run was made (its settings have identity {found}, seed "
            f"{config.seed}; the folder {run.identity}, seed {run.seed}): restore it, or train them as a run of their own"
        )
