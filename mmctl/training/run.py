"""One run from configuration to finished folder: find or create, resume or skip, train, evaluate, record."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmctl.config import DEVICE, Config, identity
from mmctl.errors import EXIT_DONE, EXIT_FAILED, MmctlError, UsageError
from mmctl.runs import RunFolder
from mmctl.training.progress import LINE_EVERY_SECONDS, Listener, Progress, silent

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


def pick_device(wanted: str) -> str:
    """cpu or cuda:N for operation.device. UsageError when that device is not there."""
    import torch

    if not DEVICE.fullmatch(wanted):
        raise UsageError(f'operation.device="{wanted}": expected auto, cpu, cuda or cuda:N')
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda"):
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        index = int(wanted.partition(":")[2] or 0)
        if index >= count:
            found = f"torch sees {count} CUDA devices" if count else "torch sees no CUDA device"
            raise UsageError(f'operation.device="{wanted}": {found}; expected cpu or auto')
    return wanted


def load_model(run: RunFolder, device: str = "cpu", step: int | None = None) -> tuple[Model, Config]:
    """`load_trained` for those who need not know the step."""
    return load_trained(run, device, step)[:2]


def load_trained(run: RunFolder, device: str = "cpu", step: int | None = None) -> tuple[Model, Config, int]:
    """The model of a run's checkpoint, in evaluation mode, its configuration, and the checkpoint's step.

    step None: the last good one; of a finished run the last step's and no other, since its scores stand for the whole
    training. MmctlError when there is none, or when it does not fit the configuration.
    """
    from mmctl import models

    config = run.config()
    if step is None and run.finished:
        step = run.result().get("steps")
    payload = run.load_checkpoint(step, map_location=device)
    model = models.build(config).to(device)
    try:
        model.load_state_dict(payload["tensors"]["model"])
    except (KeyError, RuntimeError) as error:
        first = str(error).splitlines()[0].rstrip(":")
        raise MmctlError(f"{run.path}: its checkpoint and its config.yaml do not belong together ({first})") from None
    return model.eval(), config, payload["step"]


def execute(
    config: Config,
    root: Path,
    *,
    overrides: Sequence[str] = (),
    parent_run_id: str | None = None,
    listener: Listener = silent,
    tags: dict[str, str] | None = None,
) -> Outcome:
    """Do what is missing of this run, and say how it ended. Raised are usage errors, and Locked when another process has it."""
    config.validate()
    run = RunFolder.locate(root, config)
    if run is not None and run.finished and not _missing_suites(run, config):
        return Outcome("finished", run.path, skipped=True)
    device = pick_device(config.operation.device)
    _check_memory(config)
    run = run or _create(root, config, overrides)
    listener = _logged(listener, run)
    with run.lock(), _terminable():
        if run.finished:
            if not _missing_suites(run, config):
                return Outcome("finished", run.path, skipped=True)
            work = partial(_evaluate, run, config, device, listener)
        else:
            work = partial(_train, run, config, device, listener)
        return _guarded(run, work, _mirror(run, config, parent_run_id, tags))


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


def _check_memory(config: Config) -> None:
    """UsageError for a model or a step's tokens that this machine's memory can never hold, before anything is made."""
    from mmctl.models import flops
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


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises `Stopped` where nobody handles it, as SIGINT raises KeyboardInterrupt: the state gets recorded."""
    from mmctl.training.loop import Stopped

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(number: int, _: Any) -> None:
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _mirror(run: RunFolder, config: Config, parent_run_id: str | None, tags: dict[str, str] | None) -> Mirror | None:
    if not config.operation.mlflow:
        return None
    from mmctl.runs.mirror import Mirror

    return Mirror.start(run, parent_run_id, tags, config.operation.system_metrics)


def _guarded(run: RunFolder, work: Callable[[], None], mirror: Mirror | None) -> Outcome:
    """Turn every way of ending into a recorded state."""
    from mmctl.training.loop import Diverged, Interrupted

    try:
        work()
        state, reason, code = "finished", None, EXIT_DONE
    except Interrupted as stop:
        state, reason, code = "interrupted", str(stop), 128 + stop.signal
    except KeyboardInterrupt as stop:
        number = getattr(stop, "signal", signal.SIGINT)
        state, reason, code = "interrupted", f"{signal.Signals(number).name}, after the last checkpoint", 128 + number
    except Diverged as error:
        state, reason, code = "diverged", str(error), EXIT_FAILED
    except (MmctlError, OSError) as error:
        state, reason, code = "failed", str(error).splitlines()[0] if str(error) else type(error).__name__, EXIT_FAILED
        run.log(traceback.format_exc())
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else ""
        state, reason, code = "failed", f"{type(error).__name__}: {first}", EXIT_FAILED
        run.log(traceback.format_exc())
    try:
        run.set_state(state, reason)
    except MmctlError as error:  # such as a full disk: what happened is still said, and the state will read "lost"
        print(f"{run.label}: {state}, which cannot be recorded: {error}", file=sys.stderr)
    if mirror is not None:
        mirror.finish(state, reason)
    return Outcome(state, run.path, reason, exit_code=code)


def _train(run: RunFolder, config: Config, device: str, listener: Listener) -> None:
    import torch

    from mmctl import models
    from mmctl.data import fingerprint
    from mmctl.data.tokenizers import load_tokenizer
    from mmctl.models import flops
    from mmctl.runs import provenance
    from mmctl.runs.preflight import check
    from mmctl.training import loop

    torch.set_num_threads(config.training.threads)
    place = torch.device(device)
    if place.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    model = models.build(config).to(place)
    check(run.path, parameters=model.parameter_count(), keep=config.operation.keep)
    vocabulary, length = config.data.vocabulary, config.data.length
    executed = flops.flops_per_token(config.model, vocabulary, length, "executed")
    resume = None
    if run.latest_checkpoint() is not None:
        resume = run.load_checkpoint(map_location=device)
        run.truncate_metrics(resume["state"]["step"])
        print(f"{run.label}: resuming from step {resume['state']['step']}", file=sys.stderr)
    else:
        if steps := run.checkpoint_steps():
            print(f"{run.label}: no whole checkpoint (damaged: {steps}); starting from step 0", file=sys.stderr)
        run.truncate_metrics(0)
    if "corpora" not in run.provenance():
        run.add_provenance(corpora=fingerprint(config.data))
    if "text" in config.data.tasks_in_mixture():
        load_tokenizer(config.data).save(run.path)
    run.add_provenance(kernels=provenance.kernels(model, place, config.training.precision))
    run.set_state("running", device=device)

    def metrics(step: int, values: dict[str, float]) -> None:
        run.append_metrics(step, values)
        run.heartbeat(step)

    def checkpoint(step: int, payload: dict[str, Any]) -> None:
        run.save_checkpoint(step, payload, keep=config.operation.keep)  # what is asked for now, not when it was made

    hooks = loop.Hooks(metrics, checkpoint, listener, run.label)
    outcome = loop.train(model, config, place, hooks, resume, executed)
    interrupted = outcome.pop("interrupted")
    result = {
        **outcome,
        "parameters": model.parameter_count(),
        "flops_per_token/executed": executed,
        "flops_per_token/published": flops.flops_per_token(config.model, vocabulary, length, "published"),
        "diagnostics": model.diagnostics(),
        "identity": identity(config),
        "seed": config.seed,
        "device": device,
        "versions": versions(),
    }
    if interrupted:
        # The last step is saved; the evaluations and result.json are made on the next start.
        raise loop.Interrupted(interrupted)
    _evaluate(run, config, device, listener, model)
    run.write_result(result)


def _missing_suites(run: RunFolder, config: Config) -> list[str]:
    from mmctl.evaluation import find_evaluation, wanted_suites

    return [suite for suite in wanted_suites(config) if find_evaluation(run, config, suite) is None]


def _evaluate(run: RunFolder, config: Config, device: str, listener: Listener, model: Model | None = None) -> None:
    """Evaluate the suites that are missing, or made with other settings, and record them."""
    import torch

    from mmctl.evaluation import evaluate, stem_in

    missing = _missing_suites(run, config)
    if missing and model is None:
        torch.set_num_threads(config.training.threads)
        model, _ = load_model(run, device)
    for number, suite in enumerate(missing, 1):
        listener(Progress(run.label, f"evaluating {suite}", number, len(missing)))
        scores = evaluate(model, config, suite, device=device)
        run.write_evaluation(stem_in(run, config, suite), scores)


def versions() -> dict[str, str]:
    """Versions that a number depends on."""
    import platform

    import numpy
    import torch

    from mmctl import __version__

    return {
        "mmctl": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
