"""How every reference computes: in float32 (float64 for float64 inputs), rounded once, into memory of its own."""

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_dtype(op: str, name: str, dtype: torch.dtype) -> None:
    if dtype not in FLOATS:
        raise TypeError(f"{op}: {name} must be float16, bfloat16, float32 or float64; got {dtype_name(dtype)}")


def check_alike(op: str, lead: str, x: Tensor, **tensors: Tensor) -> None:
    """Refuse what is no float, not of the shape of x (named `lead`), or on another device."""
    check_dtype(op, lead, x.dtype)
    for name, t in tensors.items():
        check_dtype(op, name, t.dtype)
        if t.shape != x.shape:
            shapes = f"{tuple(x.shape)}, that of {lead}; got {tuple(t.shape)}"
            raise ValueError(f"{op}: {name} must have shape {shapes}")
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on {x.device}, the device of {lead}; got {t.device}")


def wide(x: Tensor) -> Tensor:
    return x.to(torch.float64 if x.dtype is torch.float64 else torch.float32)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A result: rounded once, packed, and nobody else's memory."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
