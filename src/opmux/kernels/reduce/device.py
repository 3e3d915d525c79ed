"""Device functions and kernels of reductions.

A lane accumulates a pair (a, b): a sum (b unused), a value and its index, a maximum and a sum of exponentials, or a
mean and the sum of squared differences from it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ..lib.interpret import interpreting

# The interpreter would run our combine functions element by element in Python, so it uses built-in functions.
FUSED = tl.constexpr(not interpreting())
LAST_32 = tl.constexpr(2**31 - 1)
LAST_64 = tl.constexpr(2**63 - 1)

# ---- map: what an element becomes -----------------------------------------------------------------------------------


@triton.jit
def same(x, extra):
    return x


@triton.jit
def square(x, extra):
    return x * x


@triton.jit
def size(x, extra):
    return tl.abs(x)


@triton.jit
def no_nan(x, extra):
    return tl.where(x == x, x, 0)


@triton.jit
def truth(x, extra):
    return x != 0


@triton.jit
def power(x, extra):
    """|x|^extra"""
    x = tl.abs(x)
    if FUSED:
        return libdevice.pow(x, tl.zeros_like(x) + extra)
    else:
        return tl.exp2(tl.log2(x) * extra)


# ---- lift: one element as a pair ------------------------------------------------------------------------------------


@triton.jit
def lift_value(x, o):
    return x, x


@triton.jit
def lift_index(x, o):
    return x, o


@triton.jit
def lift_exps(x, o):
    return x, tl.zeros_like(x) + 1.0


@triton.jit
def lift_moments(x, o):
    return x, tl.zeros_like(x)


# ---- step: add an element; `at`: start of its block, inv: 1 / number of elements with it ----------------------------


@triton.jit
def step_add(a, b, x, m, at, inv):
    return a + x, b


@triton.jit
def step_mul(a, b, x, m, at, inv):
    return a * x, b


@triton.jit
def step_most(a, b, x, m, at, inv):
    return tl.maximum(a, x, propagate_nan=tl.PropagateNan.ALL), b


@triton.jit
def step_least(a, b, x, m, at, inv):
    return tl.minimum(a, x, propagate_nan=tl.PropagateNan.ALL), b


@triton.jit
def step_first_most(a, b, x, m, at, inv):
    better = (x > a) | ((x != x) & (a == a))
    return tl.where(better, x, a), tl.where(better, at, b)


@triton.jit
def step_first_least(a, b, x, m, at, inv):
    better = (x < a) | ((x != x) & (a == a))
    return tl.where(better, x, a), tl.where(better, at, b)


@triton.jit
def step_exps(a, b, x, m, at, inv):
    """Needs one exponential per element. Two equal infinities are a separate case: their difference would be NaN."""
    d = tl.where(x == a, 0.0, x - a)
    e = tl.exp(-tl.abs(d))
    return tl.where(d > 0, x, a), tl.where(d > 0, b * e + 1.0, b + e)


@triton.jit
def step_moments(a, b, x, m, at, inv):
    """Welford's update."""
    d = tl.where(m, x - a, 0.0)
    a += d * inv
    return a, b + tl.where(m, d * (x - a), 0.0)


# ---- settle: combine the lanes of an axis; k elements per lane, n in all --------------------------------------------


@triton.jit
def _mul(a, b):
    return a * b


@triton.jit
def _most(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _product(a, axis: tl.constexpr):
    if FUSED:
        return tl.reduce(a, axis, _mul)
    else:
        a = tl.trans(a) if len(a.shape) == 2 and axis == 0 else a
        while a.shape[-1] > 1:
            p, q = tl.split(tl.reshape(a, [*a.shape[:-1], a.shape[-1] // 2, 2]))
            a = p * q
        return tl.sum(a, len(a.shape) - 1)


@triton.jit
def _nan_or(y, a, axis: tl.constexpr):
    """Restore NaN, which max and min drop in the interpreter."""
    if a.dtype.is_floating():
        y = tl.where(tl.max((a != a).to(tl.int32), axis) > 0, float("nan"), y)
    return y


@triton.jit
def _top(a, axis: tl.constexpr):
    return tl.reduce(a, axis, _most) if FUSED else _nan_or(tl.max(a, axis), a, axis)


@triton.jit
def _bottom(a, axis: tl.constexpr):
    return tl.reduce(a, axis, _least) if FUSED else _nan_or(tl.min(a, axis), a, axis)


@triton.jit
def settle_add(a, b, k, n, axis: tl.constexpr):
    y = tl.sum(a, axis)
    return y, y


@triton.jit
def settle_mul(a, b, k, n, axis: tl.constexpr):
    y = _product(a, axis)
    return y, y


@triton.jit
def settle_most(a, b, k, n, axis: tl.constexpr):
    y = _top(a, axis)
    return y, y


@triton.jit
def settle_least(a, b, k, n, axis: tl.constexpr):
    y = _bottom(a, axis)
    return y, y


@triton.jit
def _first(a, b, y, axis: tl.constexpr):
    """The first index at which a equals y; y may be NaN."""
    y = tl.expand_dims(y, axis)
    hit = (a == y) | ((a != a) & (y != y))
    if b.dtype == tl.int32:
        return tl.min(tl.where(hit, b, LAST_32), axis)
    else:
        return tl.min(tl.where(hit, b, LAST_64), axis)


@triton.jit
def settle_first_most(a, b, k, n, axis: tl.constexpr):
    y = _top(a, axis)
    return y, _first(a, b, y, axis)


@triton.jit
def settle_first_least(a, b, k, n, axis: tl.constexpr):
    y = _bottom(a, axis)
    return y, _first(a, b, y, axis)


@triton.jit
def settle_exps(a, b, k, n, axis: tl.constexpr):
    y = tl.max(a, axis)
    top = tl.expand_dims(y, axis)
    return y, tl.sum(tl.where(a == top, b, b * tl.exp(a - top)), axis)


@triton.jit
def settle_moments(a, b, k, n, axis: tl.constexpr):
    mean = tl.sum(a * k, axis) / n
    d = a - tl.expand_dims(mean, axis)
    return mean, tl.sum(b + tl.where(k > 0, k * d * d, 0.0), axis)


# ---- give: the results of a pair of n elements ----------------------------------------------------------------------


@triton.jit
def give_value(a, b, n, extra):
    return a, a


@triton.jit
def give_mean(a, b, n, extra):
    return a / n.to(a.dtype), a


@triton.jit
def give_truth(a, b, n, extra):
    return a != 0, a


@triton.jit
def give_root(a, b, n, extra):
    return tl.sqrt(a), a


@triton.jit
def give_power(a, b, n, extra):
    e = 1.0 / (tl.zeros_like(a) + extra)
    if FUSED:
        return libdevice.pow(a, e), a
    else:
        return tl.exp2(tl.log2(a) * e), a


@triton.jit
def give_index(a, b, n, extra):
    return b, b


@triton.jit
def give_both(a, b, n, extra):
    return a, b


@triton.jit
def give_log(a, b, n, extra):
    return a + tl.log(b), a


@triton.jit
def give_var(a, b, n, extra):
    return b / tl.maximum(n - extra, 0).to(a.dtype), a


@triton.jit
def give_std(a, b, n, extra):
    return tl.sqrt(b / tl.maximum(n - extra, 0).to(a.dtype)), a


# ---- the kernels ----------------------------------------------------------------------------------------------------
# Sizes and strides are passed divided by UNIT, the width of a load. After the kernel multiplies them, Triton knows that
# they are divisible.


@triton.jit
def _cast(x, CAST: tl.constexpr):
    """Convert a number as torch does: floats become uint8 through int64, and wrap."""
    if CAST == tl.uint8 and x.dtype.is_floating():
        return x.to(tl.int64).to(CAST)
    else:
        return x.to(CAST)


@triton.jit
def _load(p, m, extra, MAP: tl.constexpr, FILL: tl.constexpr, CAST: tl.constexpr, WORK: tl.constexpr):
    return MAP(_cast(tl.load(p, mask=m, other=FILL), CAST).to(WORK), extra)


@triton.jit
def _split(i, d, s_0, s_1, UNIT: tl.constexpr, TWO: tl.constexpr):
    """The offset of index i in one dimension or, with TWO, in two nested ones (then i fits in 32 bits)."""
    if TWO:
        q = i.to(tl.int32) // d
        return q.to(tl.int64) * (s_0.to(tl.int64) * UNIT) + (i.to(tl.int32) - q * d).to(tl.int64) * (
            s_1.to(tl.int64) * UNIT
        )
    return i.to(tl.int64) * (s_1.to(tl.int64) * UNIT)


@triton.jit
def _put(y_ptr, z_ptr, o, m, a, b, n, extra, FINISH: tl.constexpr, SHARES: tl.constexpr):
    if SHARES:
        tl.store(y_ptr + o, a.to(y_ptr.dtype.element_ty), mask=m)
        if z_ptr is not None:
            tl.store(z_ptr + o, b.to(z_ptr.dtype.element_ty), mask=m)
    else:
        y, z = FINISH(a, b, n, extra)
        tl.store(y_ptr + o, y.to(y_ptr.dtype.element_ty), mask=m)
        if z_ptr is not None:
            tl.store(z_ptr + o, z.to(z_ptr.dtype.element_ty), mask=m)


def _rows(
    x_ptr, y_ptr, z_ptr, rows, k_1, s_0, s_1, s_n, n, count, extra,
    MAP: tl.constexpr, LIFT: tl.constexpr, SETTLE: tl.constexpr, FINISH: tl.constexpr, SHIFT: tl.constexpr,
    FILL: tl.constexpr, CAST: tl.constexpr, WORK: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr,
    UNIT: tl.constexpr, TWO: tl.constexpr, DENSE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A program holds whole rows in registers."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    i_m = first + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_m = i_m < rows
    m = m_m & (o_n < n * UNIT)
    x_ptr += _split(i_m, k_1, s_0, s_1, UNIT, TWO)
    p = x_ptr + (o_n if DENSE else o_n * s_n.to(tl.int64))
    b_x = _load(p, m, extra, MAP, FILL, CAST, WORK).to(LANE)
    if SHIFT:  # two passes over the registers: the mean, then the squares of the differences from it
        a = tl.sum(b_x, 1) / count.to(LANE)
        b_x = tl.where(m, b_x - a[:, None], 0.0)
        b = tl.sum(b_x * b_x, 1)
    else:
        a, b = LIFT(b_x, o_n + tl.zeros([BLOCK_M, BLOCK_N], tl.int32))
        a, b = SETTLE(a.to(SUM), b, m.to(LANE), count.to(LANE), 1)
    o = first + tl.arange(0, BLOCK_M)
    _put(y_ptr, z_ptr, o, o < rows, a, b, count, extra, FINISH, False)


def _pieces(
    x_ptr, y_ptr, z_ptr, k_1, s_0, s_1, s_m, s_n, n_m, n, chunk, count, extra,
    MAP: tl.constexpr, STEP: tl.constexpr, SETTLE: tl.constexpr, FINISH: tl.constexpr, SHIFT: tl.constexpr,
    PLACE: tl.constexpr, START: tl.constexpr, SIDE: tl.constexpr,
    FILL: tl.constexpr, CAST: tl.constexpr, WORK: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr,
    UNIT: tl.constexpr, TWO: tl.constexpr, DENSE: tl.constexpr, PLANES: tl.constexpr, FULL: tl.constexpr,
    SHARES: tl.constexpr, AHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One result per program, or with SHARES a part of one result: `chunk` blocks of a row, or of the rows of a plane.

    AHEAD: load the next block while this one is computed. Used if lanes hold pairs: these take so many registers that a
    core runs too few programs to hide the loads.
    """
    out = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    x_ptr += _split(out, k_1, s_0, s_1, UNIT, TWO)
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    o_x = o_n if DENSE else o_n * s_n.to(tl.int64)
    step_x = 1 if DENSE else s_n.to(tl.int64)
    one = tl.full([], 1, LANE)
    a = tl.full([BLOCK_M, BLOCK_N], START, LANE)
    b = tl.zeros([BLOCK_M, BLOCK_N], SIDE)
    if PLANES:
        first = part * chunk * BLOCK_M
        rows = tl.minimum(n_m - first, chunk * BLOCK_M).to(tl.int32)
        left = n * UNIT
        x_ptr += first * (s_m.to(tl.int64) * UNIT)
        if SHIFT:
            c = tl.load(x_ptr).to(LANE)
        k_n = (left - o_n + (BLOCK_N - 1)) // BLOCK_N
        k_m = (rows - o_m + (BLOCK_M - 1)) // BLOCK_M
        for i in range(0, rows, BLOCK_M):
            p_m = x_ptr + (i + o_m).to(tl.int64) * (s_m.to(tl.int64) * UNIT)
            for at in range(0, left, BLOCK_N):
                m = (i + o_m < rows) & (at + o_n < left)
                b_x = _load(p_m + at * step_x + o_x, m, extra, MAP, FILL, CAST, WORK).to(LANE)
                if SHIFT:
                    b_x -= c
                # The number of elements per lane so far: a scalar if it is the same for all lanes.
                before = i // BLOCK_M * (tl.cdiv(left, BLOCK_N) if FULL else k_n) + at // BLOCK_N
                a, b = STEP(a, b, b_x, m, at, 1.0 / (one + before))
        k = tl.where((o_m < rows) & (o_n < left), k_m * k_n, 0).to(LANE)
        total = rows.to(tl.int64) * left
    else:
        first = part * chunk * BLOCK_N
        left = tl.minimum(n - part * chunk * (BLOCK_N // UNIT), chunk * (BLOCK_N // UNIT)).to(tl.int32) * UNIT
        x_ptr += first * step_x
        if SHIFT:
            # Shift by the mean of the first block. If that block is 1/f of the row, its mean is at most sqrt(f)
            # standard deviations from the row's mean, so the error of the squares grows at most by a factor f.
            b_x = _load(x_ptr + o_x, o_n < left, extra, MAP, FILL, CAST, WORK).to(LANE)
            c = tl.sum(tl.reshape(b_x, [BLOCK_M * BLOCK_N]), 0) / tl.minimum(left, BLOCK_N).to(LANE)
            c = tl.where(tl.abs(c) < float("inf"), c, 0.0)
        if AHEAD:
            x_next = tl.load(x_ptr + o_x, mask=o_n < left, other=FILL)
        for at in range(0, left, BLOCK_N):
            m = at + o_n < left
            if AHEAD:
                b_x = x_next
                p = x_ptr + (at + BLOCK_N) * step_x + o_x
                x_next = tl.load(p, mask=at + BLOCK_N + o_n < left, other=FILL)
            else:
                b_x = tl.load(x_ptr + at * step_x + o_x, mask=m, other=FILL)
            b_x = MAP(_cast(b_x, CAST).to(WORK), extra).to(LANE)
            if SHIFT:
                b_x = tl.where(m, b_x - c, 0.0)
                a += b_x
                b += b_x * b_x
            else:
                a, b = STEP(a, b, b_x, m, at, 1.0 / (one + at // BLOCK_N))
        k = tl.where(o_n < left, (left - o_n + (BLOCK_N - 1)) // BLOCK_N, 0).to(LANE)
        total = left
    if PLACE:
        b += o_n
    a = tl.reshape(a.to(SUM), [BLOCK_M * BLOCK_N])
    b = tl.reshape(b, [BLOCK_M * BLOCK_N])
    k = tl.reshape(k, [BLOCK_M * BLOCK_N])
    if SHIFT and not PLANES:
        a = tl.sum(a, 0) / total.to(LANE)
        b = tl.maximum(tl.sum(b, 0) - a * a * total.to(LANE), 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        a, b = SETTLE(a, b, k, total.to(LANE), 0)
    if SHIFT:
        a += c
    if PLACE:
        b = b.to(tl.int64) + first
    o = part * tl.num_programs(0) + out if SHARES else out
    _put(y_ptr, z_ptr, o, None, a, b, count, extra, FINISH, SHARES)


def _columns(
    x_ptr, y_ptr, z_ptr, r_1, s_k, s_0, s_1, s_n, rows, n, chunk, outer, count, extra,
    MAP: tl.constexpr, LIFT: tl.constexpr, STEP: tl.constexpr, SETTLE: tl.constexpr, FINISH: tl.constexpr,
    SHIFT: tl.constexpr, PLACE: tl.constexpr, START: tl.constexpr, SIDE: tl.constexpr,
    FILL: tl.constexpr, CAST: tl.constexpr, WORK: tl.constexpr, LANE: tl.constexpr, SUM: tl.constexpr,
    UNIT: tl.constexpr, TWO: tl.constexpr, DENSE: tl.constexpr, LOOP: tl.constexpr, SHARES: tl.constexpr,
    AHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Reduce a block of columns over all rows, or with SHARES over `chunk` blocks of rows; AHEAD as in `_pieces`."""
    tiles = tl.cdiv(n * UNIT, BLOCK_N)
    i_k = (tl.program_id(0) // tiles).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    i_n = (tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_n = i_n[None, :]
    o_m = tl.arange(0, BLOCK_M)[:, None]
    m_n = o_n < n * UNIT
    first = part * chunk * BLOCK_M
    left = tl.minimum(rows - first, chunk * BLOCK_M).to(tl.int32)
    x_ptr += i_k * (s_k.to(tl.int64) * UNIT) + (o_n if DENSE else o_n * s_n.to(tl.int64))
    if SHIFT:
        c = tl.load(x_ptr + _split(first, r_1, s_0, s_1, UNIT, TWO), mask=m_n, other=0.0).to(LANE)
    if LOOP:
        one = tl.full([], 1, LANE)
        a = tl.full([BLOCK_M, BLOCK_N], START, LANE)
        b = tl.zeros([BLOCK_M, BLOCK_N], SIDE)
        if AHEAD:
            p = x_ptr + _split(first + o_m, r_1, s_0, s_1, UNIT, TWO)
            x_next = tl.load(p, mask=(o_m < left) & m_n, other=FILL)
        for at in range(0, left, BLOCK_M):
            m = (at + o_m < left) & m_n
            if AHEAD:
                b_x = x_next
                p = x_ptr + _split(first + (at + BLOCK_M + o_m), r_1, s_0, s_1, UNIT, TWO)
                x_next = tl.load(p, mask=(at + BLOCK_M + o_m < left) & m_n, other=FILL)
            else:
                b_x = tl.load(x_ptr + _split(first + (at + o_m), r_1, s_0, s_1, UNIT, TWO), mask=m, other=FILL)
            b_x = MAP(_cast(b_x, CAST).to(WORK), extra).to(LANE)
            if SHIFT:
                b_x -= c
            a, b = STEP(a, b, b_x, m, at, 1.0 / (one + at // BLOCK_M))
        if PLACE:
            b += o_m
        k = tl.where(o_m < left, (left - o_m + (BLOCK_M - 1)) // BLOCK_M, 0).to(LANE)
    else:
        m = (o_m < left) & m_n
        p = x_ptr + _split(first + o_m, r_1, s_0, s_1, UNIT, TWO)
        b_x = _load(p, m, extra, MAP, FILL, CAST, WORK).to(LANE)
        if SHIFT:
            b_x = tl.where(m, b_x - c, 0.0)
        a, b = LIFT(b_x, o_m + tl.zeros([BLOCK_M, BLOCK_N], tl.int32))
        k = tl.where(o_m < left, 1, 0).to(LANE)
    a, b = SETTLE(a.to(SUM), b, k, left.to(LANE), 0)
    if SHIFT:
        a += tl.reshape(c, [BLOCK_N])
    if PLACE:
        b = b.to(tl.int64) + first
    o = i_k * (n * UNIT) + i_n
    if SHARES:
        o += part * (outer.to(tl.int64) * (n * UNIT))
    _put(y_ptr, z_ptr, o, i_n < n * UNIT, a, b, count, extra, FINISH, SHARES)


def _finish(
    a_ptr,
    b_ptr,
    y_ptr,
    z_ptr,
    parts,
    part,
    n,
    count,
    extra,
    SETTLE: tl.constexpr,
    FINISH: tl.constexpr,
    START: tl.constexpr,
    PLACE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Combine the parts of all programs in order. Each part has `part` elements; the last one may have fewer."""
    i_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    i_m = tl.arange(0, BLOCK_M)[:, None]
    m = (i_m < parts) & (i_n[None, :] < n)
    o = i_m.to(tl.int64) * n + i_n[None, :]
    a = tl.load(a_ptr + o, mask=m, other=START)
    b = a
    if b_ptr is not None:
        b = tl.load(b_ptr + o, mask=m, other=LAST_64 if PLACE else 0)
    k = tl.where(m, tl.minimum(count - i_m * part.to(tl.int64), part), 0).to(a.dtype)
    a, b = SETTLE(a, b, k, count.to(a.dtype), 0)
    _put(y_ptr, z_ptr, i_n, i_n < n, a, b, count, extra, FINISH, False)


# ---- gradients that are one pass over x: g and h are gradients, y a result, mean that of x ---------------------------


@triton.jit
def slope_log(x, g, y, mean, n, extra):
    return g * tl.exp(x - y)


@triton.jit
def slope_size(x, g, y, mean, n, extra):
    return tl.where(x > 0, g, tl.where(x < 0, -g, x * 0.0))


@triton.jit
def slope_root(x, g, y, mean, n, extra):
    return tl.where(y == 0, 0.0, g * (x / y))


@triton.jit
def slope_power(x, g, y, mean, n, extra):
    s = power(x / y, extra - 1)
    return tl.where((y == 0) | (x == 0), 0.0, g * tl.where(x < 0, -s, s))


@triton.jit
def slope_var(x, g, y, mean, n, extra):
    return g * (2.0 / (n - extra).to(x.dtype)) * (x - mean)


@triton.jit
def slope_std(x, g, y, mean, n, extra):
    return slope_var(x, tl.where(y == 0, 0.0, g / (2.0 * y)), y, mean, n, extra)


@triton.jit
def _one_of(p, o, m, like):
    """Load one number per group; 0 if there is no pointer."""
    if p is None:
        return tl.zeros_like(like)
    else:
        return tl.load(p + o, mask=m, other=0.0).to(like.dtype)


def _spread(
    x_ptr,
    g_ptr,
    h_ptr,
    y_ptr,
    mean_ptr,
    dx_ptr,
    rows,
    reduced,
    n,
    count,
    extra,
    SLOPE: tl.constexpr,
    WIDE: tl.constexpr,
    UNIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx of a contiguous x. A group is a row, or with COLUMNS a column of `reduced` rows."""
    tiles = tl.cdiv(n * UNIT, BLOCK_N)
    i_m = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = (tl.program_id(0) % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_m = i_m < rows
    m = m_m & (o_n < n * UNIT)
    o = i_m * (n.to(tl.int64) * UNIT) + o_n
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    if COLUMNS:
        i, m_i = (i_m // reduced) * (n.to(tl.int64) * UNIT) + o_n, m
    else:
        i, m_i = i_m, m_m
    g = tl.load(g_ptr + i, mask=m_i, other=0.0).to(WIDE)
    b_dx = SLOPE(b_x, g, _one_of(y_ptr, i, m_i, g), _one_of(mean_ptr, i, m_i, g), count, extra)
    if h_ptr is not None:
        b_dx += _one_of(h_ptr, i, m_i, g) / count.to(WIDE)
    tl.store(dx_ptr + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
