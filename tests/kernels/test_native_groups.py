"""The native paths where they take few heads at a time, and reads whose best pair is far from the query."""

from __future__ import annotations

import pytest
import torch
from cases import bandwidth, documents, extract, read, scan, scan_inputs, unit_keys
from closeness import assert_close

from mmctl.kernels import attention_native, scan_native


@pytest.mark.parametrize("elements", [1, 40 * 8, 2 * 40 * 8, 3 * 40 * 8])
@pytest.mark.parametrize("documented", [False, True])
def test_groups_of_any_size_give_the_same(elements, documented, monkeypatch):
    """Parts of a head's sequences, one head, several: the whole is what one group gives."""
    docs = documents(2, 40, 9) if documented else None
    inputs = scan_inputs(2, 3, 40, 8, torch.float32)
    psi, gamma, scale = torch.randn(2, 40, 3, 8).transpose(1, 2), torch.rand(3), 0.5 + torch.rand(3)
    keys, values, bw = unit_keys(2, 3, 40, 8, torch.float32), torch.randn(2, 3, 40, 8), bandwidth(3, torch.float32)

    def results():
        scanned, extracted = (
            scan("native", *inputs, documents=docs),
            extract("native", psi, gamma, scale, documents=docs),
        )
        return [*scanned, *extracted, *read("native", keys, values, bw, documents=docs, window=7)]

    whole = results()
    monkeypatch.setattr(scan_native, "SCAN_ELEMENTS", elements)
    monkeypatch.setattr(attention_native, "TILE_ELEMENTS", elements)
    for part, one in zip(results(), whole, strict=True):
        assert_close("result", part, one, 1e-6)


@pytest.mark.parametrize("span", [{"window": 9}, {"delay": 9}], ids=str)
@pytest.mark.parametrize("scale", [30.0, 600.0])
def test_reads_far_from_every_key(span, scale):
    """Every visible key is nearly opposite: without the maximum of the scores, all weights of a row would vanish."""
    keys = torch.nn.functional.normalize(torch.randn(2, 2, 60, 8, dtype=torch.float64) * 0.1 + torch.eye(8)[0], dim=-1)
    keys[0, :, 40:] *= -1
    values, bw = torch.randn(2, 2, 60, 8), tuple(torch.full((2,), c) for c in (scale, scale, 0.0))
    native, reference = (read(path, keys.float(), values, bw, **span) for path in ("native", "reference"))
    # What cancels in the gradients of the bandwidth leaves the rounding of scores of this size.
    for a, e, tolerance in zip(native, reference, [1e-5 + 1e-7 * scale] * 3 + [1e-3] * 3, strict=True):
        assert_close("result", a, e, tolerance, floor=1e-6)
    # The other sequence knows nothing of it.
    keys[0, :, 40:] *= -1
    near = read("native", keys.float(), values, bw, **span)
    assert torch.equal(native[0][1], near[0][1])
    assert torch.equal(native[1][1], near[1][1])
