"""Autocast: if an op refuses tensors of mixed dtypes, it is called again with cast tensors, as torch's ops do.

Our ops take tensors of one dtype (a norm's weight may have another), so most calls need no cast. These calls pay
nothing, because autocast is checked only after an op has refused its arguments. Ops that declare `flops` are
compute-bound and run in autocast's dtype; the others run in the widest dtype of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import BadArgument
from .tensors import tensors_in

if TYPE_CHECKING:
    from .spec import Spec

# Device type -> whether it has autocast. A dict, because torch 2.11 cannot trace `is_autocast_available`.
_available = {device: torch.amp.is_autocast_available(device) for device in ("cpu", "cuda", "xpu")}
CASTABLE = (torch.float16, torch.bfloat16, torch.float32)  # autocast leaves float64 alone


def recovering(spec: Spec, differentiable: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The `recover` of an op's public function: casts the arguments, then calls the function `differentiable()`."""

    def recover(recover_inner: Callable[..., Any], error: Exception, args: tuple, kwargs: dict) -> Any:
        try:
            return recover_inner(error, args, kwargs)
        except BadArgument:
            dtype = _common_dtype(spec, args, kwargs)
            if dtype is None:
                raise
        return differentiable()(*(_cast(a, dtype) for a in args), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return recover


def _common_dtype(spec: Spec, args: tuple, kwargs: dict) -> torch.dtype | None:
    """The dtype to cast to; None if autocast is off, or if the error is not about dtypes."""
    floats = [t for t in tensors_in((args, kwargs)) if t.is_floating_point()]
    dtypes = {t.dtype for t in floats}
    if spec.mutates or len(dtypes) < 2 or not dtypes <= set(CASTABLE):
        return None
    dtype = dtype_on(floats[0].device.type)
    if dtype is None or spec.flops is not None:
        return dtype
    return torch.float32  # also for a mix of float16 and bfloat16: neither has all values of the other


def dtype_on(device: str) -> torch.dtype | None:
    """Autocast's dtype on a device type; None if autocast is off there, or the device has none (such as meta)."""
    if device not in _available:
        _available[device] = torch.amp.is_autocast_available(device)
    if not _available[device] or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype in CASTABLE else value
