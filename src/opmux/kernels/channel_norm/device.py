"""Kernels of group norm, batch norm and weight norm: all of them scale *units* by statistics.

A unit is all elements that share one statistic: a group of channels of a sample, a channel of the batch, or a slice of
a weight. In memory a unit is `n_k` runs of `n_l` adjacent elements; runs are `k_stride` apart. There are `n_r` times
`n_f` units, `r_stride` and `f_stride` apart. Channels-last tensors are also matrices of `n_m` rows and `n_c` channels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..lib.launch import Launcher

# ---- shared by the kernels ------------------------------------------------------------------------------------------


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _sums(b_a, b_b, AXIS: tl.constexpr, BOTH: tl.constexpr, PAIRS: tl.constexpr):
    """The sums of both tensors along an axis, or only of the first one.

    PAIRS fuses both sums into one reduction, which the interpreter does not support.
    """
    if BOTH and PAIRS:
        a, b = tl.reduce((b_a, b_b), AXIS, _add_pairs)
    else:
        a = tl.sum(b_a, AXIS)
        b = a
        if BOTH:
            b = tl.sum(b_b, AXIS)
    return a, b


@triton.jit
def _unit_sums(b_a, b_b, BOTH: tl.constexpr, PAIRS: tl.constexpr):
    """The sums of [BLOCK_U, BLOCK_K, BLOCK_L] over each unit; the arguments are those of `_sums`.

    Several units are reduced one dimension at a time, because Triton before 3.7 reduces wrongly along a dimension that
    a reshape has merged (`lib/layouts.py`). A single unit can safely use one reduction, which is faster; but Triton 3.6
    does not compile that for two elements.
    """
    N: tl.constexpr = b_a.shape[1] * b_a.shape[2]
    if b_a.shape[0] == 1 and N > 2:
        a, b = _sums(tl.reshape(b_a, [1, N]), tl.reshape(b_b, [1, N]), 1, BOTH, PAIRS)
    else:
        a, b = _sums(b_a, b_b, 1, BOTH, PAIRS)
        a, b = _sums(a, b, 1, BOTH, PAIRS)
    return a, b


@triton.jit
def _inverse(stat_ptr, i_u, m_u, eps, STAT: tl.constexpr, WIDE: tl.constexpr):
    """The factor of a unit, 1 / deviation or 1 / norm, from its statistic (rstd, var or norm)."""
    b = tl.load(stat_ptr + i_u, mask=m_u, other=1.0).to(WIDE)
    if STAT == "var":
        b = 1.0 / tl.sqrt(b + eps)
    elif STAT == "norm":
        b = 1.0 / b
    return b


@triton.jit
def _store_statistics(
    mean,
    m2,
    i_u,
    m_u,
    mean_ptr,
    rstd_ptr,
    running_mean_ptr,
    running_var_ptr,
    new_mean_ptr,
    new_var_ptr,
    count,
    eps,
    momentum,
    CENTRED: tl.constexpr,
):
    """Store the statistics of units, from their mean and sum of squares; returns 1 / deviation, or 1 / norm."""
    if CENTRED:
        rstd = 1.0 / tl.sqrt(m2 / count + eps)
        tl.store(mean_ptr + i_u, mean, mask=m_u)
        tl.store(rstd_ptr + i_u, rstd, mask=m_u)
        if new_mean_ptr is not None:
            var = m2 / (count - 1)
            if running_mean_ptr is not None:
                old_mean = tl.load(running_mean_ptr + i_u, mask=m_u, other=0.0).to(mean.dtype)
                old_var = tl.load(running_var_ptr + i_u, mask=m_u, other=0.0).to(mean.dtype)
                mean = (1.0 - momentum) * old_mean + momentum * mean
                var = (1.0 - momentum) * old_var + momentum * var
            tl.store(new_mean_ptr + i_u, mean.to(new_mean_ptr.dtype.element_ty), mask=m_u)
            tl.store(new_var_ptr + i_u, var.to(new_var_ptr.dtype.element_ty), mask=m_u)
    else:
        norm = tl.sqrt(m2)
        tl.store(rstd_ptr + i_u, norm, mask=m_u)
        rstd = 1.0 / tl.where(m_u, norm, 1.0)
    return rstd


@triton.jit
def _scale(b_x, weight_ptr, bias_ptr, i_c, m_c, WIDE: tl.constexpr):
    if weight_ptr is not None:
        b_x *= tl.load(weight_ptr + i_c, mask=m_c, other=0.0).to(WIDE)
    if bias_ptr is not None:
        b_x += tl.load(bias_ptr + i_c, mask=m_c, other=0.0).to(WIDE)
    return b_x


# ---- whole units in registers ---------------------------------------------------------------------------------------


@triton.jit
def _offsets(
    i_r,
    i_f,
    r_stride,
    f_stride,
    k_stride,
    n_l,
    n_k,
    n_r,
    TIGHT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Offsets of the elements of units, [BLOCK_U, BLOCK_K, BLOCK_L]. TIGHT: units are adjacent columns."""
    o_k = tl.arange(0, BLOCK_K)[None, :, None]
    o_l = tl.arange(0, BLOCK_L)[None, None, :]
    i_u = i_r[:, None, None].to(tl.int64)
    if TIGHT:  # k_stride is the number of units, and the compiler may know that it is a multiple of 16
        m = (i_u < k_stride) & (o_k < n_k) & (o_l < n_l)
        o = o_k.to(tl.int64) * k_stride + i_u
    else:
        m = (i_u < n_r) & (o_k < n_k) & (o_l < n_l)
        o = i_u * r_stride + i_f.to(tl.int64) * f_stride + o_k.to(tl.int64) * k_stride + o_l
    return o, m


@triton.jit
def _channels(i_r, i_f, n_l, n_k, n_r, CHANNEL: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr):
    """The channels of units: one per unit, one per run, or one per position in a run."""
    if CHANNEL == "unit":
        i_c = i_r[:, None, None]
        m = i_c < n_r
    elif CHANNEL == "run":
        o_k = tl.arange(0, BLOCK_K)[None, :, None]
        i_c = i_f * n_k + o_k
        m = o_k < n_k
    else:
        o_l = tl.arange(0, BLOCK_L)[None, None, :]
        i_c = i_f * n_l + o_l
        m = o_l < n_l
    return i_c, m


def _fwd(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr,
    running_mean_ptr, running_var_ptr, new_mean_ptr, new_var_ptr,
    r_stride, f_stride, k_stride, n_l, n_k, n_r, n_f, eps, momentum,
    CHANNEL: tl.constexpr, TIGHT: tl.constexpr, CENTRED: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_U: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    i_f = tl.program_id(0) % n_f
    i_r = (tl.program_id(0) // n_f) * BLOCK_U + tl.arange(0, BLOCK_U)
    o, m = _offsets(i_r, i_f, r_stride, f_stride, k_stride, n_l, n_k, n_r, TIGHT, BLOCK_K, BLOCK_L)
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    count = n_k * n_l
    mean = tl.zeros([BLOCK_U], WIDE)
    if CENTRED:
        mean = _unit_sums(b_x, b_x, False, False)[0] / count
        b_x = tl.where(m, b_x - mean[:, None, None], 0.0)
    m2 = _unit_sums(b_x * b_x, b_x, False, False)[0]
    rstd = _store_statistics(
        mean,
        m2,
        i_r * n_f + i_f,
        i_r < n_r,
        mean_ptr,
        rstd_ptr,
        running_mean_ptr,
        running_var_ptr,
        new_mean_ptr,
        new_var_ptr,
        count,
        eps,
        momentum,
        CENTRED,
    )
    i_c, m_c = _channels(i_r, i_f, n_l, n_k, n_r, CHANNEL, BLOCK_K, BLOCK_L)
    b_y = _scale(b_x * rstd[:, None, None], weight_ptr, bias_ptr, i_c, m_c, WIDE)
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def _dx_of_units(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, i_r, i_f,
    r_stride, f_stride, k_stride, n_l, n_k, n_r, n_f,
    CHANNEL: tl.constexpr, TIGHT: tl.constexpr, CENTRED: tl.constexpr, WIDE: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_U: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """Store the dx of units; returns sum(dy * x') and sum(dy) of their channels: [BLOCK_U], or [BLOCK_U, channels]."""
    o, m = _offsets(i_r, i_f, r_stride, f_stride, k_stride, n_l, n_k, n_r, TIGHT, BLOCK_K, BLOCK_L)
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m, other=0.0).to(WIDE)
    i_u, m_u = i_r * n_f + i_f, i_r < n_r
    if CENTRED:
        rstd = tl.load(rstd_ptr + i_u, mask=m_u, other=0.0).to(WIDE)
        b_x -= tl.load(mean_ptr + i_u, mask=m_u, other=0.0).to(WIDE)[:, None, None]
    else:
        rstd = 1.0 / tl.load(rstd_ptr + i_u, mask=m_u, other=1.0).to(WIDE)
    b_x *= rstd[:, None, None]
    i_c, m_c = _channels(i_r, i_f, n_l, n_k, n_r, CHANNEL, BLOCK_K, BLOCK_L)
    b_w = tl.full([1, 1, 1], 1.0, WIDE)
    if weight_ptr is not None:
        b_w = tl.load(weight_ptr + i_c, mask=m_c, other=0.0).to(WIDE)
    # b_dy is 0 in masked lanes, so the products are 0 whatever b_x is there
    if CHANNEL == "unit":
        s_2, s_1 = _unit_sums(b_dy * b_x, b_dy, CENTRED, PAIRS)
        b_v = tl.reshape(tl.broadcast_to(b_w, [BLOCK_U, 1, 1]), [BLOCK_U])
        c_2, c_1 = s_2 * b_v, s_1 * b_v
    elif CHANNEL == "run":
        s_2, s_1 = _sums(b_dy * b_x, b_dy, 2, True, PAIRS)
        b_v = tl.reshape(tl.broadcast_to(b_w, [1, BLOCK_K, 1]), [1, BLOCK_K])
        c_2, c_1 = _sums(s_2 * b_v, s_1 * b_v, 1, True, PAIRS)
    else:
        s_2, s_1 = _sums(b_dy * b_x, b_dy, 1, True, PAIRS)
        b_v = tl.reshape(tl.broadcast_to(b_w, [1, 1, BLOCK_L]), [1, BLOCK_L])
        c_2, c_1 = _sums(s_2 * b_v, s_1 * b_v, 1, True, PAIRS)
    if CENTRED:
        count = n_k * n_l
        b_dx = b_dy * b_w - (c_1 / count)[:, None, None] - b_x * (c_2 / count)[:, None, None]
    else:
        b_dx = b_dy * b_w - b_x * c_2[:, None, None]
    tl.store(dx_ptr + o, (b_dx * rstd[:, None, None]).to(dx_ptr.dtype.element_ty), mask=m)
    return s_2, s_1


def _bwd(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, ds_ptr, db_ptr,
    r_stride, f_stride, k_stride, n_l, n_k, n_r, n_f,
    CHANNEL: tl.constexpr, TIGHT: tl.constexpr, CENTRED: tl.constexpr, WIDE: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_U: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """dx and, if a unit is one channel, ds = dweight and db = dbias.

    Otherwise ds and db are partial sums over the units of this program: the same group of channels in every P-th
    sample.
    """
    i_f = tl.program_id(0) % n_f
    part = tl.program_id(0) // n_f
    o_u = tl.arange(0, BLOCK_U)
    if CHANNEL == "unit":
        i_r = part * BLOCK_U + o_u
        s_2, s_1 = _dx_of_units(
            dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, i_r, i_f, r_stride, f_stride, k_stride,
            n_l, n_k, n_r, n_f, CHANNEL, TIGHT, CENTRED, WIDE, PAIRS, BLOCK_U, BLOCK_K, BLOCK_L,
        )  # fmt: skip
        tl.store(ds_ptr + i_r, s_2.to(ds_ptr.dtype.element_ty), mask=i_r < n_r)
        if db_ptr is not None:
            tl.store(db_ptr + i_r, s_1.to(db_ptr.dtype.element_ty), mask=i_r < n_r)
    else:
        N_C: tl.constexpr = BLOCK_K if CHANNEL == "run" else BLOCK_L
        n_c = n_k if CHANNEL == "run" else n_l
        b_2 = tl.zeros([BLOCK_U, N_C], WIDE)
        b_1 = tl.zeros([BLOCK_U, N_C], WIDE)
        parts = tl.num_programs(0) // n_f
        for at in range(part * BLOCK_U, n_r, parts * BLOCK_U):
            s_2, s_1 = _dx_of_units(
                dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, at + o_u, i_f, r_stride, f_stride, k_stride,
                n_l, n_k, n_r, n_f, CHANNEL, TIGHT, CENTRED, WIDE, PAIRS, BLOCK_U, BLOCK_K, BLOCK_L,
            )  # fmt: skip
            b_2 += s_2
            b_1 += s_1
        o_c = tl.arange(0, N_C)
        o = (part * n_f + i_f).to(tl.int64) * n_c + o_c
        tl.store(ds_ptr + o, tl.sum(b_2, 0), mask=o_c < n_c)
        tl.store(db_ptr + o, tl.sum(b_1, 0), mask=o_c < n_c)


# ---- a unit in pieces -----------------------------------------------------------------------------------------------


@triton.jit
def _tile(t, k_stride, n_l, n_k, BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr):
    """The t-th tile of a unit: the offsets, mask and number of its elements, and their runs."""
    n_b = tl.cdiv(n_l, BLOCK_L)
    at_k, at_l = (t // n_b) * BLOCK_K, (t % n_b) * BLOCK_L
    o_k = at_k + tl.arange(0, BLOCK_K)[:, None]
    o_l = at_l + tl.arange(0, BLOCK_L)[None, :]
    size = tl.minimum(n_k - at_k, BLOCK_K) * tl.minimum(n_l - at_l, BLOCK_L)
    return o_k.to(tl.int64) * k_stride + o_l, (o_k < n_k) & (o_l < n_l), size, o_k


@triton.jit
def _moments(
    x_ptr,
    first,
    step,
    n_tiles,
    k_stride,
    n_l,
    n_k,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Count, mean and sum of squared deviations over every step-th tile. The next tile is loaded while one is computed.

    Differences from the first tile's mean are summed, to avoid cancellation if the mean is large.
    """
    o, m, n, _ = _tile(first, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    o, m_next, _, _ = _tile(first + step, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
    x_next = tl.load(x_ptr + o, mask=m_next, other=0.0)
    shift = tl.zeros([], WIDE)
    if CENTRED:
        shift = tl.sum(b_x) / n
        b_x = tl.where(m, b_x - shift, 0.0)
    b_1 = b_x
    b_2 = b_x * b_x
    for t in range(first + step, n_tiles, step):
        b_x = x_next.to(WIDE)
        o, m_next, _, _ = _tile(t + step, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
        x_next = tl.load(x_ptr + o, mask=m_next, other=0.0)
        _, m, size, _ = _tile(t, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
        n += size
        if CENTRED:
            b_x = tl.where(m, b_x - shift, 0.0)
            b_1 += b_x
        b_2 += b_x * b_x
    m2 = tl.sum(b_2)
    mean = shift
    if CENTRED:
        total = tl.sum(b_1)
        mean += total / n
        m2 -= total * (total / n)
        m2 = tl.where(m2 < 0, 0.0, m2)
    return n, mean, m2


def _fwd_pieces(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr,
    running_mean_ptr, running_var_ptr, new_mean_ptr, new_var_ptr,
    r_stride, f_stride, k_stride, n_l, n_k, n_r, n_f, eps, momentum,
    CHANNEL: tl.constexpr, CENTRED: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_L: tl.constexpr,
):  # fmt: skip
    """A program computes one unit in pieces. The second pass starts at the unit's end, which is still in L2."""
    pid = tl.program_id(0)
    i_r, i_f = pid // n_f, pid % n_f
    base = i_r.to(tl.int64) * r_stride + i_f.to(tl.int64) * f_stride
    x_ptr += base
    y_ptr += base
    n_tiles = tl.cdiv(n_k, BLOCK_K) * tl.cdiv(n_l, BLOCK_L)
    n, mean, m2 = _moments(x_ptr, 0, 1, n_tiles, k_stride, n_l, n_k, CENTRED, WIDE, BLOCK_K, BLOCK_L)
    rstd = _store_statistics(
        mean,
        m2,
        pid,
        i_r < n_r,
        mean_ptr,
        rstd_ptr,
        running_mean_ptr,
        running_var_ptr,
        new_mean_ptr,
        new_var_ptr,
        n,
        eps,
        momentum,
        CENTRED,
    )
    for t in range(0, n_tiles):
        o, m, _, o_k = _tile(n_tiles - 1 - t, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
        b_x = tl.load(x_ptr + o, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_y = (b_x - mean) * rstd
        if CHANNEL == "run":
            b_y = _scale(b_y, weight_ptr, bias_ptr, i_f * n_k + o_k, o_k < n_k, WIDE)
        else:
            b_y = _scale(b_y, weight_ptr, bias_ptr, i_r, i_r < n_r, WIDE)
        tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def _products(dy_ptr, x_ptr, o, m, mean, WIDE: tl.constexpr):
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m, other=0.0).to(WIDE)
    return b_dy * (b_x - mean), b_dy


def _bwd_pieces(
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    ds_ptr,
    db_ptr,
    r_stride,
    f_stride,
    k_stride,
    n_l,
    n_k,
    n_r,
    n_f,
    CHANNEL: tl.constexpr,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """dx of a unit and, if the unit is one channel, ds = dweight and db = dbias.

    Otherwise ds and db are partial sums per sample.
    """
    pid = tl.program_id(0)
    i_r, i_f = pid // n_f, pid % n_f
    base = i_r.to(tl.int64) * r_stride + i_f.to(tl.int64) * f_stride
    dy_ptr += base
    x_ptr += base
    dx_ptr += base
    mean = tl.zeros([], WIDE)
    if CENTRED:
        mean = tl.load(mean_ptr + pid).to(WIDE)
    rstd = _inverse(rstd_ptr, pid, i_r < n_r, 0.0, "rstd" if CENTRED else "norm", WIDE)
    n_tiles = tl.cdiv(n_k, BLOCK_K) * tl.cdiv(n_l, BLOCK_L)
    c_1 = tl.zeros([], WIDE)
    c_2 = tl.zeros([], WIDE)
    if CHANNEL == "run":
        n_b = tl.cdiv(n_l, BLOCK_L)
        for at_k in range(0, n_k, BLOCK_K):
            b_1 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
            b_2 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
            for i_b in range(0, n_b):
                o, m, _, _ = _tile((at_k // BLOCK_K) * n_b + i_b, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
                b_p, b_dy = _products(dy_ptr, x_ptr, o, m, mean, WIDE)
                b_2 += b_p
                b_1 += b_dy
            s_2, s_1 = _sums(b_2, b_1, 1, True, PAIRS)
            s_2 *= rstd
            o_k = at_k + tl.arange(0, BLOCK_K)
            i_c = i_f * n_k + o_k
            at = i_r.to(tl.int64) * n_f * n_k + i_c
            tl.store(ds_ptr + at, s_2, mask=o_k < n_k)
            tl.store(db_ptr + at, s_1, mask=o_k < n_k)
            if weight_ptr is not None:
                b_w = tl.load(weight_ptr + i_c, mask=o_k < n_k, other=0.0).to(WIDE)
                s_2 *= b_w
                s_1 *= b_w
            c_2 += tl.sum(s_2, 0)
            c_1 += tl.sum(s_1, 0)
    else:
        b_1 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
        b_2 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
        for t in range(0, n_tiles):
            o, m, _, _ = _tile(t, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
            b_p, b_dy = _products(dy_ptr, x_ptr, o, m, mean, WIDE)
            b_2 += b_p
            b_1 += b_dy
        c_2 = tl.sum(b_2) * rstd
        tl.store(ds_ptr + i_r, c_2.to(ds_ptr.dtype.element_ty))
        if db_ptr is not None:
            c_1 = tl.sum(b_1)
            tl.store(db_ptr + i_r, c_1.to(db_ptr.dtype.element_ty))
        if weight_ptr is not None:
            w = tl.load(weight_ptr + i_r).to(WIDE)
            c_2 *= w
            c_1 *= w
    if CENTRED:
        c_1 /= n_k * n_l
        c_2 /= n_k * n_l
    for t in range(0, n_tiles):
        o, m, _, o_k = _tile(n_tiles - 1 - t, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
        b_x = tl.load(x_ptr + o, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_g = tl.load(dy_ptr + o, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        if CHANNEL == "run":
            b_g = _scale(b_g, weight_ptr, None, i_f * n_k + o_k, o_k < n_k, WIDE)
        else:
            b_g = _scale(b_g, weight_ptr, None, i_r, i_r < n_r, WIDE)
        b_dx = rstd * (b_g - c_1 - (b_x - mean) * rstd * c_2)
        tl.store(dx_ptr + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


# ---- units shared by programs: partial results -----------------------------------------------------------------------


def _shares(
    x_ptr,
    counts_ptr,
    means_ptr,
    squares_ptr,
    r_stride,
    f_stride,
    k_stride,
    n_l,
    n_k,
    n_f,
    n_parts,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Partial statistics [n_r, n_parts, n_f]."""
    part, unit = tl.program_id(0) % n_parts, tl.program_id(0) // n_parts
    i_r, i_f = unit // n_f, unit % n_f
    x_ptr += i_r.to(tl.int64) * r_stride + i_f.to(tl.int64) * f_stride
    n_tiles = tl.cdiv(n_k, BLOCK_K) * tl.cdiv(n_l, BLOCK_L)
    n, mean, m2 = _moments(x_ptr, part, n_parts, n_tiles, k_stride, n_l, n_k, CENTRED, WIDE, BLOCK_K, BLOCK_L)
    at = (i_r * n_parts + part).to(tl.int64) * n_f + i_f
    tl.store(counts_ptr + at, n.to(WIDE))
    tl.store(means_ptr + at, mean)
    tl.store(squares_ptr + at, m2)


def _bwd_shares(
    dy_ptr,
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    dx_ptr,
    ds_ptr,
    db_ptr,
    r_stride,
    f_stride,
    k_stride,
    n_l,
    n_k,
    n_f,
    n_w,
    n_parts,
    eps,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Partial sums [n_r, n_parts, n_f] of dy * x' and dy, for units of one channel; n_w units share a statistic.

    If the statistics are constants, dx is dy times a factor, and is stored to dx_ptr.
    """
    part, unit = tl.program_id(0) % n_parts, tl.program_id(0) // n_parts
    i_r, i_f = unit // n_f, unit % n_f
    base = i_r.to(tl.int64) * r_stride + i_f.to(tl.int64) * f_stride
    dy_ptr += base
    x_ptr += base
    i_u = unit // n_w
    mean = tl.zeros([], WIDE)
    if mean_ptr is not None:
        mean = tl.load(mean_ptr + i_u).to(WIDE)
    rstd = _inverse(stat_ptr, i_u, i_f < n_f, eps, STAT, WIDE)
    scale = rstd
    if dx_ptr is not None:
        dx_ptr += base
        if weight_ptr is not None:
            scale *= tl.load(weight_ptr + i_f).to(WIDE)
    b_1 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
    b_2 = tl.zeros([BLOCK_K, BLOCK_L], WIDE)
    for t in range(part, tl.cdiv(n_k, BLOCK_K) * tl.cdiv(n_l, BLOCK_L), n_parts):
        o, m, _, _ = _tile(t, k_stride, n_l, n_k, BLOCK_K, BLOCK_L)
        b_p, b_dy = _products(dy_ptr, x_ptr, o, m, mean, WIDE)
        b_2 += b_p
        b_1 += b_dy
        if dx_ptr is not None:
            tl.store(dx_ptr + o, (b_dy * scale).to(dx_ptr.dtype.element_ty), mask=m)
    at = (i_r * n_parts + part).to(tl.int64) * n_f + i_f
    tl.store(ds_ptr + at, tl.sum(b_2) * rstd)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(b_1))


def _column_shares(
    x_ptr,
    counts_ptr,
    means_ptr,
    squares_ptr,
    n_c,
    n_m,
    n_parts,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Partial statistics [matrices, n_parts, n_c] of the columns of matrices [n_m, n_c]."""
    n_b = tl.cdiv(n_c, BLOCK_N)
    part, i_o = (tl.program_id(0) // n_b) % n_parts, tl.program_id(0) // n_b // n_parts
    o_c = (tl.program_id(0) % n_b) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_m = tl.arange(0, BLOCK_M)[:, None]
    x_ptr += i_o.to(tl.int64) * n_m * n_c + o_c[None, :]
    m_c = o_c < n_c
    first, step = part * BLOCK_M, n_parts * BLOCK_M
    i_m = (first + o_m).to(tl.int64)
    b_x = tl.load(x_ptr + i_m * n_c, mask=(i_m < n_m) & m_c[None, :], other=0.0).to(WIDE)
    n = tl.minimum(n_m - first, BLOCK_M)
    shift = tl.zeros([BLOCK_N], WIDE)
    if CENTRED:
        shift = tl.sum(b_x, 0) / n
        b_x = tl.where(i_m < n_m, b_x - shift[None, :], 0.0)
    b_1 = b_x
    b_2 = b_x * b_x
    for at in range(first + step, n_m, step):
        i_m = (at + o_m).to(tl.int64)
        b_x = tl.load(x_ptr + i_m * n_c, mask=(i_m < n_m) & m_c[None, :], other=0.0).to(WIDE)
        n += tl.minimum(n_m - at, BLOCK_M)
        if CENTRED:
            b_x = tl.where(i_m < n_m, b_x - shift[None, :], 0.0)
            b_1 += b_x
        b_2 += b_x * b_x
    m2 = tl.sum(b_2, 0)
    mean = shift
    if CENTRED:
        total = tl.sum(b_1, 0)
        mean += total / n
        m2 -= total * (total / n)
        m2 = tl.where(m2 < 0, 0.0, m2)
    at = (i_o * n_parts + part).to(tl.int64) * n_c + o_c
    tl.store(counts_ptr + at, tl.zeros([BLOCK_N], WIDE) + n, mask=m_c)
    tl.store(means_ptr + at, mean, mask=m_c)
    tl.store(squares_ptr + at, m2, mask=m_c)


def _bwd_column_shares(
    dy_ptr,
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    dx_ptr,
    ds_ptr,
    db_ptr,
    n_c,
    n_m,
    n_w,
    n_parts,
    eps,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`_bwd_shares` for the columns of matrices."""
    n_b = tl.cdiv(n_c, BLOCK_N)
    part, i_o = (tl.program_id(0) // n_b) % n_parts, tl.program_id(0) // n_b // n_parts
    o_c = (tl.program_id(0) % n_b) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_c = o_c < n_c
    i_u = i_o * (n_c // n_w) + o_c // n_w
    mean = tl.zeros([BLOCK_N], WIDE)
    if mean_ptr is not None:
        mean = tl.load(mean_ptr + i_u, mask=m_c, other=0.0).to(WIDE)
    rstd = _inverse(stat_ptr, i_u, m_c, eps, STAT, WIDE)
    scale = rstd
    if weight_ptr is not None:
        scale *= tl.load(weight_ptr + o_c, mask=m_c, other=0.0).to(WIDE)
    o_m = tl.arange(0, BLOCK_M)[:, None]
    b_1 = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(part * BLOCK_M, n_m, n_parts * BLOCK_M):
        i_m = (at + o_m).to(tl.int64)
        o = (i_o.to(tl.int64) * n_m + i_m) * n_c + o_c[None, :]
        m = (i_m < n_m) & m_c[None, :]
        b_p, b_dy = _products(dy_ptr, x_ptr, o, m, mean[None, :], WIDE)
        b_2 += b_p
        b_1 += b_dy
        if dx_ptr is not None:
            tl.store(dx_ptr + o, (b_dy * scale[None, :]).to(dx_ptr.dtype.element_ty), mask=m)
    at = (i_o * n_parts + part).to(tl.int64) * n_c + o_c
    tl.store(ds_ptr + at, tl.sum(b_2, 0) * rstd, mask=m_c)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(b_1, 0), mask=m_c)


# ---- launching ------------------------------------------------------------------------------------------------------

_units = dict(sizes="r_stride f_stride k_stride n_l")
fwd = Launcher(_fwd, **_units)
fwd_pieces = Launcher(_fwd_pieces, **_units)
bwd = Launcher(_bwd, **_units)
bwd_pieces = Launcher(_bwd_pieces, **_units)
shares = Launcher(_shares, **_units)
bwd_shares = Launcher(_bwd_shares, **_units)
column_shares = Launcher(_column_shares, sizes="n_c")
bwd_column_shares = Launcher(_bwd_column_shares, sizes="n_c")
