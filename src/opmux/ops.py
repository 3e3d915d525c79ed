"""The public namespace of callable ops: `opmux.ops.rms_norm(x, weight)`.

A name is looked for among our primitives, then among the tex ops; its family is loaded on first access, and the
function found stays the same object for the life of the process.
"""

from __future__ import annotations

from typing import Any

from .core.errors import unknown
from .core.spec import DOORS, specs


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    spec = specs.lookup(name, DOORS["ops"])
    if spec is None or spec.name != name:
        raise AttributeError(f"opmux.ops: {unknown('op', name, _names())}")
    fn = globals()[name] = specs.functions[spec.key]
    return fn


def _names() -> list[str]:
    return sorted({s.name for s in specs})


def __dir__() -> list[str]:
    return _names()
