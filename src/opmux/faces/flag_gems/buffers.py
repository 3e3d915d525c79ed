"""`flag_gems.utils.tensor_wrapper`: pass a tensor's memory to a kernel with another shape, strides or dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["StridedBuffer", "TypedPtr"]


class TypedPtr:
    """An address and a dtype, which a Triton kernel takes as a pointer."""

    def __init__(self, ptr: int, dtype: torch.dtype):
        self.ptr, self.dtype = ptr, dtype

    def data_ptr(self) -> int:
        return self.ptr

    def untyped_storage(self) -> TypedPtr:
        return self

    @classmethod
    def from_tensor(cls, tensor: Tensor, offset: int = 0) -> TypedPtr:
        """The address of the element at `offset`."""
        return cls.reinterpret_tensor(tensor, tensor.dtype, offset)

    @classmethod
    def reinterpret_tensor(cls, tensor: Tensor, dtype: torch.dtype, offset: int = 0) -> TypedPtr:
        """The address of the element at `offset`, if the tensor's memory is read as `dtype`."""
        return cls(tensor.data_ptr() + dtype.itemsize * offset, dtype)


class StridedBuffer:
    """The memory of `base` with another shape, dtype, start or strides, which may be negative."""

    def __init__(
        self,
        base: Tensor,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        offset: int = 0,
    ):
        self.base, self.offset = base, offset
        self.dtype = base.dtype if dtype is None else dtype
        self.shape = tuple(base.shape if shape is None else shape)
        self._strides = tuple(base.stride() if strides is None else strides)
        self.device, self.ndim = base.device, len(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def size(self) -> tuple[int, ...]:
        return self.shape

    def element_size(self) -> int:
        return self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def dim(self) -> int:
        return self.ndim

    def unwrap(self) -> Tensor:
        return self.base

    def data_ptr(self) -> int:
        return self.base.data_ptr() + self.dtype.itemsize * self.offset

    def untyped_storage(self) -> Any:
        return self.base.untyped_storage()

    def clone(self) -> StridedBuffer:
        """A buffer over a copy of the base."""
        return StridedBuffer(self.base.clone(), self.shape, self._strides, self.dtype, self.offset)

    def copy_(self, src: StridedBuffer | Tensor) -> StridedBuffer:
        """Copy the base of another buffer, or a tensor, to the base of this one, and take over shape and strides."""
        src = src if isinstance(src, StridedBuffer) else StridedBuffer(src)
        self.base.copy_(src.base)
        self.dtype, self.offset, self.shape, self._strides = src.dtype, src.offset, src.shape, src.stride()
        self.ndim = src.ndim
        return self
