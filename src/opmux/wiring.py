"""Dependency injection: gives core and cpp objects from the layers above them, which they must not import.

`opmux/__init__.py` registers a function that makes each object. Core calls the function when it first needs the object.
This file imports nothing, so that every layer may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from .core.entry import EntryPoint
    from .core.extension import Extension
    from .core.machine import Machine
    from .core.manager import OpManager
    from .core.spec import Spec

T = TypeVar("T")
Apply = Callable[..., Any]


class Provider(Generic[T]):
    """An object that another layer makes. `register` takes a function that returns it and may import that layer."""

    def __init__(self, what: str):
        self._what = what
        self._make: Callable[[], T] | None = None

    def register(self, make: Callable[[], T]) -> None:
        self._make = make

    def __call__(self) -> T:
        if self._make is None:
            raise RuntimeError(f"opmux: nothing provides {self._what}; `opmux/__init__.py` registers it")
        return self._make()


# ({package whose modules declare ops: prefix of their families' names}, packages with one kernel module per family)
op_packages: Provider[tuple[Mapping[str, str], tuple[str, ...]]] = Provider("the packages of ops")
machine: Provider[Machine] = Provider("the machine")
manager: Provider[OpManager] = Provider("the default manager")
extensions: Provider[tuple[Extension, ...]] = Provider("the extensions of core")
# Takes an op, its entry, its backward's entry, `apply` of its autograd.Function, and a function that installs a later
# replacement. Returns a faster `apply`, or the same one.
accelerate: Provider[Callable[[Spec, EntryPoint, EntryPoint, Apply, Callable[[Apply], None]], Apply]] = Provider(
    "faster gradients"
)
