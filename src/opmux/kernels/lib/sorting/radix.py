"""A stable radix sort of long rows, eight bits per pass from the lowest.

A pass has three steps. First, each block counts its digits. Second, a scan of the counts, by digit and then by block,
gives the position where each block stores its elements of each digit. Third, each block sorts its elements by digit, so
that stores of equal digits are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....core.errors import NotSupported
from ....specs import scan
from ..config import Tiles, tunable
from ..launch import Launcher
from ..plans import decided
from ..rows import OutputSpec
from .keys import as_bits, bits_of, key_of

DIGITS = 256


def _keys(
    x_ptr,
    key_ptr,
    n,
    INFINITY: tl.constexpr,
    LARGEST: tl.constexpr,
    SIGN: tl.constexpr,
    DESCENDING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Elements as integers whose bits sort as unsigned numbers."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = key_of(tl.load(x_ptr + o, mask=o < n, other=0), INFINITY, LARGEST, DESCENDING)
    tl.store(key_ptr + o, key ^ SIGN, mask=o < n)


@triton.jit
def _digit(key_ptr, o, n, shift, DIGITS: tl.constexpr):
    key = tl.load(key_ptr + o, mask=o < n, other=0)
    return ((key >> shift) & (DIGITS - 1)).to(tl.int32)


def _count(key_ptr, count_ptr, start_ptr, n, blocks, shift, DIGITS: tl.constexpr, BLOCK: tl.constexpr):
    """For each block: how often each digit occurs [digit, block], and how often smaller ones do [block, digit]."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o = block * BLOCK + tl.arange(0, BLOCK)
    digit = _digit(key_ptr + row * n, o, n, shift, DIGITS)
    counts = tl.histogram(digit, DIGITS)
    o_d = tl.arange(0, DIGITS)
    # do not count out-of-bounds elements, whose digit is 0
    counts -= tl.where(o_d == 0, tl.sum((o >= n).to(tl.int32), 0), 0)
    tl.store(count_ptr + row * DIGITS * blocks + o_d * blocks + block, counts)
    tl.store(start_ptr + (row * blocks + block) * DIGITS + o_d, tl.cumsum(counts, 0) - counts)


def _move(
    key_ptr,
    at_ptr,
    count_ptr,
    end_ptr,
    start_ptr,
    new_key_ptr,
    new_at_ptr,
    n,
    blocks,
    shift,
    DIGITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move the elements of a block to their sorted positions.

    at_ptr is None in the first pass, new_key_ptr in the last.
    """
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    begin, o = block * BLOCK, tl.arange(0, BLOCK)
    digit = _digit(key_ptr + row * n, begin + o, n, shift, DIGITS)
    digit = tl.where(begin + o < n, digit, DIGITS)
    order = tl.sort(digit * BLOCK + o)
    digit, o_b = order // BLOCK, begin + (order & (BLOCK - 1))
    m = digit < DIGITS
    o_c = row * DIGITS * blocks + digit * blocks + block
    first = tl.load(end_ptr + o_c, mask=m, other=0) - tl.load(count_ptr + o_c, mask=m, other=0)
    inside = o - tl.load(start_ptr + (row * blocks + block) * DIGITS + digit, mask=m, other=0)
    target = row * n + first + inside
    if at_ptr is None:
        at = o_b
    else:
        at = tl.load(at_ptr + row * n + o_b, mask=m, other=0)
    tl.store(new_at_ptr + target, at.to(new_at_ptr.dtype.element_ty), mask=m)
    if new_key_ptr is not None:
        tl.store(new_key_ptr + target, tl.load(key_ptr + row * n + o_b, mask=m, other=0), mask=m)


make_keys = Launcher(_keys, sizes="n")
count = Launcher(_count, sizes="n")
move = Launcher(_move, sizes="n")


@tunable("sorting.radix")
def radix_tiles(dtype: torch.dtype) -> Tiles:
    """Eight elements per thread: with more, sorting takes more steps; with fewer, there are more counts to scan."""
    return Tiles(256, BLOCK=2048)


# ---- plans ----------------------------------------------------------------------------------------------------------


@decided
def order(keys: Tensor, bits: int) -> Callable[[Tensor], Tensor]:
    """A function of integer keys [rows, n]: returns the int64 indices that sort each row by the lowest `bits` bits."""
    rows, n = keys.shape
    tiles = radix_tiles(dtype=keys.dtype)
    blocks = -(-n // tiles["BLOCK"])
    if n + tiles["BLOCK"] >= 1 << 31 or rows > 65535:
        raise NotSupported("a row of almost 2^31 elements or more, or more than 65535 rows")
    grid, config = (blocks, rows, 1), tiles.config(even=n % 16 == 0, DIGITS=DIGITS)
    passes = max(1, -(-bits // 8))
    positions = OutputSpec.of((rows, n), torch.int32)
    last, moved_keys = OutputSpec.of((rows, n), torch.int64), OutputSpec.of((rows, n), keys.dtype)
    counts = {
        1: OutputSpec.of((rows, DIGITS * blocks), torch.int32),
        2: OutputSpec.of((rows, blocks * DIGITS), torch.int32),
    }
    steps: list[tuple[Any, Any, bool]] = []
    for i in range(passes):
        ends = i == passes - 1
        counting = count.ready(grid, (n, blocks, 8 * i), config, counts)
        moving = move.ready(grid, (n, blocks, 8 * i), config, {6: last} if ends else {5: moved_keys, 6: positions})
        steps.append((counting, moving, ends))

    def run(keys: Tensor) -> Tensor:
        at = None
        for counting, moving, ends in steps:
            digit_counts, starts = counting(keys)
            summed = scan.cumsum(digit_counts, 1)
            if ends:
                return moving(keys, at, digit_counts, summed, starts, None)
            keys, at = moving(keys, at, digit_counts, summed, starts)
        raise AssertionError("no pass")

    return run


@decided
def sorter(x: Tensor, descending: bool) -> Callable[[Tensor], Tensor]:
    """A function of contiguous rows [rows, n] that returns the int64 indices that sort each row."""
    bits, n = bits_of(x.dtype), x.numel()
    width = 8 if x.dtype.itemsize == 8 else 4
    keys = OutputSpec.of(x.shape, torch.int64 if width == 8 else torch.int32)
    tiles = radix_tiles(dtype=bits.dtype)
    config = tiles.config(
        even=n % 16 == 0, INFINITY=bits.infinity, LARGEST=bits.largest, SIGN=bits.sign, DESCENDING=descending
    )
    launch = make_keys.ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), config, {1: keys})

    def run(x: Tensor) -> Tensor:
        result = launch(as_bits(x))
        return order(result, 8 * x.element_size())(result)

    return run
