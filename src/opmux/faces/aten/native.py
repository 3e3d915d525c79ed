"""ATen's original kernels, saved before they are overridden."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...machine import devices
from .schema import OverloadSchema

_CATEGORY = {bool: 0, int: 1, float: 2, complex: 3}
_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_PASSED_ON = (Tensor, type(None))  # None is an undefined tensor, for example an absent bias
_NOT_PROMOTING = ("condition", "mask")  # tensors that do not affect type promotion

# Op -> the op that its ATen kernel calls, with the number argument converted to a device tensor. torch cannot pass this
# tensor to a Python override of the called op. So we override the calling op too, and its override passes the number.
DELEGATES = {
    "pow.Scalar": "pow.Tensor_Tensor",
    "pow.Scalar_out": "pow.Tensor_Tensor_out",
    "searchsorted.Scalar": "searchsorted.Tensor",
    "searchsorted.Scalar_out": "searchsorted.Tensor_out",
}
_ON_ONE_DEVICE = ("searchsorted",)  # ops that reject a 0-dim CPU tensor together with device tensors


def key_of(device: str) -> str:
    """The dispatch key of a device type: that of the vendor's package if there is one, else torch's."""
    package = devices.vendor_of(device)
    return torch._C._dispatch_key_for_device(device) if package is None else package.info.key


def exists(shape: OverloadSchema, key: str) -> bool:
    """Whether torch has a kernel, a composition or a backend fallback for an overload on a dispatch key."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{shape.name}", key)


def kernel(shape: OverloadSchema, key: str) -> Callable[..., Any]:
    """The kernel of an overload on a dispatch key, as a function of the overload's arguments."""
    dispatch_key = getattr(torch._C.DispatchKey, key)
    if not exists(shape, key):  # only we have a kernel
        return _missing(shape, key)
    if shape.name in DELEGATES:
        delegate = OverloadSchema(DELEGATES[shape.name])
        call = lambda keys, *args, **kwargs: delegate.op(*args, **kwargs)
        return functools.partial(taking_numbers(delegate, call), None)
    boxed = torch.library.get_kernel(f"aten::{shape.name}", dispatch_key).call_boxed
    return functools.partial(taking_numbers(shape, boxed, alone=key == "CPU"), torch._C.DispatchKeySet(dispatch_key))


def taking_numbers(shape: OverloadSchema, boxed: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
    """A kernel, called with keys and arguments, that accepts Python numbers in place of tensors.

    If a caller passes a number for a tensor, torch passes that number on to Python, but torch's kernel does not accept
    it. So we convert the number to a 0-dim tensor of a dtype that promotes like the number. `alone`: convert it even if
    the op has no other tensor argument; that occurs only on the CPU, where torch creates such 0-dim tensors.
    """
    slots = shape.slots
    if len(slots) < 2 and not alone:
        return boxed

    def native(keys: Any, *args: Any, **kwargs: Any) -> Any:
        for i in slots:
            if i < len(args) and not isinstance(args[i], _PASSED_ON):
                return _with_numbers(boxed, keys, shape, args, kwargs)
        return boxed(keys, *args, **kwargs)

    return native


def _missing(shape: OverloadSchema, key: str) -> Callable[..., Any]:
    def native(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"Could not run 'aten::{shape.name}' with arguments from the '{key}' backend: torch has no kernel for it "
            "there, and no opmux kernel accepts this call"
        )

    return native


def _with_numbers(boxed: Any, keys: Any, shape: OverloadSchema, args: tuple, kwargs: dict) -> Any:
    positional, named = list(args), kwargs
    slots = [i for i in shape.slots if i < len(args)]
    choosing = [i for i in slots if shape.arguments[i].name in _NOT_PROMOTING]
    tensors = [args[i] for i in slots if isinstance(args[i], Tensor) and i not in choosing]
    flat = bool(tensors) and all(t.dim() == 0 for t in tensors)
    if flat:  # give the caller's 0-dim tensors one dimension, so that they outrank the number in type promotion
        positional = [a.view(1) if isinstance(a, Tensor) and a.dim() == 0 else a for a in positional]
        named = {k: v.view(1) if isinstance(v, Tensor) and v.dim() == 0 else v for k, v in kwargs.items()}
    for i in slots:
        if not isinstance(args[i], _PASSED_ON):
            device = tensors[0].device if shape.packet in _ON_ONE_DEVICE else None
            positional[i] = torch.full((), args[i], dtype=_dtype_for(args[i], tensors), device=device)
    result = boxed(keys, *positional, **named)
    if shape.written:
        outs = [kwargs[n] for n in shape.outs] or [args[0]]
        return tuple(outs) if len(outs) > 1 else outs[0]
    return result.view(()) if flat else result


def _dtype_for(number: Any, tensors: list[Tensor]) -> torch.dtype:
    """The dtype with which a 0-dim tensor promotes like this number, beside tensors that have dimensions."""
    kind = type(number)
    for t in tensors:
        category = complex if t.dtype.is_complex else float if t.dtype.is_floating_point else int
        if _CATEGORY[bool if t.dtype is torch.bool else category] >= _CATEGORY[kind]:
            return _WIDEST[kind]
    if not tensors:
        return _WIDEST[kind]
    return torch.result_type(tensors[0], number)
