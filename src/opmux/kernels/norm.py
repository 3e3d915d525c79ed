"""Norms over the last dimension, in float32.

A program holds a row in registers. Longer rows are shared by several programs if they can cooperate, else read in
pieces. The forward reads a row once. In the backward, a program loops over many rows and keeps its partial gradient of
the weight in registers. A second kernel sums these partial gradients in a fixed order, so gradients are deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.tensors import opmath_dtype
from ..specs import norm as spec
from .lib.column_sum import column_sum
from .lib.config import Tiles, tunable
from .lib.cooperative import CooperativeRows, can_cooperate, gather, gather_pairs, position_in_group, post
from .lib.fp8 import ONE, cast_of, inverse_of_scale, note, put
from .lib.harness import Launch, Plan, RowSizes, Step, Zeros, planned, strided
from .lib.launch import Launcher
from .lib.norms import round_to, rounding, rstd_of_nothing
from .lib.quant_tiles import blocks_launch, mx_launch, normed, put_blocks, row_blocks, strides
from .lib.rows import OutputSpec, fits, inside, programs, wide_of

# ---- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def put_row(y_ptr, o, b_y, m, x_ptr, scale_ptr, CAST: tl.constexpr):
    """`put`; but if y_ptr is None, store nothing and return the amax of y, rounded to the dtype of x."""
    if y_ptr is None:
        b_y = b_y.to(x_ptr.dtype.element_ty).to(tl.float32)
        return tl.max(tl.where(m & (b_y == b_y), tl.abs(b_y).to(tl.int32, bitcast=True), 0))
    else:
        return put(y_ptr + o, b_y, m, scale_ptr, CAST)


def _fwd(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, y_scale_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr,
    scale_inv_ptr,
    x_stride, residual_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr, STEP: tl.constexpr,
    LARGEST: tl.constexpr, TOP: tl.constexpr, POW2: tl.constexpr, LEAST: tl.constexpr, FULL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows: y = norm(x [+ r]) * (w + offset) [+ b].

    With CAST, y is float8, and amax is raised to y's largest magnitude. Without y_ptr, it writes only the statistics,
    and amax if amax_ptr is given. With y_scale_ptr, `put_blocks` writes y. ROUND: norm(x) is rounded to this dtype.
    STEP: every step is rounded to this dtype.
    """
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_m, m_n = i_m < n_rows, inside(o_n, n, FULL)
    m = m_m & m_n
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
    if residual_ptr is not None:
        b_x += tl.load(residual_ptr + i_m * residual_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_s = b_x.to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + i_m * n + o_n, b_s, mask=m)
        b_x = b_s.to(WIDE)
    if CENTRED:
        mean = tl.sum(b_x, 1)[:, None] / n
        tl.store(mean_ptr + i_m, mean, mask=m_m)
        b_x = tl.where(m_n, b_x - mean, 0.0)
    var = round_to(tl.sum(round_to(b_x * b_x, STEP), 1)[:, None] / n, STEP)
    rstd = round_to(1.0 / tl.sqrt(round_to(var + eps, STEP)), STEP)
    tl.store(rstd_ptr + i_m, rstd, mask=m_m)
    b_w = round_to(tl.load(weight_ptr + o_n, mask=m_n, other=0.0).to(WIDE) + offset, STEP)
    b_y = round_to(b_x * rstd, ROUND) * b_w
    if bias_ptr is not None:
        b_y += tl.load(bias_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
    if y_scale_ptr is not None:
        put_blocks(y_ptr, y_scale_ptr, i_m, b_y, m_m, x_ptr, n_rows, n, CAST, LARGEST, TOP, POW2, LEAST, FULL)
    else:
        top = put_row(y_ptr, i_m * n + o_n, b_y, m, x_ptr, scale_ptr, CAST)
        if (CAST is not None) or (y_ptr is None):
            note(amax_ptr, scale_inv_ptr, scale_ptr, top)


def _fwd_pieces(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr, scale_inv_ptr,
    x_stride, residual_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr, STEP: tl.constexpr,
    HOLD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """For rows too long for registers: the first HOLD elements stay in registers, the rest is read again, from L2."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    o_h = tl.arange(0, HOLD)
    x_ptr += row * x_stride
    if y_ptr is not None:
        y_ptr += row * n
    if residual_ptr is not None:
        residual_ptr += row * residual_stride
        s_ptr += row * n
    b_h = tl.load(x_ptr + o_h)
    if residual_ptr is not None:
        b_h = (b_h.to(WIDE) + tl.load(residual_ptr + o_h).to(WIDE)).to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + o_h, b_h)
    shift = tl.zeros([], WIDE)
    if CENTRED:  # sum differences from the first part's mean, to avoid cancellation if the mean is large
        shift = tl.sum(b_h.to(WIDE), 0) / HOLD
    b_1 = tl.zeros([BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_N], WIDE)
    for at in range(HOLD, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        if residual_ptr is not None:
            b_x += tl.load(residual_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
            b_s = b_x.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + at + o_n, b_s, mask=m)
            b_x = b_s.to(WIDE)
        if CENTRED:
            b_x = tl.where(m, b_x - shift, 0.0)
            b_1 += b_x
        b_2 += round_to(b_x * b_x, STEP)
    b_d = b_h.to(WIDE) - shift
    mean = tl.zeros([], WIDE)
    var = round_to((tl.sum(b_2, 0) + tl.sum(round_to(b_d * b_d, STEP), 0)) / n, STEP)
    if CENTRED:
        mean = tl.sum(b_1, 0) / n
        var = tl.maximum(var - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
        mean += shift
        tl.store(mean_ptr + row, mean)
    rstd = round_to(1.0 / tl.sqrt(round_to(var + eps, STEP)), STEP)
    tl.store(rstd_ptr + row, rstd)
    b_o = round_to((b_h.to(WIDE) - mean) * rstd, ROUND)
    b_o *= round_to(tl.load(weight_ptr + o_h).to(WIDE) + offset, STEP)
    if bias_ptr is not None:
        b_o += tl.load(bias_ptr + o_h).to(WIDE)
    top = put_row(y_ptr, o_h, b_o, inside(o_h, n, True), x_ptr, scale_ptr, CAST)
    if residual_ptr is not None:
        tl.debug_barrier()
    for at in range(HOLD, n, BLOCK_N):
        m = at + o_n < n
        if residual_ptr is not None:
            b_x = tl.load(s_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        else:
            b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_w = round_to(tl.load(weight_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset, STEP)
        b_y = round_to((b_x - mean) * rstd, ROUND) * b_w
        if bias_ptr is not None:
            b_y += tl.load(bias_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
        top_of_block = put_row(y_ptr, at + o_n, b_y, m, x_ptr, scale_ptr, CAST)
        if (CAST is not None) or (y_ptr is None):
            top = tl.maximum(top, top_of_block)
    if (CAST is not None) or (y_ptr is None):
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


def _fwd_cooperative(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr, scale_inv_ptr,
    exchange_ptr,
    x_stride, residual_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr, FULL: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Long rows. A group of programs holds one row in registers while it loads the next row."""
    member, group, n_groups = position_in_group(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    x_next = tl.load(x_ptr + group.to(tl.int64) * x_stride + o_n, mask=m, other=0.0)
    top = 0
    for at in range(group, n_rows, n_groups):
        row = tl.zeros([], tl.int64) + at
        b_x = x_next.to(WIDE)
        ahead = row + n_groups
        x_next = tl.load(x_ptr + ahead * x_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        if residual_ptr is not None:
            b_x += tl.load(residual_ptr + row * residual_stride + o_n, mask=m, other=0.0).to(WIDE)
            b_s = b_x.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + row * n + o_n, b_s, mask=m)
            b_x = b_s.to(WIDE)
        mean = tl.zeros([], WIDE)
        exchange_at = exchange_ptr + row * GROUP * 2
        if CENTRED:  # a part sums squares about its own mean; the sums are then corrected to the row's mean
            mean = tl.sum(b_x, 0) / tl.minimum(tl.maximum(n - member * BLOCK_N, 1), BLOCK_N)
            b_d = tl.where(m, b_x - mean, 0.0)
            total = tl.sum(b_d * b_d, 0)
            if GROUP > 1:
                post(exchange_at + member * 2, total)
                post(exchange_at + member * 2 + 1, mean)
                b_parts, b_means = gather_pairs(exchange_at, GROUP)
                b_owns = tl.minimum(tl.maximum(n - tl.arange(0, GROUP) * BLOCK_N, 0), BLOCK_N)
                mean = tl.sum(b_means * b_owns, 0) / n
                b_means -= mean
                total = tl.sum(b_parts + b_means * b_means * b_owns, 0)
        else:
            total = tl.sum(round_to(b_x * b_x, STEP), 0)
            if GROUP > 1:
                post(exchange_at + member, total)
                total = tl.sum(gather(exchange_at, GROUP), 0)
        rstd = round_to(1.0 / tl.sqrt(round_to(round_to(total / n, STEP) + eps, STEP)), STEP)
        if member == 0:
            tl.store(rstd_ptr + row, rstd)
            if CENTRED:
                tl.store(mean_ptr + row, mean)
        b_w = round_to(tl.load(weight_ptr + o_n, mask=m, other=0.0).to(WIDE) + offset, STEP)
        b_y = round_to((b_x - mean) * rstd, ROUND) * b_w
        if bias_ptr is not None:
            b_y += tl.load(bias_ptr + o_n, mask=m, other=0.0).to(WIDE)
        top_of_block = put_row(y_ptr, row * n + o_n, b_y, m, x_ptr, scale_ptr, CAST)
        if (CAST is not None) or (y_ptr is None):
            top = tl.maximum(top, top_of_block)
    if (CAST is not None) or (y_ptr is None):
        note(amax_ptr, scale_inv_ptr, scale_ptr, top)


# ---- backward -------------------------------------------------------------------------------------------------------


def _bwd(
    dy_ptr, ds_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dresidual_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr, FULL: tl.constexpr, SHARES: tl.constexpr,
    BIAS: tl.constexpr, STAGES: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dx of rows pid, pid + P, ... and, with SHARES and BIAS, this program's partial sums of dw and db.

    The next rows are loaded to shared memory, STAGES ahead. PAIRS fuses both sums of a row into one reduction, so the
    program waits once instead of twice; not in the interpreter, which would reduce pair by pair.
    """
    pid = tl.program_id(0)
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_n = inside(o_n, n, FULL)
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    # With several stages, a load in the loop would copy the weight to shared memory for each row. With one, it saves
    # registers.
    if STAGES > 1:
        b_w = tl.load(weight_ptr + o_n, mask=m_n, other=0.0)
    for at in tl.range(pid * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M, num_stages=STAGES):
        i_m = (at + o_m).to(tl.int64)
        m_m = i_m < n_rows
        m = m_m & m_n
        b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        rstd = tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
        if CENTRED:
            b_x = tl.where(m, b_x - tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE), 0.0)
        b_x *= rstd
        if SHARES:
            b_dw += b_dy * round_to(b_x, ROUND)
        if BIAS:
            b_db += b_dy
        if STAGES == 1:
            b_w = tl.load(weight_ptr + o_n, mask=m_n, other=0.0)
        b_g = b_dy * (b_w.to(WIDE) + offset)
        if CENTRED:
            if PAIRS:
                c_2, c_1 = tl.reduce((b_g * b_x, b_g), 1, _add_pairs)
            else:
                c_2, c_1 = tl.sum(b_g * b_x, 1), tl.sum(b_g, 1)
            b_dx = (b_g - b_x * (c_2[:, None] / n) - c_1[:, None] / n) * rstd
        else:
            b_dx = (b_g - b_x * (tl.sum(b_g * b_x, 1)[:, None] / n)) * rstd
        if ds_ptr is not None:
            b_dx += tl.load(ds_ptr + i_m * ds_stride + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(dx_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    at = pid.to(tl.int64) * n + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_N) < n
    if SHARES:
        tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if BIAS:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


def _bwd_cooperative(
    dy_ptr, ds_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dresidual_ptr, dw_ptr, db_ptr, exchange_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, ROUND: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr,
    PAIRS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A group of programs shares a long row.

    A program has the same columns of all rows, so its sums of dw and db stay in registers.
    """
    member, group, n_groups = position_in_group(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    b_dw = tl.zeros([BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_N], WIDE)
    b_w = tl.load(weight_ptr + o_n, mask=m, other=0.0)
    x_next = tl.load(x_ptr + group.to(tl.int64) * x_stride + o_n, mask=m, other=0.0)
    dy_next = tl.load(dy_ptr + group.to(tl.int64) * dy_stride + o_n, mask=m, other=0.0)
    for at in range(group, n_rows, n_groups):
        row = tl.zeros([], tl.int64) + at
        b_x, b_dy = x_next.to(WIDE), dy_next.to(WIDE)
        ahead = row + n_groups
        x_next = tl.load(x_ptr + ahead * x_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        dy_next = tl.load(dy_ptr + ahead * dy_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        rstd = tl.load(rstd_ptr + row).to(WIDE)
        if CENTRED:
            b_x = tl.where(m, b_x - tl.load(mean_ptr + row).to(WIDE), 0.0)
            b_db += b_dy
        b_x *= rstd
        b_dw += b_dy * round_to(b_x, ROUND)
        b_dy *= b_w.to(WIDE) + offset
        c_1 = tl.zeros([], WIDE)
        exchange_at = exchange_ptr + row * GROUP * 2
        if CENTRED:
            if PAIRS:
                c_2, c_1 = tl.reduce((b_dy * b_x, b_dy), 0, _add_pairs)
            else:
                c_2, c_1 = tl.sum(b_dy * b_x, 0), tl.sum(b_dy, 0)
            if GROUP > 1:
                post(exchange_at + member * 2, c_2)
                post(exchange_at + member * 2 + 1, c_1)
                b_2, b_1 = gather_pairs(exchange_at, GROUP)
                c_2, c_1 = tl.sum(b_2, 0), tl.sum(b_1, 0)
        else:
            c_2 = tl.sum(b_dy * b_x, 0)
            if GROUP > 1:
                post(exchange_at + member, c_2)
                c_2 = tl.sum(gather(exchange_at, GROUP), 0)
        b_dx = (b_dy - b_x * (c_2 / n) - c_1 / n) * rstd
        if ds_ptr is not None:
            b_dx += tl.load(ds_ptr + row * ds_stride + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(dx_ptr + row * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + row * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    at = group.to(tl.int64) * n + o_n
    tl.store(dw_ptr + at, b_dw, mask=m)
    if CENTRED:
        tl.store(db_ptr + at, b_db, mask=m)


def _bwd_pieces(
    dy_ptr,
    ds_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dw_ptr,
    db_ptr,
    dy_stride,
    ds_stride,
    x_stride,
    n_rows,
    n,
    offset,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx of rows too long for registers; `_bwd_columns` computes dw and db."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    rstd = tl.load(rstd_ptr + row).to(WIDE)
    mean = tl.zeros([], WIDE)
    if CENTRED:
        mean = tl.load(mean_ptr + row).to(WIDE)
    b_1 = tl.zeros([BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + row * x_stride + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_dy = tl.load(dy_ptr + row * dy_stride + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_g = b_dy * (tl.load(weight_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset)
        if CENTRED:
            b_1 += b_g
        b_2 += b_g * ((b_x - mean) * rstd)
    c_1 = tl.sum(b_1, 0) / n
    c_2 = tl.sum(b_2, 0) / n
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + row * x_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + row * dy_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        b_g = b_dy * (tl.load(weight_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset)
        b_dx = rstd * (b_g - c_1 - (b_x - mean) * rstd * c_2)
        if ds_ptr is not None:
            b_dx += tl.load(ds_ptr + row * ds_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(dx_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        if dresidual_ptr is not None:
            tl.store(dresidual_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _bwd_columns(
    dy_ptr,
    x_ptr,
    mean_ptr,
    rstd_ptr,
    dw_ptr,
    db_ptr,
    dy_stride,
    x_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Partial sums of dw, db or both: program (i, j) sums column block i over row blocks j, j + P, j + 2 P, ..."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(tl.program_id(1) * BLOCK_M, n_rows, tl.num_programs(1) * BLOCK_M):
        i_m = (at + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
        m_m = i_m < n_rows
        m = m_m & m_n
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        if db_ptr is not None:
            b_db += b_dy
        if dw_ptr is not None:
            b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
            if mean_ptr is not None:
                b_x -= tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
            rstd = tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
            b_dw += b_dy * round_to(b_x * rstd, ROUND)
    at = tl.program_id(1).to(tl.int64) * n + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N) < n
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


# ---- launching ------------------------------------------------------------------------------------------------------

_fwd_sizes, _bwd_sizes = "x_stride residual_stride n", "dy_stride ds_stride x_stride n"
fwd, fwd_pieces = Launcher(_fwd, sizes=_fwd_sizes), Launcher(_fwd_pieces, sizes=_fwd_sizes)
fwd_cooperative = Launcher(_fwd_cooperative, sizes=_fwd_sizes)
bwd, bwd_pieces = Launcher(_bwd, sizes=_bwd_sizes), Launcher(_bwd_pieces, sizes=_bwd_sizes)
bwd_cooperative = Launcher(_bwd_cooperative, sizes=_bwd_sizes)
bwd_columns = Launcher(_bwd_columns, sizes="dy_stride x_stride n")

COOPERATIVE_FROM = 32768  # more 16-bit columns than this: programs share a row if they can cooperate (layer norm: half)
COOPERATIVE_FROM_BWD = 16384  # the same for the backward
FORWARD_FITS = 32768  # one program holds up to this many 16-bit columns in registers
BACKWARD_FITS = 32768  # the same for x and dy (layer norm: half, because of the gradient of the bias)
SHARES_FIT = 16384  # the same if the weight's gradient is also in registers
BIAS_FITS = 8192  # the same if the gradients of weight and bias are too


# The numbers below were tuned on an H200 in bf16; benchmarks/results has the measured fractions of a copy's bandwidth.


@tunable("norm.rows")
def forward_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """A program holds whole rows in registers."""
    block = max(triton.next_power_of_2(n), 16)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    threads = 1024 if block >= fits(32768, dtype) else min(512 if centred else 256, max(128, rows * block // 32))
    return Tiles(threads, BLOCK_M=rows, BLOCK_N=block)


@tunable("norm.pieces")
def forward_piece_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """A long row: the first part stays in registers, the rest is read in pieces."""
    return Tiles(1024, HOLD=fits(16384 if centred else 32768, dtype), BLOCK_N=fits(16384, dtype))


@tunable("norm.cooperative")
def forward_cooperative_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """Several programs share a long row."""
    return Tiles(256, BLOCK_N=fits(8192, dtype), PER_CORE=3)


@tunable("norm_bwd.cooperative")
def backward_cooperative_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """Several programs share long rows; each has the same columns of all rows."""
    pairs = not triton.knobs.runtime.interpret
    if n > fits(65536, dtype):  # larger blocks, so that fewer programs wait for each other
        return Tiles(256, PAIRS=pairs, BLOCK_N=fits(4096, dtype), PER_CORE=2)
    return Tiles(128, PAIRS=pairs, BLOCK_N=fits(2048, dtype), PER_CORE=4)


@tunable("norm_bwd.rows")
def backward_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """Registers hold one block of whole rows at a time, and the partial sums of dw and db if they fit."""
    block = max(triton.next_power_of_2(n), 16)
    shares, bias = n <= fits(SHARES_FIT, dtype), centred and n <= fits(BIAS_FITS, dtype)
    if block <= 1024 or (centred and block == 2048):
        threads = 128
    else:
        threads = 256 if block <= 8192 else 512 if block <= 16384 else 1024
    stages = 2 if can_cooperate(wide_of(dtype)) and block <= fits(8192, dtype) else 1
    pairs = not triton.knobs.runtime.interpret
    rows = max(1, 1024 // block)
    return Tiles(threads, SHARES=shares, BIAS=bias, STAGES=stages, PAIRS=pairs, BLOCK_M=rows, BLOCK_N=block)


@tunable("norm_bwd.pieces")
def backward_piece_tiles(n: int, dtype: torch.dtype) -> Tiles:
    return Tiles(1024, BLOCK_N=fits(16384, dtype))


@tunable("norm_bwd.columns")
def column_tiles(n: int, dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK_M=8, BLOCK_N=512)


# ---- plans ----------------------------------------------------------------------------------------------------------


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    centred: bool = False,
    fp8: torch.dtype | None = None,
    casting: str = "gemma",
    stats: bool = False,
    blocks: Mapping[str, Any] | None = None,
) -> Plan:
    """`stats`: compute only the statistics, not y.

    `blocks`: constants of `put_blocks`, which writes y, an argument of the op, as scaled blocks.
    """
    n, dtype, wide = x.shape[-1], x.dtype, wide_of(x.dtype)
    column = OutputSpec.of(x.shape[:-1], opmath_dtype(dtype))
    makes: dict[str, Any] = {"rstd": column}
    if not stats and blocks is None:
        makes["y"] = OutputSpec.of(x.shape, dtype if fp8 is None else torch.uint8)
    if residual is not None:
        makes["s"] = makes["y"]
    if centred:
        makes["mean"] = column
    if fp8 is not None:
        makes["scale_inv"] = ONE
    if not x.numel():
        makes |= {"mean": Zeros(column)} if centred else {}
        return Plan(makes, [rstd_of_nothing, *([inverse_of_scale] if fp8 else [])])
    rows = RowSizes.of(x=x, residual=residual)
    copied = [*rows.strided, *strided(weight=weight, bias=bias)]
    constants: dict[str, Any] = dict(CENTRED=centred, CAST=fp8 and cast_of(fp8), WIDE=wide, **rounding(casting, dtype))
    if n > fits(COOPERATIVE_FROM // 2 if centred else COOPERATIVE_FROM, dtype) and can_cooperate(wide):
        tiles = forward_cooperative_tiles(n=n, dtype=dtype, centred=centred)
        group = CooperativeRows.of(tiles, x.device, rows, 2, **constants)
        if group is not None:
            return Plan({**makes, "exchange": group.exchange}, [group.launch(fwd_cooperative)], copied)
    if n <= fits(FORWARD_FITS, dtype):
        tiles = forward_tiles(n=n, dtype=dtype, centred=centred)
        launch = rows.launch(fwd, tiles, FULL=n == tiles["BLOCK_N"], **constants | (blocks or row_blocks(dtype, None)))
    else:
        tiles = forward_piece_tiles(n=n, dtype=dtype, centred=centred)
        launch = rows.launch(fwd_pieces, tiles, rows.count, **constants)
    return Plan(makes, [launch], copied)


def _forward_in_blocks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y_scale: Tensor,
    dtype: torch.dtype,
    pow2: bool,
    least: float,
    centred: bool,
) -> Plan:
    """The norm's kernel writes the blocks if a program holds a whole row.

    For longer rows, a second launch writes them.
    """
    pow2, least = bool(pow2), float(least)
    plan = _forward(x, weight, bias, centred=centred, blocks=row_blocks(x.dtype, dtype, pow2, least))
    launch = next(iter(plan.steps))
    if not isinstance(launch, Launch) or launch.kernel is fwd:
        return plan
    steps, source = strides(y=y_scale), normed(x.dtype)
    if y_scale.dtype is torch.uint8:
        cast = mx_launch(x.shape, x.dtype, dtype, False, {**steps, "yc_stride": 0}, source)
    else:
        cast = blocks_launch(x.shape, x.dtype, dtype, False, pow2, {**steps, "yt_stride": 0, "eps": least}, source)
    copied = strided(x=x, weight=weight, bias=bias)
    numbers = RowSizes.of(x=x).packed().numbers if "x" in copied else {}
    return Plan(plan.makes, [launch.named(y=None).with_numbers(**numbers), cast], copied)


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    mean: Tensor | None = None,
    ds: Tensor | None = None,
    *,
    twice: bool = False,
    names: Mapping[str, str] = {},
    casting: str = "gemma",
) -> Plan:
    """`twice`: dx is also the gradient of a residual, so it is stored twice. `names`: what the op calls x and ds."""
    n, dtype, centred, wide = x.shape[-1], x.dtype, mean is not None, wide_of(x.dtype)
    like_x, like_w = OutputSpec.of(x.shape, dtype), OutputSpec.of(weight.shape, weight.dtype)
    makes: dict[str, Any] = {"dx": like_x, **({"dresidual": like_x} if twice else {})}
    totals = ("dweight", "dbias") if centred else ("dweight",)
    if not x.numel():
        return Plan({**makes, **dict.fromkeys(totals, Zeros(like_w))})
    makes |= dict.fromkeys(totals, like_w)
    rows = RowSizes.of(dy=dy, ds=ds, x=x)
    copied = [names.get(name, name) for name in (*rows.strided, *strided(weight=weight, mean=mean, rstd=rstd))]
    sizes: dict[str, Any] = dict(n=n, dtype=dtype)
    rounded = rounding(casting, dtype)["ROUND"]
    constants: dict[str, Any] = dict(CENTRED=centred, WIDE=wide, ROUND=rounded)
    group = None
    if n > fits(COOPERATIVE_FROM_BWD // 2 if centred else COOPERATIVE_FROM_BWD, dtype) and can_cooperate(wide):
        tiles = backward_cooperative_tiles(**sizes, centred=centred)
        group = CooperativeRows.of(tiles, x.device, rows, 2, **constants)
    if group is not None:
        makes["exchange"] = group.exchange
        launch, programs_of_rows, together = group.launch(bwd_cooperative), group.count, (True, centred)
    elif n <= fits(BACKWARD_FITS // 2 if centred else BACKWARD_FITS, dtype):
        tiles = backward_tiles(**sizes, centred=centred)
        per_core = 4 if n <= 2048 else 2 if n <= 4096 else 1
        programs_of_rows = programs(x.device, -(-rows.count // tiles["BLOCK_M"]), per_core)
        launch = rows.launch(bwd, tiles, programs_of_rows, FULL=n == tiles["BLOCK_N"], **constants)
        together = (tiles["SHARES"], tiles["BIAS"])
    else:
        programs_of_rows, together = rows.count, (False, False)
        launch = rows.launch(bwd_pieces, backward_piece_tiles(**sizes), rows.count, **constants)
    steps: list[Step] = [launch.named(**names)]
    # The programs that compute dx, or those of bwd_columns, compute the partial sums of dweight and dbias.
    by_column = max(1, min(-(-rows.count // 8), max(8, 1024 * 512 // n)))
    partial = dict(zip(("dw", "db"), (programs_of_rows if inside else by_column for inside in together)))
    apart = [name for name, inside in zip(partial, together) if not inside and (centred or name == "dw")]
    if apart:
        columns = column_tiles(**sizes)
        launch = rows.launch(bwd_columns, columns, -(-n // columns["BLOCK_N"]), by_column, WIDE=wide, ROUND=rounded)
        steps.append(launch.named(**names, **{name: None for name in partial if name not in apart}))
    for name, total in zip(partial, totals):
        makes[name] = OutputSpec.of((partial[name], n), opmath_dtype(dtype))
        steps.append(column_sum(name, total, partial[name], n, dtype))
    return Plan(makes, steps, copied)


# ---- the ops --------------------------------------------------------------------------------------------------------


@planned(spec.rms_norm, below=True)
def rms_norm(x: Tensor, weight: Tensor, casting: str) -> Plan:
    return _forward(x, weight, casting=casting)


@planned(spec.layer_norm, below=True)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Plan:
    return _forward(x, weight, bias, centred=True)


@planned(spec.add_rms_norm)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, casting: str) -> Plan:
    return _forward(x, weight, residual=residual, casting=casting)


@planned(spec.rms_norm_fp8)
def rms_norm_fp8(x: Tensor, weight: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype) -> Plan:
    return _forward(x, weight, fp8=dtype)


@planned(spec.layer_norm_fp8)
def layer_norm_fp8(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, amax: Tensor | None, dtype: torch.dtype
) -> Plan:
    return _forward(x, weight, bias, centred=True, fp8=dtype)


@planned(spec.rms_norm_stats)
def rms_norm_stats(x: Tensor, weight: Tensor, amax: Tensor | None) -> Plan:
    return _forward(x, weight, stats=True)


@planned(spec.layer_norm_stats)
def layer_norm_stats(x: Tensor, weight: Tensor, bias: Tensor | None, amax: Tensor | None) -> Plan:
    return _forward(x, weight, bias, centred=True, stats=True)


@planned(spec.rms_norm_fp8_blocks_into)
def rms_norm_fp8_blocks_into(
    x: Tensor, weight: Tensor, y: Tensor, y_scale: Tensor, dtype: torch.dtype, pow2: bool, least: float
) -> Plan:
    return _forward_in_blocks(x, weight, None, y_scale, dtype, pow2, least, False)


@planned(spec.layer_norm_fp8_blocks_into)
def layer_norm_fp8_blocks_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    y_scale: Tensor,
    dtype: torch.dtype,
    pow2: bool,
    least: float,
) -> Plan:
    return _forward_in_blocks(x, weight, bias, y_scale, dtype, pow2, least, True)


@planned(spec.rms_norm_bwd)
def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, casting: str) -> Plan:
    return _backward(dy, x, weight, rstd, casting=casting)


@planned(spec.rms_norm_bwd_add)
def rms_norm_bwd_add(dy: Tensor, x: Tensor, add: Tensor, weight: Tensor, rstd: Tensor, casting: str) -> Plan:
    return _backward(dy, x, weight, rstd, ds=add, names={"ds": "add"}, casting=casting)


@planned(spec.add_rms_norm_bwd)
def add_rms_norm_bwd(dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, casting: str) -> Plan:
    return _backward(dy, s, weight, rstd, ds=ds, twice=True, names={"x": "s"}, casting=casting)


@planned(spec.layer_norm_bwd)
def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> Plan:
    return _backward(dy, x, weight, rstd, mean)
