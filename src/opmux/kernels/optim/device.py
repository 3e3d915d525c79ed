"""The kernels of Transformer Engine's optimizers, over lists of tensors (`lib/list_kernels.py`)."""

from __future__ import annotations

import triton
import triton.language as tl

from ..lib.list_kernels import chunk_of_program, part, read, write
from ..lib.quant_tiles import raise_to

INF = tl.constexpr(float("inf"))
FLOAT_MAX = tl.constexpr(3.4028234663852886e38)


def norms(square_ptr, flag_ptr, norm_ptr, each_ptr, n, BLOCK: tl.constexpr):
    """Write the norm of all tensors and, if `each_ptr` is given, the norm of each tensor. Runs as one program."""
    o = tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for at in range(0, n, BLOCK):
        m = at + o < n
        b_square = tl.load(square_ptr + at + o, mask=m, other=0.0)
        b_sum += b_square
        if each_ptr is not None:
            tl.store(each_ptr + at + o, tl.sqrt_rn(b_square), mask=m)
    total = tl.sum(b_sum, 0)
    tl.store(norm_ptr, tl.sqrt_rn(total))
    tl.store(flag_ptr, 1, mask=~(total < INF))


# ---- Adam -----------------------------------------------------------------------------------------------------------


@triton.jit
def joined(high, low):
    """The bits of a float32, from its lower 16 bits and `high`, the float32 rounded to the nearest bfloat16."""
    return ((high.to(tl.int32) - (low < 0).to(tl.int32)) << 16) | (low.to(tl.int32) & 0xFFFF)


@triton.jit
def adam_chunk(
    at, start, n, lr, beta1, rest1, beta2, rest2, eps, inv_c1, inv_c2, decay, inv_scale,
    L2: tl.constexpr, WEIGHTS_IN: tl.constexpr, HELD: tl.constexpr, CAST: tl.constexpr, G: tl.constexpr,
    P: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    lanes: tl.constexpr = LANES if WHOLE else 0
    o = tl.arange(0, BLOCK)
    g_ptr, m_ptr, v_ptr = part(at[0], start, G, lanes), part(at[2], start, S, lanes), part(at[3], start, S, lanes)
    p_ptr = part(at[1], start, tl.int16 if WEIGHTS_IN == "remainder" else P, lanes)
    b_g = read(g_ptr, o, n, WHOLE)
    b_m = read(m_ptr, o, n, WHOLE)
    b_v = read(v_ptr, o, n, WHOLE)
    if WEIGHTS_IN == "parameter":
        b_w = read(p_ptr, o, n, WHOLE)
    elif WEIGHTS_IN == "remainder":
        rest_ptr = part(at[4], start, tl.int16, lanes)
        if WHOLE:
            b_w = joined(tl.load(p_ptr + o), tl.load(rest_ptr + o)).to(tl.float32, bitcast=True)
        else:
            b_high, b_low = tl.load(p_ptr + o, mask=o < n, other=0), tl.load(rest_ptr + o, mask=o < n, other=0)
            b_w = joined(b_high, b_low).to(tl.float32, bitcast=True)
    else:
        w_ptr = part(at[4], start, tl.float32, lanes)
        b_w = read(w_ptr, o, n, WHOLE)

    if HELD:
        b_g = b_g * inv_scale
        write(g_ptr, o, n, b_g, WHOLE)
    if L2:
        b_g = b_g + decay * b_w
    b_m = beta1 * b_m + rest1 * b_g
    b_v = beta2 * b_v + rest2 * b_g * b_g
    b_u = (b_m * inv_c1) / (tl.sqrt(b_v * inv_c2) + eps)
    if not L2:
        b_u = b_u + decay * b_w
    b_w = b_w - lr * b_u

    write(m_ptr, o, n, b_m, WHOLE)
    write(v_ptr, o, n, b_v, WHOLE)
    if WEIGHTS_IN == "parameter":
        write(p_ptr, o, n, b_w, WHOLE)
    elif WEIGHTS_IN == "remainder":
        b_bits = b_w.to(tl.int32, bitcast=True)
        b_rest = b_bits.to(tl.int16)
        write(p_ptr, o, n, (b_bits >> 16) + (b_rest < 0).to(tl.int32), WHOLE)
        write(rest_ptr, o, n, b_rest, WHOLE)
    else:
        write(w_ptr, o, n, b_w, WHOLE)
        if CAST is None:
            write(p_ptr, o, n, b_w, WHOLE)
        else:
            scale = tl.load(at[5].to(tl.pointer_type(tl.float32)))
            write(p_ptr, o, n, CAST(b_w * scale), WHOLE)
            b_size = tl.where((b_w == b_w) & (o < n), tl.abs(b_w), 0.0)
            raise_to(at[6].to(tl.pointer_type(tl.float32)), tl.max(b_size, 0))
            tl.store(at[7].to(tl.pointer_type(tl.float32)), tl.div_rn(1.0, scale), mask=start == 0)


def adam(
    table_ptr, chunk_ptr, held_ptr, lr, beta1, rest1, beta2, rest2, eps, inv_c1, inv_c2, decay,
    L2: tl.constexpr, WEIGHTS_IN: tl.constexpr, CAST: tl.constexpr, LISTS: tl.constexpr, G: tl.constexpr,
    P: tl.constexpr, S: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step.

    The step's numbers are launch arguments or, if `held_ptr` is given, in memory, where `hold` has written them.
    """
    at, start, n, whole = chunk_of_program(table_ptr, chunk_ptr, LISTS, BLOCK)
    inv_scale = 1.0
    HELD: tl.constexpr = held_ptr is not None
    if HELD:
        lr, inv_c1, inv_c2 = tl.load(held_ptr), tl.load(held_ptr + 1), tl.load(held_ptr + 2)
        inv_scale = tl.load(held_ptr + 3)
        live = tl.load(held_ptr + 4) != 0
        n = tl.where(live, n, 0)
        whole = whole & live
    if whole:
        adam_chunk(
            at, start, n, lr, beta1, rest1, beta2, rest2, eps, inv_c1, inv_c2, decay, inv_scale,
            L2, WEIGHTS_IN, HELD, CAST, G, P, S, LANES, BLOCK, True,
        )  # fmt: skip
    else:
        adam_chunk(
            at, start, n, lr, beta1, rest1, beta2, rest2, eps, inv_c1, inv_c2, decay, inv_scale,
            L2, WEIGHTS_IN, HELD, CAST, G, P, S, LANES, BLOCK, False,
        )  # fmt: skip


def hold(flag_ptr, lr_ptr, step_ptr, scale_ptr, held_ptr, log1: tl.float64, log2: tl.float64, CORRECT: tl.constexpr):
    """Compute the numbers of a capturable step once, on the device, in float64: in float32, 1 - 0.999 loses digits."""
    tl.store(held_ptr, tl.load(lr_ptr))
    inv_c1 = 1.0
    inv_c2 = 1.0
    if CORRECT:
        step = tl.load(step_ptr).to(tl.float64)
        inv_c1 = (1.0 / (1.0 - tl.exp(step * log1))).to(tl.float32)
        inv_c2 = (1.0 / (1.0 - tl.exp(step * log2))).to(tl.float32)
    tl.store(held_ptr + 1, inv_c1)
    tl.store(held_ptr + 2, inv_c2)
    tl.store(held_ptr + 3, tl.load(scale_ptr))
    tl.store(held_ptr + 4, (tl.load(flag_ptr) != 1).to(tl.float32))


# ---- SGD ------------------------------------------------------------------------------------------------------------


@triton.jit
def sgd_chunk(
    at,
    start,
    n,
    decay,
    momentum,
    rest,
    lr,
    scale,
    DECAY: tl.constexpr,
    MOVES: tl.constexpr,
    NESTEROV: tl.constexpr,
    FIRST: tl.constexpr,
    LISTS: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    lanes: tl.constexpr = LANES if WHOLE else 0
    o = tl.arange(0, BLOCK)
    w_ptr = part(at[1], start, W, lanes)
    b_g = read(part(at[0], start, G, lanes), o, n, WHOLE) * scale
    b_w = read(w_ptr, o, n, WHOLE)
    if DECAY == "before":
        b_g = b_g + decay * b_w
    if MOVES:
        m_ptr = part(at[2], start, M, lanes)
        b_m = b_g
        if not FIRST:
            b_m = read(m_ptr, o, n, WHOLE) * momentum + rest * b_g
        write(m_ptr, o, n, b_m, WHOLE)
        b_g = b_g + momentum * b_m if NESTEROV else b_m
    if DECAY == "after":
        b_g = b_g + decay * b_w
    b_w = (b_w - (lr * b_g).to(W).to(tl.float32)).to(W).to(tl.float32)
    write(w_ptr, o, n, b_w, WHOLE)
    if LISTS == 4:
        write(part(at[3], start, C, lanes), o, n, b_w, WHOLE)


def sgd(
    table_ptr,
    chunk_ptr,
    flag_ptr,
    decay,
    momentum,
    rest,
    lr,
    scale,
    DECAY: tl.constexpr,
    MOVES: tl.constexpr,
    NESTEROV: tl.constexpr,
    FIRST: tl.constexpr,
    LISTS: tl.constexpr,
    G: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at, start, n, whole = chunk_of_program(table_ptr, chunk_ptr, LISTS, BLOCK)
    live = tl.load(flag_ptr) == 0
    n = tl.where(live, n, 0)
    if whole & live:
        sgd_chunk(
            at, start, n, decay, momentum, rest, lr, scale, DECAY, MOVES, NESTEROV, FIRST, LISTS, G, W, M, C, LANES,
            BLOCK, True,
        )  # fmt: skip
    else:
        sgd_chunk(
            at, start, n, decay, momentum, rest, lr, scale, DECAY, MOVES, NESTEROV, FIRST, LISTS, G, W, M, C, LANES,
            BLOCK, False,
        )  # fmt: skip


# ---- scales ---------------------------------------------------------------------------------------------------------


def scales(table_ptr, chunk_ptr, most, eps, POW2: tl.constexpr, BLOCK: tl.constexpr):
    at, start, n, _ = chunk_of_program(table_ptr, chunk_ptr, 3, BLOCK)
    o = tl.arange(0, BLOCK)
    b_a = read(part(at[0], start, tl.float32, 0), o, n, False)
    b_a = tl.where(b_a < eps, eps, b_a)
    b_s = tl.div_rn(tl.full([BLOCK], most, tl.float32), b_a)
    b_s = tl.where(tl.abs(b_s) == INF, FLOAT_MAX, b_s)
    b_s = tl.where((b_a == 0) | ~(tl.abs(b_a) < INF), 1.0, b_s)
    if POW2:
        b_s = (b_s.to(tl.int32, bitcast=True) & -8388608).to(tl.float32, bitcast=True)
    write(part(at[1], start, tl.float32, 0), o, n, b_s, False)
    write(part(at[2], start, tl.float32, 0), o, n, tl.div_rn(tl.full([BLOCK], 1.0, tl.float32), b_s), False)


def e8m0(table_ptr, chunk_ptr, inv_most, BLOCK: tl.constexpr):
    """The exponent of amax / 448, rounded up; subnormals up to 2^-127 have the exponent 0."""
    at, start, n, _ = chunk_of_program(table_ptr, chunk_ptr, 2, BLOCK)
    o = tl.arange(0, BLOCK)
    b_x = read(part(at[0], start, tl.bfloat16, 0), o, n, False) * inv_most
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_e, b_rest = b_bits >> 23, b_bits & 0x7FFFFF
    more = (b_rest > 0) & (b_e != 254) & ~((b_e == 0) & (b_rest <= 0x400000))
    b_e = tl.where(more, b_e + 1, b_e)
    b_e = tl.where(tl.abs(b_x) == INF, 254, b_e)
    b_e = tl.where(b_x != b_x, 255, b_e)
    write(part(at[1], start, tl.uint8, 0), o, n, b_e, False)
