"""Checks of Python numbers that are written into tensors."""

from __future__ import annotations

import math
from typing import Any

import torch


def representable(value: Any, dtype: torch.dtype) -> bool:
    """Whether torch converts a number to a dtype silently: its kind and its value must fit.

    False for complex dtypes.
    """
    if dtype.is_complex:
        return False
    if isinstance(value, bool) or (dtype is torch.bool and value in (0, 1) and isinstance(value, int)):
        return True
    if isinstance(value, int) and not dtype.is_floating_point and dtype is not torch.bool:
        facts = torch.iinfo(dtype)
        return facts.min <= value <= facts.max
    if isinstance(value, (int, float)) and dtype.is_floating_point:
        return not math.isfinite(value) or abs(value) <= torch.finfo(dtype).max
    return False
