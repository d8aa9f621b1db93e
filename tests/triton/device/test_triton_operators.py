"""What torch sees of the operators on their Triton path: schema, fake tensors, autograd, compiled graphs."""

from __future__ import annotations

import pytest
import torch
from cases import bandwidth, documents, scan_inputs, unit_keys
from closeness import assert_close
from on_device import DEVICE
from torch._dynamo.testing import CompileCounterWithBackend

from mmctl.kernels import key_scan, memory_attention
from mmctl.kernels.key_scan import key_scan_op
from mmctl.kernels.memory_attention import memory_attention_op


def on_device(tensors):
    return [t.detach().to(DEVICE).requires_grad_(t.is_floating_point()) for t in tensors]


@pytest.mark.parametrize("decoding", [False, True])
def test_opcheck_memory_attention(decoding):
    keys, values, query = on_device(
        [unit_keys(1, 2, 20, 16, torch.float32), torch.randn(1, 2, 20, 16), unit_keys(1, 2, 2, 16, torch.float32)]
    )
    bw, docs = on_device(bandwidth(2, torch.float32)), documents(1, 20, 9).to(DEVICE)
    span = (docs, query, 5, 0, 18) if decoding else (None, None, 0, 7, 0)
    torch.library.opcheck(memory_attention_op, (keys, values, *bw, *span, "triton"))


@pytest.mark.parametrize("carried", [False, True])
def test_opcheck_key_scan(carried):
    inputs = on_device(scan_inputs(1, 2, 35, 16, torch.float32))
    state = on_device([torch.randn(1, 2, 16), torch.randn(1, 2)]) if carried else (None, None)
    docs = documents(1, 35, 9).to(DEVICE) if carried else None
    torch.library.opcheck(key_scan_op, (*inputs, docs, *state, "triton"))


def test_compiled_without_breaks_in_at_most_two_graphs_over_the_delays():
    x, gate, decay = on_device(scan_inputs(1, 2, 40, 16, torch.float32))
    bw = tuple(on_device(bandwidth(2, torch.float32)))

    def memory(x, delay):
        keys = key_scan(x, gate, decay, path="triton")
        return memory_attention(keys, x, bw, delay=delay, path="triton")

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(memory, fullgraph=True, backend=counter)
    for delay in (3, 4, 9, 20):
        out, expected = compiled(x, delay), memory(x, delay)
        assert_close("out", out, expected, 1e-6)
        (a,), (e,) = torch.autograd.grad(out.sum(), [x]), torch.autograd.grad(expected.sum(), [x])
        assert_close("gradient", a, e, 1e-6)
    assert counter.frame_count <= 2
