"""Sort and top k of rows of any length."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..cells import of_gather, take
from ..plans import decided
from ..rows import OutputSpec
from .radix import sorter as radix_sorter
from .rows import LONGEST, MOST, chooser, sorter

Pair = tuple[Tensor, Tensor]


@decided
def _picker(x: Tensor, at: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return take(of_gather(x, 1, at), x, OutputSpec.of(at.shape, x.dtype), True)


def picked(x: Tensor, at: Tensor) -> Tensor:
    """Gather the elements of rows [rows, n] at int64 indices [rows, k]."""
    return _picker(x, at)(x, at)


def sort_rows(x: Tensor, descending: bool) -> Pair:
    """Stable sort of contiguous rows [rows, n]: values and int64 indices."""
    if x.shape[1] <= LONGEST:
        values, indices = sorter(x, descending)(x)
        return values.view(x.dtype), indices
    indices = radix_sorter(x, descending)(x)
    return picked(x, indices), indices


def first_rows(x: Tensor, k: int, descending: bool) -> Pair:
    """The first k of contiguous rows [rows, n] in sorted order: values and int64 indices."""
    if x.element_size() < 8 and k <= MOST:
        values, indices = chooser(x, k, descending)(x)
        return values.view(x.dtype), indices
    values, indices = sort_rows(x, descending)
    return values[:, :k].contiguous(), indices[:, :k].contiguous()
