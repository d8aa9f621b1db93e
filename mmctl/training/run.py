"""One run from configuration to finished folder: find or create, resume or skip, train, evaluate, record."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.config import Config
from mmctl.errors import EXIT_DONE, EXIT_FAILED, MmctlError, UsageError
from mmctl.runs import RunFolder
from mmctl.training import work
from mmctl.training.progress import LINE_EVERY_SECONDS, Listener, Progress, silent
from mmctl.training.ranks import ALONE, Diverged, Interrupted, Ranks
from mmctl.training.ranks import pick_device as pick_device
from mmctl.training.signals import Terminable
from mmctl.training.work import versions as versions

if TYPE_CHECKING:
    from mmctl.models.base import Model
    from mmctl.runs.mirror import Mirror


@dataclass
class Outcome:
    """How a run ended: its state, folder, reason (one line), and whether nothing had to be done."""

    state: str
    path: Path
    reason: str | None = None
    skipped: bool = False
    exit_code: int = EXIT_DONE


def load_model(run: RunFolder, device: str = "cpu", step: int | None = None) -> tuple[Model, Config]:
    """`load_trained` for those who need not know the step."""
    return load_trained(run, device, step)[:2]


def load_trained(run: RunFolder, device: str = "cpu", step: int | None = None) -> tuple[Model, Config, int]:
    """The model of a run's checkpoint, in evaluation mode, its configuration, and the step its weights are of.

    step None: the last good one; of a finished run the last step's and no other, since its scores stand for the whole
    training. With training.select its weights are the best ones that checkpoint knows, unless `step` asks for those of
    a step. MmctlError when there is none, or when it does not fit the configuration.
    """
    from mmctl import models

    config = run.config()
    asked = step
    if step is None and run.finished:
        step = run.result().get("steps")
    payload = run.load_checkpoint(step, map_location=device)
    weights, of_step = payload["tensors"].get("model"), payload["step"]
    if asked is None and "best" in payload["tensors"]:
        weights, of_step = payload["tensors"]["best"], payload["state"]["selection"]["step"]
    model = models.build(config).to(device)
    try:
        model.load_state_dict(weights)
    except (TypeError, RuntimeError) as error:
        first = str(error).splitlines()[0].rstrip(":")
        raise MmctlError(f"{run.path}: its checkpoint and its config.yaml do not belong together ({first})") from None
    return model.eval(), config, of_step


def execute(
    config: Config,
    root: Path,
    *,
    overrides: Sequence[str] = (),
    parent_run_id: str | None = None,
    listener: Listener = silent,
    tags: dict[str, str] | None = None,
    ranks: Ranks = ALONE,
) -> Outcome:
    """Do what is missing of this run, and say how it ended. Raised are usage errors, and Locked when another process
    has it.

    Every process of `ranks` calls this; the first one decides, writes and speaks, the others follow it.
    """
    config.validate()
    ranks.connect(config)
    try:
        if not ranks.first:
            return _follow(config, ranks)
        run = RunFolder.locate(root, config)
        if run is not None and run.finished:
            work.say_outdated(run, config)
            if not work.missing_suites(run, config):
                return _nothing_to_do(run, ranks)
        device = ranks.device(config.operation.device)
        _check_memory(config, device)
        run = run or _create(root, config, overrides)
        listener = _logged(listener, run)
        with run.lock(), Terminable() as signals:
            if run.finished and not work.missing_suites(run, config):
                return _nothing_to_do(run, ranks)
            todo = "evaluate" if run.finished else "train"
            ranks.tell("work", todo=todo, path=str(run.path))
            doing = partial(DOING[todo], run, config, device, listener, ranks=ranks)
            return _guarded(run, doing, _mirror(run, config, parent_run_id, tags), ranks, signals)
    except BaseException as error:
        ranks.tell("work", todo=None, state="failed", path=str(root), code=getattr(error, "exit_code", EXIT_FAILED))
        raise
    finally:
        ranks.part()


DOING: dict[str, Callable[..., None]] = {"train": work.train, "evaluate": work.evaluate}


def _nothing_to_do(run: RunFolder, ranks: Ranks) -> Outcome:
    ranks.tell("work", todo=None, state="finished", path=str(run.path), code=EXIT_DONE)
    return Outcome("finished", run.path, skipped=True)


def _follow(config: Config, ranks: Ranks) -> Outcome:
    """What every process but the first does: the same work, nothing written, and the first one's way of ending."""
    # Said by one of them; `mmctl train --processes` says it itself.
    reason = f"process 0 of {ranks.size} is gone (killed?)" if ranks.rank == 1 and not ranks.launched else None
    gone = Outcome("failed", Path(), reason, exit_code=EXIT_FAILED)
    told = ranks.hear("work")
    if told is None:
        return gone
    if told["todo"] is None:
        return Outcome(told["state"], Path(told["path"]), exit_code=told["code"])
    run, patience = RunFolder.open(told["path"]), None
    with Terminable() as signals:
        try:
            DOING[told["todo"]](run, config, ranks.device(config.operation.device), silent, ranks=ranks)
        except (Interrupted, Diverged):
            pass  # all of them, at the same step
        except (Exception, KeyboardInterrupt) as error:
            ranks.report(error)
            patience = RECORDING
        signals.muted = True  # the launcher ends all when one ends: by then everything is said
        ended = ranks.hear("outcome", patience)
    return gone if ended is None else Outcome(ended["state"], run.path, exit_code=ended["code"])


RECORDING = 2.0
"""Seconds a process that failed leaves the first one to notice and to record it, before its end has all of them
ended."""


def _create(root: Path, config: Config, overrides: Sequence[str]) -> RunFolder:
    """A new run, or the one that another command has made this very moment: its lock then says who has it."""
    try:
        return RunFolder.create(root, config, overrides)
    except MmctlError:
        run = RunFolder.locate(root, config)
        if run is None:
            raise
        return run


def _logged(listener: Listener, run: RunFolder) -> Listener:
    """The listener, with a timed line in the run's log.txt at every change of phase and every 10 seconds."""
    seen: dict[str, Any] = {"phase": "", "time": 0.0}

    def both(progress: Progress) -> None:
        listener(progress)
        now = time.monotonic()
        if (
            progress.phase != seen["phase"]
            or progress.step == progress.steps
            or now - seen["time"] >= LINE_EVERY_SECONDS
        ):
            seen["phase"], seen["time"] = progress.phase, now
            run.log(f"{time.strftime('%H:%M:%S')} {progress.line()}\n")

    return both


def _check_memory(config: Config, device: str) -> None:
    """UsageError for a model or a step's tokens that this machine's memory can never hold, before anything is made."""
    from mmctl.models import flops
    from mmctl.runs.memory import check_lengths
    from mmctl.runs.preflight import memory, size

    have = memory()
    parameters = flops.parameters(config.model, config.data.vocabulary)
    tokens = config.data.batch * config.data.length
    for need, what in (
        (4 * parameters, f"model: {parameters:,} parameters need"),
        (16 * tokens, f"data.batch={config.data.batch}, data.length={config.data.length}: a step's tokens need"),
    ):
        if have is not None and need > have:
            raise UsageError(f"{what} {size(need)}, this machine has {size(have)} of memory")
    if device == "cpu":
        check_lengths(config)


def _mirror(run: RunFolder, config: Config, parent_run_id: str | None, tags: dict[str, str] | None) -> Mirror | None:
    if not config.operation.mlflow:
        return None
    from mmctl.runs.mirror import Mirror

    return Mirror.start(run, parent_run_id, tags, config.operation.system_metrics)


def _guarded(
    run: RunFolder, doing: Callable[[], None], mirror: Mirror | None, ranks: Ranks, signals: Terminable
) -> Outcome:
    """Turn every way of ending into a recorded state."""
    fits: str | None = None
    try:
        doing()
        state, reason, code = "finished", None, EXIT_DONE
    except (Exception, KeyboardInterrupt) as raised:
        signals.muted = ranks.size > 1  # the other processes' launcher may be ending all of them
        error = ranks.explain(raised)
        state, reason, code = ending(error)
        if state == "failed":
            run.log(traceback.format_exc())
        fits = getattr(error, "fits", None)
    try:
        run.set_state(state, reason, fits=fits)
    except MmctlError as error:  # such as a full disk: what happened is still said, and the state will read "lost"
        print(f"{run.label}: {state}, which cannot be recorded: {error}", file=sys.stderr)
    if mirror is not None:
        mirror.finish(state, reason)
    ranks.tell("outcome", state=state, code=code)
    return Outcome(state, run.path, reason, exit_code=code)


def ending(error: BaseException) -> tuple[str, str, int]:
    """State, reason (one line) and exit code of a run that `error` ended."""
    first = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, Interrupted):
        return "interrupted", str(error), 128 + error.signal
    if isinstance(error, KeyboardInterrupt):
        number = getattr(error, "signal", signal.SIGINT)
        return "interrupted", f"{signal.Signals(number).name}, after the last checkpoint", 128 + number
    if isinstance(error, Diverged):
        return "diverged", str(error), EXIT_FAILED
    if isinstance(error, MmctlError | OSError):
        return "failed", first or type(error).__name__, EXIT_FAILED
    return "failed", f"{type(error).__name__}: {first}", EXIT_FAILED
