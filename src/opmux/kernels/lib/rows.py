"""Host code that kernels share: evenly spaced rows, output specs, and numbers of programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core import machine
from ...machine import devices
from .launch import _compiling_only

DEVICES = frozenset({machine.ACCELERATOR})


class Rows(NamedTuple):
    count: int
    stride: int  # elements from one row to the next

    @classmethod
    def of(cls, x: Tensor) -> Rows:
        """The rows of a tensor for which `even_rows` is true."""
        n = x.shape[-1]
        if x.is_contiguous():
            return cls(x.numel() // n if n else x.shape[:-1].numel(), n)
        return cls(x.shape[:-1].numel(), min((s for k, s in zip(x.shape[:-1], x.stride()) if k > 1), default=n))


def even_rows(x: Tensor) -> bool:
    """Whether rows are contiguous, evenly spaced and do not overlap, as in one half of [.., 2n]."""
    if x.is_contiguous():
        return True
    if x.dim() < 2 or x.stride(-1) != 1:
        return False
    steps = [(k, s) for k, s in zip(x.shape[:-1], x.stride()) if k > 1]
    inner = steps[-1][1] if steps else x.shape[-1]
    return inner >= x.shape[-1] and all(s == k * t for (_, s), (k, t) in pairwise(steps))


def packed(x: Tensor) -> Tensor:
    """The tensor itself if its rows are even, else a contiguous copy."""
    return x if even_rows(x) else x.contiguous()


@triton.jit
def inside(o, n, FULL: tl.constexpr):
    """The mask o < n.

    FULL: the mask is constant and true, so loads are unmasked, which makes latency-bound kernels 15 % faster.
    """
    if FULL:
        return tl.full(o.shape, 1, tl.int1)
    else:
        return o < n


# Inductor's allocation function takes half the host time of torch.empty. It is private, so it may be missing.
empty_cuda: Callable[..., Tensor] | None = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None
)
_here: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)


class OutputSpec(NamedTuple):
    """Shape, strides and dtype of an output; `OutputSpec.of` makes a contiguous one."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, shape: Any, dtype: torch.dtype) -> OutputSpec:
        stride = []
        step = 1
        for n in reversed(shape):
            stride.append(step)
            step *= max(n, 1)
        return cls(tuple(shape), tuple(reversed(stride)), dtype)

    @classmethod
    def like(cls, t: Tensor) -> OutputSpec:
        """The spec of an output with the same shape, strides and dtype."""
        return cls(tuple(t.shape), tuple(t.stride()), t.dtype)

    def empty(self, like: Tensor) -> Tensor:
        """An uninitialized tensor with this spec on the device of `like`."""
        if like.is_cuda and empty_cuda is not None and like.get_device() == _here():
            return empty_cuda(*self)
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=like.device)

    def allocator(self, like: Tensor) -> Callable[[], Tensor]:
        """A function that allocates a tensor with this spec; the device of `like` must be the current one."""
        if empty_cuda is not None and like.is_cuda:
            return functools.partial(empty_cuda, *self)
        return functools.partial(torch.empty_strided, self.shape, self.stride, dtype=self.dtype, device=like.device)


TRITON_DTYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.uint8: tl.uint8,
    torch.bool: tl.int1,
}


@functools.cache
def wide_of(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype is torch.float64 else tl.float32


def fits(elements: int, dtype: torch.dtype) -> int:
    """Scale a limit for types of up to 16 bits to another dtype. Kernels compute in at least 32 bits."""
    return elements if dtype.itemsize <= 2 else elements // 2 if dtype.itemsize == 4 else elements // 4


def cores(device: torch.device) -> int:
    """The number of multiprocessors of a device, or a guess if it is unknown."""
    if device.type != "meta":
        return _cores(device)
    if not _compiling_only():
        return 132
    return triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]


@functools.cache
def _cores(device: torch.device) -> int:
    return 8 if device.type == "cpu" else devices.cores(device.type, device.index or 0) or 8


def programs(device: torch.device, count: int, per_core: int) -> int:
    """The number of programs that loop over `count` pieces of work: enough to fill the chip, at most `count`."""
    return max(1, min(count, cores(device) * per_core))
