"""`liger_kernel.ops.utils`, for kernels written for Liger. opmux's own kernels do not use it."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...core.log import logger as logger
from ...machine import devices

MAX_BLOCK = 65536  # the longest row that Liger's kernels load as one block
NPU_CORES = 20


def is_hip() -> bool:
    return torch.version.hip is not None


def device_context(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device current in a `with` block; Triton requires it on a machine with several devices."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return torch.get_device_module(device.type).device(device)


def ensure_contiguous(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a forward or backward of an autograd.Function so that its tensor arguments are contiguous."""

    def contiguous(value: Any) -> Any:
        return value.contiguous() if isinstance(value, Tensor) else value

    @functools.wraps(fn)
    def wrapper(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(ctx, *map(contiguous, args), **{name: contiguous(value) for name, value in kwargs.items()})

    return wrapper


def calculate_settings(n: int) -> tuple[int, int]:
    """(BLOCK_SIZE, num_warps) for a kernel that loads a row of n elements as one block."""
    block = 1 << max(n - 1, 0).bit_length()
    if block > MAX_BLOCK:
        raise BadArgument.of("calculate_settings", "n", f"be at most {MAX_BLOCK}, for a row in one block", str(n))
    return block, get_num_warps(block)


def get_num_warps(BLOCK_SIZE: int) -> int:
    """The number of warps for a kernel that loads blocks of this size."""
    if BLOCK_SIZE >= 32768:
        return 16 if is_hip() else 32
    return 16 if BLOCK_SIZE >= 8192 else 8 if BLOCK_SIZE >= 2048 else 4


def compare_version(package: str, operator: Callable[[Any, Any], bool], target: str) -> bool:
    """`compare_version("triton", operator.ge, "3.0.0")`; False if the package is not installed."""
    from packaging.version import Version

    try:
        module = importlib.import_module(package)
    except ImportError:
        return False
    return operator(Version(module.__version__), Version(target))


def get_amp_custom_fwd_bwd() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`torch.amp.custom_fwd` and `custom_bwd` for the device of this machine."""
    device = devices.infer_device()
    return (
        functools.partial(torch.amp.custom_fwd, device_type=device),
        functools.partial(torch.amp.custom_bwd, device_type=device),
    )


def get_npu_core_count(default: int = NPU_CORES) -> int:
    """The number of vector cores of an NPU; `default` if neither torch nor the vendor reports it."""
    return (devices.cores("npu") if devices.is_available("npu") else None) or default


def set_large_grf_mode(kernel_args: dict[str, Any]) -> None:
    """Select the large register file of Intel's compiler."""
    kernel_args["grf_mode"] = "256"


def __getattr__(name: str) -> Any:
    if name in ("amp_custom_fwd", "amp_custom_bwd"):
        return get_amp_custom_fwd_bwd()[name == "amp_custom_bwd"]
    if name == "torch_to_triton_dtype":
        import triton.language as tl

        return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
