"""`flag_gems.utils`: helpers for kernels that were written for FlagGems."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from . import left, names
from .configs import _triton_version_at_least as _triton_version_at_least
from .configs import get_device_properties as get_device_properties
from .configs import has_triton_tle as has_triton_tle
from .runtime import device as device
from .shapes import broadcastable as broadcastable
from .shapes import broadcastable_to as broadcastable_to
from .shapes import dim_compress as dim_compress
from .shapes import offsetCalculator as offsetCalculator
from .shapes import restride_dim as restride_dim


def libentry() -> Callable[[Any], Any]:
    """A decorator that returns the kernel unchanged: Triton's own launcher caches compiled kernels."""
    return lambda kernel: kernel


def libtuner(configs: Sequence[Any], key: Sequence[str], **options: Any) -> Callable[[Any], Any]:
    """`triton.autotune`; FlagGems' own options (strategy, policy, benchmark_mode, flagtune_*) are ignored."""
    import inspect

    import triton

    known = inspect.signature(triton.autotune).parameters
    return triton.autotune(list(configs), list(key), **{k: v for k, v in options.items() if k in known})


def __getattr__(name: str) -> Any:
    if name in ("pointwise_dynamic", "PointwiseDynamicFunction"):
        return getattr(importlib.import_module("opmux.backends.pointwise_dynamic"), name)
    if name == "tl_extra_shim":
        from triton.language.extra import libdevice

        return libdevice
    if name in ("program_id", "num_programs"):
        import triton.language as tl

        return getattr(tl, name)
    if name == "HAS_TLE":
        return False
    if (module := names.submodule(f"utils.{name}")) is not None:
        return module
    why = left.refused("utils", name)
    raise AttributeError(f"module 'flag_gems.utils' of opmux has no attribute '{name}'" + (f": {why}" if why else ""))
