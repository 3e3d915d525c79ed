"""Argument checks that annotations cannot express: checks of lists, and of sizes that depend on other arguments.

Each raises BadArgument, which names the function and the argument.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.contract import INTEGRAL, REAL, either
from ..core.errors import BadArgument
from ..core.tensors import FLOATS, dtype_name


def type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def check_tensor(
    op: str,
    name: str,
    value: Any,
    *,
    dtypes: Iterable[torch.dtype] | None = FLOATS,
    shape: Sequence[int | None] | None = None,
    dims: int | tuple[int, ...] | None = None,
    on: Tensor | torch.device | None = None,
    optional: bool = False,
    of: str = "",
) -> None:
    """Raise if `value` is not a tensor, or if its dtype, shape (None: any size), rank or device is not as required.

    In the error message, `of` says where the required shape comes from.
    """
    if value is None and optional:
        return
    if not isinstance(value, Tensor):
        expected = f"be a Tensor{' or None' if optional else ''}"
        raise BadArgument.of(op, name, expected, type_name(value), TypeError)
    if dtypes is not None and value.dtype not in tuple(dtypes):
        raise BadArgument.of(op, name, f"be {either(map(dtype_name, dtypes))}", dtype_name(value.dtype), TypeError)
    if dims is not None and value.dim() not in ((dims,) if isinstance(dims, int) else dims):
        raise BadArgument.of(op, name, f"have {dims} dimensions", str(tuple(value.shape)))
    if shape is not None:
        fits = value.dim() == len(shape) and all(w is None or n == w for n, w in zip(value.shape, shape, strict=True))
        if not fits:
            sizes = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise BadArgument.of(op, name, f"have shape {sizes}{', ' + of if of else ''}", str(tuple(value.shape)))
    device = on.device if isinstance(on, Tensor) else on
    if device is not None and value.device != device:
        raise BadArgument.of(op, name, f"be on {device}", str(value.device))


def check_int(op: str, name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, INTEGRAL):
        raise BadArgument.of(op, name, "be an int", type_name(value), TypeError)
    if (least is not None and int(value) < least) or (most is not None and int(value) > most):
        low, high = "" if least is None else f"at least {least}", "" if most is None else f"at most {most}"
        raise BadArgument.of(op, name, f"be {' and '.join(w for w in (low, high) if w)}", str(value))


def check_number(op: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, REAL):
        raise BadArgument.of(op, name, "be a number", type_name(value), TypeError)


def check_choice(op: str, name: str, value: Any, allowed: Collection[Any]) -> None:
    """Raise unless `value` is one of `allowed`."""
    if value not in allowed:
        raise BadArgument.of(op, name, f"be one of {', '.join(map(repr, allowed))}", repr(value))


def check_list(op: str, name: str, value: Any, each: Callable[[str, Any], None], length: int | None = None) -> None:
    """Raise if `value` is not a list or tuple of this length; check each item by `each(name of the item, item)`."""
    if not isinstance(value, (list, tuple)):
        raise BadArgument.of(op, name, "be a list", type_name(value), TypeError)
    if length is not None and len(value) != length:
        raise BadArgument.of(op, name, f"have {length} items", str(len(value)))
    for i, item in enumerate(value):
        each(f"{name}[{i}]", item)
