"""Norms over the last dimension: one row a program where it fits, in pieces where it does not; float32 inside.

Forward: a row is read once. Backward: a program walks over many rows with the weight's gradient in registers, and a
second kernel adds the programs' shares up in a fixed order, so gradients are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import norm as spec
from .lib.column_sum import adding_up, share_of
from .lib.config import Tiles, tunable
from .lib.cooperative import CooperativeRows, can_cooperate, gather, gather_pairs, place, post
from .lib.fp8 import cast_of, inverse_scale, note, put
from .lib.launch import Launcher
from .lib.plans import check, plans
from .lib.rows import DEVICES, OutputSpec, Rows, even_rows, fits, inside, packed, programs, wide_of

# ---- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


def _fwd(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr, inv_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, FULL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows: y = norm(x [+ r]) * (w + offset) [+ b]; with CAST in float8, its largest magnitude in amax."""
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_m, m_n = i_m < n_rows, inside(o_n, n, FULL)
    m = m_m & m_n
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
    if r_ptr is not None:
        b_x += tl.load(r_ptr + i_m * r_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_s = b_x.to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + i_m * n + o_n, b_s, mask=m)
        b_x = b_s.to(WIDE)
    if CENTRED:
        mean = tl.sum(b_x, 1)[:, None] / n
        tl.store(mean_ptr + i_m, mean, mask=m_m)
        b_x = tl.where(m_n, b_x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(b_x * b_x, 1)[:, None] / n + eps)
    tl.store(rstd_ptr + i_m, rstd, mask=m_m)
    b_y = b_x * rstd * (tl.load(w_ptr + o_n, mask=m_n, other=0.0).to(WIDE) + offset)
    if b_ptr is not None:
        b_y += tl.load(b_ptr + o_n, mask=m_n, other=0.0).to(WIDE)
    top = put(y_ptr + i_m * n + o_n, b_y, m, scale_ptr, CAST)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


def _fwd_pieces(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr, inv_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, HOLD: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A row too long for registers: its first HOLD elements stay in them, the rest is read again, out of L2."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    o_h = tl.arange(0, HOLD)
    x_ptr += row * x_stride
    y_ptr += row * n
    if r_ptr is not None:
        r_ptr += row * r_stride
        s_ptr += row * n
    b_h = tl.load(x_ptr + o_h)
    if r_ptr is not None:
        b_h = (b_h.to(WIDE) + tl.load(r_ptr + o_h).to(WIDE)).to(s_ptr.dtype.element_ty)
        tl.store(s_ptr + o_h, b_h)
    shift = tl.zeros([], WIDE)
    if CENTRED:  # sums of differences from a mean of the first part: no cancellation where the mean is large
        shift = tl.sum(b_h.to(WIDE), 0) / HOLD
    b_1 = tl.zeros([BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_N], WIDE)
    for at in range(HOLD, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        if r_ptr is not None:
            b_x += tl.load(r_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
            b_s = b_x.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + at + o_n, b_s, mask=m)
            b_x = b_s.to(WIDE)
        if CENTRED:
            b_x = tl.where(m, b_x - shift, 0.0)
            b_1 += b_x
        b_2 += b_x * b_x
    b_d = b_h.to(WIDE) - shift
    mean = tl.zeros([], WIDE)
    var = (tl.sum(b_2, 0) + tl.sum(b_d * b_d, 0)) / n
    if CENTRED:
        mean = tl.sum(b_1, 0) / n
        var = tl.maximum(var - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
        mean += shift
        tl.store(mean_ptr + row, mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    tl.store(rstd_ptr + row, rstd)
    b_o = (b_h.to(WIDE) - mean) * rstd * (tl.load(w_ptr + o_h).to(WIDE) + offset)
    if b_ptr is not None:
        b_o += tl.load(b_ptr + o_h).to(WIDE)
    top = put(y_ptr + o_h, b_o, inside(o_h, n, True), scale_ptr, CAST)
    if r_ptr is not None:
        tl.debug_barrier()
    for at in range(HOLD, n, BLOCK_N):
        m = at + o_n < n
        if r_ptr is not None:
            b_x = tl.load(s_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        else:
            b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_w = tl.load(w_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset
        b_y = (b_x - mean) * rstd * b_w
        if b_ptr is not None:
            b_y += tl.load(b_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
        more = put(y_ptr + at + o_n, b_y, m, scale_ptr, CAST)
        if CAST is not None:
            top = tl.maximum(top, more)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


def _fwd_cooperative(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, scale_ptr, amax_ptr, inv_ptr, exchange_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, CAST: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Long rows, each held in registers by a group of programs; the next row is on its way meanwhile."""
    member, group, n_groups = place(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    x_next = tl.load(x_ptr + group.to(tl.int64) * x_stride + o_n, mask=m, other=0.0)
    top = 0
    for at in range(group, n_rows, n_groups):
        row = tl.zeros([], tl.int64) + at
        b_x = x_next.to(WIDE)
        ahead = row + n_groups
        x_next = tl.load(x_ptr + ahead * x_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        if r_ptr is not None:
            b_x += tl.load(r_ptr + row * r_stride + o_n, mask=m, other=0.0).to(WIDE)
            b_s = b_x.to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + row * n + o_n, b_s, mask=m)
            b_x = b_s.to(WIDE)
        mean = tl.zeros([], WIDE)
        exchange_at = exchange_ptr + row * GROUP * 2
        if CENTRED:  # squares about each part's own mean, brought to the mean of all
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
            total = tl.sum(b_x * b_x, 0)
            if GROUP > 1:
                post(exchange_at + member, total)
                total = tl.sum(gather(exchange_at, GROUP), 0)
        rstd = 1.0 / tl.sqrt(total / n + eps)
        if member == 0:
            tl.store(rstd_ptr + row, rstd)
            if CENTRED:
                tl.store(mean_ptr + row, mean)
        b_y = (b_x - mean) * rstd * (tl.load(w_ptr + o_n, mask=m, other=0.0).to(WIDE) + offset)
        if b_ptr is not None:
            b_y += tl.load(b_ptr + o_n, mask=m, other=0.0).to(WIDE)
        more = put(y_ptr + row * n + o_n, b_y, m, scale_ptr, CAST)
        if CAST is not None:
            top = tl.maximum(top, more)
    if CAST is not None:
        note(amax_ptr, inv_ptr, scale_ptr, top)


# ---- backward -------------------------------------------------------------------------------------------------------


def _bwd(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, FULL: tl.constexpr, SHARES: tl.constexpr, BIAS: tl.constexpr,
    STAGES: tl.constexpr, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows pid, pid + P, ...: dx of each and, with SHARES and BIAS, this program's part of dw and db.

    The next rows come to shared memory, STAGES ahead, while these are computed. With PAIRS the two sums of a row are
    one reduction: half the waiting, but the interpreter adds pairs one by one.
    """
    pid = tl.program_id(0)
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_n = inside(o_n, n, FULL)
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    if STAGES > 1:  # in the loop it would be copied to shared memory for every row; without stages it costs registers
        b_w = tl.load(w_ptr + o_n, mask=m_n, other=0.0)
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
            b_dw += b_dy * b_x
        if BIAS:
            b_db += b_dy
        if STAGES == 1:
            b_w = tl.load(w_ptr + o_n, mask=m_n, other=0.0)
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
        if dr_ptr is not None:
            tl.store(dr_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    at = pid.to(tl.int64) * n + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_N) < n
    if SHARES:
        tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if BIAS:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


def _bwd_cooperative(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr, exchange_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, FULL: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A long row shared by a group: a member keeps to its columns, so the shares of dw and db stay in registers."""
    member, group, n_groups = place(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    b_dw = tl.zeros([BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_N], WIDE)
    b_w = tl.load(w_ptr + o_n, mask=m, other=0.0)
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
        b_dw += b_dy * b_x
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
        if dr_ptr is not None:
            tl.store(dr_ptr + row * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    at = group.to(tl.int64) * n + o_n
    tl.store(dw_ptr + at, b_dw, mask=m)
    if CENTRED:
        tl.store(db_ptr + at, b_db, mask=m)


def _bwd_pieces(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The dx of a row too long for registers; dw and db are `_bwd_columns`'."""
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
        b_g = b_dy * (tl.load(w_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset)
        if CENTRED:
            b_1 += b_g
        b_2 += b_g * ((b_x - mean) * rstd)
    c_1 = tl.sum(b_1, 0) / n
    c_2 = tl.sum(b_2, 0) / n
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + row * x_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + row * dy_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        b_g = b_dy * (tl.load(w_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset)
        b_dx = rstd * (b_g - c_1 - (b_x - mean) * rstd * c_2)
        if ds_ptr is not None:
            b_dx += tl.load(ds_ptr + row * ds_stride + at + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(dx_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        if dr_ptr is not None:
            tl.store(dr_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _bwd_columns(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr,
    dy_stride, x_stride, n_rows, n,
    WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Shares of dw, of db, or of both: program (i, j) adds up the columns of block i over every P-th block of rows."""
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
            b_dw += b_dy * b_x * tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
    at = tl.program_id(1).to(tl.int64) * n + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N) < n
    if dw_ptr is not None:
        tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if db_ptr is not None:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


# ---- launching ------------------------------------------------------------------------------------------------------

_forward_numbers = dict(tensors=11, sizes="x_stride r_stride n", free="n_rows eps offset")
_backward_numbers = dict(tensors=10, sizes="dy_stride ds_stride x_stride n", free="n_rows offset")
fwd, fwd_pieces = Launcher(_fwd, **_forward_numbers), Launcher(_fwd_pieces, **_forward_numbers)
bwd, bwd_pieces = Launcher(_bwd, **_backward_numbers), Launcher(_bwd_pieces, **_backward_numbers)
fwd_cooperative = Launcher(_fwd_cooperative, **_forward_numbers | {"tensors": 12})
bwd_cooperative = Launcher(_bwd_cooperative, **_backward_numbers | {"tensors": 11})
bwd_columns = Launcher(_bwd_columns, tensors=6, sizes="dy_stride x_stride n", free="n_rows")

FORWARD_TEAM = 32768  # columns of 16 bits beyond which programs share a row, where they can; with a mean, half
BACKWARD_TEAM = 16384  # the same
FORWARD_FITS = 32768  # columns of 16 bits that one program holds in registers
BACKWARD_FITS = 32768  # the same for x and dy; with the bias' gradient to come, half
SHARES_FIT = 16384  # the same, with the weight's gradient beside them
BIAS_FITS = 8192  # and the bias' as well


# The numbers below were found on an H200 in bf16; the shares of a copy's speed are in benchmarks/results.


@tunable("norm.rows")
def forward_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """Whole rows in registers."""
    block = max(triton.next_power_of_2(n), 16)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    threads = 1024 if block >= fits(32768, dtype) else min(512 if centred else 256, max(128, rows * block // 32))
    return Tiles(threads, BLOCK_M=rows, BLOCK_N=block)


@tunable("norm.pieces")
def forward_piece_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """A long row: the first part stays in registers, the rest comes in pieces."""
    return Tiles(1024, HOLD=fits(16384 if centred else 32768, dtype), BLOCK_N=fits(16384, dtype))


@tunable("norm.cooperative")
def forward_cooperative_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """A long row, shared by programs."""
    return Tiles(256, BLOCK_N=fits(8192, dtype), PER_CORE=3)


@tunable("norm_bwd.cooperative")
def backward_cooperative_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """A long row, shared by programs that keep to their columns."""
    pairs = not triton.knobs.runtime.interpret
    if n > fits(65536, dtype):  # groups are large then: fewer of them wait for less
        return Tiles(256, PAIRS=pairs, BLOCK_N=fits(4096, dtype), PER_CORE=2)
    return Tiles(128, PAIRS=pairs, BLOCK_N=fits(2048, dtype), PER_CORE=4)


@tunable("norm_bwd.rows")
def backward_tiles(n: int, dtype: torch.dtype, centred: bool) -> Tiles:
    """Rows in registers, one after the other, with the shares of dw and db beside them where they fit."""
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


class Forward(NamedTuple):
    """What a forward will do for tensors that look so: worked out once."""

    full: OutputSpec
    column: OutputSpec
    launch: Callable[..., Any] | None  # None: nothing to compute
    pack: bool  # whether some tensor must be packed first
    group: CooperativeRows | None = None
    simple: bool = False  # whether the launch makes its results: y, s, mean and rstd, as far as they are wanted


@plans
def _plan_forward(
    op: str, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, centred: bool
) -> Forward:
    return _plan(op, x, residual, weight, bias, centred)


def _plan(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    centred: bool,
    keepdim: bool = False,
    fp8: torch.dtype | None = None,
) -> Forward:
    check(op, x=x, residual=residual, weight=weight, bias=bias)
    given = [t for t in (x, residual, weight, bias) if t is not None]
    pack = not all(even_rows(t) for t in given)
    x, residual = packed(x), None if residual is None else packed(residual)
    n, dtype = x.shape[-1], x.dtype
    full = OutputSpec.of(x.shape, dtype if fp8 is None else torch.uint8)
    column = OutputSpec.of((*x.shape[:-1], *([1] if keepdim else [])), share_of(dtype))
    if not x.numel():
        return Forward(full, column, None, pack)
    at, r_stride = Rows.of(x), 0 if residual is None else Rows.of(residual).stride
    even = n % 16 == 0 and at.stride % 16 == 0 and r_stride % 16 == 0
    constants: dict[str, Any] = dict(CENTRED=centred, CAST=fp8 and cast_of(fp8), WIDE=wide_of(dtype))
    if n > fits(FORWARD_TEAM // 2 if centred else FORWARD_TEAM, dtype) and can_cooperate(wide_of(dtype)):
        tiles = forward_cooperative_tiles(n=n, dtype=dtype, centred=centred)
        group = CooperativeRows.of(tiles, x.device, at.count, n, 2, even=even, **constants)
        if group is not None:
            launch = fwd_cooperative.ready((group.programs, 1, 1), (at.stride, r_stride, at.count, n), group.config)
            return Forward(full, column, launch, pack, group)
    whole = n <= fits(FORWARD_FITS, dtype)
    tiles = (forward_tiles if whole else forward_piece_tiles)(n=n, dtype=dtype, centred=centred)
    wanted = -(-at.count // tiles["BLOCK_M"]) if whole else at.count
    full_rows = {"FULL": n == tiles["BLOCK_N"]} if whole else {}
    config = tiles.config(even=even, **constants, **full_rows)
    made = {4: full, 5: None if residual is None else full, 6: column if centred else None, 7: column}
    makes = {} if pack else {i: output for i, output in made.items() if output is not None}
    launch = (fwd if whole else fwd_pieces).ready((wanted, 1, 1), (at.stride, r_stride, at.count, n), config, makes)
    return Forward(full, column, launch, pack, None, not pack)


def _forward(
    how: Forward,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centred: bool,
    *fp8: Tensor | None,
) -> tuple[Any, ...]:
    """The results of a forward that is not one simple launch, those that are wanted."""
    full, column, launch, pack, group, _ = how
    y, rstd = full.empty(x), column.empty(x)
    s = None if residual is None else full.empty(x)
    mean = column.empty(x) if centred else None
    if launch is None:
        rstd.fill_(eps**-0.5 if eps else float("inf"))  # rows of nothing have a mean of 0
        if mean is not None:
            mean.zero_()
    else:
        if pack:
            x, weight = packed(x), packed(weight)
            residual, bias = None if residual is None else packed(residual), None if bias is None else packed(bias)
        exchange = () if group is None else (group.exchange(x),)
        launch(x, residual, weight, bias, y, s, mean, rstd, *(fp8 or (None,) * 3), *exchange, float(eps), float(offset))
    return tuple(t for t in (y, s, mean, rstd) if t is not None)


class Backward(NamedTuple):
    """What a backward will do for tensors that look so."""

    outs: tuple[OutputSpec | None, ...]  # dx, dr, dweight, dbias
    shares: tuple[OutputSpec | None, ...]  # of the programs: dw, db
    rows: Callable[..., None] | None  # computes dx, with dw and db where they are `together`; None: nothing to compute
    together: tuple[bool, bool]  # whether dw, db come with dx, or from a kernel of their own
    columns: Callable[..., None] | None
    total_w: Callable[..., None] | None
    total_b: Callable[..., None] | None
    pack: bool
    group: CooperativeRows | None = None


@plans
def _plan_backward(
    op: str, dy: Tensor, ds: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor | None, rstd: Tensor, twice: bool
) -> Backward:
    names = {"s": x, "ds": ds} if twice else {"x": x, "add": ds}
    check(op, dy=dy, **names, weight=weight, mean=mean, rstd=rstd)
    pack = not all(even_rows(t) for t in (dy, ds, x, weight) if t is not None)
    pack = pack or not all(
        t is None or t.is_contiguous() for t in (mean, rstd)
    )  # read as one list, whatever their shape
    n, dtype, centred, wide = x.shape[-1], x.dtype, mean is not None, wide_of(x.dtype)
    like_x, like_w = OutputSpec.of(x.shape, dtype), OutputSpec.of(weight.shape, weight.dtype)
    outs = (like_x, like_x if twice else None, like_w, like_w if centred else None)
    if not x.numel():
        return Backward(outs, (None, None), None, (False, False), None, None, None, pack)
    at, to = Rows.of(packed(x)), Rows.of(packed(dy))
    ds_stride = 0 if ds is None else Rows.of(packed(ds)).stride
    even = all(size % 16 == 0 for size in (n, at.stride, to.stride, ds_stride))
    facts: dict[str, Any] = dict(n=n, dtype=dtype)
    group = None
    if n > fits(BACKWARD_TEAM // 2 if centred else BACKWARD_TEAM, dtype) and can_cooperate(wide):
        tiles = backward_cooperative_tiles(**facts, centred=centred)
        group = CooperativeRows.of(tiles, x.device, at.count, n, 2, even=even, CENTRED=centred, WIDE=wide)
    whole = n <= fits(BACKWARD_FITS // 2 if centred else BACKWARD_FITS, dtype)
    tiles = backward_tiles(**facts, centred=centred) if whole else backward_piece_tiles(**facts)
    per_core = 4 if n <= 2048 else 2 if n <= 4096 else 1
    walkers = programs(x.device, -(-at.count // tiles["BLOCK_M"]), per_core) if whole else at.count
    full_rows = {"FULL": n == tiles["BLOCK_N"]} if whole else {}
    config = tiles.config(even=even, CENTRED=centred, WIDE=wide, **full_rows)
    numbers = (to.stride, ds_stride, at.stride, at.count, n)
    if group is not None:
        walkers, together = group.count, (True, centred)
        rows = bwd_cooperative.ready((group.programs, 1, 1), numbers, group.config)
    else:
        rows = (bwd if whole else bwd_pieces).ready((walkers, 1, 1), numbers, config)
        together = (tiles["SHARES"], tiles["BIAS"]) if whole else (False, False)
    by_column = max(1, min(-(-at.count // 8), max(8, 1024 * 512 // n)))
    parts = tuple(walkers if inside else by_column for inside in together)
    columns = column_tiles(**facts)
    share = share_of(dtype)
    return Backward(
        outs,
        (OutputSpec.of((parts[0], n), share), OutputSpec.of((parts[1], n), share) if centred else None),
        rows,
        together,
        bwd_columns.ready(
            (-(-n // columns["BLOCK_N"]), by_column, 1),
            (to.stride, at.stride, at.count, n),
            columns.config(even=even, WIDE=wide),
        ),
        adding_up(parts[0], n, dtype),
        adding_up(parts[1], n, dtype),
        pack,
        group,
    )


def _backward(
    op: str,
    dy: Tensor,
    ds: Tensor | None,
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    twice: bool,
) -> tuple[Any, ...]:
    plan = _plan_backward(op, dy, ds, x, weight, mean, rstd, twice)
    dx, dr, dweight, dbias = [None if output is None else output.empty(x) for output in plan.outs]
    if plan.rows is None or plan.columns is None or plan.total_w is None or plan.total_b is None:
        return dx, dr, dweight.zero_(), None if dbias is None else dbias.zero_()  # type: ignore[union-attr]
    if plan.pack:
        dy, x, weight, rstd = packed(dy), packed(x), packed(weight), rstd.contiguous()
        ds, mean = None if ds is None else packed(ds), None if mean is None else mean.contiguous()
    dw, db = [None if output is None else output.empty(x) for output in plan.shares]
    exchange = () if plan.group is None else (plan.group.exchange(x),)
    plan.rows(dy, ds, x, weight, mean, rstd, dx, dr, dw, db, *exchange, float(offset))
    dw_alone, db_alone = [None if inside else share for inside, share in zip(plan.together, (dw, db), strict=True)]
    if dw_alone is not None or db_alone is not None:
        plan.columns(dy, x, mean, rstd, dw_alone, db_alone)
    plan.total_w(dw, dweight)
    if dbias is not None:
        plan.total_b(db, dbias)
    return dx, dr, dweight, dbias


# ---- the ops --------------------------------------------------------------------------------------------------------


@plans
def _plan_aten(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, centred: bool, n: int) -> Forward | None:
    """What ATen's norm over n columns will do, where that is one launch over tensors of one dtype on a chip."""
    given = [t for t in (weight, bias) if t is not None]
    if x.is_cpu or not n or x.shape[-1:] != (n,) or any(t.dtype is not x.dtype or t.dim() != 1 for t in given):
        return None
    how = _plan(op, x, None, weight, bias, centred, keepdim=True)
    return how if how.simple else None


# As ATen calls them: statistics keep the last dimension, as a view of them costs 1 us.


def _aten_rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    if weight is None or len(normalized_shape) != 1:
        return None
    how = _plan_aten.below("rms_norm", x, weight, None, False, normalized_shape[0])
    if how is None:
        return None
    eps = spec.TORCH_EPS.get(x.dtype, 0.0) if eps is None else float(eps)
    return how.launch(x, None, weight, None, None, None, None, None, None, eps, 0.0)


def _aten_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    if weight is None or len(normalized_shape) != 1:
        return None
    how = _plan_aten.below("layer_norm", x, weight, bias, True, normalized_shape[0])
    return None if how is None else how.launch(x, None, weight, bias, None, None, None, None, float(eps), 0.0)


@impl(spec.rms_norm, devices=DEVICES, aten={"_fused_rms_norm": _aten_rms_norm})
def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Any:
    how = _plan_forward("rms_norm", x, None, weight, None, False)
    if how.simple:
        return how.launch(x, None, weight, None, None, None, None, None, None, float(eps), float(offset))
    return _forward(how, x, None, weight, None, eps, offset, False)


@impl(spec.layer_norm, devices=DEVICES, aten={"native_layer_norm": _aten_layer_norm})
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float) -> Any:
    how = _plan_forward("layer_norm", x, None, weight, bias, True)
    if how.simple:
        return how.launch(x, None, weight, bias, None, None, None, None, float(eps), float(offset))
    return _forward(how, x, None, weight, bias, eps, offset, True)


@impl(spec.rms_norm_bwd, devices=DEVICES)
def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    dx, _, dweight, _ = _backward("rms_norm_bwd", dy, None, x, weight, None, rstd, offset, False)
    return dx, dweight


@impl(spec.rms_norm_bwd_add, devices=DEVICES)
def rms_norm_bwd_add(dy: Tensor, x: Tensor, add: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> Any:
    dx, _, dweight, _ = _backward("rms_norm_bwd_add", dy, add, x, weight, None, rstd, offset, False)
    return dx, dweight


@impl(spec.add_rms_norm, devices=DEVICES)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float) -> Any:
    how = _plan_forward("add_rms_norm", x, residual, weight, None, False)
    if how.simple:
        return how.launch(x, residual, weight, None, None, None, None, None, float(eps), float(offset))
    return _forward(how, x, residual, weight, None, eps, offset, False)


@impl(spec.add_rms_norm_bwd, devices=DEVICES)
def add_rms_norm_bwd(dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> Any:
    dx, dr, dweight, _ = _backward("add_rms_norm_bwd", dy, ds, s, weight, None, rstd, offset, True)
    return dx, dr, dweight


@impl(spec.layer_norm_bwd, devices=DEVICES)
def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float) -> Any:
    dx, _, dweight, dbias = _backward("layer_norm_bwd", dy, None, x, weight, mean, rstd, offset, False)
    return dx, dweight, dbias


# ---- with a float8 result -------------------------------------------------------------------------------------------


@plans
def _plan_norm(
    op: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    centred: bool,
) -> Forward:
    check(op, x=x, scale=scale, amax=amax, dtype=dtype)
    return _plan(op, x, None, weight, bias, centred, fp8=dtype)


@impl(spec.rms_norm_fp8, devices=DEVICES)
def rms_norm_fp8(
    x: Tensor, weight: Tensor, scale: Tensor, amax: Tensor | None, dtype: torch.dtype, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    how = _plan_norm("rms_norm_fp8", x, weight, None, scale, amax, dtype, False)
    inv = inverse_scale(how.launch is None, x, scale)
    if how.simple:
        y, rstd = how.launch(x, None, weight, None, None, None, scale, amax, inv, float(eps), float(offset))
    else:
        y, rstd = _forward(how, x, None, weight, None, eps, offset, False, scale, amax, inv)
    return y, inv, rstd


@impl(spec.layer_norm_fp8, devices=DEVICES)
def layer_norm_fp8(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    amax: Tensor | None,
    dtype: torch.dtype,
    eps: float,
    offset: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    how = _plan_norm("layer_norm_fp8", x, weight, bias, scale, amax, dtype, True)
    inv = inverse_scale(how.launch is None, x, scale)
    if how.simple:
        y, mean, rstd = how.launch(x, None, weight, bias, None, scale, amax, inv, float(eps), float(offset))
    else:
        y, mean, rstd = _forward(how, x, None, weight, bias, eps, offset, True, scale, amax, inv)
    return y, inv, mean, rstd
