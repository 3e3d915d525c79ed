"""`flag_gems.ops`: each op as a function that runs opmux's kernels, even if nothing is enabled.

`flag_gems.mm(a, b)` calls `torch.ops.aten.mm` inside `opmux.use(mode="all")`. So it has torch's gradient, and runs
torch's own kernel if opmux has none. Functions take FlagGems' arguments or ATen's, by position or by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.errors import nearest
from . import arguments, left, more_ops, names
from .fused import rms_norm as rms_norm
from .switch import everything


@functools.cache
def find(name: str) -> Callable[..., Any] | None:
    """FlagGems' function of this name; None if opmux does not have it."""
    if name in more_ops.__all__:
        return getattr(more_ops, name)
    run = arguments.call_of(name) if left.refused("ops", name) is None else None
    if run is None:
        return None

    def call(*args: Any, **kwargs: Any) -> Any:
        with everything:
            return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    keys = names.functions().get(name, ())
    call.__doc__ = f"ATen's op of this name by opmux's kernels{': ' if keys else ''}{', '.join(keys)}."
    return call


def __getattr__(name: str) -> Any:
    why = left.refused("ops", name)
    if why is None and not name.startswith("__"):
        found = find(name) or names.submodule(f"ops.{name}")
        if found is not None:
            return found
    close = nearest(name, __dir__()) if why is None and not name.startswith("__") else None
    hint = f": {why}" if why else f"; did you mean '{close}'?" if close else ""
    raise AttributeError(f"module 'flag_gems.ops' of opmux has no attribute '{name}'{hint}")


def __dir__() -> list[str]:
    return sorted({*names.functions(), *more_ops.__all__, "rms_norm"})
