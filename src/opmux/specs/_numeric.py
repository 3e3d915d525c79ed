"""Numerics of all references: computed in float32 (float64 for float64), rounded once, in a new tensor."""

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def wide(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A result: rounded once, contiguous, and not a view."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
