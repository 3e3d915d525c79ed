"""`liger_kernel.triton`: a cache manager that writes files atomically, which Triton's own does too."""

from __future__ import annotations

from typing import Any


def apply_liger_triton_cache_manager() -> None:
    """Does nothing: Triton writes files of its cache atomically."""


def __getattr__(name: str) -> Any:
    if name != "LigerTritonFileCacheManager":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from triton.runtime.cache import FileCacheManager

    return FileCacheManager
