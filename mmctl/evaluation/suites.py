"""Suites: a dimension of memory and the tasks that measure it. A task says itself which dimension it belongs to."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from mmctl.data import TASKS, task_class
from mmctl.errors import MmctlError, UsageError, nearest
from mmctl.evaluation.changes import AS_TRAINED, Changes
from mmctl.evaluation.versions import as_it_counts, can_be_made_again, outdated

LONGEST_MARK = 32
"""Characters of settings in a file's name."""

DIMENSIONS = ("persistent", "new-knowledge", "in-context")

VALIDATION = "validation"
"""Not a suite: the losses that choices are made by (validation.py), in a file beside the suites'."""

ATTENTION = "attention"
"""Neither: where the last query looks (attention.py), in a file beside theirs too, and reported as theirs are."""


class _Suites(Mapping[str, list[str]]):
    """Read from the registry each time, since a plugin may have brought a task."""

    def __getitem__(self, dimension: str) -> list[str]:
        if dimension not in DIMENSIONS:
            raise KeyError(dimension)
        return [name for name in TASKS if task_class(name).dimension == dimension]

    def __iter__(self) -> Iterator[str]:
        return iter(DIMENSIONS)

    def __len__(self) -> int:
        return len(DIMENSIONS)


SUITES: Mapping[str, list[str]] = _Suites()
"""Suite -> tasks."""


def suite_tasks(suite: str) -> list[str]:
    """Tasks of a suite. UsageError with the nearest name when there is no such suite."""
    if suite not in SUITES:
        raise UsageError(f'suite "{suite}": no such suite{nearest(suite, SUITES, "suites")}')
    return SUITES[suite]


def tasks_of(config: Any, suite: str) -> list[str]:
    """Tasks whose sequences are read to measure a suite, or ATTENTION."""
    if suite == ATTENTION:
        from mmctl.evaluation.attention import usual_task

        return [usual_task(config)]
    return suite_tasks(suite)


def wanted_suites(config: Any) -> list[str]:
    """Suites of config.evaluation.suites that have at least one task the run is trained on."""
    trained = set(config.data.tasks_in_mixture())
    return [suite for suite in config.evaluation.suites if trained & set(suite_tasks(suite))]


def scored_at_end(config: Any) -> list[str]:
    """What is measured at the end of a run: what is reported, and with evaluation.validation the validation losses."""
    return [*reported(config), *([VALIDATION] if config.evaluation.validation else [])]


def reported(config: Any, changes: Changes = AS_TRAINED) -> list[str]:
    """What is measured of a run, trained or changed, for reports: its suites, and with evaluation.attention where the
    trained one looks."""
    looks = bool(config.evaluation.attention) and not changes
    return [*wanted_suites(config), *([ATTENTION] if looks else [])]


def file_stem(suite: str, changes: Changes = AS_TRAINED) -> str:
    """Name of an evaluation's file in a run folder, without ".json": suite, then what was changed."""
    return suite + changes.mark()


def settings_dict(config: Any, settings: Any = None, suite: str = "") -> dict[str, Any]:
    """What decides which examples are drawn and how intervals are made; recorded with every evaluation. Of ATTENTION also
    how many positions are near."""
    s = settings or config.evaluation
    return {
        "training_length": config.data.length,
        "lengths": list(s.lengths),
        "examples": s.examples,
        "minimum_examples": s.minimum_examples,
        "seed": s.seed,
        "resamples": s.resamples,
        "precision": "float32",
        **({"near": s.attention} if suite == ATTENTION else {}),
    }


def settings_mark(own: Any, asked: Any, suite: str = "") -> str:
    """What is added to a file's name where the settings of `asked` differ from the run's `own` (configurations both),
    so that the run's own evaluation is never replaced; "" where they do not. A long mark is hashed: the file holds
    all."""
    mine, theirs = settings_dict(own, suite=suite), settings_dict(asked, suite=suite)
    changed = {key: value for key, value in theirs.items() if value != mine[key]}
    words = {k: "-".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in changed.items()}
    mark = "".join(f"+{key}={value}" for key, value in sorted(words.items()))
    return mark if len(mark) <= LONGEST_MARK else f"+settings={hashlib.sha256(mark.encode()).hexdigest()[:8]}"


def stem_in(run: Any, config: Any, suite: str, changes: Changes = AS_TRAINED) -> str:
    """`file_stem` for an evaluation of `run` (a RunFolder) with config's settings: marked where they are not the
    run's."""
    stem = file_stem(suite, changes)
    with contextlib.suppress(MmctlError):  # damaged: to be made again under the name it has
        if same_settings(run.evaluation(stem), config):
            return stem  # nearly always, and it spares reading the run's configuration
    try:
        own = run.config()
    except MmctlError:  # damaged: whoever loads the run says so; reading scores must not stop a whole sweep
        return stem
    return stem + settings_mark(own, config, suite)


def find_evaluation(
    run: Any, config: Any, suite: str, changes: Changes = AS_TRAINED
) -> tuple[str, dict[str, Any]] | None:
    """(Stem, evaluation) that `run` has of this suite and these changes with config's settings; None if it has none.
    MmctlError if its file is damaged."""
    stem = stem_in(run, config, suite, changes)
    evaluation = run.evaluation(stem)
    return (stem, as_it_counts(evaluation)) if evaluation is not None and same_settings(evaluation, config) else None


def lacks_evaluation(run: Any, config: Any, suite: str, changes: Changes = AS_TRAINED) -> bool:
    """Whether it is to be made: `find_evaluation` finds none, one whose file is damaged, which holds nothing to keep, or
    one that is outdated and can be made again."""
    try:
        found = find_evaluation(run, config, suite, changes)
        return found is None or bool(outdated(found[1]) and can_be_made_again(run))
    except MmctlError:
        return True


def same_settings(evaluation: dict[str, Any] | None, config: Any) -> bool:
    """Whether a recorded evaluation (None: there is none) is what config.evaluation asks for."""
    if evaluation is None:
        return False
    return bool(evaluation.get("settings") == settings_dict(config, suite=evaluation.get("suite", "")))
