"""Combine writes to one position in a fixed order: sort elements by position, then combine each position's elements.

Used where atomic additions do not serve: for 8-bit and 16-bit dtypes; for products, minima and maxima; for sums that
torch promises to add in order (`index_put` with accumulate, the gradient of `embedding`); and under
`torch.use_deterministic_algorithms`. Sums of floats are computed in float32 (float64 for float64).
"""

# No `from __future__ import annotations`: Triton must see that alpha is tl.float64, or it passes a float32.

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.errors import NotSupported
from ..lib.cells import Cells, keys
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.sorting import radix
from ..lib.sorting import rows as short

# ---- combine: two states --------------------------------------------------------------------------------------------


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.where((b > a) | (b != b), b, a)


@triton.jit
def smaller(a, b):
    return tl.where((b < a) | (b != b), b, a)


COMBINE = {"sum": add, "mean": add, "prod": multiply, "amax": larger, "amin": smaller}


# ---- kernels --------------------------------------------------------------------------------------------------------


def _rows(
    key_ptr,
    order_ptr,
    source_ptr,
    x_ptr,
    count,
    n,
    x_step,
    beyond,
    alpha: tl.float64,
    MEAN: tl.constexpr,
    SELF: tl.constexpr,
    WIDE: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The sum or mean of all rows of one position, computed by the program of the first of these rows."""
    across = tl.cdiv(n, BLOCK_N)
    at = tl.program_id(0) // across
    o_n = (tl.program_id(0) % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < n
    key = tl.load(key_ptr + at)
    if (key < beyond) & (tl.load(key_ptr + at - 1, mask=at > 0, other=-1) != key):
        total = tl.zeros([BLOCK_N], WIDE)
        combined, same, o_r = 0, RUN, tl.arange(0, RUN)
        while same == RUN:
            m_r = (at + o_r < count) & (tl.load(key_ptr + at + o_r, mask=at + o_r < count, other=-1) == key)
            row = tl.load(order_ptr + at + o_r, mask=m_r, other=0)
            b = tl.load(source_ptr + row[:, None] * n + o_n[None, :], mask=m_r[:, None] & m_n[None, :], other=0)
            total += tl.sum(b.to(WIDE), 0)
            same = tl.sum(m_r.to(tl.int32), 0)
            combined += same
            at += RUN
        total = total * tl.full([], alpha, WIDE)
        if MEAN:
            total = total / combined.to(WIDE)
        o_x = key.to(tl.int64) + o_n * x_step
        if SELF:
            total += tl.load(x_ptr + o_x, mask=m_n).to(WIDE)
        tl.store(x_ptr + o_x, total.to(x_ptr.dtype.element_ty), mask=m_n)


def _elements(
    key_ptr,
    order_ptr,
    source_ptr,
    x_ptr,
    count,
    beyond,
    COMBINE: tl.constexpr,
    MEAN: tl.constexpr,
    SELF: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The lane of a position's first element combines all elements of that position."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(key_ptr + at, mask=at < count, other=beyond)
    first = (at < count) & (key < beyond) & (tl.load(key_ptr + at - 1, mask=(at > 0) & (at < count), other=-1) != key)
    if SELF:
        total = tl.load(x_ptr + key, mask=first, other=0).to(WIDE)
        combined = tl.full([BLOCK], 1, tl.int32)
    else:
        total = tl.load(source_ptr + tl.load(order_ptr + at, mask=first, other=0), mask=first, other=0).to(WIDE)
        combined = tl.full([BLOCK], 1, tl.int32)
        at += 1
    live = first & (tl.load(key_ptr + at, mask=first & (at < count), other=-1) == key)
    while tl.max(live.to(tl.int32), 0) > 0:
        b = tl.load(source_ptr + tl.load(order_ptr + at, mask=live, other=0), mask=live, other=0).to(WIDE)
        total = tl.where(live, COMBINE(total, b), total)
        combined += live.to(tl.int32)
        at += 1
        live = live & (tl.load(key_ptr + at, mask=live & (at < count), other=-1) == key)
    if MEAN:
        total = total / combined.to(WIDE)
    tl.store(x_ptr + key, total.to(x_ptr.dtype.element_ty), mask=first)


fold_rows = Launcher(_rows, sizes="n")
fold_elements = Launcher(_elements, sizes="count")


@tunable("index.fold_rows", free="RUN BLOCK_N")
def row_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Load eight rows at once: a frequent position would otherwise load its rows one after another."""
    return Tiles(128, RUN=8, BLOCK_N=min(512, triton.next_power_of_2(n)))


@tunable("index.fold_elements")
def element_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=256)


# ---- plans ----------------------------------------------------------------------------------------------------------

WIDE = {torch.float16: tl.float32, torch.bfloat16: tl.float32, torch.float32: tl.float32, torch.float64: tl.float64}


def sorted_keys(keys: Tensor, beyond: int) -> tuple[Tensor, Tensor]:
    """The keys in sorted order, and their original indices. Keys are between 0 and `beyond`."""
    keys = keys.view(1, -1)
    if keys.shape[1] <= short.LONGEST:
        return short.sorter(keys, False)(keys)
    order = radix.order(keys, beyond.bit_length())(keys)
    return keys.view(-1)[order.view(-1)], order


def folder(
    cells: Cells, x: Tensor, how: str, include_self: bool, *, skips: bool = False, dtype: torch.dtype | None = None
) -> Callable[..., None]:
    """A function (x, indices, source, alpha=1.0, *skip) that combines the elements of `source` into x.

    `source` is contiguous and has the shape of the cells. `how`: sum, mean, prod, amax or amin. Without `include_self`
    the old elements of x are replaced, not combined.
    """
    dtype = x.dtype if dtype is None else dtype
    if dtype is torch.bool or (how == "mean" and not dtype.is_floating_point):
        raise NotSupported(f"the {how} of {dtype}")
    wide = WIDE.get(dtype, tl.int64)
    # whether to combine whole rows
    whole = dtype.is_floating_point and (how == "sum" or (how == "mean" and not include_self))
    find, loop, beyond = keys(cells, x, skips, flat=not whole)
    whole = loop.rows
    if whole:
        tiles = row_tiles(n=loop.n, dtype=dtype)
        config = tiles.config(even=loop.n % 16 == 0, MEAN=how == "mean", SELF=include_self, WIDE=wide)
        grid = (loop.m * -(-loop.n // tiles["BLOCK_N"]), 1, 1)
        launch = fold_rows.ready(grid, (loop.m, loop.n, loop.x[-1], beyond), config)
    else:
        tiles = element_tiles(dtype=dtype)
        config = tiles.config(
            even=loop.m % 16 == 0, COMBINE=COMBINE[how], MEAN=how == "mean", SELF=include_self, WIDE=wide
        )
        launch = fold_elements.ready((-(-loop.m // tiles["BLOCK"]), 1, 1), (loop.m, beyond), config)

    def run(x: Tensor, indices: Any, source: Tensor, alpha: float = 1.0, *skip: int) -> None:
        cell_keys, order = sorted_keys(find(x, *indices, *skip), beyond)
        if whole:
            launch(cell_keys, order, source, x, alpha)
        else:
            launch(cell_keys, order, source if alpha == 1 else source * alpha, x)

    return run
