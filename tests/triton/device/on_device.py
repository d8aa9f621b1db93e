"""Runs an operation's Triton path on the device under test, and the references on the CPU in float64."""

from __future__ import annotations

import torch
from closeness import TOLERANCE, assert_close

from mmctl.kernels import key_scan, memory_attention, value_extract
from mmctl.kernels.state_space import state_space_scan
from mmctl.kernels.triton_support import interpreted

DEVICE = "cpu" if interpreted() else "cuda"
# The interpreter multiplies bfloat16 wrongly.
DTYPES = [torch.float32, torch.float16] if interpreted() else [torch.float32, torch.float16, torch.bfloat16]
NAMES = ("out", "dkeys", "dvalues", "dbeta0", "dbeta1", "dalpha", "dquery")


def gradients(output, inputs, weights):
    """[output, gradients of its product with ``weights``], on the CPU."""
    results = [output, *torch.autograd.grad(output, inputs, weights.to(output.device, output.dtype))]
    return [r.detach().cpu() for r in results]


def read(path, keys, values, bw, query=None, documents=None, **span):
    """Reads, and gradients of keys, values, bandwidth and query; "loop" is the reference over pairs."""
    device = DEVICE if path == "triton" else "cpu"
    given = (keys, values, *bw) if query is None else (keys, values, *bw, query)
    inputs = [t.detach().to(device).requires_grad_() for t in given]
    docs = None if documents is None else documents.to(device)
    q = None if query is None else inputs[5]
    if path == "loop":
        out = loop_over_pairs(inputs[0], inputs[1], inputs[2:5], documents=docs, query=q, **span)
    else:
        out = memory_attention(*inputs[:2], tuple(inputs[2:5]), query=q, documents=docs, path=path, **span)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return gradients(out, inputs, weights.to(keys.dtype))


def compare(keys, values, bw, path="reference", tolerance=None, **kwargs):
    """Require the Triton path's reads and every gradient to be those of a reference."""
    tolerance = TOLERANCE[keys.dtype] if tolerance is None else tolerance
    actual, expected = read("triton", keys, values, bw, **kwargs), read(path, keys, values, bw, **kwargs)
    for name, a, e in zip(NAMES, actual, expected, strict=False):
        assert a.dtype == (keys.dtype if a.dim() == 4 else torch.float32)
        # A gradient of the bandwidth sums terms of order 0.1 over all reads, in float32, and may cancel to much less.
        assert_close(name, a, e, tolerance, floor=1e-6 if a.dim() == 4 else 1e-5)
    return actual


def loop_over_pairs(keys, values, bw, window=0, delay=0, documents=None, query=None, query_offset=0):
    """The equations read by read, pair by pair, in float64; differentiable, shares nothing with the other reference."""
    k, v, q = keys.double(), values.double(), (keys if query is None else query).double()
    docs = documents
    out = []
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            beta0, beta1, alpha = (p[h].double() for p in bw)
            for row in range(q.shape[2]):
                t = row + query_offset
                oldest, newest = (max(0, t - window), t - 1) if window else (0, t - delay)
                pairs = range(oldest, min(newest, k.shape[2] - 1) + 1)
                seen = [i for i in pairs if docs is None or docs[b, i] == docs[b, t]]
                if not seen:
                    out.append(v.new_zeros(v.shape[-1]))
                    continue
                beta = beta1 * len(seen) ** alpha + beta0
                weights = [torch.exp(beta * (q[b, h, row] @ k[b, h, i] - 1)) for i in seen]
                total = sum(weights)
                out.append(sum(w / total * v[b, h, i] for w, i in zip(weights, seen, strict=True)))
    return torch.stack(out).view(*k.shape[:2], q.shape[2], v.shape[-1]).to(keys.dtype)


def scan(path, x, log_gate, log_decay, state=None, documents=None):
    """Keys, carried sum, and gradients of x, log_gate, log_decay (and of the state)."""
    device = DEVICE if path == "triton" else "cpu"
    inputs = [t.detach().to(device).requires_grad_() for t in (x, log_gate, log_decay, *(state or ()))]
    docs = None if documents is None else documents.to(device)
    carried = None if state is None else tuple(inputs[3:])
    keys, (total, _) = key_scan(*inputs[:3], state=carried, documents=docs, return_state=True, path=path)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in (keys, total)]
    weights = [w.to(o.device, o.dtype) for w, o in zip(weights, (keys, total), strict=True)]
    results = [keys, total, *torch.autograd.grad((keys, total), inputs, weights)]
    return [r.detach().cpu() for r in results]


def extract(path, psi, gamma, scale, documents=None):
    """Values, and gradients of psi, gamma and scale."""
    device = DEVICE if path == "triton" else "cpu"
    inputs = [t.detach().to(device).requires_grad_() for t in (psi, gamma, scale)]
    out = value_extract(*inputs, documents=None if documents is None else documents.to(device), path=path)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return gradients(out, inputs, weights.to(psi.dtype))


def recur(path, x, log_decay, b, c, state=None, documents=None, window=None):
    """y, the end state, and gradients of x, log_decay, b and c (and of the state)."""
    device = DEVICE if path == "triton" else "cpu"
    inputs = [
        t.detach().to(device).requires_grad_() for t in (x, log_decay, b, c, *(() if state is None else (state,)))
    ]
    docs = None if documents is None else documents.to(device)
    given = None if state is None else inputs[4]
    outputs = state_space_scan(*inputs[:4], documents=docs, state=given, window=window, path=path)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
    weights = [w.to(o.device, o.dtype) for w, o in zip(weights, outputs, strict=True)]
    return [r.detach().cpu() for r in (*outputs, *torch.autograd.grad(outputs, inputs, weights))]
