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

    The results are compared with those of the fake kernel. If the fake kernel fails (the size depends on the data),
    nothing is checked.
    """
    try:
        expected = library.fake_call(spec, args, kwargs)
    except Exception as error:
        logger.debug("results of '%s' are not checked, its fake kernel fails: %s", spec.name, error)
        return None
    declared, returned = _flat(expected), _flat(results)
    if len(declared) != len(returned):
        return f"returned {len(returned)} results; the op has {len(declared)}: {', '.join(spec.out)}"
    names = spec.out if len(spec.out) == len(declared) else tuple(f"result {i}" for i in range(len(declared)))
    for at, (name, want, got) in enumerate(zip(names, declared, returned, strict=True)):
        if at and spec.namespace.torchs and isinstance(got, Tensor) and isinstance(want, Tensor):
            want = want.to(got.dtype)  # torch's fake kernels return a wrong dtype for statistics of half precision
        if isinstance(want, Tensor) and _described(want) != _described(got):
            return f"returned {_described(got)} as '{name}'; expected {_described(want)}"
        if want is None and got is not None:
            return f"returned {_described(got)} as '{name}'; expected None"
    return None


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else f"a {type(value).__name__}"
    return f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device.type}"
