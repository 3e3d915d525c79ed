"""Distinct and counted elements (unique, bincount), and whether two tensors are equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import triton.language as tl
from torch import Tensor

from ...core.contract import AnyTensor, Int, at_least, dim_of, one_of, real, same_dtype
from ...core.errors import NotSupported
from ...core.registry import impl
from ...core.rules import nonempty
from ...specs import sorting as spec
from ..lib.cells import check_tensors, of_flat, put
from ..lib.compaction import ends as ends_of
from ..lib.compaction import mover, placer
from ..lib.config import Tiles, tunable
from ..lib.launch import Launcher
from ..lib.plans import decided
from ..lib.rows import DEVICES, OutputSpec
from ..lib.sorting.whole import sort_rows

Three = tuple[Tensor, Tensor, Tensor]


def _starts(x_ptr, g_ptr, n, BLOCK: tl.constexpr):
    """Write g[i]: whether element i differs from the previous one."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    before = tl.load(x_ptr + o - 1, mask=(o > 0) & (o < n))
    tl.store(g_ptr + o, (o == 0) | (x != before), mask=o < n)


def _ranks(g_ptr, at_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y[at[i]] = the index of the run that contains element i. g[i] is the number of runs that begin at or before i."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rank = tl.load(g_ptr + o, mask=o < n, other=1) - 1
    if at_ptr is not None:
        o_y = tl.load(at_ptr + o, mask=o < n, other=0)
    else:
        o_y = o
    tl.store(y_ptr + o_y, rank, mask=o < n)


def _differ(x_ptr, y_ptr, flag_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    other = tl.load(x_ptr + o, mask=o < n, other=0) != tl.load(y_ptr + o, mask=o < n, other=0)
    if tl.max(other.to(tl.int32), 0) > 0:
        tl.store(flag_ptr, 1)


starts = Launcher(_starts, sizes="n")
ranks = Launcher(_ranks, sizes="n")
differ = Launcher(_differ, sizes="n")


@tunable("sorting.unique")
def unique_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=1024)


def _over(kernel: Launcher, x: Tensor, makes: dict[int, OutputSpec] | None = None) -> Callable[..., Tensor]:
    """A launch over the elements of a contiguous tensor."""
    tiles, n = unique_tiles(dtype=x.dtype), x.numel()
    return kernel.ready((-(-n // tiles["BLOCK"]), 1, 1), (n,), tiles.config(even=n % 16 == 0), makes)


@decided
def _starter(x: Tensor) -> Callable[[Tensor], Tensor]:
    check_tensors(x)
    return _over(starts, x, {1: OutputSpec.of(x.shape, torch.bool)})


@decided
def _ranker(g: Tensor, at: Tensor | None) -> Callable[[Tensor, Tensor | None], Tensor]:
    return _over(ranks, g, {2: OutputSpec.of(g.shape, torch.int64)})


@decided
def _comparer(x: Tensor, y: Tensor) -> Callable[..., None]:
    check_tensors(x, y)
    return _over(differ, x)  # type: ignore[return-value]


def _runs(x: Tensor, at: Tensor | None, return_inverse: bool, return_counts: bool) -> Three:
    """The first element of each run of equal elements of x [n], the run of each element, and the length of each run."""
    return _runs_of(_starter(x)(x), x, at, return_inverse, return_counts)


def _runs_of(g: Tensor, x: Tensor, at: Tensor | None, return_inverse: bool, return_counts: bool) -> Three:
    """`_runs` for a known g [n], which says for each element of x whether a run begins there."""
    n, nothing = x.numel(), torch.empty(0, dtype=torch.int64, device=x.device)
    ends = ends_of(g)(g)
    count = int(ends[-1].item())
    values = torch.empty(count, dtype=x.dtype, device=x.device)
    mover("compact", g, x)(g, x, ends, values, count)
    inverse = counts = nothing
    if return_inverse:
        upto = g.cumsum(0)
        inverse = _ranker(upto, at)(upto, at)
    if return_counts:
        first = torch.full((count + 1,), n, dtype=torch.int64, device=x.device)
        placer(g)(g, ends, first, count, 1, 1)
        counts = first[1:] - first[:-1]
    return values, inverse, counts


@impl(spec.ops["_unique2"], devices=DEVICES)
def _unique2(
    self: AnyTensor[Tensor, "...", nonempty()],
    sorted: Annotated[bool, one_of(True)] = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Three:
    check_tensors(self)
    x, at = sort_rows(self.reshape(1, -1).contiguous(), False)
    values, inverse, counts = _runs(x.view(-1), at.view(-1), return_inverse, return_counts)
    return values, inverse.view(self.shape) if return_inverse else inverse, counts


@impl(spec.ops["unique_consecutive"], devices=DEVICES)
def unique_consecutive(
    self: AnyTensor[Tensor, "...", nonempty()],
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Annotated[int, one_of(0, -1)] | None = None,
) -> Three:
    if dim is not None and self.dim() != 1:
        raise NotSupported("slices of several dimensions")
    values, inverse, counts = _runs(self.reshape(-1).contiguous(), None, return_inverse, return_counts)
    return values, inverse.view(self.shape) if return_inverse else inverse, counts


FEW = 8  # slices may have up to this many elements; each element adds a sort


@impl(spec.ops["unique_dim"], devices=DEVICES)
def unique_dim(
    self: AnyTensor[Tensor, "*rest n", nonempty()],
    dim: Annotated[int, dim_of("self")],
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Three:
    """Distinct slices along a dimension, in order: stable sorts by a slice's last element, then by the one before, ...

    Slices of more than FEW elements are left to torch, which compares whole slices.
    """
    check_tensors(self)
    moved = self.movedim(dim, 0)
    columns = moved.reshape(moved.shape[0], -1).t().contiguous()
    if columns.shape[0] > FEW:
        raise NotSupported(f"slices of {columns.shape[0]} elements, each of which would be one more sort")
    at = None
    for column in reversed(columns.unbind(0)):
        _, order = sort_rows((column if at is None else column[at]).view(1, -1), False)
        at = order.view(-1) if at is None else at[order.view(-1)]
    assert at is not None
    rows = columns[:, at]
    g = torch.ones(rows.shape[1], dtype=torch.bool, device=self.device)
    torch.any(rows[:, 1:] != rows[:, :-1], 0, out=g[1:])
    first, inverse, counts = _runs_of(g, at, at, return_inverse, return_counts)
    return self.index_select(dim, first), inverse, counts


# ---- counts ---------------------------------------------------------------------------------------------------------


@decided
def _counter(y: Tensor, x: Tensor, weights: Tensor | None) -> Callable[..., None]:
    """A launch (y, x, weights), or (y, x, 1), that adds the weights, or 1, to y[x]."""
    check_tensors(y, indices=(x,))
    return put(of_flat(y, x), y, None if weights is None else weights.stride(), y.dtype, add=True)


@impl(spec.ops["bincount"], devices=DEVICES)
def bincount(
    self: Int[Tensor, "n", nonempty()],
    weights: AnyTensor[Tensor, "n", real()] | None = None,
    minlength: Annotated[int, at_least(0)] = 0,
) -> Tensor:
    if weights is not None and torch.are_deterministic_algorithms_enabled():
        raise NotSupported("atomic additions have no order")
    least, most = (int(t.item()) for t in torch.aminmax(self))
    if least < 0:
        raise NotSupported("torch refuses negative integers")
    if weights is not None and weights.dtype is not torch.float32:
        weights = weights.to(torch.float64)
    x = self if self.dtype is torch.int64 else self.to(torch.int64)
    dtype = torch.int64 if weights is None else weights.dtype
    y = torch.zeros(max(most + 1, minlength), dtype=dtype, device=self.device)
    _counter(y, x, weights)(y, x, 1 if weights is None else weights)
    return y


@impl(spec.ops["equal"], devices=DEVICES)
def equal(
    self: AnyTensor[Tensor, "*shape", nonempty()], other: AnyTensor[Tensor, "*shape", same_dtype("self")]
) -> bool:
    x, y = self.contiguous(), other.contiguous()
    compare, flag = _comparer(x, y), torch.zeros(1, dtype=torch.int32, device=self.device)
    compare(x, y, flag)
    return not flag.item()
