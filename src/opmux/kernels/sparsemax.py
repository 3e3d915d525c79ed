"""Sparsemax without a sort: Newton's method for the threshold of a row, in float32 (float64 for float64).

sum(max(x - tau, 0)) - 1 is convex and piecewise linear in tau. Starting from below, Newton's steps rise to the root:
each step removes elements from the support, and the first step that removes none is exact.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..specs import sparsemax as spec
from .lib.config import Tiles, tunable
from .lib.harness import Plan, RowSizes, planned
from .lib.launch import Launcher
from .lib.rows import OutputSpec, fits, wide_of


def _fwd(
    x_ptr,
    y_ptr,
    x_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    x_ptr += row * x_stride
    y_ptr += row * n
    if WHOLE:
        b_x = tl.load(x_ptr + o_n, mask=o_n < n, other=-float("inf")).to(WIDE)
        top = tl.max(b_x, 0)
        b_x -= top
    else:
        b_x = tl.full([BLOCK_N], -float("inf"), WIDE)
        for at in range(0, n, BLOCK_N):
            b_x = tl.maximum(b_x, tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=-float("inf")).to(WIDE))
        top = tl.max(b_x, 0)
    # a lower bound of the root, for x - top: there, the largest element alone gives a sum of 1
    tau = tl.full([], -1.0, WIDE)
    before = tl.full([], 2, tl.int32) + n
    count = before - 1
    while count < before:
        before = count
        if WHOLE:
            total = tl.sum(tl.where(b_x > tau, b_x, 0.0), 0)
            count = tl.sum((b_x > tau).to(tl.int32), 0)
        else:
            b_total = tl.zeros([BLOCK_N], WIDE)
            b_count = tl.zeros([BLOCK_N], tl.int32)
            for at in range(0, n, BLOCK_N):
                b_x = tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=-float("inf")).to(WIDE) - top
                b_total += tl.where(b_x > tau, b_x, 0.0)
                b_count += (b_x > tau).to(tl.int32)
            total = tl.sum(b_total, 0)
            count = tl.sum(b_count, 0)
        tau = tl.where(count > 0, (total - 1.0) / count, tau)
    if WHOLE:
        b_y = b_x - tau
        tl.store(y_ptr + o_n, tl.where(b_y <= 0.0, 0.0, b_y).to(y_ptr.dtype.element_ty), mask=o_n < n)
    else:
        for at in range(0, n, BLOCK_N):
            b_y = tl.load(x_ptr + at + o_n, mask=at + o_n < n, other=0.0).to(WIDE) - top - tau
            tl.store(y_ptr + at + o_n, tl.where(b_y <= 0.0, 0.0, b_y).to(y_ptr.dtype.element_ty), mask=at + o_n < n)


def _bwd(
    dy_ptr,
    y_ptr,
    dx_ptr,
    dy_stride,
    y_stride,
    n_rows,
    n,
    WIDE: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    o_n = tl.arange(0, BLOCK_N)
    dy_ptr += row * dy_stride
    y_ptr += row * y_stride
    dx_ptr += row * n
    if WHOLE:
        b_in = tl.load(y_ptr + o_n, mask=o_n < n, other=0.0) > 0.0
        b_dy = tl.load(dy_ptr + o_n, mask=o_n < n, other=0.0).to(WIDE)
        mean = tl.sum(tl.where(b_in, b_dy, 0.0), 0) / tl.sum(b_in.to(tl.int32), 0)
        tl.store(dx_ptr + o_n, tl.where(b_in, b_dy - mean, 0.0).to(dx_ptr.dtype.element_ty), mask=o_n < n)
    else:
        b_total = tl.zeros([BLOCK_N], WIDE)
        b_count = tl.zeros([BLOCK_N], tl.int32)
        for at in range(0, n, BLOCK_N):
            b_in = tl.load(y_ptr + at + o_n, mask=at + o_n < n, other=0.0) > 0.0
            b_total += tl.where(b_in, tl.load(dy_ptr + at + o_n, mask=at + o_n < n, other=0.0).to(WIDE), 0.0)
            b_count += b_in.to(tl.int32)
        mean = tl.sum(b_total, 0) / tl.sum(b_count, 0)
        for at in range(0, n, BLOCK_N):
            m = at + o_n < n
            b_in = tl.load(y_ptr + at + o_n, mask=m, other=0.0) > 0.0
            b_dx = tl.load(dy_ptr + at + o_n, mask=m, other=0.0).to(WIDE) - mean
            tl.store(dx_ptr + at + o_n, tl.where(b_in, b_dx, 0.0).to(dx_ptr.dtype.element_ty), mask=m)


fwd, bwd = Launcher(_fwd, sizes="x_stride n"), Launcher(_bwd, sizes="dy_stride y_stride n")


@tunable("sparsemax")
def tiles_of(n: int, dtype: torch.dtype) -> Tiles:
    """A program holds one row in registers if it fits; else it reads the row in pieces, and again from L2."""
    block = max(triton.next_power_of_2(n), 64) if n <= fits(16384, dtype) else fits(8192, dtype)
    return Tiles(max(32, block // 16), BLOCK_N=block)


def _plan(result: str, kernel: Launcher, **tensors: Tensor) -> Plan:
    *_, x = tensors.values()
    makes = {result: OutputSpec.of(x.shape, x.dtype)}
    if not x.numel():
        return Plan(makes)
    rows, tiles = RowSizes.of(**tensors), tiles_of(n=x.shape[-1], dtype=x.dtype)
    launch = rows.launch(kernel, tiles, rows.count, WIDE=wide_of(x.dtype), WHOLE=rows.n <= tiles["BLOCK_N"])
    return Plan(makes, [launch], rows.strided)


@planned(spec.sparsemax)
def sparsemax(x: Tensor) -> Plan:
    return _plan("y", fwd, x=x)


@planned(spec.sparsemax_bwd)
def sparsemax_bwd(dy: Tensor, y: Tensor) -> Plan:
    return _plan("dx", bwd, dy=dy, y=y)
