"""Fills results before a kernel runs, so that elements which the kernel does not write are detected."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...faces.aten import engine

# The private function, because torch.use_deterministic_algorithms imports torch.compile, which takes 8 s.
_deterministic = getattr(torch._C, "_set_deterministic_algorithms", torch.use_deterministic_algorithms)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Make `torch.empty` and similar functions fill their result with NaN or the largest integer, during one call."""
    settings = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _deterministic(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            _deterministic(settings[0], warn_only=settings[1])
            torch.utils.deterministic.fill_uninitialized_memory = fills


@contextlib.contextmanager
def launches_poisoned() -> Iterator[None]:
    """Also fill the memory that our launches allocate, during a whole run. Existing launch plans are discarded."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from ...kernels.lib import plans, rows

    stock = rows.empty_cuda
    if stock is None:
        yield
        return

    def empty(*spec: Any) -> Tensor:
        tensor = stock(*spec)
        _fill(tensor)
        return tensor

    rows.empty_cuda = empty
    plans.forget()  # existing plans would still use the old allocator
    try:
        yield
    finally:
        rows.empty_cuda = stock
        plans.forget()


@engine.off_inside
def _fill(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)
