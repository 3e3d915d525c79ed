"""The layout of a tensor for a reduction: two kept and two reduced dimensions, one of them with adjacent elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Level(NamedTuple):
    size: int
    stride: int


ONE = Level(1, 0)
SMALL = 2**30  # indices below this fit in 32 bits, even if rounded up to whole blocks


class View(NamedTuple):
    """Elements of x are indexed by (outer kept, inner kept, outer reduced, inner reduced).

    Results have the order of the kept dimensions. `columns`: the inner kept dimension has the smallest stride, so
    columns are reduced. Otherwise the inner reduced dimension has the smallest stride, and rows are reduced.
    """

    columns: bool
    kept: tuple[Level, Level]
    reduced: tuple[Level, Level]
    # if kernels cannot read x in place: the order of dimensions in which x is copied first
    copied: tuple[int, ...] | None = None

    @property
    def outputs(self) -> int:
        return self.kept[0].size * self.kept[1].size

    @property
    def elements(self) -> int:
        return self.reduced[0].size * self.reduced[1].size


def view(shape: Sequence[int], stride: Sequence[int], dims: tuple[int, ...], in_order: bool) -> View:
    """The view of a tensor. With `in_order`, the reduced elements keep the order of their indices."""
    levels = [Level(n, s) for n, s in zip(shape, stride, strict=True)]
    inner = [d for d in range(len(shape)) if d in dims]
    outer = [d for d in range(len(shape)) if d not in dims]
    kept = collapsed(levels[d] for d in outer)
    ordered = inner if in_order else sorted(inner, key=lambda d: -stride[d])
    reduced = collapsed(levels[d] for d in ordered)
    if not fits(kept, reduced, in_order):
        n, rows = (math.prod(shape[d] for d in dims) for dims in (inner, outer))
        return View(False, (ONE, Level(rows, n)), (ONE, Level(n, 1)), (*outer, *inner))
    return View(by_columns(kept, reduced), padded(kept), padded(reduced))


def collapsed(levels: Iterable[Level]) -> list[Level]:
    """Merge adjacent dimensions whose strides allow it."""
    merged: list[Level] = []
    for level in levels:
        if level.size == 1:
            continue
        if merged and merged[-1].stride == level.size * level.stride:
            merged[-1] = Level(merged[-1].size * level.size, level.stride)
        else:
            merged.append(level)
    return merged


def padded(levels: list[Level]) -> tuple[Level, Level]:
    first, second = [ONE] * (2 - len(levels)) + levels
    return first, second


def fits(kept: list[Level], reduced: list[Level], in_order: bool) -> bool:
    """Whether the kernels can read the tensor without a copy, and one program reads neighbouring elements."""
    if len(kept) > 2 or len(reduced) > (1 if in_order else 2):
        return False
    if len(kept) == 2:
        # If the outer kept dimension has the smallest stride, different programs would read neighbouring elements.
        fast = kept[0].stride
        if 0 < fast < kept[1].stride and fast < min((r.stride for r in reduced), default=fast + 1):
            return False
        if kept[0].size * kept[1].size >= SMALL:
            return False
    return len(reduced) < 2 or reduced[0].size * reduced[1].size < SMALL


def by_columns(kept: list[Level], reduced: list[Level]) -> bool:
    if not kept:
        return False
    fast, red = kept[-1].stride, reduced[-1].stride if reduced else 0
    return fast > 0 and (red == 0 or fast < red)


def unit(n: int, *strides: int, itemsize: int) -> int:
    """The number of elements of the widest possible load: at most 16 bytes.

    The largest power of two that divides n and all strides; 1 if n does not fit in 32 bits, because the kernel would
    multiply n / width in 32 bits.
    """
    width = max(1, 16 // itemsize) if n < 2**31 else 1
    for size in (n, *strides):
        while size % width:
            width //= 2
    return width
