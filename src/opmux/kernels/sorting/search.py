"""Lookups in sorted rows (searchsorted, bucketize, isin): a binary search for each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ...core.contract import AnyTensor, Int, Int64, Number, contiguous, same_dtype
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...core.support import declining
from ...specs import sorting as spec
from ..lib.cells import check_tensors, check_written
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.meta import on_meta
from ..lib.numbers import representable
from ..lib.plans import decided
from ..lib.pointwise import DTYPES
from ..lib.rows import DEVICES, OutputSpec
from ..lib.sorting.whole import sort_rows

Scalar = bool | int | float


def _search(
    x_ptr,
    rows_ptr,
    sorter_ptr,
    y_ptr,
    n,
    length,
    each,
    RIGHT: tl.constexpr,
    STEPS: tl.constexpr,
    SHARED: tl.constexpr,
    MEMBER: tl.constexpr,
    TYPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The number of elements of a row that are less than x (RIGHT: or equal to x).

    `each`: the number of elements of x per row. MEMBER: write instead whether x is in the row (MEMBER = 1), or whether
    it is not (-1).
    """
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m, other=0).to(TYPE)
    row = tl.zeros_like(o) if SHARED else (o // each) * length
    low, high = tl.zeros_like(o), tl.zeros_like(o) + length
    for _ in range(STEPS):
        middle = (low + high) // 2
        live = m & (low < high)
        at = middle
        if sorter_ptr is not None:
            at = tl.load(sorter_ptr + row + middle, mask=live, other=0)
        r = tl.load(rows_ptr + row + at, mask=live, other=0).to(TYPE)
        before = ~(r > x) if RIGHT else ~(r >= x)  # NaN sorts after all numbers, as in torch
        low = tl.where(live & before, middle + 1, low)
        high = tl.where(live & ~before, middle, high)
    if MEMBER != 0:
        r = tl.load(rows_ptr + row + low, mask=m & (low < length), other=0).to(TYPE)
        low = ((low < length) & (r == x)) == (MEMBER > 0)
    tl.store(y_ptr + o, low.to(y_ptr.dtype.element_ty), mask=m)


search = Launcher(_search, sizes="n")


@tunable("sorting.search")
def search_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=512)


@decided
def _searcher(
    x: Number[Tensor, "*x", contiguous(), nonempty()],
    rows: Number[Tensor, "*rows n", contiguous(), nonempty(), same_dtype("x")],
    sorter: Int64[Tensor, "*rows n", contiguous()] | None,
    out: Int[Tensor, "*x", contiguous()] | None,
    right: bool,
    dtype: torch.dtype,
    member: int,
) -> Callable[..., Tensor]:
    """A launch (x, rows, sorter) -> y, or (x, rows, sorter, out)."""
    check_tensors(x, rows)
    if not member:
        on_meta(torch.ops.aten.searchsorted.Tensor, rows, x, sorter=sorter)
    if rows.dtype is torch.bool:
        raise NotSupported("a sequence of bools")
    if rows.dim() > 1 and (rows.dim() != x.dim() or rows.shape[:-1] != x.shape[:-1]):
        raise NotSupported("sorted_sequence and values of different leading shapes")
    if out is not None and out.dtype is not dtype:
        raise NotSupported(f"out of {out.dtype}, not {dtype}")
    tiles, n, length = search_tiles(dtype=x.dtype), x.numel(), rows.shape[-1]
    config = tiles.config(
        even=n % 16 == 0,
        RIGHT=right,
        STEPS=length.bit_length(),
        SHARED=rows.dim() == 1,
        MEMBER=member,
        TYPE=DTYPES[x.dtype][1],
    )
    makes = {3: OutputSpec.of(x.shape, dtype)} if out is None else {}
    numbers = (n, length, x.shape[-1] if x.dim() else 1)
    return search.ready((-(-n // tiles["BLOCK"]), 1, 1), numbers, config, makes)


def _lookup(
    out: Tensor | None, rows: Tensor, x: Tensor | Scalar, out_int32: bool, right: bool, sorter: Tensor | None = None
) -> Tensor:
    if not isinstance(x, Tensor):
        if not representable(x, rows.dtype) or isinstance(x, bool):
            raise NotSupported(f"{x} is no {rows.dtype}")
        x = torch.full((), x, dtype=rows.dtype, device=rows.device)
    dtype = torch.int32 if out_int32 else torch.int64
    if out is None:
        return _searcher(x, rows, sorter, None, right, dtype, 0)(x, rows, sorter)
    check_written(out, x, rows)
    _searcher(x, rows, sorter, out, right, dtype, 0)(x, rows, sorter, out)
    return out


def _side(right: bool, side: str | None) -> bool:
    """Whether elements are inserted after equal ones."""
    if side is not None and (side not in ("left", "right") or (right and side == "left")):
        raise NotSupported(f"side={side!r} and right={right}")
    return right or side == "right"


def _searchsorted_into(out: Tensor, sorted_sequence: Tensor, self: Any, *rest: Any) -> Tensor:
    out_int32, right, side, sorter = rest
    return _lookup(out, sorted_sequence, self, out_int32, _side(right, side), sorter)


@impl(spec.ops["searchsorted"], devices=DEVICES, into=_searchsorted_into)
def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor | Scalar,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return _lookup(None, sorted_sequence, self, out_int32, _side(right, side), sorter)


@declining
def _bucketize_into(out: Tensor, self: Any, boundaries: AnyTensor[Tensor, "n"], out_int32: bool, right: bool) -> Tensor:
    return _lookup(out, boundaries, self, out_int32, right)


@impl(spec.ops["bucketize"], devices=DEVICES, into=_bucketize_into)
def bucketize(
    self: Tensor | Scalar, boundaries: AnyTensor[Tensor, "n"], *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _lookup(None, boundaries, self, out_int32, right)


# ---- isin -----------------------------------------------------------------------------------------------------------


def _tensor(value: Tensor | Scalar | None, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not representable(value, like.dtype):
        raise NotSupported(f"{value} is no {like.dtype}")
    return torch.full((), value, dtype=like.dtype, device=like.device)  # type: ignore[arg-type]


@impl(spec.ops["isin"], devices=DEVICES)
def isin(
    elements: Tensor | None = None,
    test_elements: Tensor | None = None,
    element: Scalar | None = None,
    test_element: Scalar | None = None,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Look up each element in the sorted test_elements."""
    like = elements if elements is not None else test_elements
    if like is None:
        raise NotSupported("no tensor")
    x = _tensor(element if elements is None else elements, like).contiguous()
    among = _tensor(test_element if test_elements is None else test_elements, like)
    if x.dtype is not among.dtype or x.dtype is torch.bool or not x.numel() or not among.numel():
        raise NotSupported(f"{x.dtype} among {among.dtype}, or nothing to look up")
    among, _ = sort_rows(among.reshape(1, -1).contiguous(), False)
    member = -1 if invert else 1
    return _searcher(x, among.view(-1), None, None, False, torch.bool, member)(x, among.view(-1), None)
