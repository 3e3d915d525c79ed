"""The options of `opmux conform --real`, and the state in which its cases run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...core.default import get_default_manager, policy
from ...core.errors import UnknownName
from ...faces.aten.switch import disable
from .. import arguments
from . import shapes
from .poison import launches_poisoned
from .real import Wanted
from .scope import Scope


@contextmanager
def settled() -> Iterator[None]:
    """Everything loaded, one scope around all, and ATen as it was afterwards."""
    get_default_manager().registry.list_operators()  # loads families, kernels, plugins, vendors
    try:
        with policy(), launches_poisoned():
            yield
    finally:
        disable()


def wanted_by(asked: Any) -> Wanted:
    scope = Scope.of(asked.ops)
    dtypes = tuple(arguments.dtype(d) for word in asked.dtypes for d in word.split())
    known = {m for c in shapes.read().calls for m in c.models} | {m for r in shapes.read().sized for m in r.models}
    for word in asked.models:
        if not set(word) & set("*?[") and word not in known:
            raise UnknownName("model", word, known)
    primitives = [s for s in scope.specs if s.space in ("opmux", "aten") and s.samples is not None]
    return Wanted(primitives, scope.overloads, dtypes, tuple(asked.models))
