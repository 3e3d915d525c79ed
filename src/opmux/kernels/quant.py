"""Quantization to FP8 and back: each tensor is read once (with current scaling twice), and one pass writes all results.

Without a transposed output the tensor is flattened to one dimension. With a transposed output it is cut into tiles,
which are transposed in shared memory. A 128 x 128 tile computes the scales of both its rows and its columns. Current
scaling needs no atomics and no zeroed memory: at most 256 programs write one partial amax each, and every program of
the cast computes their maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..specs import quant as spec
from .lib.config import Tiles, tunable
from .lib.fp8 import ONE, cast_of, has_casts
from .lib.harness import Launch, Plan, Zeros, planned, strided
from .lib.launch import Launcher
from .lib.quant_tiles import (
    FLOAT_MAX,
    blocks_launch,
    cast_launch,
    inverse,
    mx_launch,
    noop_set,
    power_of,
    raise_to,
    scale_at,
    scale_of,
    sides,
    strides,
    tiled,
    top_of,
)
from .lib.rows import OutputSpec, inside, programs

Buffer = Tensor | None


# ---- device functions -----------------------------------------------------------------------------------------------


@triton.jit
def number_of(byte, MANTISSA: tl.constexpr, BIAS: tl.constexpr, FORMAT: tl.constexpr):
    """Convert an FP8 byte to float32.

    FORMAT: the Triton type if the chip can convert it; if None, the bits are computed.
    """
    if FORMAT is not None:
        return byte.to(FORMAT, bitcast=True).to(tl.float32)
    else:
        u = byte.to(tl.int32)
        low = u & 0x7F
        rest = low & ((1 << MANTISSA) - 1)
        least: tl.constexpr = 2.0 ** (1 - BIAS - MANTISSA)
        normal = (low << (23 - MANTISSA)) + ((127 - BIAS) << 23)
        small = (rest.to(tl.float32) * least).to(tl.int32, bitcast=True)
        bits = tl.where(low >> MANTISSA == 0, small, normal)
        if MANTISSA == 3:
            bits = tl.where(low == 0x7F, 0x7FC00000, bits)
        else:
            bits = tl.where(low >= 0x7C, tl.where(low == 0x7C, 0x7F800000, 0x7FC00000), bits)
        return (bits | ((u & 0x80) << 24)).to(tl.float32, bitcast=True)


# ---- one scale per tensor -------------------------------------------------------------------------------------------


def _amax(x_ptr, parts_ptr, n, FULL: tl.constexpr, BLOCK: tl.constexpr):
    """Each program writes the amax of its share of x."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    o = tl.arange(0, BLOCK)
    if FULL:  # one block per program
        b_top = tl.load(x_ptr + start + o, mask=start + o < n, other=0.0).to(tl.float32)
    else:
        b_top = tl.zeros([BLOCK], tl.float32)
        for at in tl.range(start, n, tl.num_programs(0).to(tl.int64) * BLOCK, num_stages=4):
            b_x = tl.load(x_ptr + at + o, mask=at + o < n, other=0.0).to(tl.float32)
            b_top = tl.maximum(b_top, tl.abs(b_x))
    tl.store(parts_ptr + tl.program_id(0), top_of(b_top, 0))


def _top(parts_ptr, amax_ptr, n, BLOCK: tl.constexpr):
    """Reduce the partial amaxes to one."""
    o = tl.arange(0, BLOCK)
    tl.store(amax_ptr, tl.max(tl.load(parts_ptr + o, mask=o < n, other=0.0), 0))


def _cast(
    x_ptr,
    scale_ptr,
    y_ptr,
    scale_inv_ptr,
    amax_ptr,
    noop_ptr,
    n,
    eps,
    CAST: tl.constexpr,
    LARGEST: tl.constexpr,
    POW2: tl.constexpr,
    PARTS: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = fp8(x * scale). scale_ptr holds the scale or, if PARTS > 0, PARTS partial amaxes to compute it from."""
    if noop_set(noop_ptr):
        return
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = inside(o, n, FULL)
    b_x = tl.load(x_ptr + o, mask=m, other=0.0).to(tl.float32)
    scale = scale_at(scale_ptr, scale_ptr, eps, LARGEST, POW2, PARTS)
    if y_ptr is not None:
        tl.store(y_ptr + o, CAST(b_x * scale), mask=m)
    if amax_ptr is not None:
        raise_to(amax_ptr, top_of(b_x, 0))
    if scale_inv_ptr is not None:
        if tl.program_id(0) == 0:
            tl.store(scale_inv_ptr, inverse(scale, POW2))


def _turn(data_ptr, y_ptr, n_rows, n, FULL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Transpose a matrix of bytes."""
    i_m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
    b_x = tl.load(data_ptr + i_m[:, None] * n + i_n[None, :], mask=m_m[:, None] & m_n[None, :], other=0)
    tl.store(y_ptr + i_n[:, None] * n_rows + i_m[None, :], tl.trans(b_x), mask=m_n[:, None] & m_m[None, :])


# ---- dequantization -------------------------------------------------------------------------------------------------


def _uncast(
    data_ptr,
    scale_inv_ptr,
    y_ptr,
    n,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    FORMAT: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = inside(o, n, FULL)
    b_y = number_of(tl.load(data_ptr + o, mask=m, other=0), MANTISSA, BIAS, FORMAT) * tl.load(scale_inv_ptr)
    tl.store(y_ptr + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _uncast_tiles(
    data_ptr,
    scales_ptr,
    y_ptr,
    n_rows,
    n,
    scale_m,
    scale_n,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    FORMAT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    SCALE_M: tl.constexpr,
    SCALE_N: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Dequantize a matrix [n_rows, n]; each SCALE_M x SCALE_N block has one scale.

    TRANSPOSED: memory has the transpose.
    """
    i_m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    i_n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_m, m_n = inside(i_m, n_rows, FULL), inside(i_n, n, FULL)
    m = m_m[:, None] & m_n[None, :]
    if TRANSPOSED:
        m_t = m_n[:, None] & m_m[None, :]
        b_x = tl.trans(tl.load(data_ptr + i_n[:, None] * n_rows + i_m[None, :], mask=m_t, other=0))
    else:
        b_x = tl.load(data_ptr + i_m[:, None] * n + i_n[None, :], mask=m, other=0)
    o_scale = (i_m // SCALE_M)[:, None] * scale_m + (i_n // SCALE_N)[None, :] * scale_n
    b_scale = tl.load(scales_ptr + o_scale, mask=m, other=0)
    if scales_ptr.dtype.element_ty == tl.uint8:
        b_power = power_of(b_scale.to(tl.int32))
        b_y = number_of(b_x, MANTISSA, BIAS, FORMAT) * tl.where(b_scale == 255, float("nan"), b_power)
    else:
        b_y = number_of(b_x, MANTISSA, BIAS, FORMAT) * b_scale
    tl.store(y_ptr + i_m[:, None] * n + i_n[None, :], b_y.to(y_ptr.dtype.element_ty), mask=m)


# ---- amax history of delayed scaling --------------------------------------------------------------------------------


def _history(
    history_ptr,
    first_ptr,
    step_ptr,
    newest_ptr,
    scale_ptr,
    new_history_ptr,
    new_scale_ptr,
    n,
    length,
    largest,
    RECENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One amax history per lane: append the newest amax, shift the history by one, and zero the first slot.

    If the newest amax is 0, append the first slot's value instead. If that value is 0 too, leave the history and the
    scale unchanged.
    """
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    first, step = tl.load(first_ptr + o, mask=m, other=0), tl.load(step_ptr + o, mask=m, other=0)
    newest, scale = tl.load(newest_ptr + o, mask=m, other=0.0), tl.load(scale_ptr + o, mask=m, other=0.0)
    start = tl.load(history_ptr + first, mask=m, other=0.0)
    last = tl.where(newest != 0, newest, start)
    moves = last != 0
    amax = tl.maximum(tl.abs(last), 0.0)
    for i in range(1, length):
        b = tl.load(history_ptr + first + i * step, mask=m, other=0.0)
        amax = tl.maximum(amax, tl.abs(b))
        if i > 1:  # slot i moves to slot i - 1; slot 0 becomes 0
            tl.store(new_history_ptr + first + (i - 1) * step, b, mask=m & moves)
        tl.store(new_history_ptr + first + i * step, b, mask=m & (moves == 0))
    tl.store(new_history_ptr + first + (length - 1) * step, last, mask=m & moves)
    tl.store(new_history_ptr + first, tl.where(moves, 0.0, start), mask=m)
    if RECENT:
        amax = last
    fresh = scale_of(amax, 0.0, largest, FLOAT_MAX, False)
    tl.store(new_scale_ptr + o, tl.where((amax > 0) & (amax < float("inf")) & moves, fresh, scale), mask=m)


amax_parts = Launcher(_amax, sizes="n")
top = Launcher(_top, sizes="n")
cast = Launcher(_cast, sizes="n")
turn = Launcher(_turn, sizes="n_rows n")
uncast = Launcher(_uncast, sizes="n")
uncast_tiles = Launcher(_uncast_tiles, sizes="n_rows n")
histories = Launcher(_history, sizes="n")


# ---- tiles ----------------------------------------------------------------------------------------------------------

FEW = 256  # at most this many programs compute an amax, because each program of the cast reads all their results
ALONE = 8192  # up to this many elements, one program computes the amax


@tunable("quant.amax")
def amax_tiles(n: int, dtype: torch.dtype) -> Tiles:
    return Tiles(512, BLOCK=8192 if dtype.itemsize <= 4 else 4096)


@tunable("quant.cast")
def cast_tiles(dtype: torch.dtype, current: bool) -> Tiles:
    """Blocks are larger for current scaling, because each program also reads all partial amaxes."""
    return Tiles(512, BLOCK=8192) if current else Tiles(128, BLOCK=2048)


@tunable("quant.turn")
def turn_tiles() -> Tiles:
    return Tiles(256, BLOCK_M=128, BLOCK_N=128)


@tunable("quant.uncast")
def uncast_flat(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=2048)


@tunable("quant.uncast_tiles")
def uncast_tile_sizes(dtype: torch.dtype) -> Tiles:
    return Tiles(256, BLOCK_M=64, BLOCK_N=128)


# ---- plans ----------------------------------------------------------------------------------------------------------

# (mantissa bits, exponent bias, Triton type that is used if the chip converts it)
FORMATS = {torch.float8_e4m3fn: (3, 7, tl.float8e4nv), torch.float8_e5m2: (2, 15, tl.float8e5)}


def _format(dtype: torch.dtype) -> dict[str, Any]:
    mantissa, bias, native = FORMATS[dtype]
    return dict(MANTISSA=mantissa, BIAS=bias, FORMAT=native if has_casts() else None)


def _flat(kernel: Launcher, n: int, tiles: Tiles, **constants: Any) -> Launch:
    """A launch over n elements, BLOCK per program."""
    config = tiles.config(FULL=n % tiles["BLOCK"] == 0, **constants)
    return Launch(kernel, (triton.cdiv(n, tiles["BLOCK"]),), config, {"n": n})


def _parts(x: Tensor) -> Launch:
    """Write the amax of each program's share of x to `parts`. The number of programs is a power of two."""
    n = x.numel()
    tiles = amax_tiles(n=n, dtype=x.dtype)
    count = 1 if n <= ALONE and n <= tiles["BLOCK"] else programs(x.device, triton.cdiv(n, tiles["BLOCK"]), 8)
    count = min(FEW, triton.next_power_of_2(count) // (2 if count & (count - 1) else 1))
    return Launch(amax_parts, (count,), tiles.config(FULL=count * tiles["BLOCK"] >= n), {"n": n})


def _cast_launch(
    x: Tensor, transposes: bool, dtype: torch.dtype, parts: int, pow2: bool, numbers: Mapping[str, Any]
) -> Launch:
    """The launch of the cast. If `parts` > 0, the kernel's `scale` is a tensor of that many partial amaxes."""
    if transposes:
        return cast_launch(x.shape, x.dtype, dtype, parts, pow2, {"offset": 0.0, **numbers})
    constants: dict[str, Any] = dict(CAST=cast_of(dtype), LARGEST=spec.FP8_MAX[dtype], POW2=pow2, PARTS=parts)
    return _flat(cast, x.numel(), cast_tiles(dtype=x.dtype, current=parts > 0), **constants).with_numbers(**numbers)


# ---- the ops --------------------------------------------------------------------------------------------------------


@planned(spec.fp8_cast_into)
def fp8_cast_into(
    x: Tensor, scale: Tensor, y: Buffer, yt: Buffer, scale_inv: Buffer, amax: Buffer, noop: Buffer, dtype: torch.dtype
) -> Plan:
    if not x.numel():
        return Plan({}, [spec.fp8_cast_into.reference])  # writes only scale_inv
    launch = _cast_launch(x, yt is not None, dtype, 0, False, {"eps": 0.0})
    return Plan({}, [launch], strided(x=x))


@planned(spec.fp8_current_into)
def fp8_current_into(
    x: Tensor, y: Buffer, yt: Buffer, scale_inv: Buffer, noop: Buffer, dtype: torch.dtype, pow2: bool
) -> Plan:
    if not x.numel():
        return Plan({}, [spec.fp8_current_into.reference])  # writes only scale_inv
    parts = _parts(x)
    launch = _cast_launch(x, yt is not None, dtype, parts.grid[0], bool(pow2), {}).named(scale="parts")
    return Plan({"parts": OutputSpec.of(parts.grid, torch.float32)}, [parts, launch], strided(x=x))


@planned(spec.amax_abs)
def amax_abs(x: Tensor) -> Plan:
    if not x.numel():
        return Plan({"amax": Zeros(ONE)})
    parts = _parts(x)
    (count,) = parts.grid
    if count == 1:
        return Plan({"amax": ONE}, [parts.named(parts="amax")], strided(x=x))
    largest = Launch(top, (1,), Tiles(128, BLOCK=FEW).config(), {"n": count})
    return Plan({"parts": OutputSpec.of((count,), torch.float32), "amax": ONE}, [parts, largest], strided(x=x))


@planned(spec.fp8_blocks_into)
def fp8_blocks_into(
    x: Tensor,
    y: Buffer,
    y_scale: Buffer,
    yt: Buffer,
    yt_scale: Buffer,
    noop: Buffer,
    dtype: torch.dtype,
    two_d: bool,
    pow2: bool,
) -> Plan:
    if not x.numel() or (y is None and yt is None):
        return Plan({})
    numbers = {"offset": 0.0, **strides(y=y_scale, yt=yt_scale)}
    launch = blocks_launch(x.shape, x.dtype, dtype, bool(two_d), bool(pow2), numbers)
    return Plan({}, [launch], strided(x=x))


@planned(spec.mxfp8_into)
def mxfp8_into(
    x: Tensor, y: Buffer, y_scale: Buffer, yc: Buffer, yc_scale: Buffer, noop: Buffer, dtype: torch.dtype, two_d: bool
) -> Plan:
    if not x.numel() or (y is None and yc is None):
        return Plan({})
    numbers = {"offset": 0.0, **strides(y=y_scale, yc=yc_scale)}
    return Plan({}, [mx_launch(x.shape, x.dtype, dtype, bool(two_d), numbers)], strided(x=x))


@planned(spec.fp8_uncast)
def fp8_uncast(data: Tensor, scale_inv: Tensor, dtype: torch.dtype, out_dtype: torch.dtype) -> Plan:
    makes = {"y": OutputSpec.of(data.shape, out_dtype)}
    if not data.numel():
        return Plan(makes)
    launch = _flat(uncast, data.numel(), uncast_flat(dtype=out_dtype), **_format(dtype))
    return Plan(makes, [launch], strided(data=data))


def _uncast_blocks(
    data: Tensor,
    shape: Any,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
    transposed: bool,
    per: tuple[int, int],
    steps: Any,
) -> Plan:
    """Dequantize bytes with one scale per block. `steps`: the scales' strides per row and per column of blocks."""
    makes = {"y": OutputSpec.of(shape, out_dtype)}
    if not data.numel():
        return Plan(makes)
    tiles, numbers = uncast_tile_sizes(dtype=out_dtype), dict(zip(("scale_m", "scale_n"), steps))
    constants: dict[str, Any] = dict(TRANSPOSED=transposed, SCALE_M=per[0], SCALE_N=per[1], **_format(dtype))
    return Plan(makes, [tiled(uncast_tiles, shape, tiles, sides(tiles), numbers, **constants)], strided(data=data))


@planned(spec.fp8_blocks_uncast)
def fp8_blocks_uncast(
    data: Tensor, scales: Tensor, dtype: torch.dtype, two_d: bool, columnwise: bool, out_dtype: torch.dtype
) -> Plan:
    shape = spec.original_shape(data.shape) if columnwise else tuple(data.shape)
    first, second = scales.stride()
    # 2D rowwise and 1D columnwise scales have the block rows in dimension 0; other scales have them in dimension 1.
    steps = (first, second) if bool(two_d) != bool(columnwise) else (second, first)
    per = (spec.BLOCK, spec.BLOCK) if two_d else (spec.BLOCK, 1) if columnwise else (1, spec.BLOCK)
    return _uncast_blocks(data, shape, dtype, out_dtype, bool(columnwise), per, steps)


@planned(spec.mxfp8_uncast)
def mxfp8_uncast(data: Tensor, scales: Tensor, dtype: torch.dtype, columnwise: bool, out_dtype: torch.dtype) -> Plan:
    per = (spec.MX, 1) if columnwise else (1, spec.MX)
    return _uncast_blocks(data, data.shape, dtype, out_dtype, False, per, scales.stride())


@planned(spec.bytes_transpose)
def bytes_transpose(data: Tensor) -> Plan:
    makes = {"y": OutputSpec.of(spec.transposed_shape(data.shape), torch.uint8)}
    if not data.numel():
        return Plan(makes)
    tiles = turn_tiles()
    return Plan(makes, [tiled(turn, data.shape, tiles, sides(tiles), {})], strided(data=data))


@planned(spec.amax_history)
def amax_history(
    history: Tensor, first: Tensor, step: Tensor, newest: Tensor, scale: Tensor, length: int, recent: bool
) -> Plan:
    n, results = first.numel(), ("new_history", "new_scale")
    makes = {name: OutputSpec.of((size,), torch.float32) for name, size in zip(results, (length * n, n))}
    if not n:
        return Plan(makes, returns=results)
    tiles = Tiles(128, BLOCK=128)
    grid, numbers = (triton.cdiv(n, tiles["BLOCK"]),), {"n": n, "length": length}
    launch = Launch(histories, grid, tiles.config(RECENT=bool(recent)), numbers)
    copied = strided(history=history, first=first, step=step, newest=newest, scale=scale)
    return Plan(makes, [launch], copied, returns=results)
