"""The public namespace of callable ops: `opmux.ops.rms_norm(x, weight)`.

A name is looked for among our primitives, then among the tex ops, then ATen's; its family is loaded on first access,
and the function found stays the same object for the life of the process. What the vendor of a chip adds is here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .core import facts
from .core.default import get_default_manager
from .core.errors import unknown
from .core.spec import DOORS, specs


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    spec = specs.lookup(name, DOORS["ops"])
    if spec is None or spec.name != name:
        extras = _extras()
        if name in extras:  # not kept: it goes with the vendor that brings it
            return extras[name]
        raise AttributeError(f"opmux.ops: {unknown('op', name, _names())}")
    fn = globals()[name] = specs.functions[spec.key]
    return fn


def _extras() -> Mapping[str, Any]:
    """What the vendors of this machine add."""
    get_default_manager()._prepare()
    return facts.machine().extras()


def _names() -> list[str]:
    return sorted({*(s.name for s in specs), *_extras()})


def __dir__() -> list[str]:
    return _names()
