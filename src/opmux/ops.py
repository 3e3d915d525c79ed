"""The public namespace of callable ops: `opmux.ops.rms_norm(x, weight)`.

A name is looked up in our primitives, then in tex's functions (see `opmux.tex`), then in ATen's ops. The file that
declares the op is imported on first access. Each access returns the same function. Extra names of the chip's vendor
are available too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .core import machine
from .core.default import get_default_manager
from .core.errors import unknown
from .core.spec import NAME_LOOKUP, Spec, specs


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    spec = _spec(name)
    if spec is None:
        extras = _extras()
        if name in extras:  # not cached, because the vendor may be removed
            return extras[name]
        spec = _spec(name)  # again, because a plugin may have declared it
    if spec is None:
        raise AttributeError(f"opmux.ops: {unknown('op', name, _names())}")
    fn = specs.functions[spec.key]
    if specs.import_succeeded(spec.key):
        globals()[name] = fn
    return fn


def _spec(name: str) -> Spec | None:
    spec = specs.lookup(name, NAME_LOOKUP["ops"])
    return spec if spec is not None and spec.name == name else None


def _extras() -> Mapping[str, Any]:
    """The extra names that the vendors of this machine export."""
    get_default_manager().prepare()
    return machine.current().extras()


def _names() -> list[str]:
    return sorted({*(s.name for s in specs), *_extras()})


def __dir__() -> list[str]:
    """The primitives, and the extra names of the chip's vendor."""
    return sorted({*(s.name for s in specs if s.primitive), *_extras()})
