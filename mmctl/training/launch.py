"""`mmctl train --processes N`: start the same command N times on this machine, by torch.distributed.run.

torchrun's own report of a failure is a table and a traceback; the processes have said what happened, so here one line
is left to say: that one was killed, which it could not say itself.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mmctl.config import Config
from mmctl.errors import EXIT_FAILED, UsageError
from mmctl.runs import RunFolder
from mmctl.runs.lock import Locked
from mmctl.training.distributed import check_shares
from mmctl.training.environment import LAUNCHER

OPTION = "--processes"
SAVING = 120
"""Seconds that processes told to stop have for the step they are in and its checkpoint; torchrun itself gives 30."""


def launch(config: Config, processes: int, arguments: Sequence[str], root: Path) -> int:
    """Run `mmctl ARGUMENTS` as `processes` processes, and return the exit code of the run they share.

    Raises UsageError, before anything is started, when the run cannot be divided among them.
    """
    if processes < 1:
        raise UsageError(f"{OPTION} {processes}: expected a whole number of at least 1")
    if "WORLD_SIZE" in os.environ:
        raise UsageError(f"{OPTION} {processes}: this command is one of torchrun's processes already")
    check_shares(config, processes)
    _check_devices(config, processes)
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    for name in [n for n in logging.root.manager.loggerDict if n.startswith("torch.distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(config.training.threads))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else each process that loses another says so in many lines
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING))
    os.environ[LAUNCHER] = str(os.getpid())
    if sys.platform == "linux":  # one machine: the name it goes by need not lead back to it
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    words = ["--standalone", "--local-addr=localhost", f"--nproc-per-node={processes}", "-m", "mmctl"]
    try:
        run(get_args_parser().parse_args([*words, *arguments]))
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        return _failed(config, root, processes, codes)
    except SignalException as stop:
        return 128 + int(stop.sigval)
    return 0


def without_option(arguments: Sequence[str]) -> list[str]:
    """The command line of each process: `arguments` without --processes N."""
    kept, skip = [], False
    for word in arguments:
        if not skip and word != OPTION and not word.startswith(OPTION + "="):
            kept.append(word)
        skip = word == OPTION and not skip
    return kept


def _check_devices(config: Config, processes: int) -> None:
    """UsageError unless there is a CUDA device a process, where CUDA is what they take."""
    import torch

    wanted = config.operation.device
    if wanted == "cpu" or not torch.cuda.is_available():
        return
    if ":" in wanted and processes > 1:
        raise UsageError(f'operation.device="{wanted}": every process takes a device of its own, expected cuda or cpu')
    if processes > torch.cuda.device_count():
        raise UsageError(
            f"{OPTION} {processes}: expected at most {torch.cuda.device_count()}, the CUDA devices of this machine, "
            "or operation.device=cpu"
        )


def _failed(config: Config, root: Path, processes: int, codes: dict[int, int]) -> int:
    """The exit code for processes that ended with `codes` (negative: by that signal); a killed first one is said and
    recorded."""
    spoken = next((code for code in codes.values() if code > 0), EXIT_FAILED)
    killed = [(rank, -code) for rank, code in codes.items() if code < 0]
    found = RunFolder.locate(root, config)
    if not killed or (found is not None and found.state() != "lost"):
        return spoken  # the first process has recorded and said it
    reason = f"process {killed[0][0]} of {processes} was ended by {_name(killed[0][1])}"
    if found is not None:
        # Somebody else may go on with it already: then it is theirs to say.
        with suppress(Locked), found.lock(lambda text: None):
            found.set_state("failed", reason)
    print(f"mmctl: {'the run' if found is None else found.label} failed: {reason}", file=sys.stderr)
    return spoken


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
