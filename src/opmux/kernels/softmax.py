"""Softmax and log-softmax: one row a program where it fits, in pieces where it does not; float32 inside.

A dimension that is not the last is brought there by a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.registry import impl
from ..specs import softmax as spec
from .lib.config import Tiles, tunable
from .lib.launch import Launcher
from .lib.plans import plans
from .lib.rows import DEVICES, Room, Rows, even_rows, packed, wide_of


def _fwd(
    x_ptr, y_ptr, x_stride, n_rows, n,
    LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_m < n_rows) & (o_n < n)
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=-float("inf")).to(WIDE)
    b_x -= tl.max(b_x, 1)[:, None]
    b_e = tl.exp(b_x)
    total = tl.sum(b_e, 1)[:, None]
    b_y = b_x - tl.log(total) if LOG else b_e / total
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _fwd_pieces(x_ptr, y_ptr, x_stride, n_rows, n, LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The largest and the sum of a long row in one reading, its result in a second, out of L2."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    b_top = tl.full([BLOCK_N], -float("inf"), WIDE)
    b_sum = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=-float("inf"), eviction_policy="evict_last").to(WIDE)
        b_new = tl.maximum(b_top, b_x, propagate_nan=tl.PropagateNan.ALL)
        # where all is -inf so far there is nothing to rescale, and inf - inf would be NaN
        b_old = tl.where(b_top == -float("inf"), 0.0, b_sum * tl.exp(b_top - b_new))
        b_sum = b_old + tl.where(b_x == -float("inf"), 0.0, tl.exp(b_x - b_new))
        b_top = b_new
    top = tl.max(b_top, 0)
    total = tl.sum(tl.where(b_top == -float("inf"), 0.0, b_sum * tl.exp(b_top - top)), 0)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE) - top
        b_y = b_x - tl.log(total) if LOG else tl.exp(b_x) / total
        tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _bwd(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, n_rows, n,
    LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_m < n_rows) & (o_n < n)
    b_y = tl.load(y_ptr + i_m * y_stride + o_n, mask=m, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
    if LOG:
        b_dx = b_dy - tl.exp(b_y) * tl.sum(b_dy, 1)[:, None]
    else:
        b_dx = b_y * (b_dy - tl.sum(b_dy * b_y, 1)[:, None])
    tl.store(dx_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _bwd_pieces(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, n_rows, n, LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    dy_ptr += row * dy_stride
    y_ptr += row * y_stride
    b_sum = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_dy = tl.load(dy_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
        if LOG:
            b_sum += b_dy
        else:
            b_sum += b_dy * tl.load(y_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_last").to(WIDE)
    total = tl.sum(b_sum, 0)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_y = tl.load(y_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_dy = tl.load(dy_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE)
        b_dx = b_dy - tl.exp(b_y) * total if LOG else b_y * (b_dy - total)
        tl.store(dx_ptr + row * n + at + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


fwd = Launcher(_fwd, tensors=2, sizes="x_stride n", free="n_rows")
fwd_pieces = Launcher(_fwd_pieces, tensors=2, sizes="x_stride n", free="n_rows")
bwd = Launcher(_bwd, tensors=3, sizes="dy_stride y_stride n", free="n_rows")
bwd_pieces = Launcher(_bwd_pieces, tensors=3, sizes="dy_stride y_stride n", free="n_rows")


LONGEST = {1: 32768, 2: 32768, 4: 16384, 8: 8192}  # columns of a dtype this wide that one program holds in registers


@tunable("softmax.rows")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Whole rows in registers."""
    block = max(triton.next_power_of_2(n), 16)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    threads = 1024 if block >= LONGEST[dtype.itemsize] else min(512, max(128, rows * block // 32))
    return Tiles(threads, BLOCK_M=rows, BLOCK_N=block)


@tunable("softmax.pieces")
def piece_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A long row, a piece at a time."""
    return Tiles(512, BLOCK_N=LONGEST[dtype.itemsize] // 4)


class Along(NamedTuple):
    """What an op will do for tensors that look so."""

    out: Room
    launch: Callable[..., None] | None  # None: nothing to compute
    last: bool  # whether the dimension is the last one, and rows are even


@plans
def _plan(op: str, log: bool, dim: int, *args: Tensor) -> Along:
    names = ("x",) if len(args) == 1 else ("dy", "y")
    like = args[-1]
    spec.check(op, like, dim, lead=names[-1], **dict(zip(names[:-1], args[:-1], strict=True)))
    last = like.dim() > 0 and dim % like.dim() == like.dim() - 1 and all(even_rows(t) for t in args)
    moved = [_moved(t, dim) for t in args]
    n = moved[0].shape[-1]
    at = [Rows.of(t) for t in moved]
    room = Room.of(like.shape if last else moved[0].shape, like.dtype)
    if not like.numel():
        return Along(room, None, last)
    whole = n <= LONGEST[like.dtype.itemsize]
    tiles = (row_tiles if whole else piece_tiles)(n=n, dtype=like.dtype)
    even = n % 16 == 0 and all(r.stride % 16 == 0 for r in at)
    config = tiles.config(even=even, LOG=log, WIDE=wide_of(like.dtype))
    launcher = (fwd if whole else fwd_pieces) if len(args) == 1 else (bwd if whole else bwd_pieces)
    grid = (-(-at[0].count // tiles["BLOCK_M"]) if whole else at[0].count, 1, 1)
    return Along(room, launcher.ready(grid, (*(r.stride for r in at), at[0].count, n), config), last)


def _moved(x: Tensor, dim: int) -> Tensor:
    """The tensor with the dimension in the last place, and even rows."""
    return packed(x.reshape(1) if x.dim() == 0 else x.movedim(dim, -1))


def _run(op: str, log: bool, dim: int, *args: Tensor) -> Tensor:
    room, launch, last = _plan(op, log, dim, *args)
    like = args[-1]
    out = room.on(like)
    if last:
        if launch is not None:
            launch(*args, out)
        return out
    if launch is not None:
        launch(*(_moved(t, dim) for t in args), out)
    return out.reshape(()) if like.dim() == 0 else out.movedim(-1, dim).contiguous()


@impl(spec.softmax, devices=DEVICES)
def softmax(x: Tensor, dim: int) -> Tensor:
    return _run("softmax", False, dim, x)


@impl(spec.log_softmax, devices=DEVICES)
def log_softmax(x: Tensor, dim: int) -> Tensor:
    return _run("log_softmax", True, dim, x)


@impl(spec.softmax_bwd, devices=DEVICES)
def softmax_bwd(dy: Tensor, y: Tensor, dim: int) -> Any:
    return _run("softmax_bwd", False, dim, dy, y)


@impl(spec.log_softmax_bwd, devices=DEVICES)
def log_softmax_bwd(dy: Tensor, y: Tensor, dim: int) -> Any:
    return _run("log_softmax_bwd", True, dim, dy, y)
