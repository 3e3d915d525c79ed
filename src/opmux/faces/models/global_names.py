"""Copies a function and gives some global names other values in the copy."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from .forms import home_of

Forward = Callable[..., Any]


class Values(dict[str, Any]):
    """Global names -> values. Two objects are never equal, even with the same contents."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def with_globals(original: Any, values: Values) -> Forward:
    """A copy of a function with these values for some globals. It reads all other globals from its module at each call.

    The values are stored in the module under new names, and the copy's code uses these names. Functions that it calls
    are not changed.
    """
    closure = original.__closure__
    inner, copy, code = getattr(original, "__wrapped__", None), None, original.__code__
    if inner is None:
        home = home_of(original)
        space = original.__globals__ if home is None else vars(home)
        code = _renamed(code, {name: _stored(space, name, value) for name, value in values.items()})
    else:  # a decorated function: its wrapper's closure contains the original
        copy = with_globals(inner, values)
        closure = tuple(types.CellType(copy) if cell.cell_contents is inner else cell for cell in closure or ())
    result: Any = types.FunctionType(code, original.__globals__, original.__name__, original.__defaults__, closure)
    result.__kwdefaults__ = original.__kwdefaults__
    functools.update_wrapper(result, original)
    # `update_wrapper` has set `__wrapped__` to the original. A copy of this copy would search `closure` for the
    # original, which `closure` no longer contains.
    del result.__wrapped__
    if copy is not None:
        result.__wrapped__ = copy
    return result


def _stored(space: dict[str, Any], name: str, value: Any) -> str:
    """Store a value in a module under a new name; returns the name."""
    number = 0
    while space.setdefault(f"_opmux_{name}_{number}", value) is not value:
        number += 1
    return f"_opmux_{name}_{number}"


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    """Code with some global names replaced, also in nested functions."""
    consts = tuple(_renamed(c, names) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=consts)
