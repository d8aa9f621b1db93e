"""Triton kernels of `memory_attention`: forward, and a backward in two kernels. Launched by `triton_memory`.

A program owns one tile: BM reads (forward, query side of the backward) or BN stored pairs (pair side), and walks over
the tiles of the other side that hold at least one visible pair. Tiles are of two kinds: those in which every read sees
every pair, which need no mask, and those on an edge (window, delay, document, end of the sequence). The order of tiles
does not matter to an online softmax, so all edges share one loop.

- The query is the key: without a `query` the same tensor is read in both roles, nothing is copied.
- The bandwidth is applied in float32, after the dot product: folded into a 16-bit query it costs five times the error.
- Nothing is reduced by atomics: a row or tile writes its own partial result, so every run gives the same bits.
- Sizes, strides of the statistics, window, delay and offset are run-time arguments, exempt from specialisation: a new
  delay at every training step finds the kernel compiled. Offsets are 64-bit before they are multiplied by a stride.

Shape legend: BM reads, BN pairs, D / V key and value width padded to a power of two. Scores are base-2 throughout.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)

RUN_TIME = [
    "stride_sb",
    "stride_sh",
    "heads",
    "rows",
    "length",
    "offset",
    "window",
    "delay",
    "row_base",
    "main_tiles",
]
"""Arguments no kernel is compiled anew for."""


@triton.jit
def tile_offsets(
    stride_t, stride_d, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr
):  # -> (BLOCK, PADDED) int64
    """Offsets of BLOCK rows from the first; loop-invariant, so the loop only moves a scalar base."""
    columns = tl.arange(0, PADDED).to(tl.int64)
    return columns[None, :] * stride_d


@triton.jit
def load_tile(
    base,
    offsets,
    start,
    limit,
    stride_t,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    EDGE: tl.constexpr,
):  # -> (BLOCK, PADDED)
    """Rows start .. start+BLOCK-1 of a (limit, WIDTH) matrix, 0 outside it; ``EDGE``: rows may pass ``limit``."""
    rows = start + tl.arange(0, BLOCK)
    pointers = base + rows.to(tl.int64)[:, None] * stride_t + offsets
    if EDGE:
        inside = (start + tl.arange(0, BLOCK) < limit)[:, None]
        if WIDTH < PADDED:
            inside = inside & (tl.arange(0, PADDED) < WIDTH)[None, :]
        return tl.load(pointers, mask=inside, other=0.0)
    if WIDTH < PADDED:
        return tl.load(pointers, mask=(tl.arange(0, PADDED) < WIDTH)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_tile(
    base,
    tile,
    start,
    limit,
    stride_t,
    stride_d,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Write rows start .. limit-1 of a matrix from ``tile`` (BLOCK, PADDED)."""
    rows = start + tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    pointers = base + rows.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    inside = (rows < limit)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def seen_by(
    rows, limit, offset, length, window, delay, starts, WINDOWED: tl.constexpr, DOCUMENTED: tl.constexpr
):  # -> first, end
    """The pairs ``first .. end - 1`` each read sees (`bandwidth.visible_range`); ``rows`` a scalar or a vector."""
    positions = rows + offset
    if WINDOWED:
        first = tl.maximum(positions - window, 0)
        end = tl.minimum(positions, length)
    else:
        first = positions * 0
        end = tl.minimum(positions - delay + 1, length)
    if DOCUMENTED:
        first = tl.maximum(first, tl.load(starts + rows, mask=rows < limit, other=0))
    return first, end


@triton.jit
def readers_of(
    pairs, limit, rows, offset, window, delay, ends, WINDOWED: tl.constexpr, DOCUMENTED: tl.constexpr
):  # -> first, end
    """The reads ``first .. end - 1`` (counted from the first query) that see each pair: `seen_by` inverted."""
    if WINDOWED:
        first = pairs + 1
        end = tl.minimum(pairs + window + 1, offset + rows)
    else:
        first = pairs + delay
        end = pairs * 0 + offset + rows
    if DOCUMENTED:
        end = tl.minimum(end, tl.load(ends + pairs, mask=pairs < limit, other=0))
    return tl.maximum(first - offset, 0), end - offset


@triton.jit
def tile_span(low, full_low, full_high, high, BLOCK: tl.constexpr):  # -> tiles, full_from, full_to
    """Tiles from ``low`` that cover low .. high-1, and which of them lie inside full_low .. full_high-1."""
    tiles = tl.cdiv(tl.maximum(high - low, 0), BLOCK)
    full_from = tl.minimum(tl.cdiv(tl.maximum(full_low - low, 0), BLOCK), tiles)
    full_to = tl.maximum(tl.minimum(tl.maximum(full_high - low, 0) // BLOCK, tiles), full_from)
    return tiles, full_from, full_to


@triton.jit
def edge_tile(index, full_from, full_to):
    """Number of the index-th tile that needs a mask: those before the full ones, then those after."""
    return tl.where(index < full_from, index, index - full_from + full_to)


@triton.jit
def read_tile_rows(row_base, main_tiles, rows, BM: tl.constexpr):  # -> row, limit
    """First row and row limit of this program's tile.

    Tiles are aligned to ``row_base``, the first read that sees anything, so the diagonal crosses them alike for
    every delay. Rows before it have tiles of their own, after the others. Longest tiles start first.
    """
    tile = tl.program_id(0)
    is_main = tile < main_tiles
    row = tl.where(is_main, row_base + (main_tiles - 1 - tile) * BM, (tile - main_tiles) * BM)
    return row, tl.where(is_main, rows, row_base)


@triton.jit
def attend(
    acc, total, top, q, k, v, beta2, first, end, start, BN: tl.constexpr, EDGE: tl.constexpr, PRECISION: tl.constexpr
):
    """One step of the online softmax: scores (BM, BN) of q and k, added to acc (BM, V), total and top (BM,)."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if EDGE:
        pairs = start + tl.arange(0, BN)
        visible = (pairs[None, :] >= first[:, None]) & (pairs[None, :] < end[:, None])
        scores = tl.where(visible, scores * beta2[:, None], float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet subtracts 0, not -inf, from -inf.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - shift[:, None])
    else:
        new_top = tl.maximum(top, tl.max(scores, 1) * beta2)
        shift = new_top
        weights = tl.exp2(scores * beta2[:, None] - shift[:, None])
    fade = tl.exp2(top - shift)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, new_top


@triton.jit(do_not_specialize=RUN_TIME)
def memory_attention_forward_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    statistics_ptr,
    beta0_ptr,
    beta1_ptr,
    alpha_ptr,
    starts_ptr,
    stride_qb,
    stride_qh,
    stride_qt,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_vd,
    stride_ob,
    stride_oh,
    stride_ot,
    stride_od,
    stride_sb,
    stride_sh,
    rows,
    length,
    offset,
    window,
    delay,
    row_base,
    main_tiles,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WINDOWED: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """f(k_t) = sum_i softmax_i(beta_t k_t . k_i) v_i for BM reads; statistics: base-2 log-sum-exp, and beta_t log2(e).

    Empty reads: output 0, log-sum-exp +inf (so that every weight computed from it is 0).
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row, limit = read_tile_rows(row_base, main_tiles, rows, BM)
    last = tl.minimum(row + BM, limit) - 1
    starts = starts_ptr + batch * rows
    low, full_high = seen_by(row, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    full_low, high = seen_by(last, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    tiles, full_from, full_to = tile_span(low, full_low, full_high, high, BN)

    lines = row + tl.arange(0, BM)
    first, end = seen_by(lines, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    count = tl.maximum(end - first, 0)
    power = tl.exp2(tl.load(alpha_ptr + head) * tl.log2(tl.maximum(count, 1).to(tl.float32)))
    beta = tl.load(beta1_ptr + head) * power + tl.load(beta0_ptr + head)
    beta2 = tl.where(count > 0, beta * LOG2_E, 0.0)

    query_base = query_ptr + batch * stride_qb + head * stride_qh
    key_base = key_ptr + batch * stride_kb + head * stride_kh
    value_base = value_ptr + batch * stride_vb + head * stride_vh
    q = load_tile(
        query_base, tile_offsets(stride_qt, stride_qd, BM, WIDTH, D), row, limit, stride_qt, BM, WIDTH, D, True
    )  # (BM, D)
    key_offsets = tile_offsets(stride_kt, stride_kd, BN, WIDTH, D)
    value_offsets = tile_offsets(stride_vt, stride_vd, BN, VALUE_WIDTH, V)
    acc = tl.zeros((BM, V), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    for tile in range(full_from, full_to):
        start = low + tile * BN
        k = load_tile(key_base, key_offsets, start, length, stride_kt, BN, WIDTH, D, False)
        v = load_tile(value_base, value_offsets, start, length, stride_vt, BN, VALUE_WIDTH, V, False)
        acc, total, top = attend(acc, total, top, q, k, v, beta2, first, end, start, BN, False, PRECISION)
    for index in range(0, tiles - full_to + full_from):
        start = low + edge_tile(index, full_from, full_to) * BN
        k = load_tile(key_base, key_offsets, start, high, stride_kt, BN, WIDTH, D, True)
        v = load_tile(value_base, value_offsets, start, high, stride_vt, BN, VALUE_WIDTH, V, True)
        acc, total, top = attend(acc, total, top, q, k, v, beta2, first, end, start, BN, True, PRECISION)

    filled = count > 0
    total = tl.where(total == 0.0, 1.0, total)
    out = tl.where(filled[:, None], acc / total[:, None], 0.0)
    store_tile(
        out_ptr + batch * stride_ob + head * stride_oh, out, row, limit, stride_ot, stride_od, BM, VALUE_WIDTH, V
    )
    statistics = statistics_ptr + batch * stride_sb + head * stride_sh + lines
    log_sum = tl.where(filled, top + tl.log2(total), float("inf"))
    tl.store(statistics, log_sum, mask=lines < limit)
    tl.store(statistics + rows, beta2, mask=lines < limit)


@triton.jit
def pull_query(
    acc,
    slope,
    excess,
    mean,
    q,
    k,
    v,
    grad,
    beta2,
    log_sum,
    delta,
    first,
    end,
    start,
    BN: tl.constexpr,
    EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add, of one tile of pairs: ds k to acc (BM, D); sums over pairs of ds s, ds and p s to three (BM,) vectors.

    s = q . k before the bandwidth, p the weights, ds = p (dp - delta).
    """
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    grad_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    weights = tl.exp2(scores * beta2[:, None] - log_sum[:, None])
    if EDGE:
        pairs = start + tl.arange(0, BN)
        visible = (pairs[None, :] >= first[:, None]) & (pairs[None, :] < end[:, None])
        weights = tl.where(visible, weights, 0.0)
    mean += tl.sum(weights * scores, 1)
    grad_scores = weights * (grad_weights - delta[:, None])
    slope += tl.sum(grad_scores * scores, 1)
    excess += tl.sum(grad_scores, 1)
    acc = tl.dot(grad_scores.to(k.dtype), k, acc, input_precision=PRECISION)
    return acc, slope, excess, mean


@triton.jit(do_not_specialize=RUN_TIME)
def memory_attention_query_gradient_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    grad_ptr,
    statistics_ptr,
    delta_ptr,
    grad_query_ptr,
    partial_ptr,
    beta1_ptr,
    alpha_ptr,
    starts_ptr,
    stride_qb,
    stride_qh,
    stride_qt,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_vd,
    stride_ob,
    stride_oh,
    stride_ot,
    stride_od,
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_ub,
    stride_uh,
    stride_ut,
    stride_ud,
    stride_sb,
    stride_sh,
    heads,
    rows,
    length,
    offset,
    window,
    delay,
    row_base,
    main_tiles,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WINDOWED: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Query side of the backward for BM reads: u_t = sum_i ds_ti k_i gives dq_t = beta_t u_t, and dbeta_t likewise.

    dbeta_t = u_t . q_t = sum_i ds_ti s_ti lives on what cancels: the ds of a row sum to 0. With ds rounded to 16 bits
    for the product, and delta from an output of 16 bits, u_t . q_t is off by up to 3% in float16. So the sum is taken
    in float32 in the registers, about the mean score sum_i p_ti s_ti, which takes the error of delta out as well.

    Writes dq, delta_t = do_t . o_t (which the pair side needs), and this tile's sums of the gradients of beta0, beta1
    and alpha, from beta_t = beta1 n_t^alpha + beta0, as partials (B, H, 3, tiles).
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row, limit = read_tile_rows(row_base, main_tiles, rows, BM)
    last = tl.minimum(row + BM, limit) - 1
    starts = starts_ptr + batch * rows
    low, full_high = seen_by(row, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    full_low, high = seen_by(last, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    tiles, full_from, full_to = tile_span(low, full_low, full_high, high, BN)

    lines = row + tl.arange(0, BM)
    inside = lines < limit
    first, end = seen_by(lines, limit, offset, length, window, delay, starts, WINDOWED, DOCUMENTED)
    statistics = statistics_ptr + batch * stride_sb + head * stride_sh + lines
    log_sum = tl.load(statistics, mask=inside, other=float("inf"))
    beta2 = tl.load(statistics + rows, mask=inside, other=0.0)

    grad = load_tile(
        grad_ptr + batch * stride_gb + head * stride_gh,
        tile_offsets(stride_gt, stride_gd, BM, VALUE_WIDTH, V),
        row,
        limit,
        stride_gt,
        BM,
        VALUE_WIDTH,
        V,
        True,
    )  # (BM, V)
    out = load_tile(
        out_ptr + batch * stride_ob + head * stride_oh,
        tile_offsets(stride_ot, stride_od, BM, VALUE_WIDTH, V),
        row,
        limit,
        stride_ot,
        BM,
        VALUE_WIDTH,
        V,
        True,
    )
    delta = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(delta_ptr + (batch * heads + head) * rows + lines, delta, mask=inside)

    query_base = query_ptr + batch * stride_qb + head * stride_qh
    key_base = key_ptr + batch * stride_kb + head * stride_kh
    value_base = value_ptr + batch * stride_vb + head * stride_vh
    q = load_tile(
        query_base, tile_offsets(stride_qt, stride_qd, BM, WIDTH, D), row, limit, stride_qt, BM, WIDTH, D, True
    )  # (BM, D)
    key_offsets = tile_offsets(stride_kt, stride_kd, BN, WIDTH, D)
    value_offsets = tile_offsets(stride_vt, stride_vd, BN, VALUE_WIDTH, V)
    acc = tl.zeros((BM, D), tl.float32)
    slope = tl.zeros((BM,), tl.float32)
    excess = tl.zeros((BM,), tl.float32)
    mean = tl.zeros((BM,), tl.float32)
    for tile in range(full_from, full_to):
        start = low + tile * BN
        k = load_tile(key_base, key_offsets, start, length, stride_kt, BN, WIDTH, D, False)
        v = load_tile(value_base, value_offsets, start, length, stride_vt, BN, VALUE_WIDTH, V, False)
        acc, slope, excess, mean = pull_query(
            acc, slope, excess, mean, q, k, v, grad, beta2, log_sum, delta, first, end, start, BN, False, PRECISION
        )
    for index in range(0, tiles - full_to + full_from):
        start = low + edge_tile(index, full_from, full_to) * BN
        k = load_tile(key_base, key_offsets, start, high, stride_kt, BN, WIDTH, D, True)
        v = load_tile(value_base, value_offsets, start, high, stride_vt, BN, VALUE_WIDTH, V, True)
        acc, slope, excess, mean = pull_query(
            acc, slope, excess, mean, q, k, v, grad, beta2, log_sum, delta, first, end, start, BN, True, PRECISION
        )

    grad_beta = slope - excess * mean
    store_tile(
        grad_query_ptr + batch * stride_ub + head * stride_uh,
        acc * (beta2 * LN_2)[:, None],
        row,
        limit,
        stride_ut,
        stride_ud,
        BM,
        WIDTH,
        D,
    )
    log_count = tl.log2(tl.maximum(end - first, 1).to(tl.float32))
    grad_power = grad_beta * tl.exp2(tl.load(alpha_ptr + head) * log_count)
    partial = partial_ptr + (batch * heads + head) * 3 * tl.num_programs(0) + tl.program_id(0)
    tl.store(partial, tl.sum(grad_beta, 0))
    tl.store(partial + tl.num_programs(0), tl.sum(grad_power, 0))
    tl.store(partial + 2 * tl.num_programs(0), tl.load(beta1_ptr + head) * (tl.sum(grad_power * log_count, 0) * LN_2))


@triton.jit
def pull_pairs(
    grad_k,
    grad_v,
    k,
    v,
    q,
    grad,
    beta2,
    log_sum,
    delta,
    first,
    end,
    start,
    BM: tl.constexpr,
    EDGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add (ds beta2)^T q to grad_k (BN, D) and p^T do to grad_v (BN, V), of one tile of reads. Scores are (BN, BM)."""
    scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)
    grad_weights = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
    weights = tl.exp2(scores * beta2[None, :] - log_sum[None, :])
    if EDGE:
        reads = start + tl.arange(0, BM)
        visible = (reads[None, :] >= first[:, None]) & (reads[None, :] < end[:, None])
        weights = tl.where(visible, weights, 0.0)
    grad_scores = weights * (grad_weights - delta[None, :]) * beta2[None, :]
    grad_v = tl.dot(weights.to(grad.dtype), grad, grad_v, input_precision=PRECISION)
    grad_k = tl.dot(grad_scores.to(q.dtype), q, grad_k, input_precision=PRECISION)
    return grad_k, grad_v


@triton.jit(do_not_specialize=RUN_TIME)
def memory_attention_pair_gradient_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    grad_ptr,
    statistics_ptr,
    delta_ptr,
    grad_key_ptr,
    grad_value_ptr,
    ends_ptr,
    stride_qb,
    stride_qh,
    stride_qt,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_kd,
    stride_vb,
    stride_vh,
    stride_vt,
    stride_vd,
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_yb,
    stride_yh,
    stride_yt,
    stride_yd,
    stride_sb,
    stride_sh,
    heads,
    rows,
    length,
    offset,
    window,
    delay,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    WINDOWED: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    ADDED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Pair side of the backward for BN stored pairs: dk_i = sum_t ds_ti beta_t q_t and dv_i = sum_t p_ti do_t.

    ``ADDED``: the gradient of the keys already holds their part as queries; dk starts from it.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    pair = tl.program_id(0) * BN
    last = tl.minimum(pair + BN, length) - 1
    ends = ends_ptr + batch * length
    low, full_high = readers_of(pair, length, rows, offset, window, delay, ends, WINDOWED, DOCUMENTED)
    full_low, high = readers_of(last, length, rows, offset, window, delay, ends, WINDOWED, DOCUMENTED)
    tiles, full_from, full_to = tile_span(low, full_low, full_high, high, BM)
    lines = pair + tl.arange(0, BN)
    first, end = readers_of(lines, length, rows, offset, window, delay, ends, WINDOWED, DOCUMENTED)

    query_base = query_ptr + batch * stride_qb + head * stride_qh
    grad_base = grad_ptr + batch * stride_gb + head * stride_gh
    key_offsets = tile_offsets(stride_kt, stride_kd, BN, WIDTH, D)
    k = load_tile(
        key_ptr + batch * stride_kb + head * stride_kh, key_offsets, pair, length, stride_kt, BN, WIDTH, D, True
    )  # (BN, D)
    value_offsets = tile_offsets(stride_vt, stride_vd, BN, VALUE_WIDTH, V)
    v = load_tile(
        value_ptr + batch * stride_vb + head * stride_vh,
        value_offsets,
        pair,
        length,
        stride_vt,
        BN,
        VALUE_WIDTH,
        V,
        True,
    )  # (BN, V)
    query_offsets = tile_offsets(stride_qt, stride_qd, BM, WIDTH, D)
    grad_offsets = tile_offsets(stride_gt, stride_gd, BM, VALUE_WIDTH, V)
    statistics = statistics_ptr + batch * stride_sb + head * stride_sh
    deltas = delta_ptr + (batch * heads + head) * rows
    grad_k = tl.zeros((BN, D), tl.float32)
    grad_v = tl.zeros((BN, V), tl.float32)
    for tile in range(full_from, full_to):
        start = low + tile * BM
        reads = start + tl.arange(0, BM)
        q = load_tile(query_base, query_offsets, start, rows, stride_qt, BM, WIDTH, D, False)
        grad = load_tile(grad_base, grad_offsets, start, rows, stride_gt, BM, VALUE_WIDTH, V, False)
        log_sum = tl.load(statistics + reads)
        beta2 = tl.load(statistics + rows + reads)
        delta = tl.load(deltas + reads)
        grad_k, grad_v = pull_pairs(
            grad_k, grad_v, k, v, q, grad, beta2, log_sum, delta, first, end, start, BM, False, PRECISION
        )
    for index in range(0, tiles - full_to + full_from):
        start = low + edge_tile(index, full_from, full_to) * BM
        reads = start + tl.arange(0, BM)
        q = load_tile(query_base, query_offsets, start, high, stride_qt, BM, WIDTH, D, True)
        grad = load_tile(grad_base, grad_offsets, start, high, stride_gt, BM, VALUE_WIDTH, V, True)
        log_sum = tl.load(statistics + reads, mask=reads < high, other=float("inf"))
        beta2 = tl.load(statistics + rows + reads, mask=reads < high, other=0.0)
        delta = tl.load(deltas + reads, mask=reads < high, other=0.0)
        grad_k, grad_v = pull_pairs(
            grad_k, grad_v, k, v, q, grad, beta2, log_sum, delta, first, end, start, BM, True, PRECISION
        )

    store_tile(
        grad_value_ptr + batch * stride_yb + head * stride_yh,
        grad_v,
        pair,
        length,
        stride_yt,
        stride_yd,
        BN,
        VALUE_WIDTH,
        V,
    )
    grad_k *= LN_2
    grad_key_base = grad_key_ptr + batch * stride_xb + head * stride_xh
    if ADDED:
        offsets = tile_offsets(stride_xt, stride_xd, BN, WIDTH, D)
        grad_k += load_tile(grad_key_base, offsets, pair, length, stride_xt, BN, WIDTH, D, True).to(tl.float32)
    store_tile(grad_key_base, grad_k, pair, length, stride_xt, stride_xd, BN, WIDTH, D)
