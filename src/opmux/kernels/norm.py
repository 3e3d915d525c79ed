"""Norms over the last dimension: one row a program where it fits, in pieces where it does not; float32 inside.

Forward: a row is read once. Backward: a program walks over many rows with the weight's gradient in registers, and a
second kernel adds the programs' shares up in a fixed order, so gradients are the same in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import norm as spec
from .lib.launch import Config, Launcher, per_chip
from .lib.rows import DEVICES, Room, Rows, even_rows, packed, plans, programs, wide_of

# ---- forward --------------------------------------------------------------------------------------------------------


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _normalise(
    b_x, i_m, o_n, m_m, m_n, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr, r_stride, n, eps, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """What becomes of rows that are loaded."""
    m = m_m & m_n
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


def _fwd(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows: y = norm(x [+ r]) * (w + offset) [+ b].

    With AHEAD a program takes rows pid, pid + P, ... and has the next on their way while it computes: where one program
    fills a core, nobody else hides the wait. (A loop that runs once costs a third of the speed: two texts.)
    """
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    first = tl.program_id(0) * BLOCK_M
    i_m = (first + o_m).to(tl.int64)
    x_next = tl.load(x_ptr + i_m * x_stride + o_n, mask=(i_m < n_rows) & m_n, other=0.0)
    if AHEAD:
        step = tl.num_programs(0) * BLOCK_M
        for at in range(first, n_rows, step):
            i_m = (at + o_m).to(tl.int64)
            b_x = x_next.to(WIDE)
            i_next = i_m + step
            x_next = tl.load(x_ptr + i_next * x_stride + o_n, mask=(i_next < n_rows) & m_n, other=0.0)
            _normalise(
                b_x, i_m, o_n, i_m < n_rows, m_n, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
                r_stride, n, eps, offset, CENTRED, WIDE,
            )  # fmt: skip
    else:
        _normalise(
            x_next.to(WIDE), i_m, o_n, i_m < n_rows, m_n, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
            r_stride, n, eps, offset, CENTRED, WIDE,
        )  # fmt: skip


def _fwd_pieces(
    x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, s_ptr, mean_ptr, rstd_ptr,
    x_stride, r_stride, n_rows, n, eps, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, HOLD: tl.constexpr, BLOCK_N: tl.constexpr,
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
        var = tl.maximum(var - mean * mean, 0.0)
        mean += shift
        tl.store(mean_ptr + row, mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    tl.store(rstd_ptr + row, rstd)
    b_o = (b_h.to(WIDE) - mean) * rstd * (tl.load(w_ptr + o_h).to(WIDE) + offset)
    if b_ptr is not None:
        b_o += tl.load(b_ptr + o_h).to(WIDE)
    tl.store(y_ptr + o_h, b_o.to(y_ptr.dtype.element_ty))
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
        tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


# ---- backward -------------------------------------------------------------------------------------------------------


def _bwd(
    dy_ptr, ds_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dr_ptr, dw_ptr, db_ptr,
    dy_stride, ds_stride, x_stride, n_rows, n, offset,
    CENTRED: tl.constexpr, WIDE: tl.constexpr, SHARES: tl.constexpr, BIAS: tl.constexpr, AHEAD: tl.constexpr,
    PAIRS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Rows pid, pid + P, ...: dx of each and, with SHARES and BIAS, this program's part of dw and db.

    With AHEAD the next rows are on their way while these are computed. With PAIRS the two sums of a row are one
    reduction: half the waiting, but the interpreter adds pairs one by one.
    """
    pid = tl.program_id(0)
    step = tl.num_programs(0) * BLOCK_M
    o_m = tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m_n = o_n < n
    b_dw = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    b_db = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    i_m = (pid * BLOCK_M + o_m).to(tl.int64)
    m = (i_m < n_rows) & m_n
    if AHEAD:
        x_next = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0)
        dy_next = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0)
    for at in range(pid * BLOCK_M, n_rows, step):
        i_m = (at + o_m).to(tl.int64)
        m_m = i_m < n_rows
        m = m_m & m_n
        if AHEAD:
            b_x, b_dy = x_next.to(WIDE), dy_next.to(WIDE)
            i_next = i_m + step
            m_next = (i_next < n_rows) & m_n
            x_next = tl.load(x_ptr + i_next * x_stride + o_n, mask=m_next, other=0.0)
            dy_next = tl.load(dy_ptr + i_next * dy_stride + o_n, mask=m_next, other=0.0)
        else:
            b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=0.0).to(WIDE)
            b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
        rstd = tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)
        b_w = tl.load(w_ptr + o_n, mask=m_n, other=0.0).to(WIDE) + offset
        if CENTRED:
            b_x = tl.where(m, b_x - tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE), 0.0)
        b_x *= rstd
        if SHARES:
            b_dw += b_dy * b_x
        if BIAS:
            b_db += b_dy
        b_g = b_dy * b_w
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


def _add_up(
    share_ptr, total_ptr, n_parts, n, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """The shares of all programs, in their order."""
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    b_total = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(0, n_parts, BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)[:, None]
        b_total += tl.load(share_ptr + i_m.to(tl.int64) * n + o_n, mask=(i_m < n_parts) & (o_n < n), other=0.0)
    o = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(total_ptr + o, tl.sum(b_total, 0).to(total_ptr.dtype.element_ty), mask=o < n)


# ---- launching ------------------------------------------------------------------------------------------------------

_forward_numbers = dict(tensors=8, sizes="x_stride r_stride n", free="n_rows eps offset")
_backward_numbers = dict(tensors=10, sizes="dy_stride ds_stride x_stride n", free="n_rows offset")
fwd, fwd_pieces = Launcher(_fwd, **_forward_numbers), Launcher(_fwd_pieces, **_forward_numbers)
bwd, bwd_pieces = Launcher(_bwd, **_backward_numbers), Launcher(_bwd_pieces, **_backward_numbers)
bwd_columns = Launcher(_bwd_columns, tensors=6, sizes="dy_stride x_stride n", free="n_rows")
add_up = Launcher(_add_up, tensors=2, sizes="n", free="n_parts")

FORWARD_FITS = 32768  # columns of 16 bits that one program holds in registers
BACKWARD_FITS = 32768  # the same for x and dy; with the bias' gradient to come, half
SHARES_FIT = 16384  # the same, with the weight's gradient beside them
BIAS_FITS = 8192  # and the bias' as well


def fits(columns: int, dtype: torch.dtype) -> int:
    """A limit that is stated for 16 bits, for another dtype: what is computed on is 32 bits wide at least."""
    return columns if dtype.itemsize <= 2 else columns // 2 if dtype.itemsize == 4 else columns // 4


# The numbers below were found on an H200 in bf16; the shares of a copy's speed are in benchmarks/results.


@per_chip
def forward_config(n: int, dtype: torch.dtype, even: bool, centred: bool) -> Config:
    wide = wide_of(dtype)
    if n > fits(FORWARD_FITS, dtype):
        hold = fits(16384 if centred else 32768, dtype)
        return Config(dict(CENTRED=centred, WIDE=wide, HOLD=hold, BLOCK_N=fits(16384, dtype)), threads=1024, even=even)
    block = max(triton.next_power_of_2(n), 16)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    ahead = block == fits(16384 if centred else 32768, dtype)
    threads = 1024 if block >= fits(32768, dtype) or ahead else min(512, max(128, rows * block // 32))
    constants = dict(CENTRED=centred, WIDE=wide, AHEAD=ahead, BLOCK_M=rows, BLOCK_N=block)
    return Config(constants, threads, even=even)


@per_chip
def backward_config(n: int, dtype: torch.dtype, even: bool, centred: bool) -> Config:
    wide = wide_of(dtype)
    block = max(triton.next_power_of_2(n), 16)
    if n > fits(BACKWARD_FITS // 2 if centred else BACKWARD_FITS, dtype):
        return Config(dict(CENTRED=centred, WIDE=wide, BLOCK_N=fits(16384, dtype)), threads=1024, even=even)
    shares, bias = n <= fits(SHARES_FIT, dtype), centred and n <= fits(BIAS_FITS, dtype)
    rows = max(1, 1024 // block)
    if block <= 1024 or (centred and block == 2048):
        threads = 128
    else:
        threads = 256 if block <= 4096 else 512 if block <= 16384 else 1024
    constants = dict(CENTRED=centred, WIDE=wide, SHARES=shares, BIAS=bias, AHEAD=block <= 8192)
    constants |= dict(PAIRS=not triton.knobs.runtime.interpret, BLOCK_M=rows, BLOCK_N=block)
    return Config(constants, threads, even=even)


class Forward(NamedTuple):
    """What a forward will do for tensors that look so: worked out once."""

    outs: tuple[Room | None, ...]  # y, s, mean, rstd
    numbers: tuple[int, ...]  # x_stride, r_stride, n_rows, n
    grid: tuple[int, int, int]
    config: Config | None  # None: nothing to compute
    launch: Launcher
    pack: bool  # whether some tensor must be packed first


@plans
def _plan_forward(
    op: str, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, centred: bool
) -> Forward:
    if residual is not None:
        spec.check_add(x, residual, weight)
    else:
        spec.check(op, x, cols={"weight": weight, "bias": bias})
    given = [t for t in (x, residual, weight, bias) if t is not None]
    pack = not all(even_rows(t) for t in given)
    x, residual = packed(x), None if residual is None else packed(residual)
    n, dtype = x.shape[-1], x.dtype
    at, of = Rows.of(x), None if residual is None else Rows.of(residual)
    stat = torch.float64 if dtype is torch.float64 else torch.float32
    full, column = Room.of(x.shape, dtype), Room.of(x.shape[:-1], stat)
    outs = (full, None if residual is None else full, column if centred else None, column)
    r_stride = 0 if of is None else of.stride
    even = n % 16 == 0 and at.stride % 16 == 0 and r_stride % 16 == 0
    config = forward_config(max(n, 1), dtype, even, centred)
    rows = config.constants.get("BLOCK_M")
    wanted = at.count if rows is None else -(-at.count // rows)
    grid = (programs(x.device, wanted, 1) if config.constants.get("AHEAD") else wanted, 1, 1)
    numbers = (at.stride, r_stride, at.count, n)
    return Forward(outs, numbers, grid, config if at.count and n else None, fwd_pieces if rows is None else fwd, pack)


def _forward(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centred: bool,
) -> tuple[Any, ...]:
    plan = _plan_forward(op, x, residual, weight, bias, centred)
    y, s, mean, rstd = [None if room is None else room.on(x) for room in plan.outs]
    if plan.config is None:
        assert rstd is not None
        rstd.fill_(eps**-0.5)  # rows of nothing have a mean of 0
        return y, s, None if mean is None else mean.zero_(), rstd
    if plan.pack:
        x, weight = packed(x), packed(weight)
        residual, bias = None if residual is None else packed(residual), None if bias is None else packed(bias)
    args = (x, residual, weight, bias, y, s, mean, rstd, *plan.numbers, float(eps), float(offset))
    plan.launch(plan.grid, args, plan.config)
    return y, s, mean, rstd


class Backward(NamedTuple):
    """What a backward will do for tensors that look so."""

    outs: tuple[Room | None, ...]  # dx, dr, dweight, dbias
    shares: tuple[Room | None, ...]  # of the programs: dw, db
    numbers: tuple[int, ...]  # dy_stride, ds_stride, x_stride, n_rows, n
    programs: int  # that compute dx
    parts: tuple[int, ...]  # that have shares of dw, of db
    config: Config | None
    together: tuple[bool, ...]  # whether dw, db come with dx, or from a kernel of their own
    columns: Config
    total: Config
    pack: bool


@plans
def _plan_backward(
    op: str, dy: Tensor, ds: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor | None, rstd: Tensor, twice: bool
) -> Backward:
    full = {"dy": dy} if ds is None else {"dy": dy, "ds": ds}
    stats = {"rstd": rstd} if mean is None else {"mean": mean, "rstd": rstd}
    spec.check(op, x, lead="s" if twice else "x", full=full, cols={"weight": weight}, rows=stats)
    pack = not all(even_rows(t) for t in (dy, ds, x, weight, mean, rstd) if t is not None)
    n, dtype, centred = x.shape[-1], x.dtype, mean is not None
    at, to = Rows.of(packed(x)), Rows.of(packed(dy))
    ds_stride = 0 if ds is None else Rows.of(packed(ds)).stride
    even = all(size % 16 == 0 for size in (n, at.stride, to.stride, ds_stride))
    config = backward_config(max(n, 1), dtype, even, centred)
    rows = config.constants.get("BLOCK_M")
    per_core = 4 if n <= 2048 else 2 if n <= 4096 else 1
    walkers = at.count if rows is None else programs(x.device, -(-at.count // rows), per_core)
    columns = max(1, min(-(-at.count // 8), max(8, 1024 * 512 // max(n, 1))))
    together = (config.constants.get("SHARES", False), config.constants.get("BIAS", False))
    parts = tuple(walkers if inside else columns for inside in together)
    wide = config.constants["WIDE"]
    like_x, like_w = Room.of(x.shape, dtype), Room.of(weight.shape, weight.dtype)
    share = torch.float64 if dtype is torch.float64 else torch.float32
    return Backward(
        (like_x, like_x if twice else None, like_w, like_w if centred else None),
        (Room.of((parts[0], n), share), Room.of((parts[1], n), share) if centred else None),
        (to.stride, ds_stride, at.stride, at.count, n),
        walkers,
        parts,
        config if at.count and n else None,
        together,
        columns_config(wide, even),
        add_config(wide, n % 16 == 0),
        pack,
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
    dx, dr, dweight, dbias = [None if room is None else room.on(x) for room in plan.outs]
    if plan.config is None:
        return dx, dr, dweight.zero_(), None if dbias is None else dbias.zero_()  # type: ignore[union-attr]
    if plan.pack:
        dy, x, weight, rstd = packed(dy), packed(x), packed(weight), rstd.contiguous()
        ds, mean = None if ds is None else packed(ds), None if mean is None else mean.contiguous()
    dw, db = [None if room is None else room.on(x) for room in plan.shares]
    dy_stride, _, x_stride, n_rows, n = plan.numbers
    args = (dy, ds, x, weight, mean, rstd, dx, dr, dw, db, *plan.numbers, float(offset))
    (bwd if "BLOCK_M" in plan.config.constants else bwd_pieces)((plan.programs, 1, 1), args, plan.config)
    alone = [None if inside else share for inside, share in zip(plan.together, (dw, db), strict=True)]
    if alone[0] is not None or alone[1] is not None:
        parts = plan.parts[0] if alone[0] is not None else plan.parts[1]
        columns = (dy, x, mean, rstd, *alone, dy_stride, x_stride, n_rows, n)
        bwd_columns((-(-n // plan.columns.constants["BLOCK_N"]), parts, 1), columns, plan.columns)
    grid = (-(-n // plan.total.constants["BLOCK_N"]), 1, 1)
    add_up(grid, (dw, dweight, plan.parts[0], n), plan.total)
    if dbias is not None:
        add_up(grid, (db, dbias, plan.parts[1], n), plan.total)
    return dx, dr, dweight, dbias


@per_chip
def columns_config(wide: Any, even: bool) -> Config:
    return Config(dict(WIDE=wide, BLOCK_M=8, BLOCK_N=512), threads=128, even=even)


@per_chip
def add_config(wide: Any, even: bool) -> Config:
    return Config(dict(WIDE=wide, BLOCK_M=64, BLOCK_N=32), threads=128, even=even)


# ---- the ops --------------------------------------------------------------------------------------------------------


@impl(spec.rms_norm, devices=DEVICES)
def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    y, _, _, rstd = _forward("rms_norm", x, None, weight, None, eps, offset, False)
    return y, rstd


@impl(spec.rms_norm_bwd, devices=DEVICES)
def rms_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    dx, _, dweight, _ = _backward("rms_norm_bwd", dy, None, x, weight, None, rstd, offset, False)
    return dx, dweight


@impl(spec.add_rms_norm, devices=DEVICES)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float) -> Any:
    y, s, _, rstd = _forward("add_rms_norm", x, residual, weight, None, eps, offset, False)
    return y, s, rstd


@impl(spec.add_rms_norm_bwd, devices=DEVICES)
def add_rms_norm_bwd(dy: Tensor, ds: Tensor, s: Tensor, weight: Tensor, rstd: Tensor, offset: float) -> Any:
    dx, dr, dweight, _ = _backward("add_rms_norm_bwd", dy, ds, s, weight, None, rstd, offset, True)
    return dx, dr, dweight


@impl(spec.layer_norm, devices=DEVICES)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float) -> Any:
    y, _, mean, rstd = _forward("layer_norm", x, None, weight, bias, eps, offset, True)
    return y, mean, rstd


@impl(spec.layer_norm_bwd, devices=DEVICES)
def layer_norm_bwd(dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, offset: float) -> Any:
    dx, _, dweight, dbias = _backward("layer_norm_bwd", dy, None, x, weight, mean, rstd, offset, False)
    return dx, dweight, dbias
