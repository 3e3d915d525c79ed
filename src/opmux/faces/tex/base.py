"""A backend as a class with a method for each function of tex; each method raises NotSupported by default.

Override the functions that your library has. Only these become impls; calls of all other functions go to the next
backend. The methods are generated from the specs: `help(TEXBackendBase)` shows each with its signature and docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.errors import NotSupported
from ...core.spec import Spec, specs


class TEXBackendBase:
    """The interface of a tex backend. `NAME` is required; `is_available` returns whether it works on this machine.

    The properties `name` and `vendor` default to `NAME`, `priority` to `PRIORITY`; all may be overridden. No `__init__`
    is needed; an instance is created on first use. The vendor backend with the highest priority comes first.
    """

    NAME: str = ""
    PRIORITY: int = 0

    @property
    def name(self) -> str:
        return self.NAME

    @property
    def vendor(self) -> str:
        return self.NAME

    @property
    def priority(self) -> int:
        return self.PRIORITY

    def is_available(self) -> bool:
        return True

    def why_unavailable(self) -> str | None:
        """The reason to show if `is_available` returns False."""
        return None

    def __repr__(self) -> str:
        return f"<tex backend '{self.name}', priority {self.priority}>"


SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _method(spec: Spec) -> Any:
    def missing(self: TEXBackendBase, *args: Any, **kwargs: Any) -> Any:
        raise NotSupported(f"{spec.name} not implemented by backend '{self.name}'")

    method: Any = missing
    method.__name__, method.__qualname__, method.__doc__ = spec.name, f"TEXBackendBase.{spec.name}", spec.doc
    method.__signature__ = spec.signature.replace(parameters=[SELF, *spec.signature.parameters.values()])
    return method


def as_method(fn: Callable[..., Any], owner: str, name: str) -> Any:
    """Make `fn` the method `name` of a subclass, with the docstring and signature of the base class's method."""
    base: Any = getattr(TEXBackendBase, name)
    method: Any = fn
    method.__name__, method.__qualname__, method.__doc__ = name, f"{owner}.{name}", base.__doc__
    method.__signature__ = base.__signature__
    return method


METHODS = tuple(sorted(s.name for s in specs if s.space == "tex"))
for _name in METHODS:
    setattr(TEXBackendBase, _name, _method(specs.by_key[f"tex::{_name}"]))


def methods_of(backend: TEXBackendBase, module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose attributes are this backend's tex functions."""

    def method(name: str) -> Any:
        if name in METHODS:
            return getattr(backend, name)
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return method
