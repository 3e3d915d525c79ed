"""Residual connections: a program computes one row in pieces of columns, each with all blocks or streams of the row.

If a coefficient must be computed first, rows are read twice, the second time from cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.tensors import opmath_dtype
from ..specs import residual as spec
from .lib.column_sum import column_sum
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, planned, strided
from .lib.launch import Launcher
from .lib.rows import OutputSpec, programs, wide_of

# ---- attention residual ---------------------------------------------------------------------------------------------


@triton.jit
def _query(w_query_ptr, w_norm_ptr, o_n, n, WIDE: tl.constexpr):
    """Some columns of w_query * w_norm."""
    b_query = tl.load(w_query_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
    return b_query * tl.load(w_norm_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)


@triton.jit
def _columns(v_ptr, at, at_row, o_b, n_blocks, n, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """BLOCK_N columns of all blocks of a row, their offsets in v, their mask, and the indices of the columns."""
    o_n = at + tl.arange(0, BLOCK_N)
    m = (o_b < n_blocks)[:, None] & (o_n < n)[None, :]
    o_v = at_row[:, None] * n + o_n[None, :]
    return tl.load(v_ptr + o_v, mask=m, other=0.0).to(WIDE), o_v, m, o_n


def _attn(
    v_ptr,
    w_query_ptr,
    w_norm_ptr,
    y_ptr,
    alpha_ptr,
    rstd_ptr,
    n_blocks,
    n_rows,
    n,
    eps,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_b = tl.arange(0, BLOCKS)
    at_row = o_b.to(tl.int64) * n_rows + row
    b_squares = tl.zeros([BLOCKS], WIDE)
    b_dots = tl.zeros([BLOCKS], WIDE)
    for at in range(0, n, BLOCK_N):
        b_v, _, _, o_n = _columns(v_ptr, at, at_row, o_b, n_blocks, n, WIDE, BLOCK_N)
        b_squares += tl.sum(b_v * b_v, 1)
        b_dots += tl.sum(b_v * _query(w_query_ptr, w_norm_ptr, o_n, n, WIDE)[None, :], 1)
    b_rstd = 1.0 / tl.sqrt(b_squares / n + eps)
    b_scores = tl.where(o_b < n_blocks, b_dots * b_rstd, -float("inf"))
    b_alpha = tl.exp(b_scores - tl.max(b_scores, 0))
    b_alpha = b_alpha / tl.sum(b_alpha, 0)
    tl.store(alpha_ptr + at_row, b_alpha, mask=o_b < n_blocks)
    tl.store(rstd_ptr + at_row, b_rstd, mask=o_b < n_blocks)
    for at in range(0, n, BLOCK_N):
        b_v, _, _, o_n = _columns(v_ptr, at, at_row, o_b, n_blocks, n, WIDE, BLOCK_N)
        b_y = tl.sum(b_alpha[:, None] * b_v, 0)
        tl.store(y_ptr + row * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=o_n < n)


def _attn_bwd(
    dy_ptr,
    v_ptr,
    w_query_ptr,
    w_norm_ptr,
    alpha_ptr,
    rstd_ptr,
    dv_ptr,
    t_ptr,
    n_blocks,
    n_rows,
    n,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dv, and a factor t for each row of v: the gradient of the query is the sum of all t * row."""
    row = tl.program_id(0).to(tl.int64)
    o_b = tl.arange(0, BLOCKS)
    at_row = o_b.to(tl.int64) * n_rows + row
    b_alpha = tl.load(alpha_ptr + at_row, mask=o_b < n_blocks, other=0.0).to(WIDE)
    b_rstd = tl.load(rstd_ptr + at_row, mask=o_b < n_blocks, other=0.0).to(WIDE)
    b_grads = tl.zeros([BLOCKS], WIDE)
    b_dots = tl.zeros([BLOCKS], WIDE)
    for at in range(0, n, BLOCK_N):
        b_v, _, _, o_n = _columns(v_ptr, at, at_row, o_b, n_blocks, n, WIDE, BLOCK_N)
        b_g = tl.load(dy_ptr + row * n + o_n, mask=o_n < n, other=0.0).to(WIDE)
        b_grads += tl.sum(b_v * b_g[None, :], 1)
        b_dots += tl.sum(b_v * _query(w_query_ptr, w_norm_ptr, o_n, n, WIDE)[None, :], 1)
    b_t = b_alpha * (b_grads - tl.sum(b_alpha * b_grads, 0)) * b_rstd
    b_along = b_t * b_rstd * b_rstd * (b_dots / n)
    tl.store(t_ptr + at_row, b_t, mask=o_b < n_blocks)
    for at in range(0, n, BLOCK_N):
        b_v, o_v, m, o_n = _columns(v_ptr, at, at_row, o_b, n_blocks, n, WIDE, BLOCK_N)
        b_g = tl.load(dy_ptr + row * n + o_n, mask=o_n < n, other=0.0).to(WIDE)
        b_q = _query(w_query_ptr, w_norm_ptr, o_n, n, WIDE)
        b_dv = b_alpha[:, None] * b_g[None, :] + b_t[:, None] * b_q[None, :] - b_along[:, None] * b_v
        tl.store(dv_ptr + o_v, b_dv.to(dv_ptr.dtype.element_ty), mask=m)


def _weighted_sum(
    v_ptr, t_ptr, share_ptr, n_rows, n, n_parts, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The sum of all t * row. A program adds some of the rows, for a piece of the columns."""
    part = tl.program_id(1)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    b_total = tl.zeros([BLOCK_M, BLOCK_N], WIDE)
    for at in range(part * BLOCK_M, n_rows, n_parts * BLOCK_M):
        i_m = at + tl.arange(0, BLOCK_M)
        m = (i_m < n_rows)[:, None] & (o_n < n)[None, :]
        b_v = tl.load(v_ptr + i_m.to(tl.int64)[:, None] * n + o_n[None, :], mask=m, other=0.0).to(WIDE)
        b_total += b_v * tl.load(t_ptr + i_m, mask=i_m < n_rows, other=0.0).to(WIDE)[:, None]
    tl.store(share_ptr + part.to(tl.int64) * n + o_n, tl.sum(b_total, 0), mask=o_n < n)


def _weights(dq_ptr, w_query_ptr, w_norm_ptr, dw_query_ptr, dw_norm_ptr, n, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The gradients of w_query and of w_norm, from the gradient of their product."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_dq = tl.load(dq_ptr + o, mask=o < n).to(WIDE)
    b_query = b_dq * tl.load(w_norm_ptr + o, mask=o < n).to(WIDE)
    b_norm = b_dq * tl.load(w_query_ptr + o, mask=o < n).to(WIDE)
    tl.store(dw_query_ptr + o, b_query.to(dw_query_ptr.dtype.element_ty), mask=o < n)
    tl.store(dw_norm_ptr + o, b_norm.to(dw_norm_ptr.dtype.element_ty), mask=o < n)


attn = Launcher(_attn, sizes="n")
attn_bwd = Launcher(_attn_bwd, sizes="n")
weighted_sum = Launcher(_weighted_sum, sizes="n")
weights = Launcher(_weights, sizes="n")


@tunable("residual.rows", free="BLOCK_N")
def row_tiles(blocks: int, n: int, dtype: torch.dtype) -> Tiles:
    """A tile is a piece of all blocks (or pairs of streams) of a row: a few thousand elements."""
    most = max(16, 16384 // max(dtype.itemsize, 2) // triton.next_power_of_2(blocks))
    return Tiles(128, BLOCK_N=min(triton.next_power_of_2(n), most))


@tunable("residual.sum", free="BLOCK_M BLOCK_N")
def sum_tiles(n: int, dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK_M=16, BLOCK_N=min(triton.next_power_of_2(n), 512 // max(dtype.itemsize, 2)))


@tunable("residual.weights", free="BLOCK")
def weight_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=512)


@planned(spec.attn_res)
def attn_res(v: Tensor, w_query: Tensor, w_norm: Tensor) -> Plan:
    blocks, n, lead = v.shape[0], v.shape[-1], v.shape[1:-1]
    wide = opmath_dtype(v.dtype)
    makes = {"y": OutputSpec.of(v.shape[1:], v.dtype)}
    makes |= dict.fromkeys(("alpha", "rstd"), OutputSpec.of((blocks, *lead), wide))
    rows = lead.numel()
    if not rows:
        return Plan(makes)
    tiles = row_tiles(blocks=blocks, n=n, dtype=v.dtype)
    config = tiles.config(WIDE=wide_of(v.dtype), BLOCKS=triton.next_power_of_2(blocks))
    launch = Launch(attn, (rows,), config, dict(n_blocks=blocks, n_rows=rows, n=n))
    return Plan(makes, [launch], strided(v=v, w_query=w_query, w_norm=w_norm))


@planned(spec.attn_res_bwd)
def attn_res_bwd(dy: Tensor, v: Tensor, w_query: Tensor, w_norm: Tensor, alpha: Tensor, rstd: Tensor) -> Plan:
    blocks, n, rows = v.shape[0], v.shape[-1], v.shape[1:-1].numel()
    wide = opmath_dtype(v.dtype)
    sums = sum_tiles(n=n, dtype=v.dtype)
    columns = -(-n // sums["BLOCK_N"])
    parts = programs(v.device, max(1, -(-blocks * rows // sums["BLOCK_M"])), max(1, 8 // columns))
    makes = {
        "dv": OutputSpec.of(v.shape, v.dtype),
        "t": OutputSpec.of((blocks * rows,), wide),
        "share": OutputSpec.of((parts, n), wide),
        "dq": OutputSpec.of((n,), wide),
        "dw_query": OutputSpec.of((n,), w_query.dtype),
        "dw_norm": OutputSpec.of((n,), w_norm.dtype),
    }
    tiles = row_tiles(blocks=blocks, n=n, dtype=v.dtype)
    config = tiles.config(WIDE=wide_of(v.dtype), BLOCKS=triton.next_power_of_2(blocks))
    numbers = dict(n_blocks=blocks, n_rows=rows, n=n)
    steps = [Launch(attn_bwd, (rows,), config, numbers)] if rows else []
    of_all = dict(n_rows=blocks * rows, n=n, n_parts=parts)
    steps.append(Launch(weighted_sum, (columns, parts), sums.config(WIDE=wide_of(v.dtype)), of_all))
    steps.append(column_sum("share", "dq", parts, n, v.dtype))
    ends = weight_tiles(dtype=v.dtype)
    steps.append(Launch(weights, (-(-n // ends["BLOCK"]),), ends.config(WIDE=wide_of(v.dtype)), dict(n=n)))
    given = strided(dy=dy, v=v, w_query=w_query, w_norm=w_norm, alpha=alpha, rstd=rstd)
    return Plan(makes, steps, given)


# ---- streams --------------------------------------------------------------------------------------------------------


def _pre(x_ptr, h_ptr, y_ptr, streams, n, WIDE: tl.constexpr, STREAMS: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, STREAMS)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = (o_s < streams)[:, None] & (o_n < n)[None, :]
    b_h = tl.load(h_ptr + row * streams + o_s, mask=o_s < streams, other=0.0).to(WIDE)
    b_x = tl.load(x_ptr + (row * streams + o_s)[:, None] * n + o_n[None, :], mask=m, other=0.0).to(WIDE)
    tl.store(y_ptr + row * n + o_n, tl.sum(b_h[:, None] * b_x, 0).to(y_ptr.dtype.element_ty), mask=o_n < n)


def _pre_bwd(
    dy_ptr, x_ptr, h_ptr, dx_ptr, dh_ptr, streams, n, WIDE: tl.constexpr, STREAMS: tl.constexpr, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, STREAMS)
    b_h = tl.load(h_ptr + row * streams + o_s, mask=o_s < streams, other=0.0).to(WIDE)
    b_dh = tl.zeros([STREAMS], WIDE)
    for at in range(0, n, BLOCK_N):
        o_n = at + tl.arange(0, BLOCK_N)
        m = (o_s < streams)[:, None] & (o_n < n)[None, :]
        o_x = (row * streams + o_s)[:, None] * n + o_n[None, :]
        b_g = tl.load(dy_ptr + row * n + o_n, mask=o_n < n, other=0.0).to(WIDE)[None, :]
        b_dh += tl.sum(b_g * tl.load(x_ptr + o_x, mask=m, other=0.0).to(WIDE), 1)
        tl.store(dx_ptr + o_x, (b_h[:, None] * b_g).to(dx_ptr.dtype.element_ty), mask=m)
    tl.store(dh_ptr + row * streams + o_s, b_dh.to(dh_ptr.dtype.element_ty), mask=o_s < streams)


def _post(
    x_ptr,
    f_ptr,
    h_post_ptr,
    h_res_ptr,
    y_ptr,
    streams,
    n,
    WIDE: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, STREAMS)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_s = o_s < streams
    m = m_s[:, None] & (o_n < n)[None, :]
    o_res = (row * streams + o_s)[:, None] * streams + o_s[None, :]
    b_res = tl.load(h_res_ptr + o_res, mask=m_s[:, None] & m_s[None, :], other=0.0).to(WIDE)
    b_post = tl.load(h_post_ptr + row * streams + o_s, mask=m_s, other=0.0).to(WIDE)
    o_x = (row * streams + o_s)[:, None] * n + o_n[None, :]
    b_x = tl.load(x_ptr + o_x, mask=m, other=0.0).to(WIDE)
    b_f = tl.load(f_ptr + row * n + o_n, mask=o_n < n, other=0.0).to(WIDE)
    b_y = tl.sum(b_res[:, :, None] * b_x[None, :, :], 1) + b_post[:, None] * b_f[None, :]
    tl.store(y_ptr + o_x, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _post_bwd(
    dy_ptr,
    x_ptr,
    f_ptr,
    h_post_ptr,
    h_res_ptr,
    dx_ptr,
    df_ptr,
    dh_post_ptr,
    dh_res_ptr,
    streams,
    n,
    WIDE: tl.constexpr,
    STREAMS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_s = tl.arange(0, STREAMS)
    m_s = o_s < streams
    o_res = (row * streams + o_s)[:, None] * streams + o_s[None, :]
    m_res = m_s[:, None] & m_s[None, :]
    b_res = tl.load(h_res_ptr + o_res, mask=m_res, other=0.0).to(WIDE)
    b_post = tl.load(h_post_ptr + row * streams + o_s, mask=m_s, other=0.0).to(WIDE)
    b_dres = tl.zeros([STREAMS, STREAMS], WIDE)
    b_dpost = tl.zeros([STREAMS], WIDE)
    for at in range(0, n, BLOCK_N):
        o_n = at + tl.arange(0, BLOCK_N)
        m = m_s[:, None] & (o_n < n)[None, :]
        o_x = (row * streams + o_s)[:, None] * n + o_n[None, :]
        b_g = tl.load(dy_ptr + o_x, mask=m, other=0.0).to(WIDE)
        b_x = tl.load(x_ptr + o_x, mask=m, other=0.0).to(WIDE)
        b_f = tl.load(f_ptr + row * n + o_n, mask=o_n < n, other=0.0).to(WIDE)
        b_dres += tl.sum(b_g[:, None, :] * b_x[None, :, :], 2)
        b_dpost += tl.sum(b_g * b_f[None, :], 1)
        b_dx = tl.sum(b_res[:, :, None] * b_g[:, None, :], 0)
        tl.store(dx_ptr + o_x, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
        b_df = tl.sum(b_post[:, None] * b_g, 0)
        tl.store(df_ptr + row * n + o_n, b_df.to(df_ptr.dtype.element_ty), mask=o_n < n)
    tl.store(dh_res_ptr + o_res, b_dres.to(dh_res_ptr.dtype.element_ty), mask=m_res)
    tl.store(dh_post_ptr + row * streams + o_s, b_dpost.to(dh_post_ptr.dtype.element_ty), mask=m_s)


pre, pre_bwd = Launcher(_pre, sizes="n"), Launcher(_pre_bwd, sizes="n")
post, post_bwd = Launcher(_post, sizes="n"), Launcher(_post_bwd, sizes="n")


def _streams(
    kernel: Launcher, makes: dict[str, OutputSpec], x: Tensor, pairs: bool, whole: bool, **tensors: Tensor
) -> Plan:
    """A launch over rows [streams, n]. `pairs`: a tile has all pairs of streams. `whole`: a program has all columns."""
    (streams, n), rows = x.shape[-2:], x.shape[:-2].numel()
    if not rows:
        return Plan(makes)
    tiles = row_tiles(blocks=streams * streams if pairs else streams, n=n, dtype=x.dtype)
    grid = (rows,) if whole else (rows, -(-n // tiles["BLOCK_N"]))
    config = tiles.config(WIDE=wide_of(x.dtype), STREAMS=triton.next_power_of_2(streams))
    return Plan(makes, [Launch(kernel, grid, config, dict(streams=streams, n=n))], strided(x=x, **tensors))


def _like(x: Tensor) -> OutputSpec:
    return OutputSpec.of(x.shape, x.dtype)


@planned(spec.mhc_pre)
def mhc_pre(x: Tensor, h: Tensor) -> Plan:
    makes = {"y": OutputSpec.of((*x.shape[:-2], x.shape[-1]), x.dtype)}
    return _streams(pre, makes, x, False, False, h=h)


@planned(spec.mhc_pre_bwd)
def mhc_pre_bwd(dy: Tensor, x: Tensor, h: Tensor) -> Plan:
    return _streams(pre_bwd, {"dx": _like(x), "dh": _like(h)}, x, False, True, dy=dy, h=h)


@planned(spec.mhc_post_res)
def mhc_post_res(x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Plan:
    return _streams(post, {"y": _like(x)}, x, True, False, f=f, h_post=h_post, h_res=h_res)


@planned(spec.mhc_post_res_bwd)
def mhc_post_res_bwd(dy: Tensor, x: Tensor, f: Tensor, h_post: Tensor, h_res: Tensor) -> Plan:
    makes = {"dx": _like(x), "df": _like(f), "dh_post": _like(h_post), "dh_res": _like(h_res)}
    return _streams(post_bwd, makes, x, True, True, dy=dy, f=f, h_post=h_post, h_res=h_res)


# ---- Sinkhorn -------------------------------------------------------------------------------------------------------

# Several matrices per program, all in registers. For each step, the backward recomputes the matrix before that step
# from the start. For 20 iterations that is ten times the forward's arithmetic, and still faster than storing the
# matrices.


@triton.jit
def _sums(b, m, eps, AXIS: tl.constexpr):
    """The sums along an axis, plus eps; masked sums are 1."""
    return tl.where(tl.max(m.to(tl.int32), AXIS, keep_dims=True) > 0, tl.sum(b, AXIS, keep_dims=True) + eps, 1.0)


@triton.jit
def _softmax(b_logits, m):
    """Softmax over the last axis; masked elements are 0."""
    b_top = tl.max(tl.where(m, b_logits, -float("inf")), 2, keep_dims=True)
    b_e = tl.where(m, tl.exp(b_logits - tl.where(b_top == -float("inf"), 0.0, b_top)), 0.0)
    return b_e / tl.where(tl.max(m.to(tl.int32), 2, keep_dims=True) > 0, tl.sum(b_e, 2, keep_dims=True), 1.0)


@triton.jit
def _after(b_p, m, steps, eps):
    """The matrix after `steps` steps.

    First the columns are normalized; then each step normalizes rows, then columns.
    """
    b_h = tl.where(m, b_p + eps, 0.0)
    b_h = b_h / _sums(b_h, m, eps, 1)
    for _ in range(steps):
        b_h = b_h / _sums(b_h, m, eps, 2)
        b_h = b_h / _sums(b_h, m, eps, 1)
    return b_h


@triton.jit
def _offsets(n_rows, n, BLOCK_M: tl.constexpr, SIDE: tl.constexpr):
    i_m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None, None]
    o_r, o_c = tl.arange(0, SIDE)[None, :, None], tl.arange(0, SIDE)[None, None, :]
    return (i_m * n + o_r) * n + o_c, (i_m < n_rows) & (o_r < n) & (o_c < n)


def _sinkhorn(
    logits_ptr, h_ptr, n_rows, n, iterations, eps, WIDE: tl.constexpr, SIDE: tl.constexpr, BLOCK_M: tl.constexpr
):
    o, m = _offsets(n_rows, n, BLOCK_M, SIDE)
    b_p = _softmax(tl.load(logits_ptr + o, mask=m, other=0.0).to(WIDE), m)
    tl.store(h_ptr + o, _after(b_p, m, iterations - 1, eps).to(h_ptr.dtype.element_ty), mask=m)


def _sinkhorn_bwd(
    dh_ptr,
    logits_ptr,
    dlogits_ptr,
    n_rows,
    n,
    iterations,
    eps,
    WIDE: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    o, m = _offsets(n_rows, n, BLOCK_M, SIDE)
    b_p = _softmax(tl.load(logits_ptr + o, mask=m, other=0.0).to(WIDE), m)
    b_g = tl.load(dh_ptr + o, mask=m, other=0.0).to(WIDE)
    for done in range(1, iterations):
        b_h = _after(b_p, m, iterations - 1 - done, eps)
        b_by_row = _sums(b_h, m, eps, 2)
        b_row = b_h / b_by_row
        b_by_column = _sums(b_row, m, eps, 1)
        b_column = b_row / b_by_column
        b_g = (b_g - tl.sum(b_g * b_column, 1, keep_dims=True)) / b_by_column
        b_g = (b_g - tl.sum(b_g * b_row, 2, keep_dims=True)) / b_by_row
    b_h = tl.where(m, b_p + eps, 0.0)
    b_by = _sums(b_h, m, eps, 1)
    b_g = (b_g - tl.sum(b_g * (b_h / b_by), 1, keep_dims=True)) / b_by
    b_g = b_p * (b_g - tl.sum(b_g * b_p, 2, keep_dims=True))
    tl.store(dlogits_ptr + o, b_g.to(dlogits_ptr.dtype.element_ty), mask=m)


balance, balance_bwd = Launcher(_sinkhorn, sizes=""), Launcher(_sinkhorn_bwd, sizes="")
LARGEST = 32  # matrices with at most this many rows fit in registers


@tunable("residual.sinkhorn", free="BLOCK_M")
def square_tiles(n: int, dtype: torch.dtype) -> Tiles:
    side = triton.next_power_of_2(n)
    return Tiles(128, BLOCK_M=max(1, 1024 // (side * side)))


def _balanced(kernel: Launcher, name: str, x: Tensor, iterations: int, **tensors: Tensor) -> Plan:
    n, rows = x.shape[-1], x.shape[:-2].numel()
    makes = {name: _like(x)}
    if n > LARGEST:
        raise NotSupported(f"matrices of {n} rows; up to {LARGEST} fit")
    if not rows:
        return Plan(makes)
    tiles = square_tiles(n=n, dtype=x.dtype)
    config = tiles.config(WIDE=wide_of(x.dtype), SIDE=triton.next_power_of_2(n))
    numbers = dict(n_rows=rows, n=n, iterations=iterations)
    return Plan(makes, [Launch(kernel, (-(-rows // tiles["BLOCK_M"]),), config, numbers)], strided(logits=x, **tensors))


@planned(spec.sinkhorn)
def sinkhorn(logits: Tensor, iterations: int) -> Plan:
    return _balanced(balance, "h", logits, iterations)


@planned(spec.sinkhorn_bwd)
def sinkhorn_bwd(dh: Tensor, logits: Tensor, iterations: int) -> Plan:
    return _balanced(balance_bwd, "dlogits", logits, iterations, dh=dh)
