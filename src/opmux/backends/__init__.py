"""Vendor-specific ops and tiles: one folder `_<vendor>/` per vendor, imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..machine.devices import infer_device
    from ..machine.vendors import Autograd, BadVendor, Target, implements
    from .registry import VENDOR_REGISTRY, VendorInfo, VendorInfoBase, register_vendor

__all__ = [
    "VENDOR_REGISTRY",
    "Autograd",
    "BadVendor",
    "Target",
    "VendorInfo",
    "VendorInfoBase",
    "implements",
    "infer_device",
    "register_vendor",
]

# Exported name -> its module, imported on first use: see core/__init__.py.
_MODULE_OF = {"infer_device": "opmux.machine.devices"}
_MODULE_OF |= dict.fromkeys(("Autograd", "BadVendor", "Target", "implements"), "opmux.machine.vendors")
_MODULE_OF |= {"VENDOR_REGISTRY": "opmux.backends.registry", "VendorInfo": "opmux.backends.registry"}
_MODULE_OF |= dict.fromkeys(
    ("IMPL_REGISTRY", "ImplInfo", "LIGER_KERNEL_IMPL_ENV", "register_impl", "select_impl"), "opmux.backends.registry"
)
_MODULE_OF |= {"VendorInfoBase": "opmux.backends.registry", "register_vendor": "opmux.backends.registry"}


def __getattr__(name: str) -> Any:
    if name in ("registry", "backend_utils"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
