"""Modulated RMS norm, PolyNorm and dynamic tanh, in float32: one row per program, whole in registers or in pieces.

Gradients of weights are summed in a fixed order: a second step adds the partial sums over rows or columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.tensors import opmath_dtype
from ..specs import norm_variant as spec
from .lib.column_sum import column_sum
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, RowSizes, Zeros, planned, strided
from .lib.launch import Launcher
from .lib.maths import library
from .lib.norms import round_to, rounding, rstd_of_nothing
from .lib.rows import OutputSpec, fits, programs, wide_of

tanh = library("tanh")


@tunable("norm_variant.rows")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program holds one row if it fits in registers, else it reads the row in pieces."""
    block = max(triton.next_power_of_2(n), 64) if n <= fits(8192, dtype) else fits(4096, dtype)
    return Tiles(max(64, block // 16), BLOCK_N=block)


@tunable("norm_variant.columns")
def column_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program sums some of the columns over rows."""
    return Tiles(128, BLOCK_M=8, BLOCK_N=min(512, max(triton.next_power_of_2(n), 16)))


# ---- modulated RMS norm ---------------------------------------------------------------------------------------------


@triton.jit
def _modulated(b_x, rstd, weight_ptr, scale_ptr, shift_ptr, o_n, m, offset, ROUND: tl.constexpr, STEP: tl.constexpr):
    """The result for some elements of a row."""
    b_w = round_to(tl.load(weight_ptr + o_n, mask=m, other=0.0).to(b_x.dtype) + offset, STEP)
    b_y = round_to(round_to(b_x * rstd, ROUND) * b_w, STEP)
    b_y = round_to(b_y * round_to(1.0 + tl.load(scale_ptr + o_n, mask=m, other=0.0).to(b_x.dtype), STEP), STEP)
    if shift_ptr is not None:
        b_y += tl.load(shift_ptr + o_n, mask=m, other=0.0).to(b_x.dtype)
    return b_y


def _modulated_fwd(
    x_ptr,
    weight_ptr,
    scale_ptr,
    shift_ptr,
    y_ptr,
    rstd_ptr,
    x_stride,
    n_rows,
    n,
    per_group,
    eps,
    offset,
    WIDE: tl.constexpr,
    ROUND: tl.constexpr,
    STEP: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    scale_ptr += row // per_group * n
    if shift_ptr is not None:
        shift_ptr += row // per_group * n
    if WHOLE:
        m = o_n < n
        b_x = tl.load(x_ptr + o_n, mask=m, other=0.0).to(WIDE)
        b_2 = round_to(b_x * b_x, STEP)
    else:
        b_2 = tl.zeros([BLOCK_N], WIDE)
        for at in range(0, n, BLOCK_N):
            b_x = tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=0.0, eviction_policy="evict_last").to(WIDE)
            b_2 += round_to(b_x * b_x, STEP)
    var = round_to(tl.sum(b_2, 0) / n, STEP)
    rstd = round_to(1.0 / tl.sqrt(round_to(var + eps, STEP)), STEP)
    tl.store(rstd_ptr + row, rstd)
    if WHOLE:
        b_y = _modulated(b_x, rstd, weight_ptr, scale_ptr, shift_ptr, o_n, m, offset, ROUND, STEP)
        tl.store(y_ptr + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)
    else:
        for at in range(0, n, BLOCK_N):
            o = at + o_n
            b_x = tl.load(x_ptr + o, mask=o < n, other=0.0).to(WIDE)
            b_y = _modulated(b_x, rstd, weight_ptr, scale_ptr, shift_ptr, o, o < n, offset, ROUND, STEP)
            tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=o < n)


@triton.jit
def _modulated_g(dy_ptr, weight_ptr, scale_ptr, o_n, m, offset, WIDE: tl.constexpr):
    """dy * (1 + scale) * (weight + offset)."""
    b_g = tl.load(dy_ptr + o_n, mask=m, other=0.0).to(WIDE) * (
        1.0 + tl.load(scale_ptr + o_n, mask=m, other=0.0).to(WIDE)
    )
    return b_g * (tl.load(weight_ptr + o_n, mask=m, other=0.0).to(WIDE) + offset)


def _modulated_dx(
    dy_ptr,
    x_ptr,
    weight_ptr,
    scale_ptr,
    rstd_ptr,
    dx_ptr,
    dy_stride,
    x_stride,
    n_rows,
    n,
    per_group,
    offset,
    WIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    dy_ptr += row * dy_stride
    x_ptr += row * x_stride
    dx_ptr += row * n
    scale_ptr += row // per_group * n
    rstd = tl.load(rstd_ptr + row).to(WIDE)
    if WHOLE:
        m = o_n < n
        b_g = _modulated_g(dy_ptr, weight_ptr, scale_ptr, o_n, m, offset, WIDE)
        b_x = tl.load(x_ptr + o_n, mask=m, other=0.0).to(WIDE) * rstd
        b_dx = rstd * (b_g - b_x * (tl.sum(b_g * b_x, 0) / n))
        tl.store(dx_ptr + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    else:
        b_c = tl.zeros([BLOCK_N], WIDE)
        for at in range(0, n, BLOCK_N):
            o = at + o_n
            b_g = _modulated_g(dy_ptr, weight_ptr, scale_ptr, o, o < n, offset, WIDE)
            b_c += b_g * (tl.load(x_ptr + o, mask=o < n, other=0.0).to(WIDE) * rstd)
        c = tl.sum(b_c, 0) / n
        for at in range(0, n, BLOCK_N):
            o = at + o_n
            b_g = _modulated_g(dy_ptr, weight_ptr, scale_ptr, o, o < n, offset, WIDE)
            b_x = tl.load(x_ptr + o, mask=o < n, other=0.0).to(WIDE) * rstd
            tl.store(dx_ptr + o, (rstd * (b_g - b_x * c)).to(dx_ptr.dtype.element_ty), mask=o < n)


def _modulated_sums(
    dy_ptr,
    x_ptr,
    rstd_ptr,
    product_ptr,
    total_ptr,
    dy_stride,
    x_stride,
    n,
    per_group,
    parts,
    per_part,
    WIDE: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Partial sums, over one part of a group's rows, of dy * (x * rstd) and of dy."""
    part = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    begin = part // parts * per_group + part % parts * per_part
    end = tl.minimum(begin + per_part, (part // parts + 1) * per_group)
    b_p = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_t = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, per_part, BLOCK_M):
        i_m = begin + at + tl.arange(0, BLOCK_M)[:, None]
        m = (i_m < end) & (o_n < n)
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_p += b_dy * round_to(b_x * tl.load(rstd_ptr + i_m, mask=i_m < end, other=0.0).to(WIDE), ROUND)
        b_t += b_dy
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(product_ptr + part * n + o, tl.sum(b_p, 0), mask=o < n)
    tl.store(total_ptr + part * n + o, tl.sum(b_t, 0), mask=o < n)


def _modulated_finish(
    product_ptr,
    total_ptr,
    weight_ptr,
    scale_ptr,
    dscale_ptr,
    dshift_ptr,
    share_ptr,
    n,
    parts,
    offset,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dscale and dshift of a group, and its partial sum of dweight."""
    group = tl.program_id(0).to(tl.int64)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < n
    b_p = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_t = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, parts, BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)[:, None]
        o = (group * parts + i_m) * n + o_n[None, :]
        m = (i_m < parts) & m_n[None, :]
        b_p += tl.load(product_ptr + o, mask=m, other=0.0)
        b_t += tl.load(total_ptr + o, mask=m, other=0.0)
    b_product = tl.sum(b_p, 0)
    b_w = tl.load(weight_ptr + o_n, mask=m_n, other=0.0).to(WIDE) + offset
    b_scale = tl.load(scale_ptr + group * n + o_n, mask=m_n, other=0.0).to(WIDE)
    tl.store(dscale_ptr + group * n + o_n, (b_product * b_w).to(dscale_ptr.dtype.element_ty), mask=m_n)
    tl.store(dshift_ptr + group * n + o_n, tl.sum(b_t, 0).to(dshift_ptr.dtype.element_ty), mask=m_n)
    tl.store(share_ptr + group * n + o_n, b_product * (1.0 + b_scale), mask=m_n)


modulated_fwd = Launcher(_modulated_fwd, sizes="x_stride n")
modulated_dx = Launcher(_modulated_dx, sizes="dy_stride x_stride n")
modulated_sums = Launcher(_modulated_sums, sizes="dy_stride x_stride n")
modulated_finish = Launcher(_modulated_finish, sizes="n")


@tunable("modulated_rms_norm.finish", free="BLOCK_M BLOCK_N")
def finish_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Sum the parts of a group, BLOCK_M at a time."""
    return Tiles(128, BLOCK_M=16, BLOCK_N=64)


@planned(spec.modulated_rms_norm)
def modulated_rms_norm(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor | None, casting: str) -> Plan:
    n, dtype = x.shape[-1], x.dtype
    makes = {"y": OutputSpec.of(x.shape, dtype), "rstd": OutputSpec.of(x.shape[:-1], opmath_dtype(dtype))}
    if not x.numel():
        return Plan(makes, [rstd_of_nothing])
    rows, tiles = RowSizes.of(x=x), row_tiles(n=n, dtype=dtype)
    constants: dict[str, Any] = dict(WIDE=wide_of(dtype), WHOLE=n <= tiles["BLOCK_N"], **rounding(casting, dtype))
    launch = rows.launch(modulated_fwd, tiles, rows.count, **constants).with_numbers(
        per_group=rows.count // scale.shape[0]
    )
    return Plan(makes, [launch], [*rows.strided, *strided(weight=weight, scale=scale, shift=shift)])


@planned(spec.modulated_rms_norm_bwd)
def modulated_rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor, rstd: Tensor, casting: str) -> Plan:
    n, dtype, groups = x.shape[-1], x.dtype, scale.shape[0]
    like = lambda t: OutputSpec.of(t.shape, t.dtype)
    sums = {"dweight": like(weight), "dscale": like(scale), "dshift": like(scale)}
    if not x.numel():
        return Plan({"dx": like(x), **{name: Zeros(output) for name, output in sums.items()}})
    rows, tiles, columns = RowSizes.of(dy=dy, x=x), row_tiles(n=n, dtype=dtype), column_tiles(n=n, dtype=dtype)
    per_group = rows.count // groups
    parts = min(-(-per_group // columns["BLOCK_M"]), max(1, max(8, 1024 * 512 // n) // groups))
    per_part = -(-per_group // parts)
    wide = wide_of(dtype)
    dx = rows.launch(modulated_dx, tiles, rows.count, WIDE=wide, WHOLE=n <= tiles["BLOCK_N"])
    grid = (groups * parts, -(-n // columns["BLOCK_N"]))
    add = rows.launch(modulated_sums, columns, *grid, WIDE=wide, ROUND=rounding(casting, dtype)["ROUND"])
    wide_dtype = opmath_dtype(dtype)
    partial = OutputSpec.of((groups, parts, n), wide_dtype)
    ends = finish_tiles(n=n, dtype=dtype)
    finish = rows.launch(modulated_finish, ends, groups, -(-n // ends["BLOCK_N"]), WIDE=wide).with_numbers(parts=parts)
    add = add.with_numbers(per_group=per_group, parts=parts, per_part=per_part)
    return Plan(
        {"dx": like(x), **sums, "product": partial, "total": partial, "share": OutputSpec.of((groups, n), wide_dtype)},
        [dx.with_numbers(per_group=per_group), add, finish, column_sum("share", "dweight", groups, n, dtype)],
        [*rows.strided, *strided(weight=weight, scale=scale, rstd=rstd)],
    )


# ---- PolyNorm -------------------------------------------------------------------------------------------------------


@triton.jit
def _polynomial(b_x, r_3, r_2, r_1, weight_ptr, bias_ptr):
    w_3 = tl.load(weight_ptr).to(b_x.dtype) * r_3
    w_2 = tl.load(weight_ptr + 1).to(b_x.dtype) * r_2
    w_1 = tl.load(weight_ptr + 2).to(b_x.dtype) * r_1
    return ((w_3 * b_x + w_2) * b_x + w_1) * b_x + tl.load(bias_ptr).to(b_x.dtype)


def _poly_fwd(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    rstd_ptr,
    x_stride,
    n_rows,
    n,
    eps,
    WIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    if WHOLE:
        b_x = tl.load(x_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
        b_2 = b_x * b_x
        b_4 = b_2 * b_2
        b_6 = b_4 * b_2
    else:
        b_2 = tl.zeros([BLOCK_N], WIDE)
        b_4 = tl.zeros([BLOCK_N], WIDE)
        b_6 = tl.zeros([BLOCK_N], WIDE)
        for at in range(0, n, BLOCK_N):
            b_x = tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=0.0, eviction_policy="evict_last").to(WIDE)
            b_s = b_x * b_x
            b_2 += b_s
            b_4 += b_s * b_s
            b_6 += b_s * b_s * b_s
    r_3 = 1.0 / tl.sqrt(tl.sum(b_6, 0) / n + eps)
    r_2 = 1.0 / tl.sqrt(tl.sum(b_4, 0) / n + eps)
    r_1 = 1.0 / tl.sqrt(tl.sum(b_2, 0) / n + eps)
    tl.store(rstd_ptr + row * 3, r_3)
    tl.store(rstd_ptr + row * 3 + 1, r_2)
    tl.store(rstd_ptr + row * 3 + 2, r_1)
    if WHOLE:
        b_y = _polynomial(b_x, r_3, r_2, r_1, weight_ptr, bias_ptr)
        tl.store(y_ptr + o_n, b_y.to(y_ptr.dtype.element_ty), mask=o_n < n)
    else:
        for at in range(0, n, BLOCK_N):
            b_x = tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=0.0).to(WIDE)
            b_y = _polynomial(b_x, r_3, r_2, r_1, weight_ptr, bias_ptr)
            tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=at + o_n < n)


def _poly_bwd(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    share_ptr,
    dy_stride,
    x_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx of a row, and its partial sums of dweight and dbias."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    dy_ptr += row * dy_stride
    x_ptr += row * x_stride
    r_3 = tl.load(rstd_ptr + row * 3).to(WIDE)
    r_2 = tl.load(rstd_ptr + row * 3 + 1).to(WIDE)
    r_1 = tl.load(rstd_ptr + row * 3 + 2).to(WIDE)
    b_0 = tl.zeros([BLOCK_N], WIDE)
    b_1 = tl.zeros([BLOCK_N], WIDE)
    b_2 = tl.zeros([BLOCK_N], WIDE)
    b_3 = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_dy = tl.load(dy_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_0 += b_dy
        b_1 += b_dy * b_x
        b_2 += b_dy * b_x * b_x
        b_3 += b_dy * b_x * b_x * b_x
    s_3 = tl.sum(b_3, 0) * r_3
    s_2 = tl.sum(b_2, 0) * r_2
    s_1 = tl.sum(b_1, 0) * r_1
    tl.store(share_ptr + row * 4, s_3)
    tl.store(share_ptr + row * 4 + 1, s_2)
    tl.store(share_ptr + row * 4 + 2, s_1)
    tl.store(share_ptr + row * 4 + 3, tl.sum(b_0, 0))
    w_3 = tl.load(weight_ptr).to(WIDE) * r_3
    w_2 = tl.load(weight_ptr + 1).to(WIDE) * r_2
    w_1 = tl.load(weight_ptr + 2).to(WIDE) * r_1
    c_3 = s_3 * r_3 / n
    c_2 = s_2 * r_2 / n
    c_1 = s_1 * r_1 / n
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + at + o_n, mask=m, other=0.0).to(WIDE)
        b_s = b_x * b_x
        b_dx = w_3 * (b_dy - b_s * b_x * c_3) * 3.0 * b_s + w_2 * (b_dy - b_s * c_2) * 2.0 * b_x
        b_dx += w_1 * (b_dy - b_x * c_1)
        tl.store(dx_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _poly_sums(share_ptr, dw_ptr, db_ptr, n_rows, WIDE: tl.constexpr, BLOCK_M: tl.constexpr):
    """Sum `share` over every P-th block of rows. Sums for the three weights go to dw, the one for the bias to db."""
    part = tl.program_id(0)
    o_c = tl.arange(0, 4)
    b_sum = tl.zeros([BLOCK_M, 4], WIDE)
    for at in range(part * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)[:, None]
        b_sum += tl.load(share_ptr + i_m.to(tl.int64) * 4 + o_c[None, :], mask=i_m < n_rows, other=0.0)
    b_total = tl.sum(b_sum, 0)
    tl.store(dw_ptr + part * 3 + o_c, b_total, mask=o_c < 3)
    tl.store(db_ptr + part + o_c * 0, b_total, mask=o_c == 3)


poly_fwd = Launcher(_poly_fwd, sizes="x_stride n")
poly_bwd = Launcher(_poly_bwd, sizes="dy_stride x_stride n")
poly_sums = Launcher(_poly_sums, sizes="")


@tunable("poly_norm.sums", free="BLOCK_M")
def poly_sum_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK_M=256)


@planned(spec.poly_norm)
def poly_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Plan:
    n, dtype = x.shape[-1], x.dtype
    makes = {"y": OutputSpec.of(x.shape, dtype), "rstd": OutputSpec.of((*x.shape[:-1], 3), opmath_dtype(dtype))}
    if not x.numel():
        return Plan(makes, [rstd_of_nothing])
    rows, tiles = RowSizes.of(x=x), row_tiles(n=n, dtype=dtype)
    launch = rows.launch(poly_fwd, tiles, rows.count, WIDE=wide_of(dtype), WHOLE=n <= tiles["BLOCK_N"])
    return Plan(makes, [launch], [*rows.strided, *strided(weight=weight, bias=bias)])


@planned(spec.poly_norm_bwd)
def poly_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, rstd: Tensor) -> Plan:
    like = lambda t: OutputSpec.of(t.shape, t.dtype)
    sums = {"dweight": like(weight), "dbias": like(bias)}
    if not x.numel():
        return Plan({"dx": like(x), **{name: Zeros(output) for name, output in sums.items()}})
    rows, tiles = RowSizes.of(dy=dy, x=x), row_tiles(n=x.shape[-1], dtype=x.dtype)
    launch = rows.launch(poly_bwd, tiles, rows.count, WIDE=wide_of(x.dtype))

    sizes, wide = poly_sum_tiles(dtype=x.dtype), opmath_dtype(x.dtype)
    parts = programs(x.device, -(-rows.count // sizes["BLOCK_M"]), 1)
    add = rows.launch(poly_sums, sizes, parts, WIDE=wide_of(x.dtype))
    makes = {"dx": like(x), **sums, "share": OutputSpec.of((rows.count, 4), wide)}
    makes |= {"dw": OutputSpec.of((parts, 3), wide), "db": OutputSpec.of((parts,), wide)}
    totals = [column_sum("dw", "dweight", parts, 3, x.dtype), column_sum("db", "dbias", parts, 1, x.dtype)]
    return Plan(makes, [launch, add, *totals], [*rows.strided, *strided(weight=weight, rstd=rstd)])


# ---- dynamic tanh ---------------------------------------------------------------------------------------------------


def _dyt_fwd(
    x_ptr,
    alpha_ptr,
    gamma_ptr,
    beta_ptr,
    y_ptr,
    x_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m = (i_m < n_rows) & (o_n < n)
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
    b_y = tanh(tl.load(alpha_ptr).to(WIDE) * b_x) * tl.load(gamma_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
    if beta_ptr is not None:
        b_y += tl.load(beta_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _dyt_bwd(
    dy_ptr,
    x_ptr,
    alpha_ptr,
    gamma_ptr,
    dx_ptr,
    da_ptr,
    dg_ptr,
    db_ptr,
    dy_stride,
    x_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx of a column block in every P-th row block, and sums over these rows.

    The sum is a single number for dalpha, and one number per column for dgamma and dbeta.
    """
    pid = tl.program_id(0)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    alpha = tl.load(alpha_ptr).to(WIDE)
    b_gamma = tl.load(gamma_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
    b_a = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_g = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_b = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(pid * BLOCK_M, n_rows, tl.num_programs(0) * BLOCK_M):
        i_m = (at + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
        m = (i_m < n_rows) & (o_n < n)
        b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        b_t = tanh(alpha * b_x)
        b_s = b_dy * b_gamma * (1.0 - b_t * b_t)
        tl.store(dx_ptr + i_m * n + o_n, (b_s * alpha).to(dx_ptr.dtype.element_ty), mask=m)
        b_a += tl.where(m, b_s * b_x, 0.0)  # masked lanes may be infinite or NaN
        b_g += b_dy * b_t
        b_b += b_dy
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = pid.to(tl.int64) * n + o
    tl.store(da_ptr + pid * tl.num_programs(1) + tl.program_id(1), tl.sum(tl.sum(b_a, 1), 0))
    tl.store(dg_ptr + at, tl.sum(b_g, 0), mask=o < n)
    tl.store(db_ptr + at, tl.sum(b_b, 0), mask=o < n)


dyt_fwd = Launcher(_dyt_fwd, sizes="x_stride n")
dyt_bwd_kernel = Launcher(_dyt_bwd, sizes="dy_stride x_stride n")


@tunable("dyt.forward")
def dyt_tiles(n: int, dtype: torch.dtype) -> Tiles:
    block = min(max(triton.next_power_of_2(n), 16), 2048)
    return Tiles(256, BLOCK_M=max(1, 4096 // block), BLOCK_N=block)


@tunable("dyt.backward")
def dyt_backward_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Blocks are small, because registers also hold three sums per column."""
    block = min(max(triton.next_power_of_2(n), 16), 512)
    return Tiles(256, BLOCK_M=max(1, 2048 // block), BLOCK_N=block)


@planned(spec.dyt)
def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Plan:
    makes = {"y": OutputSpec.of(x.shape, x.dtype)}
    if not x.numel():
        return Plan(makes)
    rows, tiles = RowSizes.of(x=x), dyt_tiles(n=x.shape[-1], dtype=x.dtype)
    grid = (-(-rows.count // tiles["BLOCK_M"]), -(-rows.n // tiles["BLOCK_N"]))
    launch = rows.launch(dyt_fwd, tiles, *grid, WIDE=wide_of(x.dtype))
    return Plan(makes, [launch], [*rows.strided, *strided(alpha=alpha, gamma=gamma, beta=beta)])


@planned(spec.dyt_bwd)
def dyt_bwd(dy: Tensor, x: Tensor, alpha: Tensor, gamma: Tensor) -> Plan:
    like = lambda t: OutputSpec.of(t.shape, t.dtype)
    sums = {"dalpha": like(alpha), "dgamma": like(gamma), "dbeta": like(gamma)}
    if not x.numel():
        return Plan({"dx": like(x), **{name: Zeros(output) for name, output in sums.items()}})
    rows, tiles = RowSizes.of(dy=dy, x=x), dyt_backward_tiles(n=x.shape[-1], dtype=x.dtype)
    blocks = -(-rows.n // tiles["BLOCK_N"])
    count = programs(x.device, -(-rows.count // tiles["BLOCK_M"]), max(1, 8 // blocks))
    launch: Launch = rows.launch(dyt_bwd_kernel, tiles, count, blocks, WIDE=wide_of(x.dtype))
    partial = OutputSpec.of((count, rows.n), opmath_dtype(x.dtype))

    totals = [column_sum(a, b, count, rows.n, x.dtype) for a, b in (("dg", "dgamma"), ("db", "dbeta"))]
    steps = [launch, *totals, column_sum("da", "dalpha", count * blocks, 1, x.dtype)]
    makes = {"dx": like(x), **sums, "da": OutputSpec.of((count * blocks,), partial.dtype), "dg": partial, "db": partial}
    return Plan(makes, steps, [*rows.strided, *strided(alpha=alpha, gamma=gamma)])
