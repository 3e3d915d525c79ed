"""Tensors as rows along the last dimension: how far apart they lie, and room for results."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

DEVICES = frozenset({"cuda", "xpu"})  # where torch has Triton; a machine with another chip says so itself


class Rows(NamedTuple):
    count: int
    stride: int  # elements from one row to the next

    @classmethod
    def of(cls, x: Tensor) -> Rows:
        """The rows of a tensor that `packed` has passed."""
        n = x.shape[-1]
        if x.is_contiguous():
            return cls(x.numel() // n if n else x.shape[:-1].numel(), n)
        return cls(x.shape[0], x.stride(0))


def packed(x: Tensor) -> Tensor:
    """The tensor, or a copy of it, with its rows evenly spaced and each in one piece."""
    if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1 and x.stride(0) >= x.shape[1]):
        return x
    return x.contiguous()


def empty(shape: tuple[int, ...] | torch.Size, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


@functools.cache
def wide_of(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype is torch.float64 else tl.float32


@functools.cache
def cores(device: torch.device) -> int:
    """The multiprocessors of a device; some number where it is not said."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 8


def programs(x: Tensor, wanted: int, per_core: int) -> int:
    """How many programs should walk over the work: enough to fill the chip, no more than there is work."""
    return max(1, min(wanted, cores(x.device) * per_core))
