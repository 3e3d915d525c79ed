"""`import flag_gems`: FlagGems' public interface, provided by opmux."""

from __future__ import annotations

import importlib
from typing import Any

from .names import MODULES
from .switch import all_registered_keys, all_registered_ops, enable, flagtune, only_enable, use_gems

__version__ = "5.3.4"  # the version of FlagGems with this interface
__all__ = ["all_registered_keys", "all_registered_ops", "enable", "flagtune", "only_enable", "use_gems"]
__path__: list[str] = []

_DEVICE = {"device": "name", "vendor_name": "vendor_name"}
_MODULES = tuple(name.removeprefix("flag_gems.") for name in MODULES if name.count(".") == 1)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'flag_gems' of opmux has no attribute '{name}'")
    if name in _MODULES:
        return _module(name)
    if name in _DEVICE:
        return getattr(_module("runtime").device, _DEVICE[name])
    if name == "backend_info":
        return _module("runtime").device
    for module in (_module("fused"), _module("modules")):
        if name in module.__all__:
            return getattr(module, name)
    return getattr(_module("ops"), name)


def __dir__() -> list[str]:
    exported = [n for module in ("fused", "modules") for n in _module(module).__all__]
    return sorted({*__all__, *_MODULES, *_DEVICE, "backend_info", *exported, *dir(_module("ops"))})


def _module(name: str) -> Any:
    return importlib.import_module(MODULES[f"flag_gems.{name}"])
