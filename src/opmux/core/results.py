"""Compares the results of an implementation with the results that its op declares."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from . import library
from .errors import WrongResult
from .log import logger
from .spec import Spec
from .tensors import dtype_name, shape_class

# After this many successful calls with one `Case`, an impl runs without a snapshot and its results are not checked.
PROVEN_AFTER = 3

# Failures and successes of an impl are recorded by: dtype and shape class of the first tensor, then `Spec.mix`.
Case = tuple[Any, ...]


def case_of(spec: Spec | None, first: Tensor | None, args: tuple, kwargs: dict) -> Case:
    mixed = () if spec is None else spec.mix(first, args, kwargs)
    return (None if first is None else first.dtype, shape_class(first), *mixed)


def in_words(case: Case) -> str:
    dtype, classes, *mixed = case
    return f"{dtype_name(dtype)}, shape class {classes}" + "".join(map(_mixed_with, mixed))


def _mixed_with(other: Any) -> str:
    """An element of `tensors.mix` in words."""
    if isinstance(other, type):
        return f", with a number ({other.__name__})"
    dtype, no_dims, on_cpu = other
    return f", with {dtype_name(dtype)}{' without dimensions' if no_dims else ''}{' on the CPU' if on_cpu else ''}"


class FirstCalls:
    """Checks the results of an impl's first calls. For impls that run above autograd, where there is no `Chain`."""

    def __init__(self, spec: Spec, impl_id: str):
        self._spec, self._impl_id = spec, impl_id
        self._passed: dict[Case, int] = {}

    def checked(self, result: Any, args: tuple, kwargs: dict) -> Any:
        """Return the result; raise WrongResult if it does not fit the op."""
        case = case_of(self._spec, self._spec.first_tensor(args, kwargs), args, kwargs)
        passed = self._passed.get(case, 0)
        if passed < PROVEN_AFTER:
            with torch._C._AutoDispatchBelowAutograd():  # otherwise the fake kernel would call the impl again
                check(self._spec, self._impl_id, result, args, kwargs)
            self._passed[case] = passed + 1
        return result


def check(spec: Spec, impl_id: str, result: Any, args: tuple, kwargs: dict) -> None:
    """Raise WrongResult if the results of an implementation do not fit the op."""
    wrong = mismatch(spec, result, args, kwargs)
    if wrong is not None:
        raise WrongResult(f"'{impl_id}', an impl of {spec.key}, {wrong}")


_PLAIN = (Tensor, int, float, complex, str, enum.Enum, torch.dtype, torch.device, torch.layout, types.NoneType)


def mismatch(spec: Spec, results: Any, args: tuple, kwargs: dict) -> str | None:
    """What is wrong with the number, shape, dtype or device of an implementation's results; None if they are right.

    The results are compared with those of the fake kernel. If the fake kernel fails, for example because the size
    depends on the data, nothing is checked. Functions of other libraries may take objects that contain tensors. The
    fake kernel cannot be called with these; then the only mistake that is found is None in place of the results.
    """
    of_library = not spec.primitive
    if results is None and spec.out and (of_library or len(spec.out) > 1):
        return f"returned None; the op has {_count(len(spec.out))}: {', '.join(spec.out)}"
    if of_library and not all(isinstance(leaf, _PLAIN) for leaf in tree_leaves((args, kwargs))):
        return None
    try:
        expected = library.fake_call(spec, args, kwargs)
    except Exception as error:
        logger.debug("results of '%s' are not checked, its fake kernel fails: %s", spec.name, error)
        return None
    declared, returned = _flat(expected), _flat(results)
    if len(declared) != len(returned):
        return f"returned {_count(len(returned))}; the op has {len(declared)}: {', '.join(spec.out)}"
    names = spec.out if len(spec.out) == len(declared) else tuple(f"result {i}" for i in range(len(declared)))
    for at, (name, want, got) in enumerate(zip(names, declared, returned, strict=True)):
        if at and isinstance(got, Tensor) and isinstance(want, Tensor):
            if of_library:
                continue  # only the library's own backward reads it, so its shape and dtype are free
            if spec.namespace.torchs:
                want = want.to(got.dtype)  # torch's fake kernels return a wrong dtype for statistics of half precision
        if isinstance(want, Tensor) and _described(want) != _described(got):
            return f"returned {_described(got)} as '{name}'; expected {_described(want)}"
        if want is None and got is not None and not of_library:
            return f"returned {_described(got)} as '{name}'; expected None"
    return None


def _count(n: int) -> str:
    return f"{n} result{'' if n == 1 else 's'}"


def _flat(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else f"a {type(value).__name__}"
    return f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device.type}"
