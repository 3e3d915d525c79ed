"""`flag_gems.ops`: each op as a function that runs opmux's kernels, even if nothing is enabled.

`flag_gems.mm(a, b)` calls `torch.ops.aten.mm` inside `opmux.use(mode="all")`. So it has torch's gradient, and runs
torch's own kernel if opmux has none. Functions take FlagGems' arguments or ATen's, by position or by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.errors import nearest
from ..aten.switch import use
from . import arguments, more_ops, names
from .fused import rms_norm as rms_norm


@functools.cache
def everything() -> use:
    return use(mode="all")


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """FlagGems' function of this name."""
    if name in more_ops.__all__:
        return getattr(more_ops, name)
    if (why := names.left.refused("ops", name)) is not None:
        raise AttributeError(f"module 'flag_gems.ops' of opmux has no '{name}': {why}")
    run = arguments.call_of(name)
    if run is None and f"flag_gems.ops.{name}" in names.MODULES:
        return names.MODULES[f"flag_gems.ops.{name}"]  # type: ignore[return-value]
    if run is None:
        close = nearest(name, __dir__())
        raise AttributeError(
            f"module 'flag_gems.ops' of opmux has no attribute '{name}'{f'; did you mean {close!r}?' if close else ''}"
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        with everything():
            return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    keys = names.functions().get(name, ())
    call.__doc__ = f"ATen's op of this name by opmux's kernels{': ' if keys else ''}{', '.join(keys)}."
    return call


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'flag_gems.ops' of opmux has no attribute '{name}'")
    return function(name)


def __dir__() -> list[str]:
    return sorted({*names.functions(), *more_ops.__all__, "rms_norm"})
