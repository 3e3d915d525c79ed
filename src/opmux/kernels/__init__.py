"""The default impls of ops: our own Triton kernels, one module or package for each family of specs."""

from collections.abc import Callable
from typing import Any


def wrappers() -> dict[str, Callable[..., Any]]:
    """Our kernels as functions, called without dispatch, by the key of their op. Imports all families."""
    from ..core import BackendImplKind, get_default_manager, specs

    for family in specs.families:
        specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    impls = {s.key: manager.registry.get_implementations(s.key) or [] for s in specs}
    ours = lambda i: i.kind is BackendImplKind.DEFAULT and i.vendor is None
    return {key: i.fn for key, registered in impls.items() for i in registered if ours(i)}
