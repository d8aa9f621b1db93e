"""The processes that train one run. Most runs have one; `distributed.Group` is the same interface for several.

The loop and the runner ask these questions everywhere, so that neither has a second path: with one process every answer
is the plain one, to the bit.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmctl.config import DEVICE, Config
from mmctl.errors import MmctlError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from mmctl.models.base import Model
    from mmctl.runs import RunFolder


class Interrupted(Exception):
    """A signal asked to stop; the state has been saved. `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)  # what made it, so that it can be passed between processes
        self.signal = number

    def __str__(self) -> str:
        return signal.Signals(self.signal).name


class Stopped(KeyboardInterrupt):
    """A signal that ends the work at once, without saving first: outside the loop, or a second one. `signal` is its
    number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)  # what made it, so that it can be passed between processes
        self.signal = number

    def __str__(self) -> str:
        return signal.Signals(self.signal).name


class Diverged(Exception):
    """The loss or the gradient stopped being finite at `step`."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} is not finite at step {step}")
        self.step = step


class Ranks:
    """One process, alone. `rank` counts from 0, and the process of rank 0 is the only one that writes."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """Whether this process prints what all of them find wrong: one does, on each machine."""
        return True

    @property
    def launched(self) -> bool:
        """Whether `mmctl train --processes` started this process, and will say what it cannot."""
        return False

    def leave(self, code: int) -> None:
        """End the process, where taking the connections apart could wait for others."""

    def connect(self, config: Config) -> None:
        """Meet the other processes. UsageError when this configuration cannot be divided among them."""

    def device(self, wanted: str) -> str:
        """cpu or cuda:N for operation.device. UsageError when that device is not there."""
        return pick_device(wanted)

    def rows(self, count: int, parts: int) -> list[np.ndarray]:
        """Which of a step's `count` sequences this process trains on, in the order and the parts they are taken in."""
        import numpy as np

        return [rows for rows in np.array_split(np.arange(count), parts) if len(rows)]

    def place(self, model: Model, device: str) -> Model:
        """The model on `device`, its parameters divided among the processes if there are several."""
        return model.to(device)

    def add(self, values: Sequence[float]) -> list[float]:
        """Sums over the processes."""
        return list(values)

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor computed from divided ones, in full."""
        return tensor

    def signal(self, received: Sequence[int]) -> int | None:
        """The signal that any of the processes has received, the same answer on all of them."""
        return received[0] if received else None

    def diagnostics(self, model: Model) -> dict[str, float]:
        return model.diagnostics()

    def resume(self, run: RunFolder, model: Model, device: str) -> dict[str, Any] | None:
        """The payload of the newest whole checkpoint, as `loop.train` takes it; None if there is none."""
        if run.latest_checkpoint() is None:
            return None
        try:
            return run.load_checkpoint(map_location=device)
        except MmctlError:  # each is damaged inside: as if there were none, which is said where the training begins
            return None

    def save(self, run: RunFolder, step: int, payload: dict[str, Any], keep: int) -> None:
        run.save_checkpoint(step, payload, keep=keep)

    # What the first process tells the others

    def tell(self, topic: str, **what: Any) -> None:
        """Told once: "work" before it begins, "outcome" after everything is recorded."""

    def hear(self, topic: str, seconds: float | None = None) -> dict[str, Any] | None:
        """What the first process told; None when it is gone, or after `seconds`."""
        return None

    def part(self) -> None:
        """Called last: the others have heard what there is to hear."""

    def agree(self, value: Any) -> Any:
        """The first process's `value` (anything JSON holds), on all of them."""
        return value

    def report(self, error: BaseException) -> None:
        """Tell the first process why this one ends."""

    def explain(self, error: BaseException) -> BaseException:
        """Why this process could not go on: `error`, or what ended another process before."""
        return error


ALONE = Ranks()


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
