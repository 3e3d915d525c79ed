"""Masked select (compact), masked scatter (expand) and nonzero.

Three steps: each block counts its selected elements, a scan turns counts into start offsets, and each block writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...specs import scan
from .cells import check_tensors
from .config import Tiles, tunable
from .jit_source import jit_from_source
from .launch import Launcher
from .plans import decided
from .rows import OutputSpec


@triton.jit
def _selected(g_ptr, begin, n, BLOCK: tl.constexpr):
    """The offsets of a block's elements, and its mask as int32."""
    o = begin + tl.arange(0, BLOCK)
    return o, (tl.load(g_ptr + o, mask=o < n, other=0) != 0).to(tl.int32)


def _count(g_ptr, count_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    _, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    tl.store(count_ptr + pid, tl.sum(chosen, 0).to(tl.int64))


@triton.jit
def _begin(end_ptr, pid):
    """The number of selected elements in the blocks before this one."""
    return tl.load(end_ptr + pid - 1, mask=pid > 0, other=0)


def _compact(g_ptr, x_ptr, end_ptr, y_ptr, n, limit, BLOCK: tl.constexpr):
    """y[k] = the k-th selected element of x, for k < limit."""
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    target = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    x = tl.load(x_ptr + o, mask=chosen != 0)
    tl.store(y_ptr + target, x, mask=(chosen != 0) & (target < limit))


def _expand(g_ptr, x_ptr, end_ptr, y_ptr, n, limit, BLOCK: tl.constexpr):
    """y at the k-th selected position = x[k], for k < limit; other elements of y keep their values."""
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    at = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    m = (chosen != 0) & (at < limit)
    tl.store(y_ptr + o, tl.load(x_ptr + at, mask=m), mask=m)


_PLACES = """\
def places(g_ptr, end_ptr, y_ptr, n, limit, row, column, {sizes}BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    o, chosen = _selected(g_ptr, pid * BLOCK, n, BLOCK)
    to = _begin(end_ptr, pid) + tl.cumsum(chosen, 0) - chosen
    m = (chosen != 0) & (to < limit)
    y_ptr += to * row
"""


@functools.cache
def _index_writer(rank: int) -> Launcher:
    """A kernel that writes y[k] = the index, in all dimensions, of the k-th selected element, for k < limit."""
    text = _PLACES.format(sizes="".join(f"n_{d}, " for d in range(1, rank)))
    for d in reversed(range(rank)):
        text += f"    tl.store(y_ptr + {d} * column, {f'o % n_{d}' if d else 'o'}, mask=m)\n"
        text += f"    o = o // n_{d}\n" if d else ""
    return Launcher(jit_from_source(text, _selected=_selected, _begin=_begin), sizes="n")


count = Launcher(_count, sizes="n")
compact = Launcher(_compact, sizes="n")
expand = Launcher(_expand, sizes="n")


@tunable("index.masks")
def mask_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=2048)


# ---- plans ----------------------------------------------------------------------------------------------------------


@decided
def ends(g: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that counts, for a contiguous mask, the selected elements up to the end of each block."""
    check_tensors(g)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    blocks = -(-n // tiles["BLOCK"])
    launch = count.ready(
        (blocks, 1, 1), (n,), tiles.config(even=n % 16 == 0), {1: OutputSpec.of((blocks,), torch.int64)}
    )
    return lambda g: scan.cumsum(launch(g), 0) if blocks > 1 else launch(g)


@decided
def mover(kernel: str, g: Tensor, x: Tensor) -> Callable[..., None]:
    """The launch (g, x, ends, y, limit) of `compact` or `expand`."""
    check_tensors(g, x)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    return {"compact": compact, "expand": expand}[kernel].ready(
        (-(-n // tiles["BLOCK"]), 1, 1), (n,), tiles.config(even=n % 16 == 0)
    )


@decided
def placer(g: Tensor) -> Callable[..., None]:
    """launch(g, ends, y, limit, row, column): writes index d of selected element k at y + k * row + d * column."""
    check_tensors(g)
    tiles, n = mask_tiles(dtype=g.dtype), g.numel()
    launch = _index_writer(g.dim()).ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), tiles.config(even=n % 16 == 0))
    sizes = tuple(g.shape[1:])
    return lambda g, ends, y, limit, row, column: launch(g, ends, y, limit, row, column, *sizes)
