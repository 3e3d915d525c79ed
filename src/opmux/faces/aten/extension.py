"""What ATen's face adds to core: `explain` knows torch's overloads, before `enable()` too.

Core imports this module when it first reads a setting, so it imports the rest of the face on demand.
"""

from __future__ import annotations

from ...core.extension import Extension


def _find_derived(name: str) -> str | None:
    """The key of an overload of ATen that we or a vendor can compute: `add.Tensor`, `_softmax`, `_softmax.default`."""
    from . import engine
    from .overloads import table

    plain = name.strip().removeprefix("aten::").removesuffix(".default")
    if plain not in table():
        engine.choosable()  # adds the overloads that only a vendor computes
    found = table().get(plain)
    return None if found is None else found.key


def _remark(key: str, device: str, chosen: str | None) -> str:
    from . import engine

    name = key.removeprefix("aten::").removesuffix(".default")
    if chosen == "native":
        return "native is torch's own kernel"
    if chosen is None or engine.is_on(name, device):
        return ""
    return f"not enabled: torch's own kernel runs; opmux.enable({name!r}) turns this choice on"


EXTENSION = Extension(find_derived=_find_derived, remark=_remark)
