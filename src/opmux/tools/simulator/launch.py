"""Triton's interpreter on a simulated device: kernels access its memory directly."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from ...core.log import logger

VARIABLE = "TRITON_INTERPRET"


def compiles() -> bool:
    """Whether triton was imported in the mode that compiles kernels."""
    if "triton" not in sys.modules:
        return False
    import triton
    import triton.language as tl

    # Triton chooses the mode on import, and has created its own tl.sum in that mode.
    return isinstance(tl.sum, triton.runtime.JITFunction)


def interpret() -> None:
    """Make triton interpret kernels. Takes effect when triton is imported, also in child processes."""
    os.environ[VARIABLE] = "1"


def on(device: str) -> None:
    """Let interpreted kernels accept tensors of this device type. A no-op without triton."""
    if importlib.util.find_spec("triton") is None:
        return
    _repair_small_types()
    from triton.runtime import interpreter

    executor: Any = interpreter.GridExecutor
    copy_in, copy_out = executor._init_args_hst, executor._restore_args_dev

    def take(self: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Pass tensors unchanged, as they are in host memory. By default, storages are copied to the CPU and back."""
        kinds = [_kind(t) for t in _tensors((*args, *kwargs.values()))]
        if device not in kinds:
            return copy_in(self, args, kwargs)
        for at, kind in enumerate(kinds):
            if kind != device:
                raise ValueError(f"Pointer argument (at {at}) cannot be accessed from Triton ({kind} tensor?)")
        return args, kwargs

    def give_back(self: Any, args: Any, taken: Any, kwargs: Any, kwargs_taken: Any) -> None:
        if taken is not args:
            copy_out(self, args, taken, kwargs, kwargs_taken)

    executor._init_args_hst, executor._restore_args_dev = take, give_back


def _tensors(args: Any) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, tuple):
            yield from _tensors(arg)
        elif hasattr(arg, "data_ptr"):
            yield arg
        elif hasattr(arg, "block_shape") and hasattr(arg, "base"):  # a tensor descriptor
            yield arg.base


def _kind(tensor: Any) -> str:
    return getattr(tensor, "base", tensor).device.type  # `base` exists if triton reinterprets a tensor as another dtype


def _repair_small_types() -> None:
    from ...kernels.lib import interpret

    try:
        interpret.install()
    except ModuleNotFoundError as error:
        if error.name != "ml_dtypes":
            raise
        logger.warning(
            "interpreted kernels compute bfloat16 and float8 wrongly without ml_dtypes: pip install ml_dtypes"
        )
