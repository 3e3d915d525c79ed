"""Numerics of all references: compute in float32 (float64 for float64), round once, return a new tensor."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core.spec import Tol
from ..core.tensors import opmath_dtype

# Tolerances of the gradients of weights, which are sums over all rows; implementations may sum in another order.
SUMS: Mapping[torch.dtype, Tol] = {torch.float32: Tol(1e-5, 1e-4)}


def wide(x: Tensor) -> Tensor:
    return x.to(opmath_dtype(x.dtype))


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`, always a contiguous copy."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
