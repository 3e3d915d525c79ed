"""`liger_kernel.transformers.fsdp`: run a function where FSDP has gathered a module's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _FSDPForwardRedirection:
    """Calls a function in place of the forward of a module that FullyShardedDataParallel wraps."""

    def __call__(self, wrapper_module: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        module = wrapper_module._fsdp_wrapped_module
        had, before = "forward" in vars(module), module.forward

        def restore() -> None:
            if had:
                module.forward = before
            else:
                vars(module).pop("forward", None)

        def forward(*args: Any, **kwargs: Any) -> Any:
            restore()  # the function may call the module itself
            return method(*args, **kwargs)

        module.forward = forward
        try:
            return wrapper_module(*args, **kwargs)
        finally:
            restore()
