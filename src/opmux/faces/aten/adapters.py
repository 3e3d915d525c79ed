"""ATen's ops in terms of our primitives: what a table of names cannot say.

    @adapt("sum", "sum.dim_IntList", over=reduce.sum)
    def total(call, self, dim=None, keepdim=False, *, dtype=None):
        return call(self, dim, keepdim, dtype)

`call` is an implementation of the primitive `over`, by its own signature in full; the rest are the arguments of the
ATen overload, by ATen's names. An overload without some of them takes their defaults. What is returned must be what
ATen returns: shape, dtype, strides, and as many results. A call that is better left to torch raises NotSupported,
before anything is written.

Overloads with `out=` and in-place ones follow from these by their schemas.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.errors import BadSpec
from ...core.loading import Declarations
from ...core.spec import Spec


@dataclass(frozen=True)
class Adapter:
    """How an ATen overload is computed by a primitive."""

    overload: str  # "sum.dim_IntList"
    over: Spec
    fn: Callable[..., Any]

    @property
    def family(self) -> str:
        return self.over.family

    def parameters(self) -> list[inspect.Parameter]:
        """Those that ATen knows of."""
        return list(inspect.signature(self.fn).parameters.values())[1:]


ADAPTERS: Declarations[Adapter] = Declarations()


def adapt(*overloads: str, over: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say how overloads of ATen are computed by a primitive of ours."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            if not ADAPTERS.declare(overload, Adapter(overload, over.spec, fn)):
                raise BadSpec(
                    f"aten::{overload} is adapted twice, by {ADAPTERS[overload].fn.__module__} and {fn.__module__}"
                )
        return fn

    return declare
