"""Triton kernels of `key_scan`: a chunk a program, and a pass over chunk ends between two of them.

Forward: `state` reduces each chunk to its sum and maximum, `carry` runs over the chunks of a head and leaves at each the
state it starts from, `keys` multiplies chunks out. Backward, in the other direction: `adjoint`, `carry_adjoint`,
`gradient`; they compute a chunk's sums again instead of storing them.

Within a chunk c_t is the sum of the log decays up to t and e_i = a_i - c_i; y_t = sum_{i<=t} exp(e_i - M_t) x_i with
M_t the running maximum of e (carried state included, -inf where nothing is open yet) is kbar_t up to a factor, which the
norm removes. One scalar a head and step makes that a [C, C] x [C, D] product. Sums of decays never cross a chunk, so
float32 holds them. Products are float32-accurate whatever the dtype of x, as three TF32 products ("tf32x3"): the
gradient of the decays lives on what cancels in x . dx.

Shape legend: C positions of a chunk, D width padded to a power of two. The last row of a chunk past the end of the
sequence repeats the last position: closed gates, no decay.
"""

from __future__ import annotations

import triton
import triton.language as tl

PRECISION = tl.constexpr("tf32x3")
RUN_TIME = ["heads", "length", "chunks"]
"""Arguments no kernel is compiled anew for."""


@triton.jit
def chunk_logs(
    gate_ptr,
    decay_ptr,
    starts_ptr,
    gate_base,
    decay_base,
    starts_base,
    stride_at,
    stride_ct,
    begin,
    length,
    C: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):  # -> e (C,), c (C,), first (C,)
    """Log weights e and summed decays c of a chunk, and the first position that counts at each of its positions."""
    positions = begin + tl.arange(0, C)
    inside = positions < length
    steps = positions.to(tl.int64)
    gate = tl.load(gate_ptr + gate_base + steps * stride_at, mask=inside, other=float("-inf"))
    decay = tl.load(decay_ptr + decay_base + steps * stride_ct, mask=inside, other=0.0)
    total = tl.cumsum(decay, 0)
    first = positions * 0
    if DOCUMENTED:
        first = tl.load(starts_ptr + starts_base + tl.minimum(positions, length - 1))
    return gate - total, total, first


@triton.jit
def chunk_weights(logs, first, begin, carried_top, C: tl.constexpr):  # -> (C, C), (C,)
    """exp(e_i - M_t) over (t, i), and exp(carried maximum - M_t), 0 where the carried state does not count."""
    positions = begin + tl.arange(0, C)
    visible = (positions[None, :] <= positions[:, None]) & (positions[None, :] >= first[:, None])
    seen = tl.where(visible, logs[None, :], float("-inf"))
    # The state before the first chunk belongs to the document of position 0.
    carries = first < tl.maximum(begin, 1)
    top = tl.maximum(tl.max(seen, 1), tl.where(carries, carried_top, float("-inf")))
    shift = tl.where(top == float("-inf"), 0.0, top)
    carry = tl.where(carries, tl.exp(carried_top - shift), 0.0)
    return tl.exp(seen - shift[:, None]), carry


@triton.jit
def load_chunk(base, begin, length, stride_t, stride_d, WIDTH: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """(C, D) float32, 0 outside."""
    positions = begin + tl.arange(0, C)
    columns = tl.arange(0, D)
    inside = (positions < length)[:, None] & (columns < WIDTH)[None, :]
    pointers = base + positions.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_chunk(base, tile, begin, length, stride_t, stride_d, WIDTH: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    positions = begin + tl.arange(0, C)
    columns = tl.arange(0, D)
    inside = (positions < length)[:, None] & (columns < WIDTH)[None, :]
    pointers = base + positions.to(tl.int64)[:, None] * stride_t + columns.to(tl.int64)[None, :] * stride_d
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def last_of(values, C: tl.constexpr):  # -> scalar
    """The last element of a (C,) vector, exactly."""
    return tl.sum(tl.where(tl.arange(0, C) == C - 1, values, 0.0), 0)


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_state_kernel(
    x_ptr,
    gate_ptr,
    decay_ptr,
    starts_ptr,
    sums_ptr,
    tops_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_ab,
    stride_ah,
    stride_at,
    stride_cb,
    stride_ch,
    stride_ct,
    heads,
    length,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """What a chunk adds to the state: sum_i exp(e_i - max) x_i of its last document, and max + c at its end."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * C
    gates, decays = batch * stride_ab + head * stride_ah, batch * stride_cb + head * stride_ch
    logs, total, first = chunk_logs(
        gate_ptr,
        decay_ptr,
        starts_ptr,
        gates,
        decays,
        batch * length,
        stride_at,
        stride_ct,
        begin,
        length,
        C,
        DOCUMENTED,
    )
    logs = tl.where(begin + tl.arange(0, C) >= tl.max(first, 0), logs, float("-inf"))
    top = tl.max(logs, 0)
    weights = tl.exp(logs - tl.where(top == float("-inf"), 0.0, top))
    x = load_chunk(x_ptr + batch * stride_xb + head * stride_xh, begin, length, stride_xt, stride_xd, WIDTH, C, D)
    chunk = (batch * heads + head) * tl.num_programs(0) + tl.program_id(0)
    columns = tl.arange(0, D)
    tl.store(sums_ptr + chunk * WIDTH + columns, tl.sum(weights[:, None] * x, 0), mask=columns < WIDTH)
    tl.store(tops_ptr + chunk, top + last_of(total, C))


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_carry_kernel(
    decay_ptr,
    starts_ptr,
    sums_ptr,
    tops_ptr,
    carried_ptr,
    maximum_ptr,
    end_ptr,
    end_top_ptr,
    stride_cb,
    stride_ch,
    stride_ct,
    stride_sb,
    stride_sh,
    stride_sd,
    stride_mb,
    stride_mh,
    stride_eb,
    stride_eh,
    stride_ub,
    stride_uh,
    heads,
    length,
    chunks,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    CARRIED: tl.constexpr,
):
    """Replace what each chunk of one head adds by the state it starts from; write the state after the last chunk."""
    head = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, D)
    inside = columns < WIDTH
    if CARRIED:
        state_base = carried_ptr + batch * stride_sb + head * stride_sh
        state = tl.load(state_base + columns.to(tl.int64) * stride_sd, mask=inside, other=0.0)
        top = tl.load(maximum_ptr + batch * stride_mb + head * stride_mh)
    else:
        state = tl.zeros((D,), tl.float32)
        top = tl.full((), float("-inf"), tl.float32)
    decays = decay_ptr + batch * stride_cb + head * stride_ch
    for index in range(0, chunks):
        begin = index * C
        chunk = (batch * heads + head) * chunks + index
        added = tl.load(sums_ptr + chunk * WIDTH + columns, mask=inside, other=0.0)
        added_top = tl.load(tops_ptr + chunk)
        tl.store(sums_ptr + chunk * WIDTH + columns, state, mask=inside)
        tl.store(tops_ptr + chunk, top)
        positions = begin + tl.arange(0, C)
        decay = tl.load(decays + positions.to(tl.int64) * stride_ct, mask=positions < length, other=0.0)
        moved = top + last_of(tl.cumsum(decay, 0), C)
        if DOCUMENTED:
            first = tl.load(starts_ptr + batch * length + tl.minimum(begin + C, length) - 1)
            moved = tl.where(first < tl.maximum(begin, 1), moved, float("-inf"))
        top = tl.maximum(moved, added_top)
        shift = tl.where(top == float("-inf"), 0.0, top)
        # Not 0 * state: what is left behind may be infinite or NaN only in its own document.
        state = tl.where(moved == float("-inf"), 0.0, state * tl.exp(moved - shift)) + added * tl.exp(added_top - shift)
    tl.store(end_ptr + batch * stride_eb + head * stride_eh + columns, state, mask=inside)
    # A state in which nothing was added yet has a finite maximum too.
    tl.store(end_top_ptr + batch * stride_ub + head * stride_uh, tl.maximum(top, -1e30))


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_keys_kernel(
    x_ptr,
    gate_ptr,
    decay_ptr,
    starts_ptr,
    sums_ptr,
    tops_ptr,
    key_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_ab,
    stride_ah,
    stride_at,
    stride_cb,
    stride_ch,
    stride_ct,
    stride_kb,
    stride_kh,
    stride_kt,
    stride_kd,
    heads,
    length,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """Unit keys of a chunk: y / ||y||, and 0 for a zero y."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * C
    gates, decays = batch * stride_ab + head * stride_ah, batch * stride_cb + head * stride_ch
    logs, _, first = chunk_logs(
        gate_ptr,
        decay_ptr,
        starts_ptr,
        gates,
        decays,
        batch * length,
        stride_at,
        stride_ct,
        begin,
        length,
        C,
        DOCUMENTED,
    )
    chunk = (batch * heads + head) * tl.num_programs(0) + tl.program_id(0)
    columns = tl.arange(0, D)
    state = tl.load(sums_ptr + chunk * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    weights, carry = chunk_weights(logs, first, begin, tl.load(tops_ptr + chunk), C)
    x = load_chunk(x_ptr + batch * stride_xb + head * stride_xh, begin, length, stride_xt, stride_xd, WIDTH, C, D)
    y = tl.dot(weights, x, input_precision=PRECISION) + carry[:, None] * state[None, :]
    square = tl.sum(y * y, 1)
    inverse = tl.where(square == 0.0, 0.0, 1.0 / tl.sqrt(square))
    key_base = key_ptr + batch * stride_kb + head * stride_kh
    store_chunk(key_base, y * inverse[:, None], begin, length, stride_kt, stride_kd, WIDTH, C, D)


@triton.jit
def grad_of_sums(y, grad):  # -> (C, D)
    """Gradient of y from that of y / ||y||: (g - k (k . g)) / ||y||, 0 for a zero y."""
    square = tl.sum(y * y, 1)
    inverse = tl.where(square == 0.0, 0.0, 1.0 / tl.sqrt(square))
    k = y * inverse[:, None]
    return (grad - k * tl.sum(k * grad, 1)[:, None]) * inverse[:, None]


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_adjoint_kernel(
    x_ptr,
    gate_ptr,
    decay_ptr,
    starts_ptr,
    sums_ptr,
    tops_ptr,
    grad_ptr,
    adjoint_ptr,
    factor_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_ab,
    stride_ah,
    stride_at,
    stride_cb,
    stride_ch,
    stride_ct,
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    heads,
    length,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """What a chunk's keys hand to the gradient of the state it starts from, and how much of it its end state passes."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * C
    gates, decays = batch * stride_ab + head * stride_ah, batch * stride_cb + head * stride_ch
    logs, _, first = chunk_logs(
        gate_ptr,
        decay_ptr,
        starts_ptr,
        gates,
        decays,
        batch * length,
        stride_at,
        stride_ct,
        begin,
        length,
        C,
        DOCUMENTED,
    )
    chunk = (batch * heads + head) * tl.num_programs(0) + tl.program_id(0)
    columns = tl.arange(0, D)
    state = tl.load(sums_ptr + chunk * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    weights, carry = chunk_weights(logs, first, begin, tl.load(tops_ptr + chunk), C)
    x = load_chunk(x_ptr + batch * stride_xb + head * stride_xh, begin, length, stride_xt, stride_xd, WIDTH, C, D)
    y = tl.dot(weights, x, input_precision=PRECISION) + carry[:, None] * state[None, :]
    grad = load_chunk(grad_ptr + batch * stride_gb + head * stride_gh, begin, length, stride_gt, stride_gd, WIDTH, C, D)
    adjoint = tl.sum(carry[:, None] * grad_of_sums(y, grad), 0)
    tl.store(adjoint_ptr + chunk * WIDTH + columns, adjoint, mask=columns < WIDTH)
    tl.store(factor_ptr + chunk, last_of(carry, C))


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_carry_adjoint_kernel(
    adjoint_ptr,
    factor_ptr,
    grad_end_ptr,
    grad_carried_ptr,
    stride_gb,
    stride_gh,
    stride_gd,
    stride_sb,
    stride_sh,
    heads,
    chunks,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    ENDED: tl.constexpr,
):
    """From the last chunk of one head to the first: leave at each the gradient of the state it ends with."""
    head = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, D)
    inside = columns < WIDTH
    if ENDED:
        grad_base = grad_end_ptr + batch * stride_gb + head * stride_gh
        state = tl.load(grad_base + columns.to(tl.int64) * stride_gd, mask=inside, other=0.0)
    else:
        state = tl.zeros((D,), tl.float32)
    for index in range(0, chunks):
        chunk = (batch * heads + head) * chunks + chunks - 1 - index
        added = tl.load(adjoint_ptr + chunk * WIDTH + columns, mask=inside, other=0.0)
        factor = tl.load(factor_ptr + chunk)
        tl.store(adjoint_ptr + chunk * WIDTH + columns, state, mask=inside)
        state = added + tl.where(factor == 0.0, 0.0, factor * state)
    tl.store(grad_carried_ptr + batch * stride_sb + head * stride_sh + columns, state, mask=inside)


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_gradient_kernel(
    x_ptr,
    gate_ptr,
    decay_ptr,
    starts_ptr,
    sums_ptr,
    tops_ptr,
    grad_ptr,
    adjoint_ptr,
    grad_x_ptr,
    grad_gate_ptr,
    grad_decay_ptr,
    stride_xb,
    stride_xh,
    stride_xt,
    stride_xd,
    stride_ab,
    stride_ah,
    stride_at,
    stride_cb,
    stride_ch,
    stride_ct,
    stride_gb,
    stride_gh,
    stride_gt,
    stride_gd,
    stride_ub,
    stride_uh,
    stride_ut,
    stride_ud,
    stride_ob,
    stride_oh,
    heads,
    length,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    DOCUMENTED: tl.constexpr,
):
    """dx_i = sum_{t>=i} exp(e_i - M_t) dy_t, da_i = x_i . dx_i, and the gradient of the log decays.

    The state at the end is the last row of y, so its gradient joins the last row of dy. A log decay at t scales what was
    summed before t in every later row. Rows are projected, y_t . dy_t = 0 except for the state's, and so its gradient
    is what the state passes on, less what comes from t on: dy_last . y_last - sum_{i>=t} da_i, in t's document.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    begin = tl.program_id(0) * C
    gates, decays = batch * stride_ab + head * stride_ah, batch * stride_cb + head * stride_ch
    logs, _, first = chunk_logs(
        gate_ptr,
        decay_ptr,
        starts_ptr,
        gates,
        decays,
        batch * length,
        stride_at,
        stride_ct,
        begin,
        length,
        C,
        DOCUMENTED,
    )
    chunk = (batch * heads + head) * tl.num_programs(0) + tl.program_id(0)
    columns = tl.arange(0, D)
    state = tl.load(sums_ptr + chunk * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    end_grad = tl.load(adjoint_ptr + chunk * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    weights, carry = chunk_weights(logs, first, begin, tl.load(tops_ptr + chunk), C)
    x = load_chunk(x_ptr + batch * stride_xb + head * stride_xh, begin, length, stride_xt, stride_xd, WIDTH, C, D)
    y = tl.dot(weights, x, input_precision=PRECISION) + carry[:, None] * state[None, :]
    grad = load_chunk(grad_ptr + batch * stride_gb + head * stride_gh, begin, length, stride_gt, stride_gd, WIDTH, C, D)
    is_last = tl.arange(0, C) == C - 1
    grad_y = grad_of_sums(y, grad)
    passed = tl.sum(tl.sum(tl.where(is_last[:, None], y * end_grad[None, :], 0.0), 1), 0)
    grad_y += tl.where(is_last[:, None], end_grad[None, :], 0.0)
    grad_x = tl.dot(tl.trans(weights), grad_y, input_precision=PRECISION)
    grad_gate = tl.sum(grad_x * x, 1)
    steps = tl.arange(0, C)
    same = (steps[None, :] >= steps[:, None]) & (first[None, :] == first[:, None])
    grad_decay = -tl.sum(tl.where(same, grad_gate[None, :], 0.0), 1)
    grad_decay += tl.where(first == tl.max(first, 0), passed, 0.0)
    grad_x_base = grad_x_ptr + batch * stride_ub + head * stride_uh
    store_chunk(grad_x_base, grad_x, begin, length, stride_ut, stride_ud, WIDTH, C, D)
    rows = batch * stride_ob + head * stride_oh + begin + steps
    tl.store(grad_gate_ptr + rows, grad_gate, mask=begin + steps < length)
    tl.store(grad_decay_ptr + rows, grad_decay, mask=begin + steps < length)
