"""Random inputs for the operations, and their results with gradients by path."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mmctl.kernels import key_scan, memory_attention, value_extract


def wide(dtype: torch.dtype) -> torch.dtype:
    """Dtype of gates, states and bandwidths beside ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def unit_keys(batch, heads, length, width, dtype=torch.float64) -> torch.Tensor:
    """Random unit vectors, of which neighbours look alike (as leaky sums do)."""
    return F.normalize(torch.randn(batch, heads, length, width, dtype=torch.float64) + 0.7, dim=-1).to(dtype)


def bandwidth(heads, dtype=torch.float64, size=4.0):
    """(beta0, beta1, alpha), ready for gradients; beta stays below 60 at n = 150."""
    scales = (size, size, 0.5)
    return tuple((scale * torch.rand(heads, dtype=wide(dtype))).requires_grad_() for scale in scales)


def documents(batch, length, mean=20) -> torch.Tensor:
    """Document ids with boundaries at random places, different in every sequence; some documents of length 1."""
    begins = torch.rand(batch, length) < 1.0 / mean
    begins[:, length // 2 : length // 2 + 2] = True
    return begins.cumsum(1).to(torch.int32)


def grads(output, inputs, seed=1):
    """The output(s), and the gradients of random projections of them."""
    outputs = output if isinstance(output, tuple) else (output,)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs, weights)]


def read(path, keys, values, bw, query=None, **kwargs):
    """Output and gradients of keys, values, bandwidth (and query)."""
    inputs = [t.detach().requires_grad_() for t in (keys, values, *bw, *(() if query is None else (query,)))]
    q = None if query is None else inputs[5]
    out = memory_attention(inputs[0], inputs[1], tuple(inputs[2:5]), query=q, path=path, **kwargs)
    return grads(out, inputs)


def scan(path, x, log_gate, log_decay, state=None, **kwargs):
    """Keys, carried sum, and gradients of x, log_gate, log_decay (and of the state)."""
    inputs = [t.detach().requires_grad_() for t in (x, log_gate, log_decay, *(state or ()))]
    carried = None if state is None else tuple(inputs[3:])
    keys, (total, _) = key_scan(*inputs[:3], state=carried, return_state=True, path=path, **kwargs)
    return grads((keys, total), inputs)


def extract(path, psi, gamma, scale, **kwargs):
    """Values, and gradients of psi, gamma and scale."""
    inputs = [t.detach().requires_grad_() for t in (psi, gamma, scale)]
    return grads(value_extract(*inputs, path=path, **kwargs), inputs)


def scan_inputs(batch, heads, length, width, dtype=torch.float64, std=1.0):
    """x as a strided view of a projection, log gates and log decays with standard deviation ``std``."""
    x = torch.randn(batch, length, heads, width, dtype=torch.float64).to(dtype).transpose(1, 2)
    gate = std * torch.randn(batch, heads, length, dtype=wide(dtype))
    decay = -0.3 * std * torch.randn(batch, heads, length, dtype=wide(dtype)).abs()
    return x, gate, decay
