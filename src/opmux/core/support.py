"""The calls that an implementation supports, declared by rules in the annotations of its function (see `contract`).

    @impl(ops.bincount, vendor="acme")
    def bincount(self: Int[Tensor, "n"], weights: Float32[Tensor, "n"] | None = None, minlength: int = 0): ...

A call that violates a rule raises NotSupported before the function runs, and goes to the next candidate. The op's
contract says which calls are valid; these rules exclude some valid calls. A check takes microseconds. It is cached by
the dtypes, shapes, strides and devices of the tensors, and by the values of all other arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .contract import Contract
from .errors import BadArgument, NotSupported
from .lock import cached_property
from .log import logger

TEXT_WITH_RULES = re.compile(r"\bTensor, ['\"]|\bAnnotated\[")
WORD = re.compile(r"\w+")
MOST = 4096  # cached checks per function; a full cache is cleared


class Support:
    """The rules in a function's annotations. The annotations are evaluated at the first call."""

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn

    @cached_property
    def contract(self) -> Contract | None:
        """The rules; None if there are none."""
        if not has_rules(self.fn):
            return None
        try:
            hints = typing.get_type_hints(self.fn, include_extras=True)
        except NameError as error:  # a name that is imported only for type checkers
            logger.warning("the rules in the annotations of %s are ignored: %s", self.fn.__qualname__, error)
            return None
        found = Contract.of(self.fn.__name__, hints)
        return found if found.declared else None

    def require(self, given: Mapping[str, Any]) -> None:
        """Raise NotSupported for the first argument that the function does not support."""
        try:
            if self.contract is not None:
                self.contract.check(given)
        except BadArgument as error:
            raise NotSupported(error.problem) from None


def has_rules(fn: Callable[..., Any]) -> bool:
    """Whether an argument's annotation seems to have rules. Annotations that are source text are not evaluated."""
    try:
        annotations = getattr(fn, "__annotations__", {})
    except NameError:  # Python 3.14 evaluates them here
        return False
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    return any(_with_rules(a, names) for name, a in annotations.items() if name != "return")


def _with_rules(annotation: Any, names: Mapping[str, Any] = {}) -> bool:
    if isinstance(annotation, str):
        if TEXT_WITH_RULES.search(annotation):
            return True
        return any(_with_rules(names.get(word)) for word in WORD.findall(annotation))  # `NotEmpty = Int[Tensor, ...]`
    return hasattr(annotation, "__metadata__") or any(map(_with_rules, typing.get_args(annotation)))


def declining(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with a check that declines the calls that its annotations exclude; `fn` itself if they have no rules."""
    if not inspect.isfunction(fn) or not has_rules(fn):
        return fn
    support, signature = Support(fn), inspect.signature(fn)
    defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
    names = tuple(signature.parameters)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        support.require({**defaults, **dict(zip(names, args, strict=False)), **kwargs})
        return fn(*args, **kwargs)

    return call


def declining_cached(fn: Callable[..., Any]) -> Callable[..., Any]:
    """As `declining`, but calls that agree in dtypes, shapes, strides, devices and other values are checked once."""
    checked = declining(fn)
    if checked is fn:
        return fn
    supported: set[Any] = set()

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            key = (*map(_key, args), *map(_key, kwargs.values()), *kwargs)
            known = key in supported
        except (TypeError, RuntimeError):  # no key for a list, a symbolic size, or a tensor without strides
            return checked(*args, **kwargs)
        if known:
            return fn(*args, **kwargs)
        result = checked(*args, **kwargs)
        if len(supported) >= MOST:
            supported.clear()
        supported.add(key)
        return result

    return call


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.stride(), value.device
    return value.__class__, value
