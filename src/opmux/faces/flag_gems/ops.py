"""`flag_gems.ops`: each op as a function that runs opmux's kernels, even if nothing is enabled.

`flag_gems.mm(a, b)` calls `torch.ops.aten.mm` inside `opmux.use(mode="all")`. So it has torch's gradient, and runs
torch's own kernel if opmux has none. Functions take ATen's arguments, by position or by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ...core.errors import nearest
from ..aten.schema import OverloadSchema
from ..aten.switch import use
from . import names
from .fused import rms_norm as rms_norm


@functools.cache
def everything() -> use:
    return use(mode="all")


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """FlagGems' function of this name."""
    keys = names.functions().get(name)
    if keys is None:
        close = nearest(name, names.functions())
        hint = f"; did you mean '{close}'?" if close else ""
        raise AttributeError(f"module 'flag_gems.ops' of opmux has no attribute '{name}'{hint}")
    shape = OverloadSchema(keys[0])
    run = shape.op if len(keys) == 1 else getattr(torch.ops.aten, shape.packet)

    def call(*args: Any, **kwargs: Any) -> Any:
        with everything():
            return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`torch.ops.aten.{shape.packet}` by opmux's kernels: {', '.join(keys)}."
    return call


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'flag_gems.ops' of opmux has no attribute '{name}'")
    return function(name)


def __dir__() -> list[str]:
    return sorted({*names.functions(), "rms_norm"})
