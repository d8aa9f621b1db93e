"""One run on several processes: FSDP2 over a process group, started by `torchrun` or `mmctl train --processes N`.

Parameters, gradients and optimizer states are divided among the processes, block by block. Everything else is agreed by
construction: each process draws the whole batch and this step's m from the run's own generators and takes its share of
the sequences. Rank 0 alone writes the run's folder, but for each process's part of a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mmctl.config import Config
from mmctl.errors import MmctlError, UsageError
from mmctl.training.environment import LAUNCHER, int_of
from mmctl.training.messages import Messages
from mmctl.training.ranks import Ranks, pick_device

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from mmctl.models.base import Model
    from mmctl.runs import RunFolder

PATIENCE = timedelta(minutes=30)
"""How long a collective waits for the other processes: longer than any of them writes a checkpoint."""
SMALL = 2**16
"""Scalars up to which a parameter is put together for `Model.diagnostics`, which reads bandwidths and no matrices."""


def check_shares(config: Config, processes: int) -> None:
    """UsageError unless every process gets the same number of sequences of each step."""
    if config.data.batch % processes:
        below, above = config.data.batch // processes * processes, -(-config.data.batch // processes) * processes
        raise UsageError(
            f"data.batch={config.data.batch}: expected a multiple of the {processes} processes that share it, such as "
            f"{' or '.join(str(n) for n in (below, above) if n)}"
        )


class Group(Ranks):
    """Process `rank` of `size`, the `local`-th on its machine."""

    def __init__(self, rank: int, size: int, local: int = 0) -> None:
        self.rank, self.size, self.local = rank, size, local
        self._messages: Messages | None = None

    @property
    def speaks(self) -> bool:
        return self.local == 0

    @property
    def launched(self) -> bool:
        return LAUNCHER in os.environ

    def leave(self, code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # Before training

    def device(self, wanted: str) -> str:
        """One CUDA device a process, by its number on the machine."""
        device = pick_device(wanted)
        if device.startswith("cuda"):
            import torch

            if ":" in device:
                raise UsageError(f'operation.device="{wanted}": every process takes a device of its own, expected cuda')
            here, count = max(int_of("LOCAL_WORLD_SIZE") or 0, self.local + 1), torch.cuda.device_count()
            if here > count:
                raise UsageError(
                    f"{here} processes on this machine, where torch sees {count} CUDA device(s): expected at most one "
                    "process a device, or operation.device=cpu"
                )
            device = f"cuda:{self.local}"
            torch.cuda.set_device(self.local)
        return device

    def connect(self, config: Config) -> None:
        """Tensors go by nccl on CUDA and by gloo on CPU, everything else by gloo."""
        import torch.distributed as dist

        check_shares(config, self.size)
        device = self.device(config.operation.device)
        if self._messages is not None:
            return
        store, _, _ = next(dist.rendezvous("env://", timeout=PATIENCE))
        messages = Messages(store, self.rank, self.size)
        backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(
            backend, store=dist.PrefixStore("mmctl/group", store), rank=self.rank, world_size=self.size,
            timeout=PATIENCE,
        )  # fmt: skip
        # Our own few numbers a step must not wait behind, or be mixed with, what FSDP sends.
        self.control = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._messages = messages

    def place(self, model: Model, device: str) -> Model:
        """Divide the parameters: FSDP2, one group a block and one for embedding, last norm and classifier.

        Gradients are summed, not averaged: each process's loss is its part of the step's loss.
        """
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        scalar = next((name for name, p in model.named_parameters() if not p.dim()), None)
        if scalar is not None:
            raise MmctlError(
                f"{scalar}: a parameter without dimensions cannot be divided among processes, expected (1,)"
            )
        mesh = init_device_mesh(torch.device(device).type, (self.size,))
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            module.set_gradient_divide_factor(1.0)  # type: ignore[operator,union-attr]
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator,union-attr]
            register_fsdp_forward_method(module, "last_query_weights")  # it needs the parameters whole, as forward does
        return model.to(device)

    # While training

    def rows(self, count: int, parts: int) -> list[np.ndarray]:
        """Every `size`-th sequence, so that each process gets some of every task. A part holds no more sequences than
        it would with one process: with enough parts to share, each process goes through fewer of them."""
        import numpy as np

        own = np.arange(self.rank, count, self.size)
        return [rows for rows in np.array_split(own, -(-parts // self.size)) if len(rows)]

    def add(self, values: Sequence[float]) -> list[float]:
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums, group=self.control)
        return sums.tolist()

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def signal(self, received: Sequence[int]) -> int | None:
        import torch
        import torch.distributed as dist

        number = torch.tensor([received[0] if received else 0])
        dist.all_reduce(number, dist.ReduceOp.MAX, group=self.control)
        return int(number) or None

    def diagnostics(self, model: Model) -> dict[str, float]:
        """`model.diagnostics()` with the small parameters put together: it computes on them outside of a forward
        pass."""
        with self._small_parameters(model):
            return model.diagnostics()

    @contextlib.contextmanager
    def _small_parameters(self, model: Model) -> Iterator[None]:
        import torch

        divided = []
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.numel() <= SMALL and hasattr(parameter, "full_tensor"):
                    divided.append((module, name, parameter))
        for module, name, parameter in divided:
            module._parameters[name] = torch.nn.Parameter(self.whole(parameter.detach()), requires_grad=False)
        try:
            yield
        finally:
            for module, name, parameter in divided:
                module._parameters[name] = parameter

    def resume(self, run: RunFolder, model: Model, device: str) -> dict[str, Any] | None:
        from mmctl.runs import shards

        order = [p for group in model.parameter_groups(0.0) for p in group["params"]]
        return shards.resume(run.checkpoints, run.label, model.state_dict(), order, self)

    def save(self, run: RunFolder, step: int, payload: dict[str, Any], keep: int) -> None:
        from mmctl.runs import files, shards

        if self.first and run.metrics_path.exists():  # a checkpoint promises that the metrics up to it are there
            files.fsync_file(run.metrics_path)
        shards.save(run.checkpoints, step, payload["tensors"], payload["state"], keep=keep, ranks=self)

    def share(self, value: Any) -> list[Any]:
        """JSON-ready values of all processes, in order of rank, on each of them."""
        import torch.distributed as dist

        texts: list[Any] = [None] * self.size
        dist.all_gather_object(texts, json.dumps(value), group=self.control)
        return [json.loads(text) for text in texts]

    def agree(self, value: Any) -> Any:
        return self.share(value)[0]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block that must succeed on every process: a MmctlError on one of them is raised on all."""
        problem: BaseException | None = None
        try:
            yield
        except (MmctlError, OSError) as error:
            problem = error
        found = [text for text in self.share(None if problem is None else str(problem)) if text is not None]
        if problem is not None:
            raise problem
        if found:
            raise MmctlError(found[0])

    # What is not a number

    def tell(self, topic: str, **what: Any) -> None:
        if self._messages is not None:
            self._messages.tell(topic, **what)

    def hear(self, topic: str, seconds: float | None = None) -> dict[str, Any] | None:
        return None if self._messages is None else self._messages.hear(topic, seconds)

    def part(self) -> None:
        if self._messages is not None:
            self._messages.part()

    def report(self, error: BaseException) -> None:
        if self._messages is not None:
            self._messages.report(error)

    def explain(self, error: BaseException) -> BaseException:
        return error if self._messages is None else self._messages.explain(error)
