"""`flag_gems.utils.shape_utils`: functions of shapes and strides."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import left

__all__ = [
    "MemOverlap",
    "all_c_contiguous",
    "all_the_same_shape",
    "all_the_same_stride",
    "bracket_next_power_of_2",
    "broadcast",
    "broadcast_shapes",
    "broadcastable",
    "broadcastable_to",
    "broadcasted_stride",
    "c_contiguous_stride",
    "can_use_int32_index",
    "check_tensor_attributes",
    "dim_compress",
    "f_contiguous_stride",
    "has_internal_overlapping",
    "heuristics_for_num_warps",
    "heuristics_for_tile_size",
    "is_valid_perm",
    "offsetCalculator",
    "offset_calculator",
    "ordered_stride",
    "restride_dim",
    "size_in_bytes",
    "stride_order",
    "unravel_index",
    "volume",
]


Shape = Stride = MultiIndex = Perm = tuple[int, ...]


class MemOverlap(enum.Enum):
    """Whether several elements of a tensor have the same address."""

    No = 0
    Yes = 1
    TooHard = 2


def volume(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)


def broadcast(s1: Sequence[int], s2: Sequence[int]) -> tuple[int, ...]:
    """The shape that two shapes are broadcast to."""
    return broadcast_shapes([s1, s2])


def broadcast_shapes(shapes: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The shape that all shapes are broadcast to; raises if they cannot be."""
    return tuple(torch.broadcast_shapes(*(tuple(shape) for shape in shapes)))


def broadcastable(s1: Sequence[int], s2: Sequence[int]) -> bool:
    """Whether two shapes can be broadcast against each other."""
    return all(a in (b, 1) or b == 1 for a, b in zip(reversed(s1), reversed(s2)))


def broadcastable_to(s1: Sequence[int], s2: Sequence[int]) -> bool:
    """Whether the first shape can be expanded to the second."""
    return len(s1) <= len(s2) and all(a in (b, 1) for a, b in zip(reversed(s1), reversed(s2)))


def broadcasted_stride(shape: Sequence[int], stride: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of `shape` after it is expanded to `new_shape`."""
    lead = len(new_shape) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 else st for n, st in zip(shape, stride, strict=True))


def is_valid_perm(perm: Sequence[int]) -> bool:
    """Whether these are the numbers 0 to n - 1 in any order."""
    return sorted(perm) == list(range(len(perm)))


def unravel_index(linear_offset: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of each dimension, from a flat index."""
    index = []
    for n in reversed(shape):
        linear_offset, part = divmod(linear_offset, n)
        index.append(part)
    return tuple(reversed(index))


def ordered_stride(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor; `order` lists its dimensions, the one with the smallest stride first."""
    if not is_valid_perm(order) or len(order) != len(shape):
        raise ValueError(f"order must be a permutation of the {len(shape)} dimensions; got {tuple(order)}")
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(1, shape[d])
    return tuple(strides)


def c_contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return ordered_stride(shape, range(len(shape))[::-1])


def f_contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor that is stored by columns: the first dimension has stride 1."""
    return ordered_stride(shape, range(len(shape)))


def stride_order(strides: Sequence[int]) -> list[int]:
    """The dimensions, those with the smallest strides first."""
    return sorted(range(len(strides)), key=lambda d: abs(strides[d]))


def all_the_same_shape(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors have one shape."""
    return len({tuple(t.shape) for t in tensors}) <= 1


def all_the_same_stride(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors have the same strides."""
    return len({tuple(t.stride()) for t in tensors}) <= 1


def all_c_contiguous(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are contiguous."""
    return all(t.is_contiguous() for t in tensors)


def bracket_next_power_of_2(N: int, lower: int, upper: int) -> int:
    """The smallest power of two that is at least N, limited to the range from lower to upper."""
    return min(max(1 << max(N - 1, 0).bit_length(), lower), upper)


def heuristics_for_tile_size(max_tile_size: int, *sizes: int) -> tuple[int, ...]:
    """Tile sizes: powers of two, together at most `max_tile_size` elements; the last dimension is chosen first."""
    tile, left = [], max_tile_size
    for n in reversed(sizes):
        tile.append(min(1 << max(n - 1, 0).bit_length(), left))
        left = max(1, left // tile[-1])
    return tuple(reversed(tile))


def heuristics_for_num_warps(tile_size: int) -> int:
    """How many warps compute a tile of this many elements."""
    return 4 if tile_size < 2048 else 8 if tile_size < 4096 else 16


def size_in_bytes(a: Tensor) -> int:
    """The bytes of the elements of a tensor."""
    return a.numel() * a.element_size()


def can_use_int32_index(a: Tensor) -> bool:
    """Whether the byte offset of every element fits into 32 bits."""
    last = sum((n - 1) * st for n, st in zip(a.shape, a.stride(), strict=True)) if a.numel() else 0
    return last * a.element_size() <= 2**31 - 1


def has_internal_overlapping(x: Tensor) -> MemOverlap:
    """Whether several elements have the same address; TooHard if strides and sizes do not decide it."""
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(x):
        return MemOverlap.No
    if any(n > 1 and st == 0 for n, st in zip(x.shape, x.stride(), strict=True)):
        return MemOverlap.Yes
    return MemOverlap.TooHard


def check_tensor_attributes(data_list: Sequence[Any], is_tensor_list: Sequence[bool]) -> bool:
    """Raise unless the arguments that must be tensors are tensors, and no others."""
    for i, (value, must) in enumerate(zip(data_list, is_tensor_list, strict=True)):
        if isinstance(value, Tensor) != must:
            expected = "must be a tensor" if must else "must not be a tensor"
            raise ValueError(f"argument {i} {expected}; got {type(value).__name__}")
    return True


def dim_compress(inp: Tensor, dims: int | Sequence[int]) -> Tensor:
    """A contiguous tensor, with these dimensions moved to the end in order of decreasing stride."""
    dims = [d % inp.dim() for d in ([dims] if isinstance(dims, int) else dims)]
    last = sorted(dims, key=inp.stride, reverse=True)
    return inp.permute(*(d for d in range(inp.dim()) if d not in last), *last).contiguous()


def restride_dim(
    src: Tensor, dim: int, shape: Sequence[int], step: int = 0, storage_offset: int | None = None
) -> Tensor:
    """A view of shape `shape`, with the stride of one dimension multiplied by `step`."""
    strides = [s * step if d == dim % src.dim() else s for d, s in enumerate(src.stride())]
    return src.as_strided(shape, strides, storage_offset)


def offsetCalculator(inp: Tensor, idx: Any, strides: Sequence[int], dim: int, isInp: bool) -> Any:
    """The storage offsets of elements, from their flat indices; with `isInp`, the index along `dim` is not counted."""
    offset = 0
    for d in range(inp.dim()):
        part = idx % inp.shape[d] * strides[d]
        offset = offset if isInp and d == dim else offset + part
        idx = idx // inp.shape[d]
    return offset


offset_calculator = offsetCalculator


def __getattr__(name: str) -> Any:
    why = left.refused("utils.shape_utils", name)
    raise AttributeError(f"module 'flag_gems.utils.shape_utils' of opmux has no '{name}'" + (f": {why}" if why else ""))
