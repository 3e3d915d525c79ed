"""`flag_gems.utils`: helpers for kernels that were written for FlagGems.

FlagGems' generator of pointwise kernels, `pointwise_dynamic`, is not provided: opmux declares pointwise ops in a table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .runtime import torch_module


def libentry() -> Callable[[Any], Any]:
    """A decorator that returns the kernel unchanged: Triton's own launcher caches compiled kernels."""
    return lambda kernel: kernel


def libtuner(configs: Sequence[Any], key: Sequence[str], **options: Any) -> Callable[[Any], Any]:
    """`triton.autotune`; FlagGems' own options (strategy, policy, benchmark_mode, flagtune_*) are ignored."""
    import inspect

    import triton

    known = inspect.signature(triton.autotune).parameters
    return triton.autotune(list(configs), list(key), **{k: v for k, v in options.items() if k in known})


def volume(shape: Sequence[int]) -> int:
    """The number of elements."""
    return torch.Size(shape).numel()


def broadcastable(s1: Sequence[int], s2: Sequence[int]) -> bool:
    """Whether two shapes can be broadcast against each other."""
    return all(a in (b, 1) or b == 1 for a, b in zip(reversed(s1), reversed(s2)))


def broadcastable_to(s1: Sequence[int], s2: Sequence[int]) -> bool:
    """Whether the first shape can be expanded to the second."""
    return len(s1) <= len(s2) and all(a in (b, 1) for a, b in zip(reversed(s1), reversed(s2)))


def dim_compress(inp: Tensor, dims: int | Sequence[int]) -> Tensor:
    """A contiguous copy, with these dimensions moved to the end in order of decreasing stride."""
    last = sorted([dims] if isinstance(dims, int) else dims, key=inp.stride, reverse=True)
    return inp.permute(*(d for d in range(inp.dim()) if d not in last), *last).contiguous()


def restride_dim(
    src: Tensor, dim: int, shape: Sequence[int], step: int = 0, storage_offset: int | None = None
) -> Tensor:
    """A view of shape `shape`, with the stride of one dimension multiplied by `step`."""
    strides = [s * step if d == dim % src.dim() else s for d, s in enumerate(src.stride())]
    return src.as_strided(shape, strides, storage_offset)


def offsetCalculator(inp: Tensor, idx: Any, strides: Sequence[int], dim: int, isInp: bool) -> Any:
    """The storage offsets of elements, from their flat indices; with `isInp`, the index along `dim` is not counted."""
    offset = 0
    for d in range(inp.dim()):
        part = idx % inp.shape[d] * strides[d]
        offset = offset if isInp and d == dim else offset + part
        idx = idx // inp.shape[d]
    return offset


def get_device_properties(device: Any = None) -> Any:
    """torch's properties of a device."""
    return torch_module().get_device_properties(device)


def __getattr__(name: str) -> Any:
    if name in ("triton_lang_extension", "shape_utils"):
        return importlib.import_module(__name__)
    if name == "tl_extra_shim":
        from triton.language.extra import libdevice

        return libdevice
    if name in ("program_id", "num_programs"):
        import triton.language as tl

        return getattr(tl, name)
    if name == "HAS_TLE":
        return False
    raise AttributeError(f"module 'flag_gems.utils' of opmux has no attribute '{name}'")
