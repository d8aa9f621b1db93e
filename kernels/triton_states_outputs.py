"""The Triton kernel of the forward of `state_space_scan` that has a program a chunk; see `triton_states`."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_states import PRECISION, RUN_TIME, documents_of, rows_of, state_block, store_rows, sums_of


@triton.jit
def decays_between(high, low, ids, DOCUMENTED: tl.constexpr, K: tl.constexpr):  # -> (K, K)
    """E over (t, i)."""
    steps = tl.arange(0, K)
    visible = steps[None, :] <= steps[:, None]
    if DOCUMENTED:
        visible = visible & (ids[None, :] == ids[:, None])
    gap = (high[:, None] - high[None, :]) + (low[:, None] - low[None, :])
    return tl.exp2(tl.where(visible, gap, float("-inf")))


@triton.jit
def products_of(
    c_base,
    b_base,
    positions,
    length,
    stride_ct,
    stride_cd,
    stride_bt,
    stride_bd,
    SIZE: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    BN: tl.constexpr,
):  # -> (K, K)
    """S = C B^T over (t, i), BN of the columns of N after another."""
    product = tl.zeros((K, K), tl.float32)
    for first in range(0, N, BN):
        sizes = first + tl.arange(0, BN)
        c = rows_of(c_base, positions, sizes, length, stride_ct, stride_cd, SIZE)
        b = rows_of(b_base, positions, sizes, length, stride_bt, stride_bd, SIZE)
        product = tl.dot(c, tl.trans(b), product, input_precision=PRECISION)
    return product


@triton.jit(do_not_specialize=RUN_TIME)
def state_space_outputs_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    logs_ptr,
    ids_ptr,
    starts_ptr,
    y_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_bb,
    stride_bg,
    stride_bt,
    stride_bd,
    stride_cb,
    stride_cg,
    stride_ct,
    stride_cd,
    stride_ib,
    stride_it,
    stride_yb,
    stride_yh,
    stride_yt,
    stride_yd,
    heads,
    share,
    length,
    chunks,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """y_t = sum_i (c_t . b_i) E_ti x_i + e_t c_t^T h of a chunk, BP columns after another."""
    chunk = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * heads + head
    positions = chunk * K + tl.arange(0, K)
    b_base = b_ptr + batch * stride_bb + (head // share) * stride_bg
    c_base = c_ptr + batch * stride_cb + (head // share) * stride_cg
    x_base = x_ptr + batch * stride_xb + head * stride_xh
    y_base = y_ptr + batch * stride_yb + head * stride_yh
    states = (row * chunks + chunk) * SIZE * WIDTH
    high, low, _ = sums_of(logs_ptr, row, chunk, chunks, K)
    entered = tl.exp2(high + low)
    ids = positions
    if DOCUMENTED:
        ids, before, _ = documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K)
        entered = tl.where(ids == before, entered, 0.0)
    weights = products_of(c_base, b_base, positions, length, stride_ct, stride_cd, stride_bt, stride_bd, SIZE, K, N, BN)
    weights = (weights * decays_between(high, low, ids, DOCUMENTED, K)).to(x_ptr.dtype.element_ty)
    for block in range(0, P, BP):
        columns = block + tl.arange(0, BP)
        x = rows_of(x_base, positions, columns, length, stride_xt, stride_xd, WIDTH)
        y = tl.zeros((K, BP), tl.float32)
        for first in range(0, N, BN):
            sizes = first + tl.arange(0, BN)
            c = rows_of(c_base, positions, sizes, length, stride_ct, stride_cd, SIZE)
            pointers, inside = state_block(starts_ptr + states, sizes, columns, SIZE, WIDTH)
            state = tl.load(pointers, mask=inside, other=0.0)
            y = tl.dot(c, state.to(c.dtype), y, input_precision=PRECISION)
        y = tl.dot(weights, x, y * entered[:, None], input_precision=PRECISION)
        store_rows(y_base, y, positions, columns, length, stride_yt, stride_yd, WIDTH)
