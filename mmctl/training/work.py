"""What is done inside a run's lock: train from the newest checkpoint, evaluate what is missing, write the result.

Every process of a run goes through here; the first one alone writes its folder.
"""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mmctl.config import Config, identity
from mmctl.errors import MmctlError, OutOfMemory
from mmctl.runs import RunFolder
from mmctl.training.prepare import prepare
from mmctl.training.progress import Listener, Progress
from mmctl.training.ranks import ALONE, Interrupted, Ranks

if TYPE_CHECKING:
    from mmctl.models.base import Model

BEAT = 5.0
"""Seconds between signs of life while a run evaluates."""


def train(run: RunFolder, config: Config, device: str, listener: Listener, ranks: Ranks = ALONE) -> None:
    """Train `run` to its last step, evaluate it and write its result. Raises Interrupted, Diverged or MmctlError."""
    import torch

    from mmctl import models
    from mmctl.models import flops
    from mmctl.training import loop, selection

    torch.set_num_threads(config.training.threads)
    place = torch.device(device)
    if place.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    with memory_explained(config):
        model = ranks.place(prepare(models.build(config), config.training), device)
        resume = ranks.resume(run, model, device)
    if ranks.first:
        _begin(run, config, model, place, resume, ranks)
    vocabulary, length = config.data.vocabulary, config.data.length
    executed = flops.flops_per_token(config.model, vocabulary, length, "executed")

    def metrics(step: int, values: dict[str, float]) -> None:
        if ranks.first:
            run.append_metrics(step, values)

    def checkpoint(step: int, payload: dict[str, Any]) -> None:
        if ranks.first:  # whatever happens to the file, a resumed run has them all
            payload["state"]["metrics"] = run.copy_metrics()
        ranks.save(run, step, payload, config.operation.keep)  # what is asked for now, not when it was made

    def listen(progress: Progress) -> None:
        if ranks.first:
            run.heartbeat(progress.step)
        listener(progress)

    hooks = loop.Hooks(metrics, checkpoint, listen, run.label)
    with memory_explained(config):
        outcome = loop.train(model, config, place, hooks, resume, executed, ranks)
    interrupted = outcome.pop("interrupted")
    result = {
        **outcome,
        "parameters": model.parameter_count(),
        "flops_per_token/executed": executed,
        "flops_per_token/published": flops.flops_per_token(config.model, vocabulary, length, "published"),
        "diagnostics": {**ranks.diagnostics(model), **selection.diagnostics(outcome)},
        "identity": identity(config),
        "seed": config.seed,
        "device": device,
        "versions": versions(),
    }
    if interrupted:
        # The last step is saved; the evaluations and result.json are made on the next start.
        raise Interrupted(interrupted)
    evaluate(run, config, device, listener, model, ranks, outcome["steps"])
    if ranks.first:
        run.write_result(result)


def _begin(
    run: RunFolder, config: Config, model: Model, place: Any, resume: dict[str, Any] | None, ranks: Ranks
) -> None:
    """Check the disk, cut what lies beyond the checkpoint, and record where and how this part of the run is trained."""
    from mmctl.data import fingerprint
    from mmctl.data.tokenizers import load_tokenizer
    from mmctl.runs import process, provenance
    from mmctl.runs.preflight import check

    check(
        run.path,
        parameters=model.parameter_count(),
        keep=config.operation.keep,
        best=config.training.select is not None,
    )
    start = resume["state"]["step"] if resume is not None else 0
    if resume is not None:
        print(f"{run.label}: resuming from step {start}", file=sys.stderr)
    elif steps := run.checkpoint_steps():
        print(f"{run.label}: no whole checkpoint (damaged: {steps}); starting from step 0", file=sys.stderr)
    run.cut_checkpoints(start)
    if resume is not None and run.restore_metrics(resume["state"].get("metrics")):
        print(f"{run.label}: metrics.jsonl was damaged; its rows are those of step {start} again", file=sys.stderr)
    run.truncate_metrics(start)
    if "text" in config.data.tasks_in_mixture():
        load_tokenizer(config.data).save(run.path)
    if "corpora" not in run.provenance():
        run.add_provenance(corpora=fingerprint(config.data))
    # The number of processes is no part of the identity: it changes the order of sums, so rounding, and nothing else.
    segment = {"from_step": start, "world_size": ranks.size, "device": str(place), "host": process.host()}
    segments = [s for s in run.provenance().get("segments", []) if s["from_step"] < start]
    run.add_provenance(
        kernels=provenance.kernels(model, place, config.training.precision), segments=[*segments, segment]
    )
    run.set_state("running", device=str(place), processes=ranks.size)


def missing_suites(run: RunFolder, config: Config) -> list[str]:
    """What config.evaluation asks for and `run` does not have with these settings, undamaged: suites, validation."""
    from mmctl.evaluation import lacks_evaluation, scored_at_end

    return [suite for suite in scored_at_end(config) if lacks_evaluation(run, config, suite)]


def say_outdated(run: RunFolder, config: Config) -> None:
    """On stderr: which of a finished run's evaluations are older than a score, and whether they are made again."""
    from mmctl.evaluation import find_evaluation, scored_at_end, versions

    for suite in scored_at_end(config):
        with suppress(MmctlError):  # damaged: made again whatever its age
            found = find_evaluation(run, config, suite)
            for score in versions.outdated(found[1]) if found is not None else ():
                line = versions.older(score, versions.can_be_made_again(run), run.label)
                print(f"mmctl: {line}", file=sys.stderr)


def evaluate(
    run: RunFolder,
    config: Config,
    device: str,
    listener: Listener,
    model: Model | None = None,
    ranks: Ranks = ALONE,
    ended: int | None = None,
) -> None:
    """Evaluate the suites that are missing, outdated or made with other settings, and record them. `ended`: the step that
    training ended at (None: what result.json says), shown as the run's meanwhile.

    With divided parameters all processes run the same examples together: each pass needs all of them.
    """
    import torch

    from mmctl.evaluation import evaluate as measure
    from mmctl.evaluation import stem_in
    from mmctl.training.run import load_model

    missing = ranks.agree(missing_suites(run, config))
    if missing and model is None:
        torch.set_num_threads(config.training.threads)
        model = ranks.place(load_model(run)[0], device)
    step = run.result().get("steps", config.training.steps) if ended is None else ended
    with heartbeats(run, step, ranks.first), memory_explained(config):
        for number, suite in enumerate(missing, 1):
            listener(Progress(run.label, f"evaluating {suite}", number, len(missing)))
            scores = measure(model, config, suite, device=device)
            if ranks.first:
                run.write_evaluation(stem_in(run, config, suite), scores)


@contextmanager
def heartbeats(run: RunFolder, step: int, wanted: bool = True) -> Iterator[None]:
    """Signs of life from a thread: one task of an evaluation can take longer than a silent run is given."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT):
            try:
                run.heartbeat(step)
            except (MmctlError, OSError):  # a full disk stops what writes results, not this
                continue

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if wanted:
            thread.join()


@contextmanager
def memory_explained(config: Config) -> Iterator[None]:
    """OutOfMemory, naming the setting that would fit, for every way in which Python and torch say that memory ran
    out."""
    from mmctl.runs import memory

    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not memory.happened(error):
            raise
        need, parts = memory.estimate(config), config.training.accumulation
        raise OutOfMemory(memory.reason(config), memory.fitting(config, need.total, least=2 * parts)) from error


def versions() -> dict[str, str]:
    """Versions that a number depends on."""
    import numpy
    import torch

    from mmctl import __version__

    return {
        "mmctl": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }
