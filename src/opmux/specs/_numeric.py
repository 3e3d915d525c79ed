"""Numerics of all references: computed in float32 (float64 for float64), rounded once, in a new tensor."""

import torch
from torch import Tensor

from ..core.tensors import opmath_dtype


def wide(x: Tensor) -> Tensor:
    return x.to(opmath_dtype(x.dtype))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A result: rounded once, contiguous, and not a view."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
