"""Mixture of experts: moves tokens to the rows of their experts and back, one token per program; pads expert blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..core.registry import impl
from ..specs import moe as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, RowSizes, Zeros, planned, strided
from .lib.jit_source import jit_from_source
from .lib.launch import Launcher
from .lib.plans import check, plans
from .lib.rows import DEVICES, OutputSpec, wide_of

UNROLLED = tl.constexpr(16)  # the loop over topk is unrolled up to this, so that all rows of a token are loaded at once


def _map(order_ptr, row_map_ptr, n, tokens, topk, rows, BLOCK_N: tl.constexpr):
    """Invert `order`: row_map[k, token] is the row of the token's k-th copy, -1 if there are too few rows."""
    o = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = o < n
    b_from = tl.load(order_ptr + o, mask=m, other=0)
    b_at = b_from % topk * tokens + b_from // topk
    tl.store(row_map_ptr + b_at, tl.where(o < rows, o, -1), mask=m)


@triton.jit
def _row(row_map_ptr, token, k, tokens, rows):
    """The row of a token's k-th copy; -1 if it was dropped."""
    row = tl.load(row_map_ptr + k * tokens + token)
    return tl.where(row < rows, row, -1).to(tl.int64)


def _spread(x_ptr, row_map_ptr, y_ptr, x_stride, n, tokens, rows, TOPK: tl.constexpr, BLOCK_N: tl.constexpr):
    """Read a piece of a token once, and write it to each row of the token."""
    token = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = o < n
    b_x = tl.load(x_ptr + token * x_stride + o, mask=m)
    if TOPK <= UNROLLED:
        for k in tl.static_range(TOPK):
            row = _row(row_map_ptr, token, k, tokens, rows)
            tl.store(y_ptr + row * n + o, b_x, mask=m & (row >= 0))
    else:
        for k in range(TOPK):
            row = _row(row_map_ptr, token, k, tokens, rows)
            tl.store(y_ptr + row * n + o, b_x, mask=m & (row >= 0))


@triton.jit
def _one(
    x_ptr,
    row_map_ptr,
    probs_ptr,
    token,
    k,
    tokens,
    rows,
    x_stride,
    o,
    m,
    TOPK: tl.constexpr,
    ROUND_TO: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A piece of a token's k-th row, multiplied by the row's probability; the product is rounded to ROUND_TO."""
    row = _row(row_map_ptr, token, k, tokens, rows)
    b_x = tl.load(x_ptr + row * x_stride + o, mask=m & (row >= 0), other=0.0)
    b_y = b_x.to(WIDE)
    if probs_ptr is not None:
        p = tl.load(probs_ptr + token * TOPK + k).to(ROUND_TO).to(WIDE)
        b_y = tl.where(row >= 0, b_y * p, 0.0).to(ROUND_TO).to(WIDE)
    return b_y


def _collect(
    x_ptr,
    row_map_ptr,
    probs_ptr,
    y_ptr,
    x_stride,
    n,
    tokens,
    rows,
    TOPK: tl.constexpr,
    ONCE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sum a piece of all rows of a token. Rounds after each addition, as NVIDIA does; with ONCE, only at the end."""
    token = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = o < n
    round_to: tl.constexpr = WIDE if ONCE else x_ptr.dtype.element_ty
    b_y = _one(x_ptr, row_map_ptr, probs_ptr, token, 0, tokens, rows, x_stride, o, m, TOPK, round_to, WIDE)
    if TOPK <= UNROLLED:
        for k in tl.static_range(1, TOPK):
            b_x = _one(x_ptr, row_map_ptr, probs_ptr, token, k, tokens, rows, x_stride, o, m, TOPK, round_to, WIDE)
            b_y = (b_y + b_x).to(round_to).to(WIDE)
    else:
        for k in range(1, TOPK):
            b_x = _one(x_ptr, row_map_ptr, probs_ptr, token, k, tokens, rows, x_stride, o, m, TOPK, round_to, WIDE)
            b_y = (b_y + b_x).to(round_to).to(WIDE)
    tl.store(y_ptr + token * n + o, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _collect_bwd(
    dy_ptr,
    x_ptr,
    row_map_ptr,
    probs_ptr,
    dx_ptr,
    dprobs_ptr,
    dy_stride,
    x_stride,
    n,
    tokens,
    rows,
    TOPK: tl.constexpr,
    ONCE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write a token's gradient to its rows. dprobs are the dot products of this gradient and the rows."""
    token = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BLOCK_K)
    b_row = tl.load(row_map_ptr + o_k * tokens + token, mask=o_k < TOPK, other=-1).to(tl.int64)[:, None]
    b_dot = tl.zeros([BLOCK_K], WIDE)
    round_to: tl.constexpr = WIDE if ONCE else dx_ptr.dtype.element_ty
    for at in range(0, n, BLOCK_N):
        o = at + tl.arange(0, BLOCK_N)[None, :]
        m = (b_row >= 0) & (b_row < rows) & (o < n)
        b_g = tl.load(dy_ptr + token * dy_stride + o, mask=o < n, other=0.0).to(WIDE)
        b_dx = tl.broadcast_to(b_g, [BLOCK_K, BLOCK_N])
        if probs_ptr is not None:
            b_p = tl.load(probs_ptr + token * TOPK + o_k, mask=o_k < TOPK, other=0.0).to(round_to).to(WIDE)
            b_dx = b_g * b_p[:, None]
            b_x = tl.load(x_ptr + b_row * x_stride + o, mask=m, other=0.0).to(WIDE)
            b_dot += tl.sum(b_g * b_x, 1)
        tl.store(dx_ptr + b_row * n + o, b_dx.to(dx_ptr.dtype.element_ty), mask=m)
    tl.store(dprobs_ptr + token * TOPK + o_k, b_dot.to(dprobs_ptr.dtype.element_ty), mask=o_k < TOPK)


map_rows = Launcher(_map, sizes="n")
spread = Launcher(_spread, sizes="x_stride n")
collect = Launcher(_collect, sizes="x_stride n")
collect_bwd = Launcher(_collect_bwd, sizes="dy_stride x_stride n")


@tunable("moe.rows", free="BLOCK_N")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program copies a piece of a row."""
    return Tiles(128, BLOCK_N=min(triton.next_power_of_2(n), 4096 // max(dtype.itemsize, 2)))


@tunable("moe.dots", free="BLOCK_N")
def dot_tiles(n: int, topk: int, dtype: torch.dtype) -> Tiles:
    """A tile has the same piece of all rows of a token."""
    block = max(triton.next_power_of_2(topk), 1)
    most = max(64, 16384 // max(dtype.itemsize, 2) // block)
    return Tiles(128, BLOCK_K=block, BLOCK_N=min(triton.next_power_of_2(max(n, 1)), most))


def _grid(tokens: int, pieces: int = 1) -> tuple[int, int, int]:
    if tokens >= 2**31 or pieces >= 2**16:
        raise NotSupported(f"a grid of {tokens} x {pieces} programs is more than a launch can have")
    return (tokens, pieces, 1)


def _refuse_fp8(op: str, x: Tensor) -> None:
    if x.dtype in spec.FP8:
        raise NotSupported(f"{op} of float8")


def _refuse_strided(row_map: Tensor, probs: Tensor | None = None) -> None:
    if strided(row_map=row_map, probs=probs):
        raise NotSupported("a row map or probabilities that are not contiguous")


def _zeros_from(row: int, output: OutputSpec) -> OutputSpec | Zeros:
    """A result whose rows from `row` on are set to zero before the launch."""
    return Zeros(output, row) if row < output.shape[0] else output


# ---- the map --------------------------------------------------------------------------------------------------------


def expert_order(indices: Tensor) -> Tensor:
    """The copies of all tokens (token * topk + k), sorted by expert."""
    return torch.sort(indices.reshape(-1), stable=True).indices


@planned(spec.moe_row_map)
def moe_row_map(indices: Tensor, rows: int) -> Plan:
    n, (tokens, topk) = indices.numel(), indices.shape
    if n >= 2**31:
        raise NotSupported(f"{n} rows do not fit a map of int32")
    makes, numbers = {"row_map": OutputSpec.of((n,), torch.int32)}, dict(n=n, tokens=tokens, topk=topk, rows=rows or n)
    launch = Launch(map_rows, (-(-n // 512),), Tiles(128, BLOCK_N=512).config(), numbers, {"order": "indices"})
    return Plan(makes, [launch], before={"indices": expert_order}) if n else Plan(makes)


# ---- to the rows of experts and back ---------------------------------------------------------------------------------


@planned(spec.moe_spread)
def moe_spread(x: Tensor, row_map: Tensor, topk: int, rows: int) -> Plan:
    _refuse_fp8("moe_spread", x)
    tokens, n = x.shape
    count = rows or tokens * topk
    y = OutputSpec.of((count, n), x.dtype)
    if not x.numel():
        return Plan({"y": Zeros(y)})
    _refuse_strided(row_map)
    tiles, sizes = row_tiles(n=n, dtype=x.dtype), RowSizes.of(x=x)
    launch = sizes.launch(spread, tiles, *_grid(tokens, -(-n // tiles["BLOCK_N"])), TOPK=topk)
    launch = launch.with_numbers(tokens=tokens, rows=count)
    return Plan({"y": _zeros_from(tokens * topk, y)}, [launch], sizes.strided)


def _collected(
    op: str, x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int, once: bool, names: Mapping[str, str] = {}
) -> Plan:
    """`names`: what the op calls the kernel's x and y."""
    _refuse_fp8(op, x)
    tokens, n = row_map.shape[0] // topk, x.shape[1]
    makes = {names.get("y", "y"): OutputSpec.of((tokens, n), x.dtype)}
    if not tokens * n:
        return Plan(makes)
    _refuse_strided(row_map, probs)
    tiles, sizes = row_tiles(n=n, dtype=x.dtype), RowSizes.of(x=x)
    grid = _grid(tokens, -(-n // tiles["BLOCK_N"]))
    launch = sizes.launch(collect, tiles, *grid, TOPK=topk, ONCE=once, WIDE=wide_of(x.dtype))
    launch = launch.with_numbers(tokens=tokens, rows=x.shape[0]).named(**names)
    return Plan(makes, [launch], [names.get(name, name) for name in sizes.strided])


@planned(spec.moe_collect)
def moe_collect(x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int, round_once: bool) -> Plan:
    return _collected("moe_collect", x, row_map, probs, topk, round_once)


@planned(spec.moe_spread_bwd)
def moe_spread_bwd(dy: Tensor, row_map: Tensor, topk: int) -> Plan:
    return _collected("moe_spread_bwd", dy, row_map, None, topk, False, {"x": "dy", "y": "dx"})


@planned(spec.moe_collect_bwd)
def moe_collect_bwd(dy: Tensor, x: Tensor, row_map: Tensor, probs: Tensor | None, topk: int, round_once: bool) -> Plan:
    _refuse_fp8("moe_collect_bwd", x)
    tokens, n = row_map.shape[0] // topk, x.shape[1]
    dx = _zeros_from(row_map.shape[0], OutputSpec.of(x.shape, x.dtype))
    makes = {"dx": dx, "dprobs": OutputSpec.of((tokens, topk), torch.float32 if probs is None else probs.dtype)}
    if not tokens:
        return Plan(makes)
    _refuse_strided(row_map, probs)
    sizes = RowSizes.of(dy=dy, x=x)
    tiles = dot_tiles(n=n, topk=topk, dtype=x.dtype)
    launch = sizes.launch(collect_bwd, tiles, *_grid(tokens), TOPK=topk, ONCE=round_once, WIDE=wide_of(x.dtype))
    return Plan(makes, [launch.with_numbers(tokens=tokens, rows=x.shape[0])], sizes.strided)


# ---- padding of blocks of rows --------------------------------------------------------------------------------------

# The sizes of blocks are launch arguments, not a tensor: the host has new sizes at every call, and a copy to the device
# could not be captured in a CUDA graph. u{k} and v{k}: the rows of block k in the input and in the output.
_BLOCK = """\
    i = o_m - to
    m_b = (i >= 0) & (i < v{k})
    b_from = tl.where(m_b & (i < u{k}), at + i, b_from)
    m_to = m_to | (m_b & (u{k} > 0))
    at += u{k}
    to += v{k}
"""
_TEXT = """\
def {name}(x_ptr, y_ptr, x_stride, y_stride, n, n_rows, at, to, {sizes}, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    o_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    b_from = tl.full([BLOCK_M], -1, tl.int32)
    m_to = o_m < 0
{blocks}
    m_n = o_n < n
    i_x, i_y = b_from.to(tl.int64)[:, None], o_m.to(tl.int64)[:, None]
    b_x = tl.load(x_ptr + i_x * x_stride + o_n, mask=(i_x >= 0) & m_n, other=0.0)
    tl.store(y_ptr + i_y * y_stride + o_n, b_x, mask=(m_to & (o_m < n_rows))[:, None] & m_n)
"""
COUNTS = (8, 64)  # the numbers of blocks that a launch can have


def _blocks(count: int) -> Launcher:
    sizes = [f"{side}{k}" for k in range(count) for side in "uv"]
    blocks = "".join(_BLOCK.format(k=k) for k in range(count))
    kernel = jit_from_source(_TEXT.format(name=f"_blocks_{count}", sizes=", ".join(sizes), blocks=blocks))
    return Launcher(kernel, sizes="x_stride y_stride n")


block_launchers = {count: _blocks(count) for count in COUNTS}


@tunable("moe.padding", free="BLOCK_M BLOCK_N")
def block_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A tile is several short rows, or a piece of a long one."""
    piece = min(triton.next_power_of_2(n), 4096 // max(dtype.itemsize, 2))
    return Tiles(128, BLOCK_M=max(1, 8192 // max(dtype.itemsize, 2) // piece), BLOCK_N=piece)


@plans
def _plan_blocks(op: str, x: Tensor, y: Tensor, count: int) -> Callable[..., None] | None:
    """The launch; its caller passes where the blocks begin and their sizes. None if there is nothing to write."""
    check(op, x=x, y=y)
    if x.dtype in spec.FP8 or x.is_complex() or x.dtype is torch.float4_e2m1fn_x2:
        raise NotSupported(f"rows of {x.dtype}")
    if x.stride(-1) != 1 or y.stride(-1) != 1:
        raise NotSupported("rows that are not contiguous")
    (rows, n), strides = y.shape, (x.stride(0), y.stride(0))
    if not rows * n:
        return None
    tiles = block_tiles(n=n, dtype=x.dtype)
    grid = _grid(-(-rows // tiles["BLOCK_M"]), -(-n // tiles["BLOCK_N"]))
    config = tiles.config(even=all(k % 16 == 0 for k in (*strides, n)))
    return block_launchers[count].ready(grid, (*strides, n, rows), config)


def _count(sizes: list[int]) -> int:
    return COUNTS[0] if len(sizes) <= COUNTS[0] else COUNTS[1]


def _write(launch: Callable[..., None] | None, x: Tensor, y: Tensor, sizes_in: list[int], sizes_out: list[int]) -> None:
    count = _count(sizes_in)
    source = target = 0
    for first in range(0, len(sizes_in), count) if launch is not None else ():
        sizes_of_launch = (sizes_in[first : first + count], sizes_out[first : first + count])
        sizes = [0] * (2 * count)
        sizes[: 2 * len(sizes_of_launch[0]) : 2], sizes[1 : 2 * len(sizes_of_launch[1]) : 2] = sizes_of_launch
        launch(x, y, source, target, *sizes)
        source, target = source + sum(sizes_of_launch[0]), target + sum(sizes_of_launch[1])


# Sizes are checked at every call, because they come from the host and determine which rows are written.


@impl(spec.moe_pad_into, devices=DEVICES)
def moe_pad_into(x: Tensor, y: Tensor, rows: list[int], padded: list[int]) -> None:
    launch = _plan_blocks("moe_pad_into", x, y, _count(rows))
    check("moe_pad_into", rows=rows, padded=padded)
    spec.blocks_grow("moe_pad_into", x, y, rows, padded)
    _write(launch, x, y, rows, padded)


@impl(spec.moe_unpad_into, devices=DEVICES)
def moe_unpad_into(x: Tensor, y: Tensor, rows: list[int], kept: list[int]) -> None:
    launch = _plan_blocks("moe_unpad_into", x, y, _count(rows))
    check("moe_unpad_into", rows=rows, kept=kept)
    spec.blocks_shrink("moe_unpad_into", x, y, rows, kept)
    _write(launch, x, y, rows, kept)
