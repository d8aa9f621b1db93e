"""A function on several processes that meet as torchrun's would, from a server that has imported torch once."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from tiny import tiny_overrides

from mmctl import models
from mmctl.config import Config, load
from mmctl.training.environment import from_environment

TIMING = ("seconds", "time")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.device_mesh",
        "torch.distributed.tensor", "torch._dynamo", "torch.distributed.algorithms", "mmctl.config", "mmctl.training.loop",
        "mmctl.training.run", "mmctl.models.mosaic_v2", "mmctl.models.mosaic_v1", "mmctl.models.transformer_masks",
        "mmctl.runs.shards", "mmctl.evaluation.scoring", "mmctl.data.recall", "mmctl.data.facts", "psutil",
    ]
)  # fmt: skip
"""A process made from the server then needs a second instead of five."""


def on(size: int, function: Callable[..., Any], *arguments: Any, seconds: float = 60) -> list[Any]:
    """function(ranks, *arguments) on `size` processes: what each returned, or "killed by N", or the exception's
    text."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
    processes = [
        CONTEXT.Process(target=_one, args=(ends[rank][1], rank, size, port, function, arguments))
        for rank in range(size)
    ]
    for process, (_, theirs) in zip(processes, ends, strict=True):
        process.start()
        theirs.close()
    results: list[Any] = []
    for process, (ours, _) in zip(processes, ends, strict=True):
        try:
            results.append(ours.recv() if ours.poll(seconds) else "no answer")
        except EOFError:
            process.join(seconds)
            results.append(f"killed by {-(process.exitcode or 0)}")
    for process in processes:
        process.join(5)
        process.kill()
    return results


def _one(pipe: Any, rank: int, size: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    try:
        result = function(from_environment(), *arguments)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    pipe.send(result)
    pipe.close()
    os._exit(0)


def tiny_config(*words: str) -> Config:
    """The tiny run of a model, on the CPU whatever there is; `words` replace its own."""
    name = next((w.partition("=")[2] for w in words if w.startswith("model.name=")), "mosaic-v2")
    fields = {f"model.{f}" for f in models.config_class(name).__dataclass_fields__}
    given = {w.partition("=")[0] for w in words}
    kept = [w for w in tiny_overrides() if w.partition("=")[0] not in given]
    kept = [w for w in kept if not w.startswith("model.") or w.partition("=")[0] in fields]
    return load("smoke", [*kept, "operation.device=cpu", *words])


def without_clock(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in TIMING and v is not None}
