"""`flag_gems.testing`: how FlagGems' tests compare tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import runtime as runtime

_EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")

# The relative tolerance of each dtype.
RESOLUTION: dict[torch.dtype, float] = {
    **dict.fromkeys(_EXACT, 0),
    **{getattr(torch, name): 1e-3 for name in _FLOAT8 if hasattr(torch, name)},
    torch.float16: 1e-3,
    torch.float32: 1.3e-6,
    torch.bfloat16: 0.016,
    torch.float64: 1e-7,
    torch.complex32: 1e-3,
    torch.complex64: 1.3e-6,
    torch.complex128: 1e-7,
}


def assert_close(
    res: Tensor,
    ref: Tensor,
    dtype: torch.dtype | None,
    equal_nan: bool = False,
    reduce_dim: int = 1,
    atol: float = 1e-4,
) -> None:
    """Assert that `res` has this dtype and is close to `ref`. `atol` is multiplied by `reduce_dim`."""
    dtype = torch.float32 if dtype is None else dtype
    assert res.dtype == dtype, f"{res.dtype}, not {dtype}"
    ref = ref.to(dtype)
    if res.device != ref.device:
        res, ref = res.cpu(), ref.cpu()
    torch.testing.assert_close(res, ref, atol=atol * reduce_dim, rtol=RESOLUTION[dtype], equal_nan=equal_nan)


def assert_equal(res: Tensor, ref: Tensor, equal_nan: bool = False) -> None:
    """Assert that two tensors are equal bit for bit."""
    if res.device != ref.device:
        res, ref = res.cpu(), ref.cpu()
    torch.testing.assert_close(res, ref, atol=0, rtol=0, equal_nan=equal_nan)


def __getattr__(name: str) -> Any:
    if name == "torch_device_fn":
        return runtime.torch_module()
    raise AttributeError(f"module 'flag_gems.testing' of opmux has no attribute '{name}'")
