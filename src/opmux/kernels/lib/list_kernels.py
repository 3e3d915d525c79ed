"""Kernels over lists of tensors: each program processes one chunk of one tensor, found through a table (`lists.py`).

A full chunk of tensors with 16-byte aligned addresses is read and written without masks, LANES elements at a time.
All tensors have the same LANES: the number of elements of the widest dtype in 16 bytes. If narrower dtypes had more
lanes, a thread would hold different elements of each tensor, and threads would exchange them through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .config import Tiles, tunable
from .launch import Launcher
from .lists import MORE, TensorGroup, chunks_of, table_of
from .plans import keep
from .rows import TRITON_DTYPES

COLUMNS = tl.constexpr(MORE)
INF = tl.constexpr(float("inf"))

TYPES = {
    **TRITON_DTYPES,
    torch.bool: tl.int8,
    torch.float8_e4m3fn: tl.uint8,
    torch.float8_e5m2: tl.uint8,
}


# ---- the work of a program ------------------------------------------------------------------------------------------


@triton.jit
def chunk_of_program(table_ptr, chunk_ptr, LISTS: tl.constexpr, BLOCK: tl.constexpr):
    """The addresses of this program's tensors, the start and the length of its chunk, and whether it is full."""
    chunk = tl.program_id(0)
    row_ptr = table_ptr + tl.load(chunk_ptr + chunk).to(tl.int64) * (LISTS + COLUMNS)
    at = ()
    for i in tl.static_range(LISTS):
        at += (tl.load(row_ptr + i),)
    n = tl.load(row_ptr + LISTS)
    start = (chunk - tl.load(row_ptr + LISTS + 1)) * BLOCK
    whole = (tl.load(row_ptr + LISTS + 2) != 0) & (n - start >= BLOCK)
    return at, start, n - start, whole


@triton.jit
def part(at, start, DTYPE: tl.constexpr, LANES: tl.constexpr):
    """A pointer to the chunk that begins at element `start` of a tensor. LANES = 0: the address may be unaligned."""
    ptr = at.to(tl.pointer_type(DTYPE))
    if LANES > 0:
        ptr = tl.multiple_of(ptr, LANES * DTYPE.primitive_bitwidth // 8)
    return ptr + start


@triton.jit
def read(ptr, o, n, WHOLE: tl.constexpr):
    if WHOLE:
        return tl.load(ptr + o).to(tl.float32)
    else:
        return tl.load(ptr + o, mask=o < n, other=0).to(tl.float32)


@triton.jit
def write(ptr, o, n, value, WHOLE: tl.constexpr):
    value = value.to(ptr.dtype.element_ty)
    if WHOLE:
        tl.store(ptr + o, value)
    else:
        tl.store(ptr + o, value, mask=o < n)


# ---- scale ----------------------------------------------------------------------------------------------------------


@triton.jit
def scale_chunk(
    at,
    start,
    n,
    flag_ptr,
    scale,
    I: tl.constexpr,
    O: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    o = tl.arange(0, BLOCK)
    b_x = read(part(at[0], start, I, LANES if WHOLE else 0), o, n, WHOLE)
    write(part(at[1], start, O, LANES if WHOLE else 0), o, n, b_x * scale, WHOLE)
    bad = tl.max((~(tl.abs(b_x) < INF)).to(tl.int32), 0)
    tl.store(flag_ptr, 1, mask=bad != 0)


def _scale_lists(
    table_ptr,
    chunk_ptr,
    flag_ptr,
    scale_ptr,
    scale,
    I: tl.constexpr,
    O: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at, start, n, whole = chunk_of_program(table_ptr, chunk_ptr, 2, BLOCK)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    if whole:
        scale_chunk(at, start, n, flag_ptr, scale, I, O, LANES, BLOCK, True)
    else:
        scale_chunk(at, start, n, flag_ptr, scale, I, O, LANES, BLOCK, False)


# ---- norm -----------------------------------------------------------------------------------------------------------


@triton.jit
def squares_chunk(at, start, n, scale, I: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    b_x = read(part(at[0], start, I, LANES if WHOLE else 0), tl.arange(0, BLOCK), n, WHOLE) * scale
    return tl.sum(b_x * b_x, 0)


def _squares(table_ptr, chunk_ptr, scale_ptr, share_ptr, I: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of squares of each chunk."""
    at, start, n, whole = chunk_of_program(table_ptr, chunk_ptr, 1, BLOCK)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    if whole:
        total = squares_chunk(at, start, n, scale, I, LANES, BLOCK, True)
    else:
        total = squares_chunk(at, start, n, scale, I, LANES, BLOCK, False)
    tl.store(share_ptr + tl.program_id(0), total)


def _squares_of_each(table_ptr, share_ptr, square_ptr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of squares of each tensor, added over its chunks in a fixed order."""
    row_ptr = table_ptr + tl.program_id(0).to(tl.int64) * (1 + COLUMNS)
    count = tl.cdiv(tl.load(row_ptr + 1), CHUNK)
    share_ptr += tl.load(row_ptr + 2)
    o = tl.arange(0, BLOCK)
    b_sum = tl.zeros([BLOCK], tl.float32)
    for at in range(0, count, BLOCK):
        b_sum += tl.load(share_ptr + at + o, mask=at + o < count, other=0.0)
    tl.store(square_ptr + tl.program_id(0), tl.sum(b_sum, 0))


scale_lists = Launcher(_scale_lists, sizes="")
squares = Launcher(_squares, sizes="")
squares_of_each = Launcher(_squares_of_each, sizes="")


# ---- launches -------------------------------------------------------------------------------------------------------


@tunable("optim.step")
def step_tiles(lists: int, width: int) -> Tiles:
    """Each thread processes only eight elements of each tensor, so that registers suffice for many tensors.

    `lists`: number of lists; `width`: total bytes of one element of each.
    """
    return Tiles(128, BLOCK=1024)


@tunable("optim.norm")
def norm_tiles(width: int) -> Tiles:
    """The kernel only reads, so registers allow 64 bytes or more in flight per thread."""
    return Tiles(256, BLOCK=8192)


class ListPlan(NamedTuple):
    """The chunk length and bound launches for some sizes and dtypes."""

    block: int
    launches: tuple[Callable[..., Any], ...]  # empty if there are no elements


_plans: dict[Any, ListPlan] = keep({})


def planned(kernel: Launcher, group: TensorGroup, constants: tuple, make: Callable[[], ListPlan]) -> ListPlan:
    """The cached plan of a kernel for lists of these sizes and dtypes, and these constants."""
    key = (kernel, group.sizes, group.dtypes, group.device, constants)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= 1024:
            _plans.clear()
        plan = _plans[key] = make()
    return plan


def run_chunks(kernel: Launcher, group: TensorGroup, args: tuple, constants: dict[str, Any], types: str = "") -> None:
    """Launch one program per chunk. `args`: arguments after the tables; `types`: names of the dtype constants."""

    def make() -> ListPlan:
        tiles = step_tiles(lists=len(group.dtypes), width=sum(d.itemsize for d in group.dtypes))
        count = sum(-(-n // tiles["BLOCK"]) for n in group.sizes)
        known = constants | dict(zip(types.split(), (TYPES[d] for d in group.dtypes), strict=False))
        config = tiles.config(**known)
        return ListPlan(tiles["BLOCK"], (kernel.ready((count, 1, 1), (), config),) if count else ())

    # The key says which arguments are None, because a bound launch is compiled for that.
    plan = planned(kernel, group, (*constants.values(), *(a is None for a in args)), make)
    for launch in plan.launches:
        chunks = chunks_of(group, plan.block)
        launch(table_of(group, chunks), chunks.rows, *args)


def lanes(dtypes: tuple[torch.dtype, ...]) -> int:
    """Elements per memory access: as many as the widest dtype has in 16 bytes."""
    return 16 // max(d.itemsize for d in dtypes)
