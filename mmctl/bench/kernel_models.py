"""The larger cases of `mmctl bench kernels`: both memories of a layer with their projections, and a whole training
step.

Beside ours: the same modules reading through FlexAttention, as the published implementation does, and the transformer
of the same width and heads, held to one of torch's attention backends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmctl.bench import kernel_checks as checks
from mmctl.bench.kernel_cases import (
    COMPOSED,
    DELAY,
    PREFIX,
    WINDOW,
    Group,
    Size,
    backends,
    by_reference,
    flat,
    random,
    replaced,
    visible_pairs,
)
from mmctl.bench.peers import FOLDED, Contender, Flex, Unavailable, first_line, flex_read
from mmctl.training.losses import autocast

STEP_LAYERS, STEP_VOCABULARY = 2, 4096
"""A step's model: two layers, so that building it takes seconds, and a vocabulary that does not hide them."""
WHOLE = 10.0
"""How much more error the gradient of a whole model may have than a kernel: every layer rounds again, forward and
back."""


def configuration(name: str, size: Size, layers: int, precision: str) -> Any:
    """Sizes of the paper's small model, but for the width, heads, layers and vocabulary of this case."""
    from mmctl.config import load

    width, delays = size.heads * size.width, []
    if name == "mosaic-v2":
        # The paper's 64 to 256, less where the sequence is too short for them.
        delays = [f"model.delay_min={min(64, size.tokens // 4)}", f"model.delay_max={min(256, size.tokens // 2)}"]
    config = load(
        "paper-small",
        [
            *delays,
            f"model.name={name}", f"model.layers={layers}", f"model.width={width}", f"model.heads={size.heads}",
            f"model.ffn_width={3 * width}", f"data.length={size.tokens}", f"data.vocabulary={STEP_VOCABULARY}",
            f"data.batch={size.batch}", f"training.precision={precision}", "training.accumulation=1",
        ],
    )  # fmt: skip
    config.training.resolve(size.device.type, config.model.width)
    return config


def precision_of(size: Size) -> str:
    names = {torch.bfloat16: "bf16", torch.float32: "float32"}
    if size.dtype not in names:
        raise Unavailable("training has no float16")
    return names[size.dtype]


def held_to(backend: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work` with torch's attention held to one backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def held(*arguments: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return work(*arguments)

    return held


def through_flex(length: int, device: torch.device) -> Callable[..., Tensor]:
    """`memory_attention` through FlexAttention. The short-term mask is built once, the long-term one for each new m."""
    if device.type != "cuda":
        raise Unavailable("FlexAttention has no CPU backward")
    masks: dict[str, Any] = {"short": Flex.mask(length, device, WINDOW, None), "m": None}

    def attend(keys: Tensor, values: Tensor, bandwidth: Any, **span: Any) -> Tensor:
        delay = span.get("delay")
        if delay and masks["m"] != delay:
            masks.update(m=delay, long=Flex.mask(length, device, None, delay))
        return flex_read(keys, values, bandwidth, mask=masks["long" if delay else "short"], **span)

    return attend


def layer(case: str, size: Size, seed: int) -> Group:
    """Both memories of one v2 block with their extractors and projections, x (B, T, d) in and out."""
    from mmctl import models
    from mmctl.models import mosaic_v2

    precision = precision_of(size)
    width, prefix = size.heads * size.width, min(PREFIX, size.tokens)
    config = configuration("mosaic-v2", size, 1, precision)
    memories = mosaic_v2.AssociativeMemories(config.model, size.tokens)
    memories.reset_parameters(0, torch.Generator().manual_seed(seed))
    memories = memories.to(size.device)
    x = random(size, seed, size.batch, size.tokens, width, dtype=torch.float32).requires_grad_()

    def attended(module: nn.Module, x: Tensor, context: dict[str, Any]) -> Tensor:
        with autocast(size.device, precision):
            return module(x, context)

    context = {"documents": None, "delay": DELAY, "remove_long_term": False}
    leaves = [x, *memories.parameters()]

    def results(out: Tensor, grads: list[Tensor]) -> dict[str, Tensor]:
        return {"out": out[0, :prefix], "dx": grads[0][0, :prefix], "dweights": flat(grads[1:])}

    made = [Contender("ours", leaves, lambda: attended(memories, x, context), results, ours=True)]
    unavailable: dict[str, str] = {}
    try:
        attend = through_flex(size.tokens, size.device)

        def by_flex() -> Tensor:
            with replaced(mosaic_v2, memory_attention=attend):
                return attended(memories, x, context)

        by_flex()
        made.append(Contender("FlexAttention", leaves, by_flex, results, slack=FOLDED))
    except Exception as error:  # whatever a compiler raises: the other rows still count
        unavailable["FlexAttention"] = first_line(error)
    other = models.build(configuration("transformer", size, 1, precision)).to(size.device)
    attention: Any = other.blocks[0].attention
    with autocast(size.device, precision):
        causal = other.context(torch.zeros(x.shape[:2], dtype=torch.long, device=size.device), None, None)
    for name, backend in backends(size.device).items():
        work = held_to(backend, lambda: attended(attention, x, causal))
        label = f"transformer {name}".strip()
        try:
            work()
        except RuntimeError as error:
            unavailable[label] = first_line(error)
            continue
        made.append(Contender(label, [x, *attention.parameters()], work, lambda out, grads: {}))
    grad = random(size, seed + 2, size.batch, size.tokens, width, dtype=made[0].forward().dtype)
    check_grad = torch.zeros_like(grad)
    check_grad[0, :prefix] = grad[0, :prefix]

    def expected() -> tuple[dict[str, Tensor], dict[str, float]]:
        part = x[:1, :prefix].detach().requires_grad_()
        with replaced(mosaic_v2, **by_reference()):
            out = memories(part, context)
        grads = torch.autograd.grad(out, [part, *memories.parameters()], check_grad[:1, :prefix].to(out.dtype))
        return {"out": out[0].detach(), "dx": grads[0][0], "dweights": flat(grads[1:])}, {}

    tokens = float(size.batch * size.tokens)
    dense = tokens * 2 * width * (6 * width + 4 * size.heads)
    pairs = visible_pairs(size.tokens, window=WINDOW) + visible_pairs(size.tokens, delay=DELAY)
    reads = 4.0 * size.batch * pairs * width
    flops = {"forward": dense + reads, "backward": 2 * dense + 2.5 * reads, "both": 3 * dense + 3.5 * reads}
    return Group(
        case, size, made, unavailable, grad, check_grad, expected,
        checked=f"one sequence, its first {prefix} tokens, against float32",
        tolerance=COMPOSED * checks.TOLERANCE[size.dtype], flops=flops,
    )  # fmt: skip


def training_step(case: str, size: Size, seed: int) -> Group:
    """The training loop's own step: forward, loss, backward, clipping, AdamW, a new m each time."""
    from mmctl.bench.step import training_step as step_of
    from mmctl.models import flops, mosaic_v2

    precision = precision_of(size)
    config = configuration("mosaic-v2", size, STEP_LAYERS, precision)
    step, model, _ = step_of(config, size.batch, False, size.device)
    made = [Contender("ours", [], step, lambda out, grads: _gradient(model, size, seed, precision), ours=True)]
    unavailable: dict[str, str] = {}
    try:
        attend = through_flex(size.tokens, size.device)

        def by_flex() -> None:
            with replaced(mosaic_v2, memory_attention=attend):
                step()

        by_flex()
        made.append(Contender("FlexAttention", [], by_flex, lambda out, grads: {}))
    except Exception as error:  # whatever a compiler raises: the other rows still count
        unavailable["FlexAttention"] = first_line(error)
    other, _, _ = step_of(configuration("transformer", size, STEP_LAYERS, precision), size.batch, False, size.device)
    for name, backend in backends(size.device).items():
        label, work = f"transformer {name}".strip(), held_to(backend, other)
        try:
            work()
            made.append(Contender(label, [], work, lambda out, grads: {}))
        except RuntimeError as error:
            unavailable[label] = first_line(error)

    def expected() -> tuple[dict[str, Tensor], dict[str, float]]:
        with replaced(mosaic_v2, **by_reference()):
            return _gradient(model, size, seed, "float32"), {}

    tokens = size.batch * size.tokens
    each = flops.flops_per_token(config.model, config.data.vocabulary, size.tokens, "executed")
    return Group(
        case, size, made, unavailable, None, None, expected,
        checked=f"loss and gradient of all weights on {min(PREFIX, size.tokens)} tokens, against float32",
        tolerance=WHOLE * checks.TOLERANCE[size.dtype], flops={"step": 3.0 * each * tokens}, phases=("step",),
    )  # fmt: skip


def _gradient(model: Any, size: Size, seed: int, precision: str) -> dict[str, Tensor]:
    """Loss and gradient of a model's weights on one short sequence."""
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    generator = torch.Generator().manual_seed(seed)
    length = min(PREFIX, size.tokens)
    tokens, targets = torch.randint(STEP_VOCABULARY, (2, 1, length), generator=generator).to(size.device)
    with autocast(size.device, precision):
        logits = model(tokens, delay=DELAY)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    loss.backward()
    return {"loss": loss.detach()[None], "gradient": flat(p.grad for p in model.parameters() if p.grad is not None)}
