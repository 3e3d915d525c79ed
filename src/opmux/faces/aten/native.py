"""ATen's own kernels, taken before ours are put in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .schema import Shape

_CATEGORY = {bool: 0, int: 1, float: 2, complex: 3}
_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_CHOOSING = ("condition", "mask")  # tensors that take no part in promotion


def exists(shape: Shape, key: str) -> bool:
    """Whether torch can run an overload on a dispatch key: by a kernel, a composition or a backend's fallback."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{shape.name}", key)


def kernel(shape: Shape, key: str) -> Callable[..., Any]:
    """The kernel of an overload on a dispatch key, as a function of the overload's arguments."""
    at = getattr(torch._C.DispatchKey, key)
    if not exists(shape, key):  # ours is the only one
        return _missing(shape, key)
    boxed = torch.library.get_kernel(f"aten::{shape.name}", at).call_boxed
    return functools.partial(taking_numbers(shape, boxed), torch._C.DispatchKeySet(at))


def taking_numbers(shape: Shape, boxed: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel, called with keys and arguments, that takes numbers in the place of tensors.

    torch hands a number that stands for a tensor to Python as a number, and takes none back: such a call is made with a
    0-dim tensor instead, of a dtype that promotes as the number would.
    """
    slots = shape.slots
    if len(slots) < 2:
        return boxed

    def native(keys: Any, *args: Any, **kwargs: Any) -> Any:
        for i in slots:
            if i < len(args) and not isinstance(args[i], Tensor):
                return _with_numbers(boxed, keys, shape, args, kwargs)
        return boxed(keys, *args, **kwargs)

    return native


def _missing(shape: Shape, key: str) -> Callable[..., Any]:
    def native(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Could not run 'aten::{shape.name}' with arguments from the '{key}' backend: torch has no kernel for it "
            "there, and no kernel of opmux takes this call"
        )

    return native


def _with_numbers(boxed: Any, keys: Any, shape: Shape, args: tuple, kwargs: dict) -> Any:
    given, named = list(args), kwargs
    slots = [i for i in shape.slots if i < len(args)]
    choosing = [i for i in slots if shape.arguments[i].name in _CHOOSING]
    tensors = [args[i] for i in slots if isinstance(args[i], Tensor) and i not in choosing]
    flat = bool(tensors) and all(t.dim() == 0 for t in tensors)
    if flat:  # beside a 0-dim tensor another one would count as much: a tensor of one element counts more
        given = [a.view(1) if isinstance(a, Tensor) and a.dim() == 0 else a for a in given]
        named = {k: v.view(1) if isinstance(v, Tensor) and v.dim() == 0 else v for k, v in kwargs.items()}
    for i in slots:
        if not isinstance(args[i], Tensor):
            given[i] = torch.tensor(args[i], dtype=_dtype_for(args[i], tensors))
    result = boxed(keys, *given, **named)
    if shape.written:  # what was written is what is returned
        outs = [kwargs[n] for n in shape.outs] or [args[0]]
        return tuple(outs) if len(outs) > 1 else outs[0]
    return result.view(()) if flat else result


def _dtype_for(number: Any, tensors: list[Tensor]) -> torch.dtype:
    """What a 0-dim tensor must be to promote as this number does beside tensors with dimensions."""
    kind = type(number)
    for t in tensors:
        of = complex if t.dtype.is_complex else float if t.dtype.is_floating_point else int
        if _CATEGORY[bool if t.dtype is torch.bool else of] >= _CATEGORY[kind]:
            return _WIDEST[kind]
    if not tensors:
        return torch.result_type(torch.tensor(number), number)
    return torch.result_type(tensors[0], number)
