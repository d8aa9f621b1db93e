"""Triton kernels of the backward of `state_space_scan`; see `triton_states`, whose products they compute again.

With g = dy, S = C B^T, D_ti = g_t . x_i, h the state a chunk starts from and dh the gradient of that it hands on:

    dx_i = sum_t S_ti E_ti g_t + f_i dh^T b_i          dh <- e_end dh + sum_t e_t c_t g_t^T, to the chunk before
    dc_t = sum_i D_ti E_ti b_i + e_t h g_t
    db_i = sum_t D_ti E_ti c_t + f_i dh x_i
    da_s = sum_{i<s<=t} D_ti E_ti S_ti + sum_{t>=s} c_t . (e_t h g_t) + sum_{i<s} b_i . (f_i dh x_i) + e_end h . dh
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_states import PRECISION, RUN_TIME, documents_of, rows_of, state_block, store_rows, sums_of, to_end
from .triton_states_outputs import decays_between, products_of


@triton.jit(do_not_specialize=RUN_TIME)
def state_space_input_gradient_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    grad_ptr,
    logs_ptr,
    ids_ptr,
    starts_ptr,
    adjoints_ptr,
    grad_x_ptr,
    grad_decay_ptr,
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
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_ib,
    stride_it,
    stride_ub,
    stride_uh,
    stride_ut,
    stride_ud,
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
    """dx and da of a chunk, BP columns after another; grad_decay: (B H, T) float32."""
    chunk = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * heads + head
    positions = chunk * K + tl.arange(0, K)
    b_base = b_ptr + batch * stride_bb + (head // share) * stride_bg
    c_base = c_ptr + batch * stride_cb + (head // share) * stride_cg
    high, low, end = sums_of(logs_ptr, row, chunk, chunks, K)
    entered, left, passed = tl.exp2(high + low), to_end(high, low, K), tl.exp2(end)
    ids = positions
    if DOCUMENTED:
        ids, before, last = documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K)
        entered = tl.where(ids == before, entered, 0.0)
        left = tl.where(ids == last, left, 0.0)
        passed = tl.where(before == last, passed, 0.0)
    weights = products_of(c_base, b_base, positions, length, stride_ct, stride_cd, stride_bt, stride_bd, SIZE, K, N, BN)
    weights *= decays_between(high, low, ids, DOCUMENTED, K)
    turned = tl.trans(weights.to(x_ptr.dtype.element_ty))
    states = (row * chunks + chunk) * SIZE * WIDTH
    x_base = x_ptr + batch * stride_xb + head * stride_xh
    grad_base = grad_ptr + batch * stride_gb + head * stride_gh
    grad_x_base = grad_x_ptr + batch * stride_ub + head * stride_uh
    outer = tl.zeros((K, K), tl.float32)
    read, written, kept = tl.zeros((K,), tl.float32), tl.zeros((K,), tl.float32), 0.0
    for block in range(0, P, BP):
        columns = block + tl.arange(0, BP)
        x = rows_of(x_base, positions, columns, length, stride_xt, stride_xd, WIDTH)
        grad = rows_of(grad_base, positions, columns, length, stride_gt, stride_gd, WIDTH)
        outer = tl.dot(grad, tl.trans(x), outer, input_precision=PRECISION)
        from_state = tl.zeros((K, BP), tl.float32)
        grad_x = tl.zeros((K, BP), tl.float32)
        for first in range(0, N, BN):
            sizes = first + tl.arange(0, BN)
            c = rows_of(c_base, positions, sizes, length, stride_ct, stride_cd, SIZE)
            pointers, inside = state_block(starts_ptr + states, sizes, columns, SIZE, WIDTH)
            state = tl.load(pointers, mask=inside, other=0.0)
            from_state = tl.dot(c, state.to(c.dtype), from_state, input_precision=PRECISION)
            b = rows_of(b_base, positions, sizes, length, stride_bt, stride_bd, SIZE)
            pointers, inside = state_block(adjoints_ptr + states, sizes, columns, SIZE, WIDTH)
            adjoint = tl.load(pointers, mask=inside, other=0.0)
            grad_x = tl.dot(b, adjoint.to(b.dtype), grad_x, input_precision=PRECISION)
            kept += tl.sum(tl.sum(state * adjoint, 1), 0)
        read += tl.sum(from_state * grad.to(tl.float32), 1)
        grad_x *= left[:, None]
        written += tl.sum(grad_x * x.to(tl.float32), 1)
        grad_x = tl.dot(turned, grad, grad_x, input_precision=PRECISION)
        store_rows(grad_x_base, grad_x, positions, columns, length, stride_ut, stride_ud, WIDTH)
    # da_s: pairs i < s <= t, what t >= s reads of the start state, what i < s hands on, and what the chunk passes on.
    steps = tl.arange(0, K)
    pairs = tl.where(steps[None, :] < steps[:, None], outer * weights, 0.0).to(x_ptr.dtype.element_ty)
    earlier = (steps[:, None] < steps[None, :]).to(x_ptr.dtype.element_ty)
    seen = tl.dot(pairs, earlier, input_precision=PRECISION) + (read * entered)[:, None]
    grad_decay = tl.sum(tl.where(steps[None, :] <= steps[:, None], seen, 0.0), 0)
    grad_decay += tl.sum(tl.where(steps[:, None] < steps[None, :], written[:, None], 0.0), 0) + passed * kept
    tl.store(grad_decay_ptr + row * length + positions, grad_decay, mask=positions < length)


@triton.jit(do_not_specialize=[*RUN_TIME, "together", "width"])
def state_space_shared_gradient_kernel(
    x_ptr,
    b_ptr,
    c_ptr,
    grad_ptr,
    logs_ptr,
    ids_ptr,
    starts_ptr,
    adjoints_ptr,
    grad_b_ptr,
    grad_c_ptr,
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
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_ib,
    stride_it,
    heads,
    share,
    length,
    chunks,
    together,
    width,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BP: tl.constexpr,
    BLOCKS: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """BN of the columns of db and dc of a chunk, summed over `together` heads of a group, one after another.

    grad_b, grad_c: (B, parts, T, N) float32, contiguous, a part for every `together` heads. The number of blocks is known
    at run time only (width is P): unrolled, the products into both accumulators make ptxas serialise wgmma on sm_90.
    """
    chunk = tl.program_id(0) // BLOCKS
    part = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    parts_of_group = tl.cdiv(share, together)
    group = part // parts_of_group
    first = group * share + (part % parts_of_group) * together
    positions = chunk * K + tl.arange(0, K)
    sizes = (tl.program_id(0) % BLOCKS) * BN + tl.arange(0, BN)
    b = rows_of(b_ptr + batch * stride_bb + group * stride_bg, positions, sizes, length, stride_bt, stride_bd, SIZE)
    c = rows_of(c_ptr + batch * stride_cb + group * stride_cg, positions, sizes, length, stride_ct, stride_cd, SIZE)
    ids, before, last = positions, 0, 0
    if DOCUMENTED:
        ids, before, last = documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K)
    grad_b = tl.zeros((K, BN), tl.float32)
    grad_c = tl.zeros((K, BN), tl.float32)
    for head in range(first, tl.minimum(first + together, (group + 1) * share)):
        row = batch * heads + head
        high, low, _ = sums_of(logs_ptr, row, chunk, chunks, K)
        entered, left = tl.exp2(high + low), to_end(high, low, K)
        if DOCUMENTED:
            entered = tl.where(ids == before, entered, 0.0)
            left = tl.where(ids == last, left, 0.0)
        states = (row * chunks + chunk) * SIZE * WIDTH
        outer = tl.zeros((K, K), tl.float32)
        for block in range(0, width, BP):
            columns = block + tl.arange(0, BP)
            x_base = x_ptr + batch * stride_xb + head * stride_xh
            x = rows_of(x_base, positions, columns, length, stride_xt, stride_xd, WIDTH)
            grad_base = grad_ptr + batch * stride_gb + head * stride_gh
            grad = rows_of(grad_base, positions, columns, length, stride_gt, stride_gd, WIDTH)
            outer = tl.dot(grad, tl.trans(x), outer, input_precision=PRECISION)
            pointers, inside = state_block(starts_ptr + states, sizes, columns, SIZE, WIDTH)
            state = tl.load(pointers, mask=inside, other=0.0).to(c.dtype)
            scaled = (grad.to(tl.float32) * entered[:, None]).to(c.dtype)
            grad_c = tl.dot(scaled, tl.trans(state), grad_c, input_precision=PRECISION)
            pointers, inside = state_block(adjoints_ptr + states, sizes, columns, SIZE, WIDTH)
            adjoint = tl.load(pointers, mask=inside, other=0.0).to(b.dtype)
            scaled = (x.to(tl.float32) * left[:, None]).to(b.dtype)
            grad_b = tl.dot(scaled, tl.trans(adjoint), grad_b, input_precision=PRECISION)
        pairs = (outer * decays_between(high, low, ids, DOCUMENTED, K)).to(b.dtype)
        grad_c = tl.dot(pairs, b, grad_c, input_precision=PRECISION)
        grad_b = tl.dot(tl.trans(pairs), c, grad_b, input_precision=PRECISION)
    sums = (batch * tl.num_programs(1) + part) * length * SIZE
    store_rows(grad_b_ptr + sums, grad_b, positions, sizes, length, SIZE, 1, SIZE)
    store_rows(grad_c_ptr + sums, grad_c, positions, sizes, length, SIZE, 1, SIZE)
