"""Kernels of group norm and batch norm that compute all elements from known statistics."""

from __future__ import annotations

import triton
import triton.language as tl

from ..lib.launch import Launcher
from .device import _inverse, _scale


@triton.jit
def _row_block(n_l, n_rows, n_c, n_w, GROUPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A block of rows, each one channel of one sample: offsets, masks, channels, units.

    Programs start with the last rows, which are still in L2.
    """
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    n_b = tl.cdiv(n_l, BLOCK_N)
    i_m = (pid // n_b) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = (pid % n_b) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    i_c = i_m % n_c
    i_u = i_m // n_w if GROUPED else i_c
    m_m = i_m < n_rows
    return i_m.to(tl.int64) * n_l + o_n, m_m & (o_n < n_l), m_m, i_c, i_u


@triton.jit
def _column_block(n_c, n_m, n_w, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """`_row_block` for matrices [n_m, n_c]."""
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    n_b, n_i = tl.cdiv(n_c, BLOCK_N), tl.cdiv(n_m, BLOCK_M)
    i_o = pid // n_b // n_i
    i_m = ((pid // n_b) % n_i) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i_c = (pid % n_b) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_c = i_c < n_c
    o = (i_o.to(tl.int64) * n_m + i_m) * n_c + i_c
    return o, (i_m < n_m) & m_c, m_c, i_c, i_o * (n_c // n_w) + i_c // n_w


@triton.jit
def _y(
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    o,
    m,
    m_c,
    i_c,
    i_u,
    eps,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
):
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    if mean_ptr is not None:
        b_x -= tl.load(mean_ptr + i_u, mask=m_c, other=0.0).to(WIDE)
    b_x *= _inverse(stat_ptr, i_u, m_c, eps, STAT, WIDE)
    b_y = _scale(b_x, weight_ptr, bias_ptr, i_c, m_c, WIDE)
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


@triton.jit
def _dx(
    dy_ptr,
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    c1_ptr,
    c2_ptr,
    dx_ptr,
    o,
    m,
    m_c,
    i_c,
    i_u,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
):
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + o, mask=m, other=0.0).to(WIDE)
    rstd = _inverse(stat_ptr, i_u, m_c, 0.0, STAT, WIDE)
    b_g = _scale(b_dy, weight_ptr, None, i_c, m_c, WIDE)
    if mean_ptr is not None:
        b_x -= tl.load(mean_ptr + i_u, mask=m_c, other=0.0).to(WIDE)
        b_g -= tl.load(c1_ptr + i_u, mask=m_c, other=0.0)
    b_dx = rstd * (b_g - b_x * (rstd * tl.load(c2_ptr + i_u, mask=m_c, other=0.0)))
    tl.store(dx_ptr + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _rows(
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_l,
    n_rows,
    n_c,
    n_w,
    eps,
    GROUPED: tl.constexpr,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o, m, m_c, i_c, i_u = _row_block(n_l, n_rows, n_c, n_w, GROUPED, BLOCK_M, BLOCK_N)
    _y(x_ptr, mean_ptr, stat_ptr, weight_ptr, bias_ptr, y_ptr, o, m, m_c, i_c, i_u, eps, STAT, WIDE)


def _columns(
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n_c,
    n_m,
    n_w,
    eps,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o, m, m_c, i_c, i_u = _column_block(n_c, n_m, n_w, BLOCK_M, BLOCK_N)
    _y(x_ptr, mean_ptr, stat_ptr, weight_ptr, bias_ptr, y_ptr, o, m, m_c, i_c, i_u, eps, STAT, WIDE)


def _bwd_rows(
    dy_ptr,
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    c1_ptr,
    c2_ptr,
    dx_ptr,
    n_l,
    n_rows,
    n_c,
    n_w,
    GROUPED: tl.constexpr,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o, m, m_c, i_c, i_u = _row_block(n_l, n_rows, n_c, n_w, GROUPED, BLOCK_M, BLOCK_N)
    _dx(dy_ptr, x_ptr, mean_ptr, stat_ptr, weight_ptr, c1_ptr, c2_ptr, dx_ptr, o, m, m_c, i_c, i_u, STAT, WIDE)


def _bwd_columns(
    dy_ptr,
    x_ptr,
    mean_ptr,
    stat_ptr,
    weight_ptr,
    c1_ptr,
    c2_ptr,
    dx_ptr,
    n_c,
    n_m,
    n_w,
    STAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    o, m, m_c, i_c, i_u = _column_block(n_c, n_m, n_w, BLOCK_M, BLOCK_N)
    _dx(dy_ptr, x_ptr, mean_ptr, stat_ptr, weight_ptr, c1_ptr, c2_ptr, dx_ptr, o, m, m_c, i_c, i_u, STAT, WIDE)


rows = Launcher(_rows, sizes="n_l")
columns = Launcher(_columns, sizes="n_c")
bwd_rows = Launcher(_bwd_rows, sizes="n_l")
bwd_columns = Launcher(_bwd_columns, sizes="n_c")
