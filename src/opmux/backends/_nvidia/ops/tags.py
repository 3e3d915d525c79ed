"""Decorators that mark a function of a vendor library as an impl of an op."""

from collections.abc import Callable
from typing import Any

from ....core import library as core_library
from ....core.registry import BackendImplKind


def library(op: str, name: str, **tags: Any) -> Callable[[Callable[..., Any]], Any]:
    """Mark a function as the library `name`'s impl of an op; `tags` are more attributes of the impl."""

    def tag(fn: Any) -> Any:
        fn.op, fn.impl_id, fn.kind = op, f"vendor.nvidia.{name}", BackendImplKind.VENDOR
        for key, value in tags.items():
            setattr(fn, key, value)
        return fn

    return tag


def torchs(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call torch's own kernel of an op and ignore overrides: an override of the op may itself call this function."""
    guard = core_library.reference_guard
    return (fn if guard is None else guard(fn))(*args, **kwargs)
