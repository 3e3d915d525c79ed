"""Decorators that mark a function of a vendor library as an impl of an op."""

from collections.abc import Callable
from typing import Any, TypeVar

from ....core import library as core_library
from ....core.registry import BackendImplKind
from ....machine.vendors import implements

F = TypeVar("F", bound=Callable[..., Any])


def library(op: str, name: str, **fields: Any) -> Callable[[F], F]:
    """Mark a function as the library `name`'s impl of an op; `fields` as in `implements`."""
    key = op if "::" in op else f"opmux::{op}"  # without a namespace, lookup would import all spec modules
    return implements(key, impl_id=f"vendor.nvidia.{name}", kind=BackendImplKind.VENDOR, **fields)


def torchs(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call torch's own kernel of an op and ignore overrides: an override of the op may itself call this function."""
    guard = core_library.reference_guard
    return (fn if guard is None else guard(fn))(*args, **kwargs)
