"""Sort rows that fit in one program: key and index are packed in one integer, and sorted by a bitonic network.

The integer has 32 bits for elements of up to 16 bits, else 64. 64-bit elements are sorted twice, by their low and their
high half. `chooser` finds the first k of a row. It splits a long row into chunks; the first k of each chunk form a new
row.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..config import Tiles, tunable
from ..launch import Launcher
from ..plans import decided
from ..rows import OutputSpec
from .keys import as_bits, bits_of, key_of

LONGEST = 4096  # one program sorts rows of up to this many elements
MOST = 1024  # `chooser` supports k up to this; for a larger k, sort the row


def _sorted(
    x_ptr,
    before_ptr,
    y_ptr,
    i_ptr,
    n,
    n_rows,
    INFINITY: tl.constexpr,
    LARGEST: tl.constexpr,
    DESCENDING: tl.constexpr,
    PART: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Sorted rows and their indices.

    PART, for 64-bit elements: "low" sorts by the low half, then "high" sorts the result (`before`) by the high half.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o = tl.arange(0, BLOCK_N)[None, :]
    m = (row < n_rows) & (o < n)
    if before_ptr is None:
        key = tl.load(x_ptr + row * n + o, mask=m, other=0)
    else:
        key = tl.load(x_ptr + row * n + tl.load(before_ptr + row * n + o, mask=m, other=0), mask=m, other=0)
    key = key_of(key, INFINITY, LARGEST, DESCENDING)
    if PART == "low":
        key = ((key & 0xFFFFFFFF) ^ 0x80000000).to(tl.int32)
    elif PART == "high":
        key = (key >> 32).to(tl.int32)
    if SHIFT == 16:
        p = tl.where(m, (key << 16) | o, 0x7FFFFFFF)
        at = (tl.sort(p) & 0xFFFF).to(tl.int64)
    else:
        p = tl.where(m, (key.to(tl.int64) << 32) | o, 0x7FFFFFFFFFFFFFFF)
        at = tl.sort(p) & 0xFFFFFFFF
    if before_ptr is not None:
        at = tl.load(before_ptr + row * n + at, mask=m, other=0)
    tl.store(i_ptr + row * n + o, at, mask=m)
    if y_ptr is not None:
        tl.store(y_ptr + row * n + o, tl.load(x_ptr + row * n + at, mask=m, other=0), mask=m)


def _first(
    x_ptr,
    given_ptr,
    found_ptr,
    y_ptr,
    i_ptr,
    n,
    length,
    chunks,
    k,
    n_rows,
    INFINITY: tl.constexpr,
    LARGEST: tl.constexpr,
    DESCENDING: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Find the first KEEP elements of each chunk of x, or of candidates from an earlier step.

    Writes candidates to `found` or, in the last step, elements and indices. A candidate is an integer that packs an
    inverted key and an inverted index. So the largest candidate is the first element and, among equal elements, the one
    with the smallest index.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    row, chunk = lane // chunks, (lane % chunks).to(tl.int32)
    o = chunk * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    m = (row < n_rows) & (o < length)
    if given_ptr is None:
        key = key_of(tl.load(x_ptr + row * n + o, mask=m, other=0), INFINITY, LARGEST, DESCENDING)
        p = ((~key).to(tl.int64) << 32) | (0x7FFFFFFF - o).to(tl.int64)
    else:
        p = tl.load(given_ptr + row * length + o, mask=m, other=0)
    p = tl.topk(tl.where(m, p, -0x7FFFFFFFFFFFFFFF - 1), KEEP)
    o_k = tl.arange(0, KEEP)[None, :]
    if found_ptr is not None:
        tl.store(found_ptr + lane * KEEP + o_k, p, mask=row < n_rows)
    else:
        at = 0x7FFFFFFF - (p & 0xFFFFFFFF)
        m = (row < n_rows) & (o_k < k)
        tl.store(i_ptr + row * k + o_k, at, mask=m)
        tl.store(y_ptr + row * k + o_k, tl.load(x_ptr + row * n + at, mask=m, other=0), mask=m)


sorted_rows = Launcher(_sorted, sizes="n")
first_rows = Launcher(_first, sizes="n length")


@tunable("sorting.rows", free="BLOCK_M")
def sort_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """Whole rows, eight elements per thread."""
    across = max(triton.next_power_of_2(n), 16)
    down = max(1, 512 // across)
    return Tiles(max(32, min(512, down * across // 8)), BLOCK_M=down, BLOCK_N=across)


@tunable("sorting.first", free="BLOCK_M")
def first_tiles(n: int, keep: int, dtype: torch.dtype) -> Tiles:
    """Chunks of 2048 elements, or more if the number of kept elements requires it."""
    across = min(max(triton.next_power_of_2(n), 16, keep), max(2048, 2 * keep))
    down = max(1, 512 // across)
    return Tiles(max(32, min(512, down * across // 8)), BLOCK_M=down, BLOCK_N=across)


# ---- plans ----------------------------------------------------------------------------------------------------------


@decided
def sorter(x: Tensor, descending: bool) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function of contiguous rows [rows, n] that returns sorted rows, as bits, and int64 indices."""
    bits, (rows, n) = bits_of(x.dtype), x.shape
    tiles = sort_tiles(n=n, dtype=bits.dtype)
    values, indices = OutputSpec.of((rows, n), bits.dtype), OutputSpec.of((rows, n), torch.int64)

    def launch(part: str, makes: dict[int, OutputSpec]) -> Callable[..., tuple[Tensor, Tensor]]:
        config = tiles.config(
            INFINITY=bits.infinity,
            LARGEST=bits.largest,
            DESCENDING=descending,
            PART=part,
            SHIFT=16 if bits.narrow else 32,
        )
        return sorted_rows.ready((-(-rows // tiles["BLOCK_M"]), 1, 1), (n, rows), config, makes)

    if x.element_size() < 8:
        whole = launch("", {2: values, 3: indices})
        return lambda x: whole(as_bits(x), None)
    low, high = launch("low", {3: indices}), launch("high", {2: values, 3: indices})

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x = as_bits(x)
        return high(x, low(x, None, None))

    return run


@decided
def chooser(x: Tensor, k: int, descending: bool) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function of contiguous rows [rows, n] that returns the first k of each row, as bits, and int64 indices."""
    bits, (rows, n) = bits_of(x.dtype), x.shape
    keep, length, launches = max(triton.next_power_of_2(k), 2), n, []
    while True:
        tiles = first_tiles(n=length, keep=keep, dtype=bits.dtype)
        chunks = -(-length // tiles["BLOCK_N"])
        config = tiles.config(INFINITY=bits.infinity, LARGEST=bits.largest, DESCENDING=descending, KEEP=keep)
        grid, numbers = (-(-rows * chunks // tiles["BLOCK_M"]), 1, 1), (n, length, chunks, k, rows)
        if chunks == 1:
            makes = {3: OutputSpec.of((rows, k), bits.dtype), 4: OutputSpec.of((rows, k), torch.int64)}
            launches.append(first_rows.ready(grid, numbers, config, makes))
            break
        makes = {2: OutputSpec.of((rows, chunks * keep), torch.int64)}
        launches.append(first_rows.ready(grid, numbers, config, makes))
        length = chunks * keep

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x, chosen = as_bits(x), None
        for launch in launches[:-1]:
            chosen = launch(x, chosen, None, None)
        return launches[-1](x, chosen, None)

    return run
