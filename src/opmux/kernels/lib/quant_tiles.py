"""Quantize tiles of a matrix to FP8: load or compute, cast, and write with transposes and scales.

The quantized matrix r is a tensor x, an activation of x, the gradient of an activation, or a norm with known
statistics. The pointers that are not None, VALUE, SLOPE and GATED select one of these. So each scaling mode needs only
one kernel, whatever op it is fused with. With share_ptr, a kernel also writes column sums of its tile for `column_sum`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...specs import quant as spec
from .config import Tiles, tunable
from .fp8 import cast_of
from .harness import Launch
from .launch import Launcher
from .maths import div
from .rows import inside, wide_of

FLOAT_MAX = tl.constexpr(spec.FLOAT_MAX)


# ---- scales ---------------------------------------------------------------------------------------------------------


@triton.jit
def top_of(x, AXIS: tl.constexpr):
    """The largest magnitude along an axis. Ignores NaN: tl.maximum returns the other operand."""
    return tl.maximum(tl.max(tl.abs(x), AXIS), 0.0)


@triton.jit
def scale_of(amax, eps, LARGEST, TOP: tl.constexpr, POW2: tl.constexpr):
    """The scale that maps amax to LARGEST; TOP if that overflows, 1 if amax is 0 or infinite."""
    amax = tl.maximum(amax, eps)
    if POW2:
        # Powers of two need no division: the largest number of both formats is 1.75 * 2^k.
        bits = amax.to(tl.int32, bitcast=True)
        largest = (tl.zeros_like(amax) + LARGEST).to(tl.int32, bitcast=True) >> 23
        exponent = largest + 127 - (bits >> 23) - ((bits & 0x7FFFFF) > 0x600000).to(tl.int32)
        top = (tl.zeros_like(amax) + TOP).to(tl.int32, bitcast=True) >> 23
        exponent = tl.where(exponent > 254, top, exponent)
        exponent = tl.where((amax == 0) | (amax == float("inf")), 127, exponent)
        return (exponent << 23).to(tl.float32, bitcast=True)
    else:
        scale = div(tl.zeros_like(amax) + LARGEST, amax)
        scale = tl.where(scale == float("inf"), TOP, scale)
        return tl.where((amax == 0) | (amax == float("inf")), 1.0, scale)


@triton.jit
def inverse(scale, POW2: tl.constexpr):
    """1 / scale, without a division for powers of two; the inverse of 2^127 is subnormal."""
    if POW2:
        bits = 0x7F000000 - scale.to(tl.int32, bitcast=True)
        return tl.where(bits == 0, 0x400000, bits).to(tl.float32, bitcast=True)
    else:
        return div(tl.zeros_like(scale) + 1.0, scale)


@triton.jit
def exponent_of(amax, LARGEST: tl.constexpr):
    """The E8M0 exponent of amax / LARGEST, rounded up."""
    bits = (amax * (1.0 / LARGEST)).to(tl.int32, bitcast=True)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    round_up = (mantissa > 0) & (exponent < 254) & ((exponent > 0) | (mantissa > 0x400000))
    return tl.where(exponent == 255, 254, exponent + round_up.to(tl.int32))


@triton.jit
def power_of(exponent):
    """2^(exponent - 127) for an int32 exponent from 0 to 254."""
    return tl.where(exponent == 0, 0x400000, exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_at(scale_ptr, parts_ptr, eps, LARGEST: tl.constexpr, POW2: tl.constexpr, PARTS: tl.constexpr):
    """The scale in memory; if PARTS > 0, the scale for the largest of PARTS partial amaxes."""
    if PARTS == 0:
        return tl.load(scale_ptr)
    else:
        return scale_of(tl.max(tl.load(parts_ptr + tl.arange(0, PARTS)), 0), eps, LARGEST, FLOAT_MAX, POW2)


@triton.jit
def raise_to(amax_ptr, amax):
    """Atomic maximum of nonnegative floats.

    Most programs skip the atomic, because memory already has a value at least as large.
    """
    word_ptr = amax_ptr.to(tl.pointer_type(tl.int32))
    word = amax.to(tl.int32, bitcast=True)  # nonnegative floats sort like their bits
    if word > tl.load(word_ptr):
        tl.atomic_max(word_ptr, word, sem="relaxed")


@triton.jit
def noop_set(noop_ptr):
    """Whether the no-op flag is set, so that the kernel must write nothing."""
    if noop_ptr is None:
        return False
    else:
        return tl.load(noop_ptr) != 0.0


# ---- what is quantized ----------------------------------------------------------------------------------------------


@triton.jit
def result(
    x_ptr,
    dy_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    rstd_ptr,
    i_m,
    i_n,
    m_m,
    m_n,
    n,
    offset,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    GATED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A tile of r [rows, n] before rounding; 0 out of bounds.

    With rstd_ptr, r is a norm; else with VALUE or SLOPE an activation or its gradient; else x itself. GATED: a
    row of x is the concatenation of a and b.
    """
    m = m_m[:, None] & m_n[None, :]
    o = i_m[:, None] * n + i_n[None, :]
    if rstd_ptr is not None:
        b_r = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
        if mean_ptr is not None:
            b_r -= tl.load(mean_ptr + i_m, mask=m_m, other=0.0).to(WIDE)[:, None]
        b_r *= tl.load(rstd_ptr + i_m, mask=m_m, other=0.0).to(WIDE)[:, None]
        b_r *= (tl.load(weight_ptr + i_n, mask=m_n, other=0.0).to(WIDE) + offset)[None, :]
        if bias_ptr is not None:
            b_r += tl.load(bias_ptr + i_n, mask=m_n, other=0.0).to(WIDE)[None, :]
        return tl.where(m, b_r, 0.0)
    elif (VALUE is None) and (SLOPE is None):
        return tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
    elif not GATED:
        b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
        if dy_ptr is None:
            return tl.where(m, VALUE(b_x), 0.0)
        else:
            return tl.load(dy_ptr + o, mask=m, other=0.0).to(WIDE) * SLOPE(b_x)
    elif dy_ptr is None:
        o = o + i_m[:, None] * n
        b_a = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
        return VALUE(b_a) * tl.load(x_ptr + o + n, mask=m, other=0.0).to(WIDE)
    else:
        half = n // 2
        second = i_n >= half
        i_h = tl.where(second, i_n - half, i_n)
        o = i_m[:, None] * n + i_h[None, :]
        b_a = tl.load(x_ptr + o, mask=m, other=0.0).to(WIDE)
        b_b = tl.load(x_ptr + o + half, mask=m, other=0.0).to(WIDE)
        b_dy = tl.load(dy_ptr + i_m[:, None] * half + i_h[None, :], mask=m, other=0.0).to(WIDE)
        return tl.where(second[None, :], b_dy * VALUE(b_a), b_dy * b_b * SLOPE(b_a))


@triton.jit
def narrow(b_r, x_ptr, ROUND: tl.constexpr):
    """r in float32; with ROUND, first rounded to the dtype of x."""
    if ROUND:
        b_r = b_r.to(x_ptr.dtype.element_ty)
    return b_r.to(tl.float32)


@triton.jit
def summed_tile(
    x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, share_ptr, i_m, i_n, m_m, m_n, n, offset,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A tile of r after `narrow`. If share_ptr is given, stores the tile's column sums there, in row program_id(1)."""
    b_r = result(
        x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, i_m, i_n, m_m, m_n, n, offset,
        VALUE, SLOPE, GATED, WIDE,
    )  # fmt: skip
    if share_ptr is not None:
        tl.store(share_ptr + tl.program_id(1).to(tl.int64) * n + i_n, tl.sum(b_r, 0), mask=m_n)
    return narrow(b_r, x_ptr, ROUND)


# ---- one scale ------------------------------------------------------------------------------------------------------


def _amax_of(
    x_ptr,
    dy_ptr,
    parts_ptr,
    n_rows,
    n,
    offset,
    VALUE: tl.constexpr,
    SLOPE: tl.constexpr,
    GATED: tl.constexpr,
    ROUND: tl.constexpr,
    WIDE: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Each program writes the largest magnitude of its tiles of r."""
    across = tl.cdiv(n, BLOCK_N)
    b_top = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK_M) * across, tl.num_programs(0)):
        i_m = (at // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        i_n = (at % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
        b_r = result(x_ptr, dy_ptr, None, None, None, None, i_m, i_n, m_m, m_n, n, offset, VALUE, SLOPE, GATED, WIDE)
        b_top = tl.maximum(b_top, tl.abs(narrow(b_r, x_ptr, ROUND)))
    tl.store(parts_ptr + tl.program_id(0), top_of(top_of(b_top, 1), 0))


def _cast_transposed(
    x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr,
    scale_ptr, y_ptr, yt_ptr, scale_inv_ptr, amax_ptr, share_ptr, noop_ptr, n_rows, n, offset, eps,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, WIDE: tl.constexpr,
    CAST: tl.constexpr, LARGEST: tl.constexpr, POW2: tl.constexpr, PARTS: tl.constexpr, FULL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write a tile of y = fp8(r * scale), of y^T, or both. scale_ptr holds the scale, or PARTS partial amaxes."""
    if noop_set(noop_ptr):
        return
    i_m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
    m = m_m[:, None] & m_n[None, :]
    o = i_m[:, None] * n + i_n[None, :]
    b_x = summed_tile(
        x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, share_ptr, i_m, i_n, m_m, m_n, n, offset,
        VALUE, SLOPE, GATED, ROUND, WIDE,
    )  # fmt: skip
    scale = scale_at(scale_ptr, scale_ptr, eps, LARGEST, POW2, PARTS)
    b_y = CAST(b_x * scale)
    if y_ptr is not None:
        tl.store(y_ptr + o, b_y, mask=m)
    if yt_ptr is not None:
        tl.store(yt_ptr + i_n[:, None] * n_rows + i_m[None, :], tl.trans(b_y), mask=m_n[:, None] & m_m[None, :])
    if amax_ptr is not None:
        raise_to(amax_ptr, top_of(top_of(b_x, 1), 0))
    if scale_inv_ptr is not None:
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(scale_inv_ptr, inverse(scale, POW2))


# ---- scales of blocks -----------------------------------------------------------------------------------------------


def _blocks(
    x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr,
    y_ptr, y_scale_ptr, yt_ptr, yt_scale_ptr, share_ptr, noop_ptr, n_rows, n, y_stride, yt_stride, offset, eps,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, WIDE: tl.constexpr,
    CAST: tl.constexpr, LARGEST: tl.constexpr, TOP: tl.constexpr, POW2: tl.constexpr, TWO_D: tl.constexpr,
    FULL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a tile of 128 x 128 with one scale for each row and each column, or with one scale (TWO_D)."""
    if noop_set(noop_ptr):
        return
    at_m, at_n = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    i_m, i_n = at_m * BLOCK + tl.arange(0, BLOCK), at_n * BLOCK + tl.arange(0, BLOCK)
    m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
    m = m_m[:, None] & m_n[None, :]
    o = i_m[:, None] * n + i_n[None, :]
    o_t, m_t = i_n[:, None] * n_rows + i_m[None, :], m_n[:, None] & m_m[None, :]
    b_x = summed_tile(
        x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, share_ptr, i_m, i_n, m_m, m_n, n, offset,
        VALUE, SLOPE, GATED, ROUND, WIDE,
    )  # fmt: skip
    if TWO_D:
        scale = scale_of(top_of(top_of(b_x, 1), 0), eps, LARGEST, TOP, POW2)
        b_y = CAST(b_x * scale)
        if y_ptr is not None:
            tl.store(y_ptr + o, b_y, mask=m)
            tl.store(y_scale_ptr + at_m * y_stride + at_n, inverse(scale, POW2))
        if yt_ptr is not None:
            tl.store(yt_ptr + o_t, tl.trans(b_y), mask=m_t)
            tl.store(yt_scale_ptr + at_n * yt_stride + at_m, inverse(scale, POW2))
    else:
        if y_ptr is not None:
            b_scale = scale_of(top_of(b_x, 1), eps, LARGEST, TOP, POW2)
            tl.store(y_ptr + o, CAST(b_x * b_scale[:, None]), mask=m)
            tl.store(y_scale_ptr + at_n * y_stride + i_m, inverse(b_scale, POW2), mask=m_m)
        if yt_ptr is not None:
            b_scale = scale_of(top_of(b_x, 0), eps, LARGEST, TOP, POW2)
            tl.store(yt_ptr + o_t, tl.trans(CAST(b_x * b_scale[None, :])), mask=m_t)
            tl.store(yt_scale_ptr + at_m * yt_stride + i_n, inverse(b_scale, POW2), mask=m_n)


def _mx(
    x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr,
    y_ptr, y_scale_ptr, yc_ptr, yc_scale_ptr, share_ptr, noop_ptr, n_rows, n, y_stride, yc_stride, offset,
    VALUE: tl.constexpr, SLOPE: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, WIDE: tl.constexpr,
    CAST: tl.constexpr, LARGEST: tl.constexpr, TWO_D: tl.constexpr, FULL: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write a tile of MXFP8 with E8M0 scales for blocks of 32, along rows (y), along columns (yc), or both."""
    if noop_set(noop_ptr):
        return
    M_BLOCKS: tl.constexpr = BLOCK_M // 32
    N_BLOCKS: tl.constexpr = BLOCK_N // 32
    at_m, at_n = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    i_m, i_n = at_m * BLOCK_M + tl.arange(0, BLOCK_M), at_n * BLOCK_N + tl.arange(0, BLOCK_N)
    i_mb, i_nb = at_m * M_BLOCKS + tl.arange(0, M_BLOCKS), at_n * N_BLOCKS + tl.arange(0, N_BLOCKS)
    m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
    m = m_m[:, None] & m_n[None, :]
    o = i_m[:, None] * n + i_n[None, :]
    b_x = summed_tile(
        x_ptr, dy_ptr, weight_ptr, bias_ptr, mean_ptr, rstd_ptr, share_ptr, i_m, i_n, m_m, m_n, n, offset,
        VALUE, SLOPE, GATED, ROUND, WIDE,
    )  # fmt: skip
    if y_ptr is not None:
        b_rows = tl.reshape(b_x, [BLOCK_M, N_BLOCKS, 32])
        b_top = top_of(b_rows, 2)
        if TWO_D:
            b_all = tl.max(tl.reshape(b_top, [M_BLOCKS, 32, N_BLOCKS]), 1)
            b_top = tl.reshape(tl.broadcast_to(b_all[:, None, :], [M_BLOCKS, 32, N_BLOCKS]), [BLOCK_M, N_BLOCKS])
        b_e = exponent_of(b_top, LARGEST)
        b_y = CAST(b_rows * power_of(254 - b_e)[:, :, None])
        tl.store(y_ptr + o, tl.reshape(b_y, [BLOCK_M, BLOCK_N]), mask=m)
        m_e = m_m[:, None] & inside(i_nb * 32, n, FULL)[None, :]
        tl.store(y_scale_ptr + i_m[:, None] * y_stride + i_nb[None, :], b_e.to(tl.uint8), mask=m_e)
    if yc_ptr is not None:
        b_cols = tl.reshape(b_x, [M_BLOCKS, 32, BLOCK_N])
        b_top = top_of(b_cols, 1)
        if TWO_D:
            b_all = tl.max(tl.reshape(b_top, [M_BLOCKS, N_BLOCKS, 32]), 2)
            b_top = tl.reshape(tl.broadcast_to(b_all[:, :, None], [M_BLOCKS, N_BLOCKS, 32]), [M_BLOCKS, BLOCK_N])
        b_e = exponent_of(b_top, LARGEST)
        b_y = CAST(b_cols * power_of(254 - b_e)[:, None, :])
        tl.store(yc_ptr + o, tl.reshape(b_y, [BLOCK_M, BLOCK_N]), mask=m)
        m_e = inside(i_mb * 32, n_rows, FULL)[:, None] & m_n[None, :]
        tl.store(yc_scale_ptr + i_mb[:, None] * yc_stride + i_n[None, :], b_e.to(tl.uint8), mask=m_e)


@triton.jit
def put_blocks(
    y_ptr,
    y_scale_ptr,
    i_m,
    b_y,
    m_m,
    x_ptr,
    n_rows,
    n,
    CAST: tl.constexpr,
    LARGEST: tl.constexpr,
    TOP: tl.constexpr,
    POW2: tl.constexpr,
    LEAST: tl.constexpr,
    FULL: tl.constexpr,
):
    """Store whole rows of y, rounded to the dtype of x, with block scales: MXFP8 if the scales are bytes, else 1x128.

    i_m and m_m are [rows, 1]. The store is three-dimensional: with two dimensions, the compiler would give the rows the
    layout of the stored bytes, and the norm would sum in another order than without quantization.
    """
    ROWS: tl.constexpr = b_y.shape[0]
    SIZE: tl.constexpr = 32 if y_scale_ptr.dtype.element_ty == tl.uint8 else 128
    WIDTH: tl.constexpr = min(SIZE, b_y.shape[1])
    COUNT: tl.constexpr = b_y.shape[1] // WIDTH
    at = tl.arange(0, COUNT)[None, :]
    o = at[:, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    m = m_m[:, :, None] & inside(o, n, FULL)
    b_y = tl.where(m, tl.reshape(narrow(b_y, x_ptr, True), [ROWS, COUNT, WIDTH]), 0.0)
    b_top = top_of(b_y, 2)
    m_s = m_m & inside(at * SIZE, n, FULL)
    if SIZE == 32:
        b_e = exponent_of(b_top, LARGEST)
        b_scale = power_of(254 - b_e)
        tl.store(y_scale_ptr + i_m * ((n // SIZE + 3) // 4 * 4) + at, b_e.to(tl.uint8), mask=m_s)
    else:
        b_scale = scale_of(b_top, LEAST, LARGEST, TOP, POW2)
        tl.store(y_scale_ptr + at.to(tl.int64) * ((n_rows + 3) // 4 * 4) + i_m, inverse(b_scale, POW2), mask=m_s)
    tl.store(y_ptr + i_m[:, :, None] * n + o, CAST(b_y * b_scale[:, :, None]), mask=m)


amax_of = Launcher(_amax_of, sizes="n_rows n")
cast_transposed = Launcher(_cast_transposed, sizes="n_rows n")
blocks = Launcher(_blocks, sizes="n_rows n")
mx = Launcher(_mx, sizes="n_rows n")


# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("quant.amax_of")
def amax_of_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(256, BLOCK_M=8, BLOCK_N=512 if dtype.itemsize <= 4 else 256)


@tunable("quant.turned")
def transposed_tiles(dtype: torch.dtype) -> Tiles:
    """Each thread has 64 elements, which takes 14 instructions per element on sm_90; 32 elements would take 17."""
    return Tiles(256, BLOCK_M=128, BLOCK_N=128)


@tunable("quant.blocks")
def block_tiles(dtype: torch.dtype) -> Tiles:
    """For rows and columns this takes 23 instructions per element on sm_90; with 512 threads it would take 32."""
    return Tiles(256)


@tunable("quant.mx")
def mx_tiles(dtype: torch.dtype) -> Tiles:
    """One block of rows, so that few warps share a column: 17 instructions per element on sm_90."""
    return Tiles(128, BLOCK_M=32, BLOCK_N=256)


# ---- launches -------------------------------------------------------------------------------------------------------


def tiled(
    kernel: Launcher, shape: Any, tiles: Tiles, block: tuple[int, int], numbers: Mapping[str, Any], **constants: Any
) -> Launch:
    """A launch over tiles of `block` (rows, columns).

    Consecutive programs have tiles side by side, which share cache lines.
    """
    m, k = spec.matrix(shape)
    config = tiles.config(FULL=m % block[0] == 0 and k % block[1] == 0, **constants)
    return Launch(
        kernel, (triton.cdiv(k, block[1]), triton.cdiv(m, block[0])), config, {"n_rows": m, "n": k, **numbers}
    )


def sides(tiles: Tiles) -> tuple[int, int]:
    return tiles["BLOCK_M"], tiles["BLOCK_N"]


PLAIN: dict[str, Any] = dict(VALUE=None, SLOPE=None, GATED=False, ROUND=False, WIDE=tl.float32)  # r is x itself


def normed(dtype: torch.dtype) -> dict[str, Any]:
    """The constants if r is a norm, with known statistics, of a tensor of this dtype."""
    return {**PLAIN, "ROUND": True, "WIDE": wide_of(dtype)}


def cast_launch(
    shape: Any,
    dtype: torch.dtype,
    fp8: torch.dtype,
    parts: int,
    pow2: bool,
    numbers: Mapping[str, Any],
    source: Mapping[str, Any] = PLAIN,
) -> Launch:
    """Cast r with one scale; r is computed from tensors of `dtype`.

    With `parts`, `scale` holds that many partial amaxes.
    """
    tiles = transposed_tiles(dtype=dtype)
    constants: dict[str, Any] = dict(CAST=cast_of(fp8), LARGEST=spec.FP8_MAX[fp8], POW2=pow2, PARTS=parts, **source)
    return tiled(cast_transposed, shape, tiles, sides(tiles), numbers, **constants)


def blocks_launch(
    shape: Any,
    dtype: torch.dtype,
    fp8: torch.dtype,
    two_d: bool,
    pow2: bool,
    numbers: Mapping[str, Any],
    source: Mapping[str, Any] = PLAIN,
) -> Launch:
    """Cast r with block scales."""
    return tiled(
        blocks,
        shape,
        block_tiles(dtype=dtype),
        (spec.BLOCK, spec.BLOCK),
        numbers,
        CAST=cast_of(fp8),
        LARGEST=spec.FP8_MAX[fp8],
        TOP=min(torch.finfo(dtype).max, spec.FLOAT_MAX),
        POW2=pow2,
        TWO_D=two_d,
        BLOCK=spec.BLOCK,
        **source,
    )


def mx_launch(
    shape: Any,
    dtype: torch.dtype,
    fp8: torch.dtype,
    two_d: bool,
    numbers: Mapping[str, Any],
    source: Mapping[str, Any] = PLAIN,
) -> Launch:
    """Cast r with E8M0 scales for blocks of 32."""
    tiles = mx_tiles(dtype=dtype)
    constants: dict[str, Any] = dict(CAST=cast_of(fp8), LARGEST=spec.FP8_MAX[fp8], TWO_D=two_d, **source)
    return tiled(mx, shape, tiles, sides(tiles), numbers, **constants)


def row_blocks(dtype: torch.dtype, fp8: torch.dtype | None, pow2: bool = False, least: float = 0.0) -> dict[str, Any]:
    """The constants of a kernel with `put_blocks`, for rows of this dtype; `fp8` = None: no quantized output."""
    if fp8 is None:
        return dict(LARGEST=0.0, TOP=0.0, POW2=False, LEAST=0.0)
    top = min(torch.finfo(dtype).max, spec.FLOAT_MAX)
    return dict(CAST=cast_of(fp8), LARGEST=spec.FP8_MAX[fp8], TOP=top, POW2=pow2, LEAST=least)


def strides(**scales: Tensor | None) -> dict[str, int]:
    return {f"{name}_stride": 0 if t is None else t.stride(0) for name, t in scales.items()}
