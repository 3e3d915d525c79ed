"""Calls torch ops on meta tensors, to get the shapes, strides and dtypes of results and to find calls that raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core import library
from ...core.errors import NotSupported
from .rows import OutputSpec


def as_meta(t: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A meta tensor of the same shape, strides and dtype, or of another dtype."""
    return torch.empty_strided(t.shape, t.stride(), dtype=dtype or t.dtype, device="meta")


def call_torch(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a torch function. If it raises, raise NotSupported instead, so that the call falls back to torch."""
    # the guard calls torch's own op, even if the op is overridden
    call = fn if library.reference_guard is None else library.reference_guard(fn)
    try:
        with torch.no_grad():
            return call(*args, **kwargs)
    except Exception as error:
        raise NotSupported(f"torch raises: {error}") from error


def on_meta(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call torch's op with tensors replaced by meta tensors, also inside lists."""
    meta = lambda a: as_meta(a) if isinstance(a, Tensor) else [*map(meta, a)] if isinstance(a, (list, tuple)) else a
    return call_torch(op, *map(meta, args), **{name: meta(a) for name, a in kwargs.items()})


def output_specs(op: Any, *args: Any) -> list[OutputSpec]:
    """The output specs of torch's op for these arguments."""
    results = on_meta(op, *args)
    return [OutputSpec.like(t) for t in (results if isinstance(results, tuple) else (results,))]
