"""Triton kernels of `state_space_scan`: here the two that pass over the chunks of a head in order, and what pays.

Forward: `states` runs over the chunks and leaves at each the state it starts from; `outputs` multiplies chunks out.
Backward: `adjoints` runs the other way and leaves at each the gradient of the state it hands on; `input_gradient` and
`shared_gradient` multiply out again. Nothing of size [K, K] is ever stored.

Counted, not measured: bytes a position and head, forward, 16-bit inputs, N = P = K = 64:

    native, in float32: [K, K] tiles written or read 8 times, 32 K; states 7 times, 28 N P / K            3,840
    here: x twice, y once, 6 P; b twice and c once (shared by heads: from cache), 6 N; states twice, 8 N P / K  1,280

For them 2 K (N + P) + 4 N P = 33 k FLOPs, 26 a byte where tensor cores do hundreds: memory decides. So the [K, K]
products stay in registers, and what a chunk adds to the state is never stored: a program of `states` holds [N, BP]
numbers of the running state and reads the chunks one after another. Its chain is T / K products long, which shows when
B H P / BP programs do not fill the machine (one sequence of few heads). The backward reads x, dy and both states twice,
once for dx and da, once for db and dc: in one kernel the accumulators of all four do not fit the registers.

What does not pay and stays in torch (`triton_state_space`): the sums of the log decays inside a chunk and the sum of
parts of db and dc over the heads of a group, 4 to 16 bytes a position and head.

Log decays come as sums L over a chunk, times log2 e, each as two float32 numbers (high and low part of a float64 sum):
the difference of two of them is then right to float32's last bits however strong the decay. The gradient of a decay
is a sum over pairs i < s <= t, taken as such: nothing that cancels is added, so 16-bit products are enough.

Shape legend: K positions of a chunk, N state size and P head width padded to powers of two, BP and BN columns of blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl

PRECISION = tl.constexpr("tf32x3")
"""Of products of float32 inputs: float32-accurate. 16-bit inputs multiply as they are."""
RUN_TIME = ["heads", "share", "length", "chunks"]
"""Arguments no kernel is compiled anew for."""


@triton.jit
def rows_of(base, positions, columns, length, stride_t, stride_d, WIDTH: tl.constexpr):  # -> (K, D)
    """Rows of a matrix in its own dtype, 0 outside."""
    inside = (positions < length)[:, None] & (columns < WIDTH)[None, :]
    pointers = base + positions.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def store_rows(base, tile, positions, columns, length, stride_t, stride_d, WIDTH: tl.constexpr):
    inside = (positions < length)[:, None] & (columns < WIDTH)[None, :]
    pointers = base + positions.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def sums_of(logs_ptr, row, chunk, chunks, K: tl.constexpr):  # -> (K,), (K,), scalar
    """High and low parts of L in base 2 (logs: (B H, 2, n K)), and the whole of it at the chunk's end."""
    here = logs_ptr + (row * 2 * chunks + chunk) * K
    steps = tl.arange(0, K)
    end = tl.load(here + K - 1) + tl.load(here + chunks * K + K - 1)
    return tl.load(here + steps), tl.load(here + chunks * K + steps), end


@triton.jit
def to_end(high, low, K: tl.constexpr):  # -> (K,)
    """f: 2^(L_end - L_i)."""
    last = tl.arange(0, K) == K - 1
    end_high = tl.sum(tl.where(last, high, 0.0), 0)
    end_low = tl.sum(tl.where(last, low, 0.0), 0)
    return tl.exp2((end_high - high) + (end_low - low))


@triton.jit
def documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K: tl.constexpr):  # -> (K,), scalar, scalar
    """Ids of a chunk, of the position before it (before the first: of the first), and of its last position."""
    ids = ids_ptr + batch * stride_ib
    begin = chunk * K
    positions = tl.minimum(begin + tl.arange(0, K), length - 1).to(tl.int64)
    before = tl.load(ids + tl.maximum(begin - 1, 0).to(tl.int64) * stride_it)
    last = tl.load(ids + tl.minimum(begin + K - 1, length - 1).to(tl.int64) * stride_it)
    return tl.load(ids + positions * stride_it), before, last


@triton.jit
def state_block(base, rows, columns, SIZE: tl.constexpr, WIDTH: tl.constexpr):  # -> pointers, mask
    """Some rows and columns of a contiguous (SIZE, WIDTH) matrix."""
    inside = (rows < SIZE)[:, None] & (columns < WIDTH)[None, :]
    return base + rows[:, None] * WIDTH + columns[None, :], inside


@triton.jit(do_not_specialize=RUN_TIME)
def state_space_states_kernel(
    x_ptr,
    b_ptr,
    logs_ptr,
    ids_ptr,
    given_ptr,
    starts_ptr,
    end_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_bb,
    stride_bg,
    stride_bt,
    stride_bd,
    stride_ib,
    stride_it,
    heads,
    share,
    length,
    chunks,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    BP: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    CARRIED: tl.constexpr,
):
    """h' = e_end h + sum_i f_i b_i x_i^T over the chunks of one head, BP of its columns; each h stored (B H, n, N, P).

    given, end: (B H, N, P) float32, contiguous.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * heads + head
    columns = tl.program_id(0) * BP + tl.arange(0, BP)
    x_base = x_ptr + batch * stride_xb + head * stride_xh
    b_base = b_ptr + batch * stride_bb + (head // share) * stride_bg
    if CARRIED:
        pointers, inside = state_block(given_ptr + row * SIZE * WIDTH, tl.arange(0, N), columns, SIZE, WIDTH)
        state = tl.load(pointers, mask=inside, other=0.0)
    else:
        state = tl.zeros((N, BP), tl.float32)
    for chunk in range(0, chunks):
        here = starts_ptr + (row * chunks + chunk) * SIZE * WIDTH
        pointers, inside = state_block(here, tl.arange(0, N), columns, SIZE, WIDTH)
        tl.store(pointers, state, mask=inside)
        high, low, end = sums_of(logs_ptr, row, chunk, chunks, K)
        left, passed = to_end(high, low, K), tl.exp2(end)
        if DOCUMENTED:
            ids, before, last = documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K)
            left = tl.where(ids == last, left, 0.0)
            passed = tl.where(before == last, passed, 0.0)
        positions = chunk * K + tl.arange(0, K)
        x = rows_of(x_base, positions, columns, length, stride_xt, stride_xd, WIDTH)
        b = rows_of(b_base, positions, tl.arange(0, N), length, stride_bt, stride_bd, SIZE)
        scaled = (x.to(tl.float32) * left[:, None]).to(x.dtype)
        state = passed * state + tl.dot(tl.trans(b), scaled, input_precision=PRECISION)
    pointers, inside = state_block(end_ptr + row * SIZE * WIDTH, tl.arange(0, N), columns, SIZE, WIDTH)
    tl.store(pointers, state, mask=inside)


@triton.jit(do_not_specialize=RUN_TIME)
def state_space_adjoints_kernel(
    c_ptr,
    grad_ptr,
    logs_ptr,
    ids_ptr,
    grad_end_ptr,
    adjoints_ptr,
    grad_given_ptr,
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
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    BP: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    ENDED: tl.constexpr,
):
    """From the last chunk of one head to the first, BP columns: dh of each (B H, n, N, P), then that of the state given.

    grad_end, grad_given: (B H, N, P) float32, contiguous.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * heads + head
    columns = tl.program_id(0) * BP + tl.arange(0, BP)
    c_base = c_ptr + batch * stride_cb + (head // share) * stride_cg
    grad_base = grad_ptr + batch * stride_gb + head * stride_gh
    if ENDED:
        pointers, inside = state_block(grad_end_ptr + row * SIZE * WIDTH, tl.arange(0, N), columns, SIZE, WIDTH)
        adjoint = tl.load(pointers, mask=inside, other=0.0)
    else:
        adjoint = tl.zeros((N, BP), tl.float32)
    for index in range(0, chunks):
        chunk = chunks - 1 - index
        here = adjoints_ptr + (row * chunks + chunk) * SIZE * WIDTH
        pointers, inside = state_block(here, tl.arange(0, N), columns, SIZE, WIDTH)
        tl.store(pointers, adjoint, mask=inside)
        high, low, end = sums_of(logs_ptr, row, chunk, chunks, K)
        entered, passed = tl.exp2(high + low), tl.exp2(end)
        if DOCUMENTED:
            ids, before, last = documents_of(ids_ptr, batch, chunk, length, stride_ib, stride_it, K)
            entered = tl.where(ids == before, entered, 0.0)
            passed = tl.where(before == last, passed, 0.0)
        positions = chunk * K + tl.arange(0, K)
        grad = rows_of(grad_base, positions, columns, length, stride_gt, stride_gd, WIDTH)
        c = rows_of(c_base, positions, tl.arange(0, N), length, stride_ct, stride_cd, SIZE)
        scaled = (grad.to(tl.float32) * entered[:, None]).to(grad.dtype)
        adjoint = passed * adjoint + tl.dot(tl.trans(c), scaled, input_precision=PRECISION)
    pointers, inside = state_block(grad_given_ptr + row * SIZE * WIDTH, tl.arange(0, N), columns, SIZE, WIDTH)
    tl.store(pointers, adjoint, mask=inside)
