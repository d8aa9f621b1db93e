"""The paper's own figures, to the digits it prints."""

from __future__ import annotations

import pytest

from mmctl.errors import UsageError
from mmctl.models import flops, published


def test_all_eight_large_figures_match_to_the_printed_digits():
    cells = list(published.cells(published.LARGE))
    assert [f"{cell.ours / 1e9:.1f}" for cell in cells] == ["8.8", "16.7", "25.2", "9.9", "18.9", "27.4", "8.3", "15.6"]
    assert all(cell.matches for cell in cells)


def test_the_small_row_is_shown_with_its_inconsistency():
    found = {(c.row.size, c.row.model, c.what): c for c in published.cells(published.SMALL)}
    long = str(published.LONG_CONTEXT)
    for model, with_24, with_16 in (("transformer", 6.36, 4.42), ("mosaic-v2", 6.79, 4.70)):
        assert found["small", model, long].ours / 1e9 == pytest.approx(with_24, abs=0.005)
        assert found["small, 16 layers", model, long].ours / 1e9 == pytest.approx(with_16, abs=0.005)
        assert not found["small", model, long].matches
        assert found["small, 16 layers", model, long].matches
        assert not found["small", model, "P"].matches
        assert not found["small, 16 layers", model, "P"].matches


def test_published_formulas_term_by_term():
    """P = L(6d^2 + 3dd') + 2Vd and F = 2P' + 2Lnd + 2L min(n, h) d, written out independently of the counter."""
    layers, d, hidden, vocabulary, window = 32, 4096, 14336, published.VOCABULARY, 256
    config = published.model_config("large", "mosaic-v2")
    for n in (100, 256, 5000):
        matrices = layers * (6 * d * d + 3 * d * hidden)
        expected = 2 * matrices + 2 * vocabulary * d + 2 * layers * n * d + 2 * layers * min(n, window) * d
        assert flops.flops_per_token(config, vocabulary, n, "published") == expected
        without = 2 * (matrices - 3 * layers * d * d) + 2 * vocabulary * d + 2 * layers * min(n, window) * d
        assert flops.flops_per_token(config, vocabulary, n, "published", remove_long_term=True) == without


def test_a_mistyped_convention_and_an_empty_context_are_one_line():
    config = published.model_config("large", "transformer")
    with pytest.raises(UsageError, match=r'did you mean "executed"'):
        flops.flops_per_token(config, 512, 256, "exeuted")
    with pytest.raises(UsageError, match="context=0"):
        flops.flops_per_token(config, 512, 0)
