"""HOW, by default: our own Triton kernels, a module or package for each family of specs."""

from collections.abc import Callable
from typing import Any


def wrappers() -> dict[str, Callable[..., Any]]:
    """Every kernel of ours by the key of its op: what a call runs, below dispatch. Imports them all."""
    from ..core import BackendImplKind, get_default_manager, specs

    for family in specs.families:
        specs.load_implementers(family)
    manager = get_default_manager()
    manager.prepare()
    impls = {s.key: manager.registry.get_implementations(s.key) or [] for s in specs}
    ours = lambda i: i.kind is BackendImplKind.DEFAULT and i.vendor is None
    return {key: i.fn for key, found in impls.items() for i in found if ours(i)}
