"""Norms over the last dimension: one row a program where it fits, in pieces where it does not; float32 inside.

Forward: a row is read once. Backward: a program walks over many rows with the weight's gradient in registers, and a
second kernel adds the programs' shares up in a fixed order, so gradients are the same in every run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import norm as spec
from .lib.launch import Config, Launcher, per_chip
from .lib.rows import DEVICES, Rows, empty, packed, programs, wide_of

RUNTIME = ["x_stride", "r_stride", "n_rows", "n", "eps", "offset"]


# ---- forward --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def _fwd(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows at a time: y = norm(x [+ r]) * (w + offset) [+ b]."""
    if EVEN:
        n = tl.multiple_of(n, 16)
        x_stride = tl.multiple_of(x_stride, 16)
        r_stride = tl.multiple_of(r_stride, 16)
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_m = i_m < n_rows
    m_n = o_n < n
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
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


@triton.jit(do_not_specialize=RUNTIME)
def _fwd_pieces(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A row too long for registers: once for the statistics, once more, out of L2, for the result."""
    if EVEN:
        n = tl.multiple_of(n, 16)
        x_stride = tl.multiple_of(x_stride, 16)
        r_stride = tl.multiple_of(r_stride, 16)
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    if r_ptr is not None:
        r_ptr += row * r_stride
        s_ptr += row * n
    b_1 = tl.zeros([BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_N], WIDE)
    shift = tl.zeros([], WIDE)
    if CENTRED:  # sums of differences from one element: no cancellation where the mean is large
        shift = tl.load(x_ptr).to(WIDE)
        if r_ptr is not None:
            shift = (shift + tl.load(r_ptr).to(WIDE)).to(s_ptr.dtype.element_ty).to(WIDE)
    for at in range(0, n, BLOCK_N):
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
    mean = tl.zeros([], WIDE)
    var = tl.sum(b_2, 0) / n
    if CENTRED:
        mean = tl.sum(b_1, 0) / n
        var = tl.maximum(var - mean * mean, 0.0)
        mean += shift
        tl.store(mean_ptr + row, mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    tl.store(rstd_ptr + row, rstd)
    if r_ptr is not None:
        tl.debug_barrier()
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        if r_ptr is not None:
            b_x = tl.load(s_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        else:
            b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_w = tl.load(w_ptr + at + o_n, mask=m, other=0.0).to(WIDE) + offset
        b_y = (b_x - mean) * rstd * b_w
        if b_ptr is not None:
            b_y += tl.load(b_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


# ---- backward -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["dy_stride", "ds_stride", "x_stride", "n_rows", "n", "offset"])
def _bwd(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows pid, pid + P, ...: dx of each, and this program's share of dw and db."""
    if EVEN:
        n = tl.multiple_of(n, 16)
        dy_stride = tl.multiple_of(dy_stride, 16)
        ds_stride = tl.multiple_of(ds_stride, 16)
        x_stride = tl.multiple_of(x_stride, 16)
    pid = tl.program_id(0)
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    b_w = tl.load(w_ptr + o_n, mask=m_n, other=0.0).to(WIDE) + offset
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(pid * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        i_m = (at + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
        m_m = i_m < n_rows
        m = m_m & m_n
        b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        rstd = tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
        if CENTRED:
            b_x = tl.where(m, b_x - tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE), 0.0)
        b_x *= rstd
        b_dw += b_dy * b_x
        b_g = b_dy * b_w
        b_dx = b_g - b_x * (tl.sum(b_g * b_x, 1)[:, None] / n)
        if CENTRED:
            b_db += b_dy
            b_dx -= tl.sum(b_g, 1)[:, None] / n
        b_dx *= rstd
        if ds_ptr is not None:
            b_dx += tl.load(ds_ptr + i_m * ds_stride + o_n, mask=m, other=0.0).to(WIDE)
        tl.store(dx_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        if dr_ptr is not None:
            tl.store(dr_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    at = pid.to(tl.int64) * n + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_N) < n
    tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if CENTRED:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


@triton.jit(do_not_specialize=["dy_stride", "ds_stride", "x_stride", "n_rows", "n", "offset"])
def _bwd_pieces(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The dx of a row too long for registers; dw and db are `_bwd_columns`'."""
    if EVEN:
        n = tl.multiple_of(n, 16)
        dy_stride = tl.multiple_of(dy_stride, 16)
        ds_stride = tl.multiple_of(ds_stride, 16)
        x_stride = tl.multiple_of(x_stride, 16)
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


@triton.jit(do_not_specialize=["dy_stride", "x_stride", "n_rows", "n"])
def _bwd_columns(
    dy_ptr, x_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr,
    dy_stride, x_stride, n_rows, n,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Shares of dw and db: program (i, j) adds up the columns of block i over every P-th block of rows."""
    if EVEN:
        n = tl.multiple_of(n, 16)
        dy_stride = tl.multiple_of(dy_stride, 16)
        x_stride = tl.multiple_of(x_stride, 16)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(tl.program_id(1) * BLOCK_M, n_rows, tl.num_programs(1) * BLOCK_M):
        i_m = (at + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
        m_m = i_m < n_rows
        m = m_m & m_n
        b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        rstd = tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
        if CENTRED:
            b_x -= tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
            b_db += b_dy
        b_dw += b_dy * b_x * rstd
    at = tl.program_id(1).to(tl.int64) * n + tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N) < n
    tl.store(dw_ptr + at, tl.sum(b_dw, 0), mask=m)
    if CENTRED:
        tl.store(db_ptr + at, tl.sum(b_db, 0), mask=m)


@triton.jit(do_not_specialize=["n_parts", "n"])
def _add_up(
    dw_ptr, db_ptr, dweight_ptr, dbias_ptr, n_parts, n, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The shares of all programs, in their order."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, n_parts, BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)[:, None]
        m = (i_m < n_parts) & m_n
        b_dw += tl.load(dw_ptr + i_m.to(tl.int64) * n + o_n, mask=m, other=0.0)
        if db_ptr is not None:
            b_db += tl.load(db_ptr + i_m.to(tl.int64) * n + o_n, mask=m, other=0.0)
    o = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(dweight_ptr + o, tl.sum(b_dw, 0).to(dweight_ptr.dtype.element_ty), mask=o < n)
    if db_ptr is not None:
        tl.store(dbias_ptr + o, tl.sum(b_db, 0).to(dbias_ptr.dtype.element_ty), mask=o < n)


# ---- launching ------------------------------------------------------------------------------------------------------

fwd, fwd_pieces = Launcher(_fwd, tensors=8), Launcher(_fwd_pieces, tensors=8)
bwd, bwd_pieces = Launcher(_bwd, tensors=10), Launcher(_bwd_pieces, tensors=10)
bwd_columns, add_up = Launcher(_bwd_columns, tensors=6), Launcher(_add_up, tensors=4)

FORWARD_FITS = 32768  # columns that one program holds in registers
BACKWARD_FITS = 16384


@per_chip
def forward_config(n: int, dtype: torch.dtype, even: bool, centred: bool) -> Config:
    wide = wide_of(dtype)
    if n > FORWARD_FITS or (dtype is torch.float64 and n > FORWARD_FITS // 4):
        constants = dict(CENTRED=centred, WIDE=wide, EVEN=even, BLOCK_N=8192 if dtype.itemsize <= 2 else 4096)
        return Config(constants, threads=512 if dtype.itemsize <= 2 else 256)
    block = max(triton.next_power_of_2(n), 16)
    rows = max(1, 2048 // block)
    threads = min(512, max(128, rows * block // 16))
    return Config(dict(CENTRED=centred, WIDE=wide, EVEN=even, BLOCK_M=rows, BLOCK_N=block), threads)


@per_chip
def backward_config(n: int, dtype: torch.dtype, even: bool, centred: bool) -> Config:
    wide = wide_of(dtype)
    block = max(triton.next_power_of_2(n), 16)
    if n > BACKWARD_FITS or (dtype is torch.float64 and n > BACKWARD_FITS // 4):
        constants = dict(CENTRED=centred, WIDE=wide, EVEN=even, BLOCK_N=4096 if dtype.itemsize <= 2 else 2048)
        return Config(constants, threads=512 if dtype.itemsize <= 2 else 256)
    rows = max(1, 1024 // block)
    threads = 128 if block <= 1024 else 256 if block <= 4096 else 512 if block <= 8192 else 1024
    return Config(dict(CENTRED=centred, WIDE=wide, EVEN=even, BLOCK_M=rows, BLOCK_N=block), threads)


def _forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool
) -> Any:
    x = packed(x)
    shape, n = x.shape, x.shape[-1]
    at = Rows.of(x)
    r_stride = 0
    if residual is not None:
        residual = packed(residual)
        r_stride = Rows.of(residual).stride
    stat = torch.float64 if x.dtype is torch.float64 else torch.float32
    y, rstd = empty(shape, x), empty(shape[:-1], x, stat)
    s = empty(shape, x) if residual is not None else None
    mean = empty(shape[:-1], x, stat) if centred else None
    if at.count == 0:
        return y, s, mean, rstd
    if n == 0:
        rstd.fill_(eps**-0.5)
        return y, s, None if mean is None else mean.zero_(), rstd
    even = n % 16 == 0 and at.stride % 16 == 0 and r_stride % 16 == 0
    config = forward_config(n, x.dtype, even, centred)
    rows = config.constants.get("BLOCK_M")
    key = (config, x.dtype, weight.dtype, None if bias is None else bias.dtype, residual is None)
    args = (x, residual, packed(weight), None if bias is None else packed(bias), y, s, mean, rstd)
    args += (at.stride, r_stride, at.count, n, float(eps), float(offset))
    if rows is None:
        fwd_pieces((at.count, 1, 1), key, args, config)
    else:
        fwd((-(-at.count // rows), 1, 1), key, args, config)
    return y, s, mean, rstd


def _backward(
    dy: Tensor,
    ds: Tensor | None,
    x: Tensor,
    weight: Tensor,
    mean: Tensor | None,
    rstd: Tensor,
    offset: float,
    twice: bool,
) -> Any:
    x, dy = packed(x), packed(dy)
    ds = None if ds is None else packed(ds)
    n, centred = x.shape[-1], mean is not None
    at, to = Rows.of(x), Rows.of(dy)
    ds_stride = 0 if ds is None else Rows.of(ds).stride
    dx = empty(x.shape, x)
    dr = empty(x.shape, x) if twice else None
    dweight = empty(weight.shape, weight)
    dbias = empty(weight.shape, weight) if centred else None
    if at.count == 0 or n == 0:
        return dx, dr, dweight.zero_(), None if dbias is None else dbias.zero_()
    stat = rstd.dtype
    even = n % 16 == 0 and at.stride % 16 == 0 and to.stride % 16 == 0 and ds_stride % 16 == 0
    config = backward_config(n, x.dtype, even, centred)
    rows = config.constants.get("BLOCK_M")
    whole = rows is not None
    parts = (
        programs(x, -(-at.count // rows), 2 if n <= 4096 else 1)
        if whole
        else programs(x, -(-at.count // 16), 1) // 4 or 1
    )
    dw = empty((parts, n), x, stat)
    db = empty((parts, n), x, stat) if centred else None
    rstd, mean = rstd.contiguous(), None if mean is None else mean.contiguous()
    key = (config, x.dtype, dy.dtype, weight.dtype, ds is None, dr is None)
    args = (
        dy,
        ds,
        x,
        packed(weight),
        mean,
        rstd,
        dx,
        dr,
        dw,
        db,
        to.stride,
        ds_stride,
        at.stride,
        at.count,
        n,
        float(offset),
    )
    if whole:
        bwd((parts, 1, 1), key, args, config)
    else:
        bwd_pieces((at.count, 1, 1), key, args, config)
        wide = config.constants["WIDE"]
        columns = columns_config(wide, even, centred)
        shares = (dy, x, mean, rstd, dw, db, to.stride, at.stride, at.count, n)
        bwd_columns((-(-n // columns.constants["BLOCK_N"]), parts, 1), (columns, x.dtype, dy.dtype), shares, columns)
    total = add_config(config.constants["WIDE"])
    add_up(
        (-(-n // total.constants["BLOCK_N"]), 1, 1),
        (total, weight.dtype, centred, stat),
        (dw, db, dweight, dbias, parts, n),
        total,
    )
    return dx, dr, dweight, dbias


@per_chip
def columns_config(wide: Any, even: bool, centred: bool) -> Config:
    return Config(dict(CENTRED=centred, WIDE=wide, EVEN=even, BLOCK_M=16, BLOCK_N=256), threads=256)


@per_chip
def add_config(wide: Any) -> Config:
    return Config(dict(WIDE=wide, BLOCK_M=64, BLOCK_N=32), threads=128)


# ---- the ops --------------------------------------------------------------------------------------------------------


@impl(spec.rms_norm, devices=DEVICES)
def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    spec.check("rms_norm", x, cols={"weight": weight})
    y, _, _, rstd = _forward(x, None, weight, None, eps, offset, centred=False)
    return y, rstd


@impl(spec.rms_norm_bwd, devices=DEVICES)
def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    spec.check("rms_norm_bwd", x, full={"dy": dy}, cols={"weight": weight}, rows={"rstd": rstd})
    dx, _, dweight, _ = _backward(dy, None, x, weight, None, rstd, offset, twice=False)
    return dx, dweight


@impl(spec.add_rms_norm, devices=DEVICES)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float) -> Any:
    spec.check_add(x, residual, weight)
    y, s, _, rstd = _forward(x, residual, weight, None, eps, offset, centred=False)
    return y, s, rstd


@impl(spec.add_rms_norm_bwd, devices=DEVICES)
def add_rms_norm_bwd(dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> Any:
    like = {"dy": dy, "ds": ds}
    spec.check("add_rms_norm_bwd", s, lead="s", full=like, cols={"weight": weight}, rows={"rstd": rstd})
    dx, dr, dweight, _ = _backward(dy, ds, s, weight, None, rstd, offset, twice=True)
    return dx, dr, dweight


@impl(spec.layer_norm, devices=DEVICES)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float) -> Any:
    spec.check("layer_norm", x, cols={"weight": weight, "bias": bias})
    y, _, mean, rstd = _forward(x, None, weight, bias, eps, offset, centred=True)
    return y, mean, rstd


@impl(spec.layer_norm_bwd, devices=DEVICES)
def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float) -> Any:
    stats = {"mean": mean, "rstd": rstd}
    spec.check("layer_norm_bwd", x, full={"dy": dy}, cols={"weight": weight}, rows=stats)
    dx, _, dweight, dbias = _backward(dy, None, x, weight, mean, rstd, offset, twice=False)
    return dx, dweight, dbias
