"""Compares the results of an implementation with the results that its op declares."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import library
from .log import logger
from .spec import Spec
from .tensors import dtype_name


def mismatch(spec: Spec, results: Any, args: tuple, kwargs: dict) -> str | None:
    """What is wrong with the number, shape, dtype or device of an implementation's results; None if they are right.

    Compared with the fake kernel's results. If that fails (the size depends on the data), nothing is checked.
    """
    try:
        expected = library.fake_call(spec, args, kwargs)
    except Exception as error:
        logger.debug("results of '%s' are not checked, its fake kernel fails: %s", spec.name, error)
        return None
    right, got = _flat(expected), _flat(results)
    if len(right) != len(got):
        return f"returned {len(got)} results; the op has {len(right)}: {', '.join(spec.out)}"
    names = spec.out if len(spec.out) == len(right) else tuple(f"result {i}" for i in range(len(right)))
    for at, (name, one, other) in enumerate(zip(names, right, got, strict=True)):
        if at and spec.namespace.torchs and isinstance(other, Tensor) and isinstance(one, Tensor):
            one = one.to(other.dtype)  # torch's fake kernels return a wrong dtype for statistics of half precision
        if isinstance(one, Tensor) and _described(one) != _described(other):
            return f"returned {_described(other)} as '{name}'; expected {_described(one)}"
        if one is None and other is not None:
            return f"returned {_described(other)} as '{name}'; expected None"
    return None


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else f"a {type(value).__name__}"
    return f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device.type}"
