"""segment_reduce and its gradient: a dimension is cut into segments, given by lengths or offsets, and each is reduced.

A program handles one segment and a block of columns, and reads the segment's rows in order. Sums and products are
computed in float32 (float64 for float64).
"""

# No `from __future__ import annotations`: Triton must see that `initial` is tl.float64, or it passes a float32.

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.contract import Float, one_of, same_dtype
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...core.support import declining
from ...specs import sorting as spec
from ..lib.cells import check_tensors
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.maths import div
from ..lib.plans import decided
from ..lib.rows import DEVICES, OutputSpec, wide_of

Number = bool | int | float
# reduction -> its result for an empty segment
EMPTY = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def bounds(part_ptr, end_ptr, row, count, OFFSETS: tl.constexpr):
    """Begin and end of a segment. `part` has offsets; or `part` has lengths, and `end` has their running sums."""
    batch = row // count
    if OFFSETS:
        begin = tl.load(part_ptr + row + batch)
        end = tl.load(part_ptr + row + batch + 1)
    else:
        end = tl.load(end_ptr + row)
        begin = end - tl.load(part_ptr + row)
    return batch, begin.to(tl.int64), end.to(tl.int64)


def _reduced(
    x_ptr,
    part_ptr,
    end_ptr,
    y_ptr,
    n,
    size,
    count,
    initial: tl.float64,
    HOW: tl.constexpr,
    GIVEN: tl.constexpr,
    OFFSETS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """y of a segment. GIVEN: the caller passed an initial value."""
    across = tl.cdiv(n, BLOCK_N)
    row = (tl.program_id(0) // across).to(tl.int64)
    o_n = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    batch, begin, end = bounds(part_ptr, end_ptr, row, count, OFFSETS)
    x_ptr += batch * size * n + o_n[None, :]
    o_m = tl.arange(0, BLOCK_M)[:, None]
    start = tl.full([], initial, WIDE)
    total = tl.zeros([BLOCK_N], WIDE) + start
    nans = tl.zeros([BLOCK_N], tl.int32)
    for at in range(begin, end, BLOCK_M):
        m = (at + o_m < end) & (o_n < n)[None, :]
        x = tl.load(x_ptr + (at + o_m) * n, mask=m, other=0.0).to(WIDE)
        if HOW == "max":
            total = tl.maximum(total, tl.max(tl.where(m, x, float("-inf")), 0))
            nans += tl.sum((m & (x != x)).to(tl.int32), 0)
        elif HOW == "min":
            total = tl.minimum(total, tl.min(tl.where(m, x, float("inf")), 0))
            nans += tl.sum((m & (x != x)).to(tl.int32), 0)
        elif HOW == "prod":
            total *= tl.reduce(tl.where(m, x, 1.0), 0, _product)
        else:
            total += tl.sum(tl.where(m, x, 0.0), 0)
    total = tl.where(nans > 0, float("nan"), total)
    if HOW == "mean":
        if end > begin:
            total = div(total, tl.zeros([BLOCK_N], WIDE) + (end - begin).to(WIDE))
        elif not GIVEN:
            total = tl.zeros([BLOCK_N], WIDE) + float("nan")
    tl.store(y_ptr + row * n + o_n, total.to(y_ptr.dtype.element_ty), mask=o_n < n)


def _gradient(
    dy_ptr,
    y_ptr,
    x_ptr,
    part_ptr,
    end_ptr,
    dx_ptr,
    n,
    size,
    count,
    initial: tl.float64,
    HOW: tl.constexpr,
    OFFSETS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """dx of the rows of a segment.

    If several elements are the maximum or minimum, they share a positive gradient, but each gets all of a negative one,
    as in torch.
    """
    across = tl.cdiv(n, BLOCK_N)
    row = (tl.program_id(0) // across).to(tl.int64)
    o_n = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_n = o_n < n
    batch, begin, end = bounds(part_ptr, end_ptr, row, count, OFFSETS)
    x_ptr += batch * size * n + o_n[None, :]
    dx_ptr += batch * size * n + o_n[None, :]
    o_m = tl.arange(0, BLOCK_M)[:, None]
    g = tl.load(dy_ptr + row * n + o_n, mask=m_n, other=0.0).to(WIDE)
    if HOW == "mean":
        g = div(g, tl.zeros([BLOCK_N], WIDE) + tl.maximum(end - begin, 1).to(WIDE))
    elif HOW != "sum":
        y = tl.load(y_ptr + row * n + o_n, mask=m_n, other=0.0).to(WIDE)
        zeros = tl.zeros([BLOCK_N], tl.int32)  # counts zero factors (prod), or elements equal to y (max, min)
        nans = tl.zeros([BLOCK_N], tl.int32)
        # for prod: the product of all factors except 0 and NaN
        rest = tl.zeros([BLOCK_N], WIDE) + tl.full([], initial, WIDE)
        for at in range(begin, end, BLOCK_M):
            m = (at + o_m < end) & m_n[None, :]
            x = tl.load(x_ptr + (at + o_m) * n, mask=m, other=1.0).to(WIDE)
            if HOW == "prod":
                zeros += tl.sum((m & (x == 0)).to(tl.int32), 0)
                nans += tl.sum((m & (x != x)).to(tl.int32), 0)
                rest *= tl.reduce(tl.where(m & (x == x) & (x != 0), x, 1.0), 0, _product)
            else:
                zeros += tl.sum((m & ((x == y[None, :]) | (x != x))).to(tl.int32), 0)
        if HOW != "prod":
            shared = (zeros > 1) & (g > 0)
            g = tl.where(shared, div(g, tl.maximum(zeros, 1).to(WIDE)), g)
    for at in range(begin, end, BLOCK_M):
        m = (at + o_m < end) & m_n[None, :]
        dx = g[None, :] + tl.zeros([BLOCK_M, BLOCK_N], WIDE)
        if HOW == "max" or HOW == "min":
            x = tl.load(x_ptr + (at + o_m) * n, mask=m, other=0.0).to(WIDE)
            dx = tl.where((x == y[None, :]) | (x != x), dx, 0.0)
        elif HOW == "prod":
            x = tl.load(x_ptr + (at + o_m) * n, mask=m, other=1.0).to(WIDE)
            special = (x == 0) | (x != x)
            without = rest[None, :] * tl.where(zeros[None, :] - (x == 0).to(tl.int32) > 0, 0.0, 1.0)
            without = tl.where(nans[None, :] - (x != x).to(tl.int32) > 0, float("nan"), without)
            dx = tl.where(special, dx * without, div(dx * y[None, :], tl.where(special, 1.0, x)))
        tl.store(dx_ptr + (at + o_m) * n, dx.to(dx_ptr.dtype.element_ty), mask=m)


reduced = Launcher(_reduced, sizes="n")
gradient = Launcher(_gradient, sizes="n")


@tunable("sorting.segments", free="BLOCK_M BLOCK_N")
def segment_tiles(n: int, dtype: torch.dtype) -> Tiles:
    """If rows are narrow, a tile has many of them."""
    across = min(128, triton.next_power_of_2(n))
    return Tiles(128, BLOCK_M=1024 // across, BLOCK_N=across)


# ---- plans ----------------------------------------------------------------------------------------------------------


Data = Float[Tensor, "*batch n", nonempty()]
Reduction = Annotated[str, one_of(*EMPTY)]


class Segments(NamedTuple):
    count: int  # segments per batch
    rows: int  # segments of all batches
    size: int  # length of the dimension
    n: int  # columns


@declining
def _segments(data: Data, reduce: Reduction, part: Tensor, offsets: bool, axis: int) -> Segments:
    """The sizes of the problem. As in torch, the axis must be the last dimension of lengths or offsets."""
    check_tensors(data, indices=(part,))
    axis %= data.dim()
    count, batches = part.shape[-1] - offsets, math.prod(part.shape[:-1])
    n = math.prod(data.shape[axis + 1 :])
    if axis != part.dim() - 1 or part.shape[:axis] != data.shape[:axis] or count < 1:
        raise NotSupported("no segments, or other batches than those of the data")
    return Segments(count, count * batches, data.shape[axis], n)


def _parts(lengths: Tensor | None, offsets: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The offsets and None, or the lengths and their running sums."""
    if (lengths is None) == (offsets is None):
        raise NotSupported("needs exactly one of lengths and offsets")
    if offsets is not None:
        return offsets.contiguous(), None
    assert lengths is not None
    lengths = lengths.contiguous()
    return lengths, lengths.cumsum(-1)


def _grid(s: Segments, tiles: Tiles) -> tuple[int, int, int]:
    return (s.rows * -(-s.n // tiles["BLOCK_N"]), 1, 1)


@decided
def _forward(
    data: Data, reduce: Reduction, part: Tensor, offsets: bool, axis: int, has_initial: bool
) -> Callable[..., Tensor]:
    """A launch (data, part, ends, initial) -> y for contiguous tensors."""
    s = _segments(data, reduce, part, offsets, axis)
    tiles = segment_tiles(n=s.n, dtype=data.dtype)
    config = tiles.config(even=s.n % 16 == 0, HOW=reduce, GIVEN=has_initial, OFFSETS=offsets, WIDE=wide_of(data.dtype))
    at = part.dim() - 1
    y = OutputSpec.of((*data.shape[:at], s.count, *data.shape[at + 1 :]), data.dtype)
    return reduced.ready(_grid(s, tiles), (s.n, s.size, s.count), config, {3: y})


@impl(spec.ops["segment_reduce"], devices=DEVICES)
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Annotated[Any, one_of(None)] = None,  # torch does not implement these
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Tensor:
    """Unless `unsafe`, the host checks the lengths, as torch does: their sum must be the size of the dimension."""
    part, ends = _parts(lengths, offsets)
    run = _forward(data.contiguous(), reduce, part, ends is None, axis, initial is not None)
    if ends is not None and not unsafe:
        wrong = (part < 0).any() | (ends[..., -1] != data.shape[part.dim() - 1]).any()
        if bool(wrong):
            raise NotSupported("lengths that do not add up to the size of the dimension")
    return run(data.contiguous(), part, ends, float(EMPTY[reduce] if initial is None else initial))


@decided
def _backward(
    dy: Float[Tensor, "*y", same_dtype("data")],
    y: Float[Tensor, "*y", same_dtype("data")],
    data: Data,
    reduce: Reduction,
    part: Tensor,
    offsets: bool,
    axis: int,
) -> Callable[..., Any]:
    """A launch (dy, y, data, part, ends, dx, initial)."""
    s = _segments(data, reduce, part, offsets, axis)
    at = part.dim() - 1
    if dy.shape != (*data.shape[:at], s.count, *data.shape[at + 1 :]):
        raise NotSupported("a gradient of another shape")
    tiles = segment_tiles(n=s.n, dtype=data.dtype)
    config = tiles.config(even=s.n % 16 == 0, HOW=reduce, OFFSETS=offsets, WIDE=wide_of(data.dtype))
    return gradient.ready(_grid(s, tiles), (s.n, s.size, s.count), config)


@impl(spec.ops["_segment_reduce_backward"], devices=DEVICES)
def _segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Number | None = None,
) -> Tensor:
    """Rows outside all segments have a gradient of zero."""
    part, ends = _parts(lengths, offsets)
    dy, y, x = grad.contiguous(), output.contiguous(), data.contiguous()
    run = _backward(dy, y, x, reduce, part, ends is None, axis)
    dx = torch.zeros(data.shape, dtype=grad.dtype, device=grad.device)
    run(dy, y, x, part, ends, dx, 1.0 if initial is None else float(initial))
    return dx
