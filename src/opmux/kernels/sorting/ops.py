"""Ops over sorted rows: sort, topk, kthvalue, median, mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.contract import AnyTensor, Float, dim_of
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...specs import sorting as spec
from ..lib.cells import check_tensors
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.meta import on_meta
from ..lib.plans import decided
from ..lib.rows import DEVICES, OutputSpec
from ..lib.sorting.rows import LONGEST
from ..lib.sorting.whole import first_rows, picked, sort_rows

Pair = tuple[Tensor, Tensor]
NotEmpty = AnyTensor[Tensor, "...", nonempty()]


def rows_of(x: Tensor, dim: int) -> Tensor:
    """x as contiguous rows along a dimension; a 0-d tensor is one row of one element."""
    n = x.shape[dim] if x.dim() else 1
    return (x.movedim(dim, -1) if x.dim() else x).contiguous().view(-1, n)


def _back(y: Tensor, like: Tensor, dim: int) -> Tensor:
    """Convert rows back to a tensor with the shape and strides of `like`."""
    if not like.dim():
        return y.view(())
    moved = like.movedim(dim, -1)
    y = y.view(moved.shape)
    if moved.is_contiguous():
        return y.movedim(-1, dim)
    result = torch.empty_strided(like.shape, like.stride(), dtype=y.dtype, device=y.device)
    return result.copy_(y.movedim(-1, dim))


def _from_first(x: Tensor, dim: int) -> int:
    """The dimension as a number >= 0."""
    return dim % max(x.dim(), 1)


# ---- sort -----------------------------------------------------------------------------------------------------------


@decided
def _sort(x: NotEmpty, dim: Annotated[int, dim_of("x")], descending: bool) -> Callable[[Tensor], Pair]:
    check_tensors(x)
    values, indices = on_meta(torch.ops.aten.sort, x, dim, descending)
    dim = _from_first(x, dim)

    def run(x: Tensor) -> Pair:
        y, at = sort_rows(rows_of(x, dim), descending)
        return _back(y, values, dim), _back(at, indices, dim)

    return run


@impl(spec.ops["sort"], devices=DEVICES)
def sort(self: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Pair:
    return _sort(self, dim, descending)(self)


# ---- selection ------------------------------------------------------------------------------------------------------
# Of several equal elements torch may return any; which one differs between devices. Integers often have equal elements,
# so topk, kthvalue and median along a dimension leave them to torch: the indices are then those that torch returns.


@decided
def _topk(x: Float[Tensor, "..."], k: int, dim: Annotated[int, dim_of("x")], largest: bool) -> Callable[[Tensor], Pair]:
    check_tensors(x)
    values, indices = on_meta(torch.ops.aten.topk, x, k, dim, largest)
    dim = _from_first(x, dim)
    if not values.numel():
        raise NotSupported("nothing to select")

    def run(x: Tensor) -> Pair:
        y, at = first_rows(rows_of(x, dim), k, largest)
        return _back(y, values, dim), _back(at, indices, dim)

    return run


@impl(spec.ops["topk"], devices=DEVICES)
def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    return _topk(self, k, dim, largest)(self)


@decided
def _kthvalue(
    x: Float[Tensor, "...", nonempty()], k: int, dim: Annotated[int, dim_of("x")], keepdim: bool
) -> Callable[[Tensor], Pair]:
    check_tensors(x)
    values, _ = on_meta(torch.ops.aten.kthvalue, x, k, dim, keepdim)
    dim = _from_first(x, dim)
    return lambda x: tuple(  # type: ignore[return-value]
        t[:, k - 1].contiguous().view(values.shape) for t in sort_rows(rows_of(x, dim), False)
    )


@impl(spec.ops["kthvalue"], devices=DEVICES)
def kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    return _kthvalue(self, k, dim, keepdim)(self)


# ---- medians --------------------------------------------------------------------------------------------------------


@decided
def _median(
    x: NotEmpty, ignore_nan: bool, dim: Annotated[int, dim_of("x")] | None, keepdim: bool
) -> Callable[[Tensor], Any]:
    """The lower of the two middle elements. NaN sorts last. If a row has a NaN, it is the median, unless ignore_nan."""
    check_tensors(x)
    whole = dim is None
    torch_op = torch.ops.aten.nanmedian if ignore_nan else torch.ops.aten.median
    result = on_meta(torch_op, x) if whole else on_meta(torch_op, x, dim, keepdim)[0]
    dim = 0 if dim is None else _from_first(x, dim)
    if not whole and not x.is_floating_point():
        raise NotSupported("which of several equal integers torch returns is undefined")
    n = x.numel() if whole else x.shape[dim] if x.dim() else 1

    def run(x: Tensor) -> Any:
        y, at = sort_rows(x.reshape(1, -1).contiguous() if whole else rows_of(x, dim), False)
        k = torch.full((y.shape[0], 1), (n - 1) // 2, dtype=torch.int64, device=x.device)
        if x.is_floating_point():
            nans = y.isnan().sum(1, keepdim=True)
            k = (n - nans - 1).clamp(min=0) // 2 if ignore_nan else torch.where(nans > 0, n - nans, k)
        values = picked(y, k).reshape(result.shape)
        return values if whole else (values, picked(at, k).reshape(result.shape))

    return run


@impl(spec.ops["median"], devices=DEVICES)
def median(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    return _median(self, False, dim, bool(keepdim))(self)


@impl(spec.ops["nanmedian"], devices=DEVICES)
def nanmedian(self: Tensor, dim: int | None = None, keepdim: bool | None = None) -> Any:
    return _median(self, True, dim, bool(keepdim))(self)


# ---- mode -----------------------------------------------------------------------------------------------------------
# Returns the smallest of the most frequent values, and its largest index, as torch does for rows of up to 2048
# elements.


@triton.jit
def _later(a, b):
    return tl.maximum(a, b)


def _most_frequent(x_ptr, at_ptr, y_ptr, i_ptr, n, n_rows, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The value of the longest run of each sorted row, and the original index of the run's last element."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    o = tl.arange(0, BLOCK_N)[None, :] + tl.zeros([BLOCK_M, 1], tl.int32)
    m = (row < n_rows) & (o < n)
    x = tl.load(x_ptr + row * n + o, mask=m)
    before = tl.load(x_ptr + row * n + o - 1, mask=m & (o > 0))
    begin = tl.associative_scan(tl.where((o == 0) | (x != before), o, 0), 1, _later)
    # Pack the length of each run in the upper 32 bits, and its distance from the end in the lower 32: the maximum of
    # these is the first of the longest runs.
    longest = tl.max(tl.where(m, ((o - begin + 1).to(tl.int64) << 32) | (BLOCK_N - 1 - o).to(tl.int64), 0), 1)
    last = (BLOCK_N - 1 - (longest & 0xFFFFFFFF))[:, None]
    inside = row < n_rows
    tl.store(y_ptr + row, tl.load(x_ptr + row * n + last, mask=inside), mask=inside)
    tl.store(i_ptr + row, tl.load(at_ptr + row * n + last, mask=inside), mask=inside)


most_frequent = Launcher(_most_frequent, sizes="n")


@tunable("sorting.mode", free="BLOCK_M")
def mode_tiles(n: int, dtype: torch.dtype) -> Tiles:
    across = max(triton.next_power_of_2(n), 16)
    down = max(1, 512 // across)
    return Tiles(max(32, min(256, down * across // 8)), BLOCK_M=down, BLOCK_N=across)


@decided
def _mode(x: NotEmpty, dim: Annotated[int, dim_of("x")], keepdim: bool) -> Callable[[Tensor], Pair]:
    check_tensors(x)
    result, _ = on_meta(torch.ops.aten.mode, x, dim, keepdim)
    dim = _from_first(x, dim)
    n = x.shape[dim] if x.dim() else 1
    rows = x.numel() // n
    tiles = mode_tiles(n=min(n, LONGEST), dtype=x.dtype)
    outputs = {2: OutputSpec.of((rows, 1), x.dtype), 3: OutputSpec.of((rows, 1), torch.int64)}
    grid = (-(-rows // tiles["BLOCK_M"]), 1, 1)
    launch = most_frequent.ready(grid, (n, rows), tiles.config(even=n % 16 == 0), outputs)

    def run(x: Tensor) -> Pair:
        y, at = sort_rows(rows_of(x, dim), False)
        values, indices = launch(y, at) if n <= LONGEST else long(y, at)
        return values.view(result.shape), indices.view(result.shape)

    return run


def long(y: Tensor, at: Tensor) -> Pair:
    """`_most_frequent` for rows too long for one program: finds where each run begins, then the longest run."""
    place = torch.arange(y.shape[1], device=y.device)
    starts = torch.zeros_like(at)
    starts[:, 1:] = torch.where(y[:, 1:] != y[:, :-1], place[1:], 0)
    last = (place - starts.cummax(1).values).argmax(1, keepdim=True)
    return picked(y, last), picked(at, last)


@impl(spec.ops["mode"], devices=DEVICES)
def mode(self: Tensor, dim: int = -1, keepdim: bool = False) -> Pair:
    return _mode(self, dim, keepdim)(self)
