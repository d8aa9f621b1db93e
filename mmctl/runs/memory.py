"""How much memory a run needs, before it starts: parameters, gradients, AdamW's moments, activations, evaluation.

The activation coefficients are fitted to the exact peak of allocations of a training step (mmctl/bench/measure.py) of
the four models at d = 64 and 128, V = 512 and 1,024, T = 128 to 512, L = 2 and 4: at most 5% below and 30% above every
one of them in float32, more above in bf16; fused kernels need less. It is an estimate: it decides how many runs share a
machine, never what a run computes.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmctl.errors import UsageError
from mmctl.runs.preflight import memory, size

if TYPE_CHECKING:
    from mmctl.config import Config

TRAINED = 8
"""Bytes of weight and gradient, a parameter."""
OPTIMIZER = 8
"""Bytes of AdamW's two moments, a parameter."""
A_LOGIT, A_WIDTH, A_FFN = 16, 72, 16
"""Bytes kept for the backward pass of a token: of each logit, and in each layer of each unit of d and of d'."""
BF16 = 0.75
"""Part of that which autocast to bf16 keeps (measured: 0.55 to 0.8)."""
FORWARD = 0.5
"""Part of that which a forward pass without gradients holds at once, of one layer and the logits."""
PROCESS = 700 * 2**20
"""Bytes of a process that has loaded torch and MLflow."""


@dataclass(frozen=True)
class Need:
    """Bytes. `total` is what the run needs at its largest, without the process itself."""

    parameters: int
    optimizer: int
    activations: int
    evaluation: int

    @property
    def total(self) -> int:
        return self.parameters + max(self.optimizer + self.activations, self.evaluation)

    def words(self) -> str:
        parts = (self.parameters, "parameters and gradients"), (self.optimizer, "optimizer")
        return ", ".join(f"{size(count)} {what}" for count, what in (*parts, (self.activations, "activations")))


def sizes(config: Config) -> str:
    """All that an estimate depends on, as a key: equal for configurations that need the same."""
    data, training = config.data, config.training
    return repr(
        (
            config.model,
            config.evaluation,
            data.length,
            data.batch,
            data.vocabulary,
            training.accumulation,
            training.precision,
        )
    )


def estimate(config: Config) -> Need:
    """What training and evaluating `config` takes on one device."""
    from mmctl.models import flops

    model, data = config.model, config.data
    parameters = flops.parameters(model, data.vocabulary)
    layer = A_WIDTH * model.width + A_FFN * getattr(model, "ffn_width", 0)
    sequences = -(-data.batch // config.training.accumulation)
    kept = BF16 if config.training.precision == "bf16" else 1.0
    training = int(kept * sequences * data.length * (A_LOGIT * data.vocabulary + model.layers * layer))
    longest = max(config.evaluation.lengths, default=1) * data.length if config.evaluation.suites else 0
    tokens = max(config.evaluation.batch_tokens, longest) if longest else 0
    evaluation = int(FORWARD * tokens * (A_LOGIT * data.vocabulary + layer))
    return Need(TRAINED * parameters, OPTIMIZER * parameters, training, evaluation)


def check_lengths(config: Config) -> None:
    """UsageError where scoring the longest of evaluation.lengths cannot fit this machine's memory, with the longest that
    would: without it the process would be killed, after its training."""
    from dataclasses import replace

    def need(multiple: int) -> int:
        return estimate(replace(config, evaluation=replace(config.evaluation, lengths=[multiple]))).evaluation

    have, longest = memory(), max(config.evaluation.lengths, default=1)
    if have is None or need(longest) <= have:
        return
    fits = bisect_right(range(longest), have, key=need) - 1
    most = f"; expected at most {fits}" if fits > 0 else ""
    raise UsageError(
        f"evaluation.lengths: {longest} ({longest * config.data.length:,} tokens) needs about {size(need(longest))}, this "
        f"machine has {size(have)} of memory{most}"
    )


def fitting(config: Config, limit: float, least: int = 0) -> str:
    """The setting, as one types it, with which `config` would need at most `limit` bytes and the same batch; "" if
    none.

    Gradient accumulation: half the sequences at a time, twice as often, add up to the same step (but for rounding).
    `least`: smallest accumulation to propose.
    """
    from dataclasses import replace

    parts = config.training.accumulation
    while parts < config.data.batch:
        parts = min(2 * parts, config.data.batch)
        smaller = replace(config, training=replace(config.training, accumulation=parts))
        if parts >= least and estimate(smaller).total <= limit:
            return f"training.accumulation={parts}"
    return ""


def happened(error: BaseException) -> bool:
    """Whether this is how Python or torch (on a CPU or a device) says that memory ran out."""
    from mmctl.errors import OutOfMemory

    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def reason(config: Config) -> str:
    """One line for a run that ran out of memory, with the setting that would fit: half the sequences at a time."""
    need = estimate(config)
    setting = fitting(config, need.total, least=2 * config.training.accumulation)
    if not setting:
        return (
            f"out of memory (about {size(need.total)}: {need.words()}); a smaller model or data.length would need less"
        )
    halved = int(setting.partition("=")[2])
    less = f"{-(-config.data.batch // halved)} sequences at a time, the same batch and step"
    return f"out of memory (about {size(need.total)}: {need.words()}); {setting} would need less: {less}"


def available() -> int | None:
    """Bytes that may still be taken on this machine, in this control group; None where it cannot be asked."""
    import psutil

    free = [int(psutil.virtual_memory().available)]
    limit, used = _group("memory.max"), _group("memory.current")
    if limit is not None and used is not None:
        free.append(max(0, limit - used + (_inactive() or 0)))
    return min(free)


def whole() -> int | None:
    """Bytes of memory that this machine or control group has in all."""
    return min((m for m in (memory(), _group("memory.max")) if m is not None), default=None)


def killed() -> int:
    """How many processes of this control group the kernel has killed for memory so far; 0 where it does not say."""
    try:
        words = Path("/sys/fs/cgroup/memory.events").read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0


def _group(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text().strip()
        return None if text == "max" else int(text)
    except (OSError, ValueError):
        return None


def _inactive() -> int | None:
    """Bytes of file pages that the group gives back when asked."""
    try:
        words = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        return int(words[words.index("inactive_file") + 1])
    except (OSError, ValueError, IndexError):
        return None
