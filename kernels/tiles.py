"""How the native path cuts its work: query blocks of `memory_attention`, chunks of the two scans. Torch-free.

Kept apart from the arithmetic so that the FLOP formulas count exactly the tiles that are computed.
"""

from __future__ import annotations

from collections.abc import Iterator

# Sizes are tuned for a CPU with 2 MB of second-level cache a core; elements of float32.
LONG_TERM_ROWS = 64
LONG_TERM_ROWS_FROM_1024 = 128
SHORT_TERM_ROWS = 64
TILE_ELEMENTS = 1 << 19
SCAN_CHUNK = 16
SCAN_ELEMENTS = 1 << 20
STATE_CHUNK = 64
"""K of `state_space_scan`: its [K, K] products cost K/2 as many FLOPs a position as a state of size N costs N."""


def query_blocks(rows: int, length: int, offset: int, window: int, delay: int) -> Iterator[tuple[int, int, int, int]]:
    """Tiles (row, row end, pair, pair end) that cover every visible pair.

    Rows are counted from the first query, which stands at position ``offset``; ``length`` pairs are stored.
    Reads before the first visible pair (t < 1 short-term, t < m long-term) are in no tile, so the diagonal is
    aligned with the tiles for every delay.
    """
    reach = 1 if window > 0 else delay
    size = SHORT_TERM_ROWS if window > 0 else LONG_TERM_ROWS if rows < 1024 else LONG_TERM_ROWS_FROM_1024
    row = max(0, reach - offset)
    while row < rows:
        row_end = min(row + size, rows)
        pair_end = min(length, offset + row_end - reach)
        pair = max(0, offset + row - window) if window > 0 else 0
        if pair < pair_end:
            yield row, row_end, pair, pair_end
        row = row_end


def padded_length(length: int) -> int:
    """Positions a scan over ``length`` of them computes: one short chunk, or whole chunks."""
    return length if length <= SCAN_CHUNK else -(-length // SCAN_CHUNK) * SCAN_CHUNK
