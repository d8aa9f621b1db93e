"""What torch sees of the operations: operator checks, compiled graphs, FLOP counts, imports, argument errors."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from cases import bandwidth, documents, scan_inputs, unit_keys
from closeness import assert_close
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

from mmctl.kernels import (
    key_scan,
    key_scan_flops,
    memory_attention,
    memory_attention_flops,
    register_flop_formulas,
    value_extract,
)
from mmctl.kernels.key_scan import key_scan_op
from mmctl.kernels.memory_attention import memory_attention_op
from mmctl.kernels.value_extract import value_extract_op


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("documented", [False, True])
def test_opcheck_memory_attention(documented, dtype):
    docs = documents(2, 30, 9) if documented else None
    keys, values = unit_keys(2, 2, 30, 4, dtype).requires_grad_(), torch.randn(2, 2, 30, 6).to(dtype).requires_grad_()
    bw, query = bandwidth(2, dtype), unit_keys(2, 2, 2, 4, dtype).requires_grad_()
    torch.library.opcheck(memory_attention_op, (keys, values, *bw, docs, None, 0, 7, 0))
    torch.library.opcheck(memory_attention_op, (keys, values, *bw, docs, query, 5, 0, 28))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck_long_sequences(dtype):
    keys, values = (unit_keys(1, 2, 512, 4, dtype).requires_grad_() for _ in range(2))
    torch.library.opcheck(memory_attention_op, (keys, values, *bandwidth(2, dtype), None, None, 0, 7, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("carried", [False, True])
def test_opcheck_key_scan(carried, dtype):
    inputs = [t.requires_grad_() for t in scan_inputs(2, 2, 35, 4, dtype)]
    state = (torch.randn(2, 2, 4).requires_grad_(), torch.randn(2, 2).requires_grad_()) if carried else (None, None)
    torch.library.opcheck(key_scan_op, (*inputs, documents(2, 35, 9) if carried else None, *state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck_value_extract(dtype):
    psi = torch.randn(2, 9, 2, 4).to(dtype).transpose(1, 2).requires_grad_()
    heads = [torch.rand(2, requires_grad=True) for _ in range(2)]
    for docs in (None, documents(2, 9, 3)):
        torch.library.opcheck(value_extract_op, (psi, *heads, docs))


def memories(x, gate, decay, gamma, scale, bw, delay):
    """Both memories of one layer, as the model calls them."""
    keys, values = key_scan(x, gate, decay), value_extract(x, gamma, scale)
    short = memory_attention(keys[:, :2], values[:, :2], bw, window=8)
    long = memory_attention(keys[:, 2:], values[:, 2:], bw, delay=delay)
    return torch.cat([short, long], 1)


def test_compiled_without_breaks_in_at_most_two_graphs_over_twenty_delays():
    x, gate, decay = scan_inputs(2, 4, 40, 4, torch.float32)
    heads, bw = [torch.rand(4) for _ in range(2)], bandwidth(2, torch.float32)
    leaf, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(memories, fullgraph=True, backend=counter)
    for delay in range(3, 23):
        out, expected = compiled(leaf, gate, decay, *heads, bw, delay), memories(plain, gate, decay, *heads, bw, delay)
        assert_close("out", out, expected, 1e-6)
        (a,), (e,) = torch.autograd.grad(out.sum(), [leaf]), torch.autograd.grad(expected.sum(), [plain])
        assert_close("gradient", a, e, 1e-6)
    assert counter.frame_count <= 2


def test_flop_counts_follow_the_formulas():
    register_flop_formulas()
    register_flop_formulas()
    keys, values = unit_keys(2, 2, 100, 8, torch.float32).requires_grad_(), torch.randn(2, 2, 100, 8)
    bw, zero = bandwidth(2, torch.float32), torch.zeros(2, 2, 100)

    def counted(function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    shape = (2, 2, 100, 8)
    for span in ({"window": 10}, {"delay": 10}):
        both = counted(lambda span=span: memory_attention(keys, values, bw, **span).sum().backward())
        forward, backward = (memory_attention_flops(*shape, **span, backward=b) for b in (False, True))
        assert both == forward + backward
        assert 2 * backward == 5 * forward
    assert memory_attention_flops(*shape, delay=10) == 4 * 2 * 2 * 90 * 90 * 8
    assert memory_attention_flops(1, 1, 4096, 64, window=64) < 4 * 4096 * 128 * 64
    both = counted(lambda: key_scan(keys, zero, zero).sum().backward())
    assert both == key_scan_flops(*shape) + key_scan_flops(*shape, backward=True)
    # SDPA on a CPU is counted as it is on CUDA: 4 B H T T D forward, 2.5 times that backward.
    query = keys.detach().requires_grad_()
    both = counted(lambda: F.scaled_dot_product_attention(query, query, values, is_causal=True).sum().backward())
    assert both == 3.5 * 4 * 2 * 2 * 100 * 100 * 8


def test_import_needs_torch_only_and_changes_nothing():
    code = (
        "import sys, torch; from torch.utils.flop_counter import flop_registry as r; n = len(r); import mmctl.kernels; "
        "assert len(r) == n; assert not {'triton', 'numpy.testing', 'omegaconf'} & set(sys.modules) - before"
    )
    before = "import sys, torch; from torch.utils import flop_counter; before = set(sys.modules); "
    subprocess.run([sys.executable, "-c", before + code], check=True)


KEYS, VALUES = torch.ones(2, 3, 5, 4), torch.ones(2, 3, 5, 4)
THREE = (torch.ones(3), torch.ones(3), torch.ones(3))
GATE = torch.zeros(2, 3, 5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("keys", {"keys": KEYS[0]}),
        ("keys", {"keys": KEYS.long()}),
        ("values", {"values": VALUES[:, :, :4]}),
        ("values", {"values": VALUES.double()}),
        ("values", {"values": VALUES.to("meta")}),
        ("bandwidth", {"bandwidth": THREE[:2]}),
        ("bandwidth: beta1", {"bandwidth": (THREE[0], THREE[1][:1], THREE[2])}),
        ("bandwidth: alpha", {"bandwidth": (*THREE[:2], THREE[2].bfloat16())}),
        ("bandwidth: beta0", {"bandwidth": (1.0, *THREE[1:])}),
        ("window", {}),
        ("window", {"window": 2, "delay": 2}),
        ("window", {"window": 0}),
        ("delay", {"delay": 0}),
        ("documents", {"window": 2, "documents": torch.zeros(2, 4).int()}),
        ("documents", {"window": 2, "documents": torch.zeros(2, 5)}),
        ("query", {"window": 2, "query": KEYS[:, :2]}),
        ("query", {"window": 2, "query": KEYS.double()}),
        ("query_offset", {"window": 2, "query": KEYS, "query_offset": -1}),
        ("query_offset", {"window": 2, "query_offset": 3}),
        ("path", {"window": 2, "path": "fast"}),
        ("path", {"window": 2, "path": "triton"}),
    ],
)
def test_memory_attention_names_the_wrong_argument(name, arguments):
    defaults = {"keys": KEYS, "values": VALUES, "bandwidth": THREE}
    if not {"window", "delay"} & set(arguments) and name != "window":
        defaults["window"] = 2
    with pytest.raises(ValueError, match=f"^{name}"):
        memory_attention(**{**defaults, **arguments})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("x", {"x": KEYS[0]}),
        ("x", {"x": KEYS[:, :, :0]}),
        ("log_gate", {"log_gate": GATE[:1]}),
        ("log_decay", {"log_decay": GATE.double()}),
        ("documents", {"documents": torch.zeros(5).int()}),
        ("state", {"state": torch.zeros(2, 3, 4)}),
        ("state: sum", {"state": (torch.zeros(2, 3, 5), torch.zeros(2, 3))}),
        ("state: maximum", {"state": (torch.zeros(2, 3, 4), torch.zeros(2, 3).bfloat16())}),
        ("path", {"path": "triton"}),
    ],
)
def test_key_scan_names_the_wrong_argument(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}"):
        key_scan(**{"x": KEYS, "log_gate": GATE, "log_decay": GATE, **arguments})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("psi", {"psi": KEYS[0]}),
        ("gamma", {"gamma": torch.ones(2)}),
        ("scale", {"scale": torch.ones(3).double()}),
        ("documents", {"documents": torch.zeros(2, 6).int()}),
    ],
)
def test_value_extract_names_the_wrong_argument(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}"):
        value_extract(**{"psi": KEYS, "gamma": THREE[0], "scale": THREE[0], **arguments})
