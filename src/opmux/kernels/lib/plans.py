"""Caches of plans, by dtype, shape, strides and device of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from ...core import codegen, launches
from ...core.errors import NotSupported
from ...core.spec import specs

P = TypeVar("P")

_MOST = 4096  # plans of one op; beyond that all are dropped, as shapes seem never to come back
_forgetting: list[Callable[[], None]] = []


def forget() -> None:
    """Drop all that depends on the chip kernels are made for, or on how they are tuned."""
    for clear in (*_forgetting, *launches.on_forget):
        clear()


def keep(found: dict[Any, P]) -> dict[Any, P]:
    """The same table, emptied by `forget` from now on."""
    _forgetting.append(found.clear)
    return found


LOOK = "{0}.dtype, {0}.shape, {0}.is_contiguous() or {0}.stride(), {0}.device, {0}.is_neg()"
BELOW = LOOK.replace(
    "{0}.is_neg()", "False"
)  # as kernels of ATen see tensors: torch resolves views that negate before it calls them


def refuse_negated(*args: Any) -> None:
    """Refuse a view whose numbers are the negatives of those in memory (`z.conj().imag`): kernels read memory."""
    if any(isinstance(a, Tensor) and a.is_neg() for a in args):
        raise NotSupported("a view that negates what is in memory")


def check(op: str, **given: Any) -> None:
    """Raise BadArgument where an argument is not what the op's signature says. Other names are ignored."""
    specs.by_key[f"opmux::{op}"].contract.check(given)


def checks(op: Any) -> Callable[..., None]:
    """The check of an op for callers that have no plan: `Spec.check_once`."""
    return op.spec.check_once


def plans(make: Callable[..., P]) -> Callable[..., P]:
    """Cache the result of `make(*args)` by dtype, shape, strides and device of its tensors, never by their contents.

    Checking arguments and choosing a configuration costs 50 us and more; looking it up again costs half of one per
    tensor. Arguments annotated `Tensor` or `Tensor | None` (also as `*args: Tensor`) are keyed so; all others must be
    hashable, and are keyed by value: 1, 1.0 and True are equal. `.below` is for callers that are kernels of ATen: it
    shares the cache, and makes one check fewer per tensor.
    """
    names = table(make)
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
    """`make`, with a `Refusal` where it raises NotSupported: a lookup costs less than planning again."""

    @functools.wraps(make)
    def made(*args: Any) -> Any:
        try:
            return make(*args)
        except NotSupported as error:
            return Refusal(str(error))

    return made


def decided(make: Callable[..., Any]) -> Callable[..., Any]:
    """`plans`, which also remembers a refusal."""
    return plans(or_refusal(make))


def willing(plan: Callable[..., Any]) -> Callable[..., Any]:
    """The plan; raises now, before anything is written, where it would refuse."""
    if plan.__class__ is Refusal:
        plan()
    return plan


def table(make: Callable[..., Any]) -> dict[str, Any]:
    """The names that `codegen.lookup` needs: a dict of plans that `forget` empties, and what adds a plan to it."""
    found = keep({})

    def first(key: Any, *args: Any) -> Any:
        refuse_negated(*args)
        made = make(*args)
        if len(found) >= _MOST:
            found.clear()
        found[key] = made
        return made

    return {"_found": found, "_make": first}
