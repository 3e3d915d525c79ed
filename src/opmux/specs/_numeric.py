"""Numerics of all references: compute in float32 (float64 for float64), round once, return a new tensor."""

import torch
from torch import Tensor

from ..core.tensors import opmath_dtype


def wide(x: Tensor) -> Tensor:
    return x.to(opmath_dtype(x.dtype))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`, always a contiguous copy."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
