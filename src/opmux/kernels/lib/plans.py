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

_MOST = 4096  # plans per op; a full cache is cleared, because then the op's shapes do not seem to repeat
_forgetting: list[Callable[[], None]] = []


def forget() -> None:
    """Drop all plans, because they depend on the current chip and its tuned tiles."""
    for clear in (*_forgetting, *launches.on_forget):
        clear()


def keep(found: dict[Any, P]) -> dict[Any, P]:
    """The same dict; from now on `forget` empties it."""
    _forgetting.append(found.clear)
    return found


LOOK = "{0}.dtype, {0}.shape, {0}.is_contiguous() or {0}.stride(), {0}.device, {0}.is_neg()"
BELOW = LOOK.replace(
    "{0}.is_neg()", "False"
)  # for calls from ATen kernels: torch resolves negated views before it calls them


def refuse_negated(*args: Any) -> None:
    """Refuse a negated view (`z.conj().imag`): memory holds the negatives of its values, and kernels read memory."""
    if any(isinstance(a, Tensor) and a.is_neg() for a in args):
        raise NotSupported("a view that negates what is in memory")


def check(op: str, **given: Any) -> None:
    """Raise BadArgument if an argument violates the op's signature. Other names are ignored."""
    specs.by_key[f"opmux::{op}"].contract.check(given)


def checks(op: Any) -> Callable[..., None]:
    """The check of an op, `Spec.check_once`, for callers without a plan."""
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
    plan, plan.below = (codegen.lookup(make, look, names) for look in (LOOK, BELOW))
    plan.__doc__, plan.__module__, plan.__wrapped__ = make.__doc__, make.__module__, make
    return plan


class Refusal:
    """A plan for arguments that are left to torch."""

    def __init__(self, reason: str):
        self.reason = reason

    def __call__(self, *args: Any) -> Any:
        raise NotSupported(self.reason)


def or_refusal(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, but returning a `Refusal` if it raises NotSupported: a cached refusal is cheaper than planning again."""

    @functools.wraps(make)
    def made(*args: Any) -> Any:
        try:
            return make(*args)
        except NotSupported as error:
            return Refusal(str(error))

    return made


def decided(make: Callable[..., Any]) -> Callable[..., Any]:
    """`plans` that also caches refusals."""
    return _cached(make, or_refusal(declining(make)))


def willing(plan: Callable[..., Any]) -> Callable[..., Any]:
    """The plan itself; if it is a refusal, raises NotSupported now, before anything is written."""
    if plan.__class__ is Refusal:
        plan()
    return plan


def table(make: Callable[..., Any]) -> dict[str, Any]:
    """The names that `codegen.lookup` needs: a dict of plans, emptied by `forget`, and the function that fills it."""
    found = keep({})

    def first(key: Any, *args: Any) -> Any:
        refuse_negated(*args)
        made = make(*args)
        if len(found) >= _MOST:
            found.clear()
        found[key] = made
        return made

    return {"_found": found, "_make": first}
