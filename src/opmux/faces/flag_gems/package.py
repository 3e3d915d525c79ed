"""`import flag_gems`: FlagGems' public interface, provided by opmux."""

from __future__ import annotations

from typing import Any

import torch
from torch.torch_version import TorchVersion

from . import left
from .configs import aten_patch_list as aten_patch_list
from .configs import resolve_user_setting as resolve_user_setting
from .configs import setup_flaggems_logging as setup_flaggems_logging
from .configs import teardown_flaggems_logging as teardown_flaggems_logging
from .names import MODULES, submodule
from .switch import all_registered_keys, all_registered_ops, enable, flagtune, only_enable, use_gems

__version__ = "5.3.4"  # the version of FlagGems with this interface
__all__ = ["all_registered_keys", "all_registered_ops", "enable", "flagtune", "only_enable", "use_gems"]
__path__: list[str] = []

_MORE = ("aten_patch_list", "resolve_user_setting", "setup_flaggems_logging", "teardown_flaggems_logging", "torch_ge")
_DEVICE = {"device": "name", "vendor_name": "vendor_name"}
_MODULES = tuple(name.removeprefix("flag_gems.") for name in MODULES if name.count(".") == 1)


def torch_ge(v: str) -> bool:
    """Whether torch has this version or a newer one."""
    return TorchVersion(torch.__version__) >= v


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'flag_gems' of opmux has no attribute '{name}'")
    if (why := left.refused(".", name)) is not None:
        raise AttributeError(f"module 'flag_gems' of opmux has no '{name}': {why}")
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
    return sorted({*__all__, *_MORE, *_MODULES, *_DEVICE, "backend_info", *exported, *dir(_module("ops"))})


def _module(name: str) -> Any:
    return submodule(name)
