"""Caches of plans, by dtype, shape, strides and device of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from ...core import codegen, launches
from ...core.errors import NotSupported
from ...core.spec import specs
from ...core.support import declining

P = TypeVar("P")

_MOST = 4096  # limit of the plans per op. A full cache is cleared: the op's shapes do not seem to repeat
_forgetting: list[Callable[[], None]] = []


def forget() -> None:
    """Drop all plans, because they depend on the current chip and its tuned tiles."""
    for clear in (*_forgetting, *launches.on_forget):
        clear()


def keep(cache: dict[Any, P]) -> dict[Any, P]:
    """Return the cache, after registering it with `forget`, which empties it."""
    _forgetting.append(cache.clear)
    return cache


TENSOR_KEY = "{0}.dtype, {0}.shape, {0}.is_contiguous() or {0}.stride(), {0}.device, {0}.is_neg()"
# For calls from ATen kernels: torch resolves negated views before it calls them.
TENSOR_KEY_BELOW = TENSOR_KEY.replace("{0}.is_neg()", "False")


def refuse_negated(*args: Any) -> None:
    """Raise NotSupported for a negated view (`z.conj().imag`): kernels would read the negatives of its values."""
    if any(isinstance(a, Tensor) and a.is_neg() for a in args):
        raise NotSupported("a negated view, such as z.conj().imag")


def check(op: str, **args: Any) -> None:
    """Raise BadArgument if an argument violates the op's signature. Other names are ignored."""
    specs.by_key[f"opmux::{op}"].contract.check(args)


def checks(op: Any) -> Callable[..., None]:
    """The function that checks an op's arguments, `Spec.check_once`, for callers without a plan."""
    return op.spec.check_once


def plans(make: Callable[..., P]) -> Callable[..., P]:
    """Cache the result of `make(*args)` by dtype, shape, strides and device of its tensors, never by their contents.

    Checking arguments and choosing a configuration takes 50 us or more; a lookup takes half a microsecond per tensor.
    Arguments annotated `Tensor` or `Tensor | None` (also `*args: Tensor`) are keyed by dtype, shape, strides and
    device. All others must be hashable, and are keyed by value: 1, 1.0 and True are equal. `.below` is for calls from
    ATen kernels: it shares the cache and makes one check fewer per tensor. Rules in `make`'s annotations say what it
    supports, in the notation of `contract`: `make` runs only for arguments that satisfy them.
    """
    return _cached(make, declining(make))


def _cached(make: Callable[..., Any], plan_for: Callable[..., P]) -> Callable[..., P]:
    """`plan_for`, cached by the arguments of `make`."""
    names = table(plan_for)
    plan, plan.below = (codegen.lookup(make, tensor_key, names) for tensor_key in (TENSOR_KEY, TENSOR_KEY_BELOW))
    plan.__doc__, plan.__module__, plan.__wrapped__ = make.__doc__, make.__module__, make
    return plan


class Refusal:
    """A plan for arguments that are left to torch."""

    def __init__(self, reason: str):
        self.reason = reason

    def __call__(self, *args: Any) -> Any:
        raise NotSupported(self.reason)


def or_refusal(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, but returns a `Refusal` instead of raising NotSupported: a cached refusal is cheaper than a new plan."""

    @functools.wraps(make)
    def plan(*args: Any) -> Any:
        try:
            return make(*args)
        except NotSupported as error:
            return Refusal(str(error))

    return plan


def decided(make: Callable[..., Any]) -> Callable[..., Any]:
    """The same as `plans`, but caches refusals too."""
    return _cached(make, or_refusal(declining(make)))


def willing(plan: Callable[..., Any]) -> Callable[..., Any]:
    """The plan itself; if it is a refusal, raises NotSupported now, before anything is written."""
    if plan.__class__ is Refusal:
        plan()
    return plan


def table(make: Callable[..., Any]) -> dict[str, Any]:
    """The names that `codegen.lookup` needs: a dict of plans (`forget` empties it), and the function that fills it."""
    cache = keep({})

    def first(key: Any, *args: Any) -> Any:
        refuse_negated(*args)
        plan = make(*args)
        if len(cache) >= _MOST:
            cache.clear()
        cache[key] = plan
        return plan

    return {"_found": cache, "_make": first}
