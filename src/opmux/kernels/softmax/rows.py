"""Softmax and log-softmax, in float32.

A program holds a row in registers. Longer rows are shared by several programs if they can cooperate, else read in
pieces. If the dimension is not the last one, a copy makes it the last.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...specs import softmax as spec
from ..lib.config import Tiles, tunable
from ..lib.cooperative import CooperativeRows, can_cooperate, gather, gather_pairs, position_in_group, post
from ..lib.harness import Plan, RowSizes, planned
from ..lib.launch import Launcher
from ..lib.rows import OutputSpec, inside, wide_of


@triton.jit
def add_piece(b_top, b_sum, b_x):
    """Update each lane's running max, and its sum of exp(x - max), with one more piece of the row."""
    b_new = tl.maximum(b_top, b_x, propagate_nan=tl.PropagateNan.ALL)
    # If all elements so far are -inf, there is no sum to rescale, and -inf - -inf would be NaN.
    b_old = tl.where(b_top == -float("inf"), 0.0, b_sum * tl.exp(b_top - b_new))
    return b_new, b_old + tl.where(b_x == -float("inf"), 0.0, tl.exp(b_x - b_new))


@triton.jit
def merge_lanes(b_top, b_sum):
    """Combine the lanes' max and sum to the row's max and sum of exp(x - max)."""
    top = tl.max(b_top, 0)
    return top, tl.sum(tl.where(b_top == -float("inf"), 0.0, b_sum * tl.exp(b_top - top)), 0)


def _fwd(
    x_ptr,
    y_ptr,
    x_stride,
    n_rows,
    n,
    LOG: tl.constexpr,
    WIDE: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_m < n_rows) & inside(o_n, n, FULL)
    b_x = tl.load(x_ptr + i_m * x_stride + o_n, mask=m, other=-float("inf")).to(WIDE)
    b_x -= tl.max(b_x, 1)[:, None]
    b_e = tl.exp(b_x)
    total = tl.sum(b_e, 1)[:, None]
    b_y = b_x - tl.log(total) if LOG else b_e / total
    tl.store(y_ptr + i_m * n + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _fwd_pieces(x_ptr, y_ptr, x_stride, n_rows, n, LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Pass 1 computes max and sum; pass 2 reads the row again, from L2."""
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    b_top = tl.full([BLOCK_N], -float("inf"), WIDE)
    b_sum = tl.zeros([BLOCK_N], WIDE)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=-float("inf"), eviction_policy="evict_last").to(WIDE)
        b_top, b_sum = add_piece(b_top, b_sum, b_x)
    top, total = merge_lanes(b_top, b_sum)
    for at in range(0, n, BLOCK_N):
        m = at + o_n < n
        b_x = tl.load(x_ptr + at + o_n, mask=m, other=0.0, eviction_policy="evict_first").to(WIDE) - top
        b_y = b_x - tl.log(total) if LOG else tl.exp(b_x) / total
        tl.store(y_ptr + at + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _bwd(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_stride,
    y_stride,
    n_rows,
    n,
    LOG: tl.constexpr,
    WIDE: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    i_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o_n = tl.arange(0, BLOCK_N)[None, :]
    m = (i_m < n_rows) & inside(o_n, n, FULL)
    b_y = tl.load(y_ptr + i_m * y_stride + o_n, mask=m, other=0.0).to(WIDE)
    b_dy = tl.load(dy_ptr + i_m * dy_stride + o_n, mask=m, other=0.0).to(WIDE)
    if LOG:
        b_dx = b_dy - tl.exp(b_y) * tl.sum(b_dy, 1)[:, None]
    else:
        b_dx = b_y * (b_dy - tl.sum(b_dy * b_y, 1)[:, None])
    tl.store(dx_ptr + i_m * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


def _bwd_pieces(
    dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, n_rows, n, LOG: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr
):
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


@triton.jit
def _finish(b_x, y_ptr, exchange_ptr, n, o_n, m, member, LOG: tl.constexpr, GROUP: tl.constexpr):
    """Compute and store the softmax of a loaded row, or of this program's part of a shared row."""
    top = tl.max(b_x, 0)
    b_e = tl.exp(b_x - tl.where(top == -float("inf"), 0.0, top))  # all are 0, not NaN, if all x are -inf
    total = tl.sum(b_e, 0)
    highest = top
    if GROUP > 1:
        post(exchange_ptr + member * 2, top)
        post(exchange_ptr + member * 2 + 1, total)
        b_tops, b_totals = gather_pairs(exchange_ptr, GROUP)
        highest = tl.max(b_tops, 0)
        total = tl.sum(tl.where(b_totals == 0, 0.0, b_totals * tl.exp(b_tops - highest)), 0)
    if LOG:
        b_y = b_x - highest - tl.log(total)
    else:
        b_y = b_e * (tl.where(top == -float("inf"), 1.0, tl.exp(top - highest)) / total)
    tl.store(y_ptr + o_n, b_y.to(y_ptr.dtype.element_ty), mask=m)


def _fwd_cooperative(
    x_ptr,
    y_ptr,
    exchange_ptr,
    x_stride,
    n_rows,
    n,
    LOG: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    FULL: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Long rows. A group of programs holds one row in registers while it loads the next row.

    A group of one program loads the next row to shared memory, STAGES ahead, because it has no registers left.
    """
    member, group, n_groups = position_in_group(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    if GROUP == 1:
        for at in tl.range(group, n_rows, n_groups, num_stages=STAGES):
            row = tl.zeros([], tl.int64) + at
            b_x = tl.load(x_ptr + row * x_stride + o_n, mask=m, other=-float("inf")).to(WIDE)
            _finish(b_x, y_ptr + row * n, exchange_ptr, n, o_n, m, member, LOG, GROUP)
    else:
        x_next = tl.load(x_ptr + group.to(tl.int64) * x_stride + o_n, mask=m, other=-float("inf"))
        for at in range(group, n_rows, n_groups):
            row = tl.zeros([], tl.int64) + at
            b_x = x_next.to(WIDE)
            ahead = row + n_groups
            x_next = tl.load(x_ptr + ahead * x_stride + o_n, mask=(ahead < n_rows) & m, other=-float("inf"))
            _finish(b_x, y_ptr + row * n, exchange_ptr + row * GROUP * 2, n, o_n, m, member, LOG, GROUP)


def _bwd_cooperative(
    dy_ptr,
    y_ptr,
    dx_ptr,
    exchange_ptr,
    dy_stride,
    y_stride,
    n_rows,
    n,
    LOG: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    member, group, n_groups = position_in_group(GROUP)
    o_n = member * BLOCK_N + tl.arange(0, BLOCK_N)
    m = inside(o_n, n, FULL)
    y_next = tl.load(y_ptr + group.to(tl.int64) * y_stride + o_n, mask=m, other=0.0)
    dy_next = tl.load(dy_ptr + group.to(tl.int64) * dy_stride + o_n, mask=m, other=0.0)
    for at in range(group, n_rows, n_groups):
        row = tl.zeros([], tl.int64) + at
        b_y, b_dy = y_next.to(WIDE), dy_next.to(WIDE)
        ahead = row + n_groups
        y_next = tl.load(y_ptr + ahead * y_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        dy_next = tl.load(dy_ptr + ahead * dy_stride + o_n, mask=(ahead < n_rows) & m, other=0.0)
        total = tl.sum(b_dy, 0) if LOG else tl.sum(b_dy * b_y, 0)
        if GROUP > 1:
            post(exchange_ptr + row * GROUP + member, total)
            total = tl.sum(gather(exchange_ptr + row * GROUP, GROUP), 0)
        b_dx = b_dy - tl.exp(b_y) * total if LOG else b_y * (b_dy - total)
        tl.store(dx_ptr + row * n + o_n, b_dx.to(dx_ptr.dtype.element_ty), mask=m)


fwd_cooperative = Launcher(_fwd_cooperative, sizes="x_stride n")
bwd_cooperative = Launcher(_bwd_cooperative, sizes="dy_stride y_stride n")
fwd = Launcher(_fwd, sizes="x_stride n")
fwd_pieces = Launcher(_fwd_pieces, sizes="x_stride n")
bwd = Launcher(_bwd, sizes="dy_stride y_stride n")
bwd_pieces = Launcher(_bwd_pieces, sizes="dy_stride y_stride n")


# Rows of more 16-bit columns than this are shared by programs, if these can cooperate.
COOPERATIVE_FROM, COOPERATIVE_FROM_BWD = 16384, 32768
LONGEST = {1: 32768, 2: 32768, 4: 16384, 8: 8192}  # itemsize -> how many columns one program can hold in registers


@tunable("softmax.rows")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program holds whole rows in registers."""
    block = max(triton.next_power_of_2(n), 16)
    rows = 1 if block > 4096 else 2 if block >= 2048 else 4096 // block
    return Tiles(min(512, max(128, rows * block // 32)), BLOCK_M=rows, BLOCK_N=block)


@tunable("softmax.pieces")
def piece_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """A program reads a long row in pieces."""
    return Tiles(512, BLOCK_N=LONGEST[dtype.itemsize] // 4)


@tunable("softmax.cooperative")
def cooperative_tiles(n: int, dtype: torch.dtype, backward: bool) -> Tiles:
    """A group of programs shares a long row; if one program can hold the row, the group is that program."""
    size = max(dtype.itemsize, 2)
    if backward:
        return Tiles(512, BLOCK_N=16384 // size, PER_CORE=2)
    if n * size <= 65536:
        return Tiles(512, STAGES=3, BLOCK_N=triton.next_power_of_2(n), PER_CORE=2)
    return Tiles(256, STAGES=1, BLOCK_N=16384 // size, PER_CORE=3)


def _along(dim: int, log: bool, **tensors: Tensor) -> Plan:
    """The plan of the forward, given x, or of the backward, given dy and y."""
    *_, like = tensors.values()
    backward, result = len(tensors) > 1, "dx" if len(tensors) > 1 else "y"
    dtype, wide = like.dtype, wide_of(like.dtype)
    moved, before, after = tensors, {}, {}
    if not like.dim() or dim % like.dim() != like.dim() - 1:
        moved = {name: _moved(t, dim) for name, t in tensors.items()}
        before = dict.fromkeys(tensors, lambda t: _moved(t, dim).contiguous())
        back = (lambda y: y.movedim(-1, dim).contiguous()) if like.dim() else (lambda y: y.reshape(()))
        after = {result: back}
    rows = RowSizes.of(**moved)
    if before:
        rows = rows.packed()
    n = rows.n
    makes: dict[str, Any] = {result: OutputSpec.of(moved[[*moved][-1]].shape, dtype)}
    if not like.numel():
        return Plan(makes, after=after)
    sizes: dict[str, Any] = dict(n=n, dtype=dtype)
    constants: dict[str, Any] = dict(LOG=log, WIDE=wide)
    cooperative_from = (COOPERATIVE_FROM_BWD if backward else COOPERATIVE_FROM) * 2 // max(dtype.itemsize, 2)
    group = None
    if n > cooperative_from and can_cooperate(wide):
        tiles = cooperative_tiles(**sizes, backward=backward)
        group = CooperativeRows.of(tiles, like.device, rows, 1 if backward else 2, **constants)
    if group is not None:
        makes["exchange"] = group.exchange
        launch = group.launch(bwd_cooperative if backward else fwd_cooperative)
    elif n <= LONGEST[dtype.itemsize]:
        tiles = row_tiles(**sizes)
        launch = rows.launch(bwd if backward else fwd, tiles, FULL=n == tiles["BLOCK_N"], **constants)
    else:
        launch = rows.launch(bwd_pieces if backward else fwd_pieces, piece_tiles(**sizes), rows.count, **constants)
    return Plan(makes, [launch], rows.strided, before, after)


def _moved(x: Tensor, dim: int) -> Tensor:
    return x.reshape(1) if x.dim() == 0 else x.movedim(dim, -1)


@planned(spec.softmax, below=True)
def softmax(x: Tensor, dim: int) -> Plan:
    return _along(dim, False, x=x)


@planned(spec.softmax_bwd, below=True)
def softmax_bwd(dy: Tensor, y: Tensor, dim: int) -> Plan:
    return _along(dim, False, dy=dy, y=y)


@planned(spec.log_softmax, below=True)
def log_softmax(x: Tensor, dim: int) -> Plan:
    return _along(dim, True, x=x)


@planned(spec.log_softmax_bwd, below=True)
def log_softmax_bwd(dy: Tensor, y: Tensor, dim: int) -> Plan:
    return _along(dim, True, dy=dy, y=y)
