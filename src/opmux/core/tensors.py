"""Helpers for tensors: the first tensor of a call, its shape class, whether it has its own memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def opmath_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which floats are computed: float64 for float64, else float32."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in an argument, including those inside nested lists, tuples, sets and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item)


def first_tensor(args: tuple, kwargs: dict) -> Tensor | None:
    for value in args:
        if isinstance(value, Tensor):
            return value
    nested = next(tensors_in(args), None)
    return nested if nested is not None else next(tensors_in(kwargs), None)


def shape_class(tensor: Tensor | None) -> tuple[int, ...]:
    """The rank, then the power-of-two bucket of each size. Size 0 has bucket 0, size 1 has bucket 1, and bucket n has
    the sizes in (2^(n-2), 2^(n-1)].

    Sizes with the same next power of two share a class, because they share a Triton block size.
    """
    if tensor is None:
        return ()
    try:
        return _classes(tensor.shape)
    except (RuntimeError, AttributeError, TypeError):  # nested tensors, and others whose sizes are not plain ints
        return (-1,)


def mix(first: Tensor | None, others: Iterable[Any]) -> tuple[Any, ...]:
    """How other arguments of a call differ from its first tensor; empty if all have the first one's dtype and device.

    The entry of a number is its type. The entry of another tensor is its dtype, whether it has no dimensions, and
    whether it is on the CPU.
    """
    mixed = []
    for other in others:
        if not isinstance(other, Tensor):
            mixed += [] if other is None else [type(other)]
        elif first is None or other.dtype is not first.dtype or other.is_cpu is not first.is_cpu:
            mixed.append((other.dtype, other.dim() == 0, other.is_cpu))
    return tuple(mixed)


@functools.lru_cache(maxsize=8192)
def _classes(shape: torch.Size) -> tuple[int, ...]:
    return (len(shape), *map(size_class, shape))


def size_class(n: int) -> int:
    """The power-of-two bucket of one length."""
    return 1 + (n - 1).bit_length() if n else 0


_PLAIN = (Tensor, torch.nn.Parameter)
_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is neither a subclass nor wrapped by functorch."""
    return type(tensor) in _PLAIN and not _wrapped(tensor)


def is_real(tensor: Tensor | None) -> bool:
    """Whether a tensor holds data: not a meta tensor, not a fake tensor, not wrapped by functorch."""
    if tensor is None or type(tensor) in _PLAIN:
        return tensor is None or not (tensor.is_meta or _wrapped(tensor))
    if tensor.is_meta:
        return False
    if is_traceable_wrapper_subclass(tensor):  # torch 2.11's is_fake raises if there are no inner tensors
        names, _ = tensor.__tensor_flatten__()
        inner = [getattr(tensor, name) for name in names]
        return all(is_real(t) for t in inner if isinstance(t, Tensor))
    from torch._subclasses.fake_tensor import is_fake

    return not is_fake(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Whether a tensor has data in its own storage. A wrapper around other tensors has none."""
    if not is_real(tensor) or (tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() == 0):
        return False
    try:
        return tensor.layout is not torch.strided or tensor.untyped_storage().data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # a wrapper subclass has no storage of its own
        return False


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
