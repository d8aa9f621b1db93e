"""Triton kernels of `key_scan`: a chunk a program, and a pass over chunk ends between two of them.

Forward: `state` reduces each chunk to its sum and maximum, `carry` runs over the chunks of a head and leaves at each
the state it starts from, `keys` multiplies chunks out. Backward, in the other direction: `adjoint`, `carry_adjoint`,
`gradient`; they compute a chunk's sums again instead of storing them.

Within a chunk c_t is the sum of the log decays up to t and e_i = a_i - c_i; y_t = sum_{i<=t} exp(e_i - M_t) x_i with
M_t the running maximum of e (carried state included, -inf where nothing is open yet) is kbar_t up to a factor, which
the norm removes. One scalar a head and step makes that a [C, C] x [C, D] product. Sums of decays never cross a chunk,
so float32 holds them. Products are float32-accurate whatever the dtype of x, as three TF32 products ("tf32x3"): the
gradient of the decays lives on what cancels in x . dx.

The pass over chunk ends is the only serial part. It takes G chunks a step as one [G, G] x [G, D] product of the same
form, so its length is T / (C G) steps and not T / C, each of which would wait for memory.

Shape legend: C positions of a chunk, G chunks of a group, D width padded to a power of two. The last row of a chunk
past the end of the sequence repeats the last position: closed gates, no decay.
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
def backwards():  # -> chunk, head, batch
    """This program's place, counted from the end: the second kernel over x finds what the first read last in the
    cache."""
    head = tl.num_programs(1) - 1 - tl.program_id(1)
    batch = tl.num_programs(2) - 1 - tl.program_id(2)
    return tl.num_programs(0) - 1 - tl.program_id(0), head.to(tl.int64), batch.to(tl.int64)


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
    passes_ptr,
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
    """What a chunk adds to the state: sum_i exp(e_i - max) x_i of its last document, max + c at its end, and that c."""
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
    passed = last_of(total, C)
    tl.store(tops_ptr + chunk, top + passed)
    tl.store(passes_ptr + chunk, passed)


@triton.jit
def row_of(tile, index, G: tl.constexpr):  # (G, D) -> (D,)
    """One row of a tile, exactly."""
    return tl.sum(tl.where((tl.arange(0, G) == index)[:, None], tile, 0.0), 0)


@triton.jit
def sums_between(logs, FORWARD: tl.constexpr, G: tl.constexpr):  # (G,) -> (G, G), (G,)
    """Over (t, i) the sum of the logs strictly between i and t, and over t that of all before (or after) it.

    Only the terms of a sum are added, nothing is subtracted: differences of running sums would lose the small ones.
    """
    steps = tl.arange(0, G)
    if FORWARD:
        taken = tl.where(steps[None, :] < steps[:, None], logs[None, :], 0.0)
        inner = (steps[:, None] > steps[None, :]).to(tl.float32)
    else:
        taken = tl.where(steps[None, :] > steps[:, None], logs[None, :], 0.0)
        inner = (steps[:, None] < steps[None, :]).to(tl.float32)
    return tl.dot(taken, inner, input_precision="ieee"), tl.sum(taken, 1)


@triton.jit(do_not_specialize=RUN_TIME)
def key_scan_carry_kernel(
    starts_ptr,
    sums_ptr,
    added_tops_ptr,
    passes_ptr,
    tops_ptr,
    carried_ptr,
    maximum_ptr,
    end_ptr,
    end_top_ptr,
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
    G: tl.constexpr,
    DOCUMENTED: tl.constexpr,
    CARRIED: tl.constexpr,
):
    """Replace what each chunk of one head adds by the state it starts from; write the state after the last chunk.

    The sums are replaced in place: every element stored depends on all loaded. The maxima are not: several warps hold a
    vector as short as theirs, and one could store before another has loaded.
    """
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
    for group in range(0, tl.cdiv(chunks, G)):
        begin = group * G
        steps = begin + tl.arange(0, G)
        here = steps < chunks
        rows = (batch * heads + head) * chunks + steps
        # Chunks past the last add nothing and pass everything on.
        added_tops = tl.load(added_tops_ptr + rows, mask=here, other=float("-inf"))
        passes = tl.load(passes_ptr + rows, mask=here, other=0.0)
        pointers = sums_ptr + rows[:, None] * WIDTH + columns[None, :]
        sums = tl.load(pointers, mask=here[:, None] & inside[None, :], other=0.0)  # (G, D)
        first, last_first = steps * 0, begin * 0
        if DOCUMENTED:
            # The document of a chunk's start state is that of the position before the chunk.
            starts = starts_ptr + batch * length
            first = tl.load(starts + tl.maximum(tl.minimum(steps * C, length) - 1, 0))
            last_first = tl.load(starts + tl.minimum((begin + G) * C, length) - 1)
        between, before = sums_between(passes, True, G)
        visible = (steps[None, :] < steps[:, None]) & (first[:, None] < (steps[None, :] + 1) * C)
        carries = first < tl.maximum(begin * C, 1)
        seen = tl.where(visible, added_tops[None, :] + between, float("-inf"))
        carried = tl.where(carries, top + before, float("-inf"))
        start_tops = tl.maximum(tl.max(seen, 1), carried)
        shift = tl.where(start_tops == float("-inf"), 0.0, start_tops)
        states = tl.dot(tl.exp(seen - shift[:, None]), sums, input_precision=PRECISION)
        states += tl.where(carries[:, None], tl.exp(carried - shift)[:, None] * state[None, :], 0.0)
        tl.store(pointers, states, mask=here[:, None] & inside[None, :])
        tl.store(tops_ptr + rows, start_tops, mask=here)

        moved = last_of(start_tops, G) + last_of(passes, G)
        moved = tl.where(last_first < tl.maximum((begin + G - 1) * C, 1), moved, float("-inf"))
        added_top = last_of(added_tops, G)
        top = tl.maximum(moved, added_top)
        last_shift = tl.where(top == float("-inf"), 0.0, top)
        left = row_of(states, G - 1, G) * tl.exp(moved - last_shift)
        state = tl.where(moved == float("-inf"), 0.0, left) + row_of(sums, G - 1, G) * tl.exp(added_top - last_shift)
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
    index, head, batch = backwards()
    begin = index * C
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
    chunk = (batch * heads + head) * tl.num_programs(0) + index
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
    G: tl.constexpr,
    ENDED: tl.constexpr,
):
    """From the last chunk of one head to the first: leave at each the gradient of the state it ends with.

    That is sum_{i>n} (prod_{n<j<i} f_j) a_i over the adjoints a of later chunks, f what a chunk passes on (<= 1).
    """
    head = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, D)
    inside = columns < WIDTH
    if ENDED:
        grad_base = grad_end_ptr + batch * stride_gb + head * stride_gh
        state = tl.load(grad_base + columns.to(tl.int64) * stride_gd, mask=inside, other=0.0)
    else:
        state = tl.zeros((D,), tl.float32)
    groups = tl.cdiv(chunks, G)
    for index in range(0, groups):
        steps = (groups - 1 - index) * G + tl.arange(0, G)
        here = steps < chunks
        rows = (batch * heads + head) * chunks + steps
        pointers = adjoint_ptr + rows[:, None] * WIDTH + columns[None, :]
        added = tl.load(pointers, mask=here[:, None] & inside[None, :], other=0.0)  # (G, D)
        factor = tl.load(factor_ptr + rows, mask=here, other=1.0)
        # exp(-1e4) is 0: what follows a chunk that passes nothing on does not reach what precedes it.
        between, after = sums_between(tl.where(factor == 0.0, -1e4, tl.log(factor)), False, G)
        weights = tl.where(steps[None, :] > steps[:, None], tl.exp(between), 0.0)
        tail = tl.exp(after)
        states = tl.dot(weights, added, input_precision=PRECISION)
        states += tl.where(tail[:, None] == 0.0, 0.0, tail[:, None] * state[None, :])
        tl.store(pointers, states, mask=here[:, None] & inside[None, :])
        first = tl.sum(tl.where(tl.arange(0, G) == 0, factor, 0.0), 0)
        state = row_of(added, 0, G) + tl.where(first == 0.0, 0.0, first * row_of(states, 0, G))
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

    The state at the end is the last row of y, so its gradient joins the last row of dy. A log decay at t scales what
    was summed before t in every later row. Rows are projected, y_t . dy_t = 0 except for the state's, and so its
    gradient is what the state passes on, less what comes from t on: dy_last . y_last - sum_{i>=t} da_i, in t's
    document.
    """
    index, head, batch = backwards()
    begin = index * C
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
    chunk = (batch * heads + head) * tl.num_programs(0) + index
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
