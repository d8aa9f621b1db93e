"""The whole of Memory Mosaics v2 under torch.compile, and what the FLOP counter sees of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_close, relative_rms
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from mmctl import models
from mmctl.config import load
from mmctl.kernels import key_scan_flops, memory_attention_flops, register_flop_formulas

LENGTH, BATCH = 64, 2
SIZES = ["model.layers=1", "model.width=32", "model.heads=2", "model.ffn_width=64", "model.window=30"]
SIZES += ["model.delay_min=3", "model.delay_max=30", f"data.length={LENGTH}", "data.vocabulary=512"]


@pytest.fixture
def model():
    return models.build(load("smoke", SIZES)).train()


def loss_of(model, tokens, targets, documents, delay):
    logits = model(tokens, documents=documents, delay=delay)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(512, (BATCH, LENGTH), generator=generator) for _ in range(2))


def gradient(model):
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("documented", "delays"), [(False, range(3, 23)), (True, range(3, 7))], ids=str)
def test_the_whole_model_compiles_without_breaks_in_at_most_two_graphs_over_twenty_delays(
    model, batch, documented, delays
):
    """Forward and loss in training mode; the same loss and gradient of every weight; our operators are single nodes."""
    docs = torch.tensor([[0] * 20 + [1] * 44, [0] * 63 + [1]], dtype=torch.int32) if documented else None
    inner, graphs = CompileCounterWithBackend("aot_eager"), []

    def backend(graph, inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return inner(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend=backend)
    for delay in delays:
        loss = compiled(model, *batch, docs, delay)
        loss.backward()
        actual = gradient(model)
        expected = loss_of(model, *batch, docs, delay)
        expected.backward()
        assert_close("loss", loss, expected, 1e-6)
        assert relative_rms(actual, gradient(model)) < 1e-5
    assert inner.frame_count == len(graphs) <= 2
    for name in ("memory_attention", "key_scan", "value_extract"):
        assert all(any(f"mmctl.{name}" in target for target in graph) for graph in graphs)


def test_the_flop_counter_sees_the_operations_inside_the_model(model, batch):
    """Products of the projections, of two memories a layer and of one scan over all heads: nothing is missing."""
    register_flop_formulas()
    shape = (BATCH, 2, LENGTH, 16)

    def reads(backward):
        spans = ({"window": 30}, {"delay": 9})
        return sum(memory_attention_flops(*shape, **span, backward=backward) for span in spans)

    with FlopCounterMode(display=False) as counter:
        loss_of(model, *batch, None, 9).backward()
    counts = {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}
    assert counts["mmctl.memory_attention"] == reads(False)
    assert counts["mmctl.memory_attention_backward"] == reads(True)
    assert counts["mmctl.key_scan"] == key_scan_flops(BATCH, 4, LENGTH, 16)
    assert counts["mmctl.key_scan_backward"] == key_scan_flops(BATCH, 4, LENGTH, 16, backward=True)
    # W_phi, W_psi of both memories, gates, W_o, the persistent memory's three, and the classifier; backward twice that.
    d, tokens = 32, BATCH * LENGTH
    dense = 4 * d * d + d * 8 + 2 * d * d + 3 * d * 64 + d * 512
    assert counts["aten.mm"] + counts.get("aten.addmm", 0) == 3 * 2 * tokens * dense
