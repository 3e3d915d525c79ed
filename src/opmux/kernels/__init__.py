"""The default impls of ops: our own Triton kernels, a module or package for each family of specs."""

from collections.abc import Callable
from typing import Any


def wrappers() -> dict[str, Callable[..., Any]]:
    """The functions of all our kernels by the key of their op, as called below dispatch. Imports all families."""
    from ..core import BackendImplKind, get_default_manager, specs

    for family in specs.families:
        specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    impls = {s.key: manager.registry.get_implementations(s.key) or [] for s in specs}
    ours = lambda i: i.kind is BackendImplKind.DEFAULT and i.vendor is None
    return {key: i.fn for key, found in impls.items() for i in found if ours(i)}
