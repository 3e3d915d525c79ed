"""Softmax of attention logits, in float32: a program holds a row in registers if it fits, else reads it in pieces.

Causally masked columns are not read, except up to the next multiple of 16: a masked load is wide only if its mask
changes at multiples of 16.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.errors import NotSupported
from ...specs import softmax as spec
from ..lib.config import Tiles, tunable
from ..lib.harness import Launch, Plan, RowSizes, planned
from ..lib.launch import Launcher
from ..lib.rows import OutputSpec, wide_of
from .rows import add_piece, merge_lanes


@triton.jit
def _sum(scale, rest, WIDE: tl.constexpr):
    """The scale: kernels get it as two float32 numbers."""
    return tl.zeros([], WIDE) + scale + rest


@triton.jit
def _wide(i_r, n, queries, o_n, m):
    """The mask of columns of m to load for rows i_r: the causally visible ones, rounded up to a multiple of 16."""
    return m & (o_n < (i_r % queries + (n - queries + 16)) // 16 * 16)


@triton.jit
def _covered(mask_ptr, i_r, o_n, m, b_stride, h_stride, i_stride, heads, queries, COLUMNS: tl.constexpr):
    """Whether the mask hides columns o_n of rows i_r.

    COLUMNS: the mask's column stride, 0 if all columns share a value.
    """
    i_h = i_r // queries
    at = (i_h // heads).to(tl.int64) * b_stride + (i_h % heads).to(tl.int64) * h_stride
    at += (i_r % queries).to(tl.int64) * i_stride
    return tl.load(mask_ptr + at + o_n * COLUMNS, mask=m) != 0


@triton.jit
def _end(row, n, queries, CAUSAL: tl.constexpr):
    """The number of columns of a row that the causal mask leaves visible."""
    end = n
    if CAUSAL:
        end = tl.minimum(tl.maximum(row % queries + 1 + (n - queries), 0), n)
    return end


@triton.jit
def _piece(
    x_ptr, mask_ptr, row, o, n, end, factor, b_stride, h_stride, i_stride, heads, queries,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Columns o of a row multiplied by the factor, -inf where masked; and whether each column is visible."""
    m_x = (o < n) & (o < (end + 15) // 16 * 16)
    m_seen = o < end
    b_x = tl.load(x_ptr + o, mask=m_x, other=0.0, eviction_policy=EVICTION).to(WIDE) * factor
    if mask_ptr is not None:
        covered = _covered(mask_ptr, row, o, m_x, b_stride, h_stride, i_stride, heads, queries, COLUMNS)
        m_seen = m_seen & (covered == 0)
    # The tl.where prevents fusing the product with the subtraction of the maximum. If fused, x * factor - top is not 0
    # at the maximum, but the rounding error of top, which is in the hundreds if x is above 1e10.
    return tl.where(m_seen, b_x, -float("inf")), m_seen


@triton.jit
def _zero_from(y_ptr, end, n, BLOCK_N: tl.constexpr):
    """Store zeros in the blocks of a row after the one that contains `end`."""
    o_n = tl.arange(0, BLOCK_N)
    for at in range(tl.cdiv(end, BLOCK_N) * BLOCK_N, n, BLOCK_N):
        tl.store(y_ptr + at + o_n, tl.zeros([BLOCK_N], y_ptr.dtype.element_ty), mask=at + o_n < n)


def _fwd(
    x_ptr,
    mask_ptr,
    y_ptr,
    x_stride,
    b_stride,
    h_stride,
    i_stride,
    n_rows,
    heads,
    queries,
    n,
    scale,
    rest,
    CAUSAL: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i_m = i_r.to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_r < n_rows) & (o_n < n)
    m_x = m
    m_seen = m
    if CAUSAL:
        m_x = _wide(i_r, n, queries, o_n, m)
        m_seen = m & (o_n <= i_r % queries + (n - queries))
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m_x, other=0.0).to(WIDE) * _sum(scale, rest, WIDE)
    if mask_ptr is not None:
        covered = _covered(mask_ptr, i_r, o_n, m_x, b_stride, h_stride, i_stride, heads, queries, COLUMNS)
        m_seen = m_seen & (covered == 0)
    b_x = tl.where(m_seen, b_x, -float("inf"))
    b_e = tl.exp(b_x - tl.max(b_x, 1)[:, None])
    b_y = tl.where(m_seen, b_e / tl.sum(b_e, 1)[:, None], 0.0)
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _fwd_pieces(
    x_ptr,
    mask_ptr,
    y_ptr,
    x_stride,
    b_stride,
    h_stride,
    i_stride,
    n_rows,
    heads,
    queries,
    n,
    scale,
    rest,
    CAUSAL: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Pass 1 computes max and sum of the visible columns; pass 2 reads these columns again, from L2."""
    row = tl.program_id(0)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row.to(tl.int64) * x_stride
    y_ptr += row.to(tl.int64) * n
    factor = _sum(scale, rest, WIDE)
    end = _end(row, n, queries, CAUSAL)
    b_top = tl.full([BLOCK_N], -float("inf"), WIDE)
    b_sum = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, end, BLOCK_N):
        b_x, _ = _piece(
            x_ptr, mask_ptr, row, at + o_n, n, end, factor, b_stride, h_stride, i_stride, heads, queries,
            COLUMNS, WIDE, "evict_last",
        )  # fmt: skip
        b_top, b_sum = add_piece(b_top, b_sum, b_x)
    top, total = merge_lanes(b_top, b_sum)
    for at in range(0, end, BLOCK_N):
        b_x, m_seen = _piece(
            x_ptr, mask_ptr, row, at + o_n, n, end, factor, b_stride, h_stride, i_stride, heads, queries,
            COLUMNS, WIDE, "evict_first",
        )  # fmt: skip
        b_y = tl.where(m_seen, tl.exp(b_x - top) / total, 0.0)
        tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=at + o_n < n)
    if CAUSAL:
        _zero_from(y_ptr, end, n, BLOCK_N)


def _bwd(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_stride,
    y_stride,
    n_rows,
    queries,
    n,
    scale,
    rest,
    CAUSAL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    i_m = i_r.to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_r < n_rows) & (o_n < n)
    m_y = _wide(i_r, n, queries, o_n, m) if CAUSAL else m
    b_y = tl.load(y_ptr + i_m * y_stride + o_n, mask=m_y, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m_y, other=0.0).to(WIDE)
    if CAUSAL:
        m_seen = o_n <= i_r % queries + (n - queries)
        b_y = tl.where(m_seen, b_y, 0.0)
        b_dy = tl.where(m_seen, b_dy, 0.0)
    b_dx = _sum(scale, rest, WIDE) * (b_y * (b_dy - tl.sum(b_dy * b_y, 1)[:, None]))
    if CAUSAL:
        b_dx = tl.where(m_seen, b_dx, 0.0)
    tl.store(dx_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _bwd_pieces(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_stride,
    y_stride,
    n_rows,
    queries,
    n,
    scale,
    rest,
    CAUSAL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0)
    o_n = tl.arange(0, BLOCK_N)
    dy_ptr += row.to(tl.int64) * dy_stride
    y_ptr += row.to(tl.int64) * y_stride
    dx_ptr += row.to(tl.int64) * n
    end = _end(row, n, queries, CAUSAL)
    edge = (end + 15) // 16 * 16
    b_sum = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, end, BLOCK_N):
        o = at + o_n
        m = (o < n) & (o < edge)
        b_y = tl.load(y_ptr + o, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_dy = tl.load(dy_ptr + o, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        b_sum += tl.where(o < end, b_dy * b_y, 0.0)
    total = tl.sum(b_sum, 0)
    for at in range(0, end, BLOCK_N):
        o = at + o_n
        m = (o < n) & (o < edge)
        b_y = tl.load(y_ptr + o, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_dy = tl.load(dy_ptr + o, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_dx = tl.where(o < end, _sum(scale, rest, WIDE) * (b_y * (b_dy - total)), 0.0)
        tl.store(dx_ptr + o, b_dx.to(dx_ptr.dtype.element_ty), mask=o < n)
    if CAUSAL:
        _zero_from(dx_ptr, end, n, BLOCK_N)


_sizes, _bwd_sizes = "x_stride b_stride h_stride i_stride n", "dy_stride y_stride n"
fwd, fwd_pieces = Launcher(_fwd, sizes=_sizes), Launcher(_fwd_pieces, sizes=_sizes)
bwd, bwd_pieces = Launcher(_bwd, sizes=_bwd_sizes), Launcher(_bwd_pieces, sizes=_bwd_sizes)

# Itemsize -> how many columns one program can hold in registers: in the forward, and in the backward, which reads y and
# dy.
LONGEST, LONGEST_BACK = {2: 32768, 4: 16384, 8: 8192}, {2: 16384, 4: 16384, 8: 8192}


@tunable("masked_softmax.rows")
def row_tiles(n: int, dtype: torch.dtype, backward: bool, causal: bool = False) -> Tiles:
    """A program holds whole rows in registers.

    Causal rows differ in length: one row per program and few threads are 1.2x as fast (H200).
    """
    block = max(triton.next_power_of_2(n), 16)
    if causal and not backward and 512 <= block <= 4096:
        return Tiles(block // 16, BLOCK_M=1, BLOCK_N=block)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    most = (LONGEST_BACK if backward else LONGEST)[dtype.itemsize]
    threads = 1024 if block >= most else min(512, max(128, rows * block // 32))
    return Tiles(threads, BLOCK_M=rows, BLOCK_N=block)


@tunable("masked_softmax.pieces")
def piece_tiles(n: int, dtype: torch.dtype, backward: bool, causal: bool = False) -> Tiles:
    """A program reads a long row in pieces."""
    return Tiles(512, BLOCK_N=LONGEST[dtype.itemsize] // 4)


def _readable(mask: Tensor, shape: torch.Size) -> Tensor:
    """The mask, or a readable copy: the kernel needs a column stride of 1 or 0, and <= 2 dimensions before the rows."""
    if len(shape) > 4:
        return mask.expand(shape).contiguous().flatten(0, -3)
    return mask if mask.dim() == 0 or mask.shape[-1] == 1 or mask.stride(-1) == 1 else mask.contiguous()


def _over_rows(rows: RowSizes, dtype: torch.dtype, backward: bool, numbers: dict[str, int], **constants: Any) -> Launch:
    """The launch over rows, with whole rows in registers if they fit."""
    if rows.count >= 2**31:
        raise NotSupported(f"{rows.count} rows are more than a launch can have")
    whole = rows.n <= (LONGEST_BACK if backward else LONGEST)[dtype.itemsize]
    choose, causal = row_tiles if whole else piece_tiles, constants["CAUSAL"]
    tiles = choose(n=rows.n, dtype=dtype, backward=backward, causal=causal)
    kernel = (bwd if whole else bwd_pieces) if backward else (fwd if whole else fwd_pieces)
    launch = rows.launch(kernel, tiles, *([] if whole else [rows.count]), WIDE=wide_of(dtype), **constants)
    # These kernels have no float64 parameters, so a float64 scale is passed as two float32 numbers, which they add.
    split = {"scale": float32_of, "rest": beyond_float32} if dtype is torch.float64 else {"rest": 0.0}
    return launch._replace(numbers={**launch.numbers, **numbers, **split})


def float32_of(scale: float) -> float:
    return ctypes.c_float(scale).value


def beyond_float32(scale: float) -> float:
    return scale - ctypes.c_float(scale).value


@planned(spec.scaled_softmax)
def scaled_softmax(x: Tensor, mask: Tensor | None, causal: bool) -> Plan:
    makes = {"y": OutputSpec.of(x.shape, x.dtype)}
    if not x.numel():
        return Plan(makes)
    numbers = {"heads": x.shape[1] if x.dim() == 4 else 1, "queries": x.shape[-2]}
    strides, columns, before = [0, 0, 0], 0, {}
    if mask is not None:
        read, shape = _readable(mask, x.shape), x.shape
        if read is not mask:
            before["mask"] = lambda mask: _readable(mask, shape)
        *lead, row, columns = read.expand(x.shape if x.dim() <= 4 else x.flatten(0, -3).shape).stride()
        b_stride, h_stride, *_ = (*lead, 0, 0)
        strides = [b_stride, h_stride, row]
    rows = RowSizes.of(x=x)
    numbers |= dict(zip(("b_stride", "h_stride", "i_stride"), strides))
    launch = _over_rows(rows, x.dtype, False, numbers, CAUSAL=causal, COLUMNS=columns)
    return Plan(makes, [launch], rows.strided, before)


@planned(spec.scaled_softmax_bwd)
def scaled_softmax_bwd(dy: Tensor, y: Tensor, causal: bool) -> Plan:
    makes = {"dx": OutputSpec.of(y.shape, y.dtype)}
    if not y.numel():
        return Plan(makes)
    rows = RowSizes.of(dy=dy, y=y)
    return Plan(makes, [_over_rows(rows, y.dtype, True, {"queries": y.shape[-2]}, CAUSAL=causal)], rows.strided)
