"""`flag_gems.runtime`: the device of this machine, its vendor, and torch's modules for it."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ...core import machine
from ...machine import devices
from . import left


class DeviceDetector:
    """The interface of FlagGems' device detector; attributes are computed on access."""

    @property
    def name(self) -> str:
        """torch's device type, "cuda" or "npu"; "cpu" without an accelerator."""
        return devices.infer_device()

    @property
    def vendor_name(self) -> str:
        package = devices.vendor_of(self.name)
        return self.name if package is None else package.name

    @property
    def dispatch_key(self) -> str:
        return torch._C._dispatch_key_for_device(self.name)

    @property
    def device_count(self) -> int:
        return int(torch_module().device_count())

    @property
    def support_fp64(self) -> bool:
        return self._has(torch.float64)

    @property
    def support_bf16(self) -> bool:
        return self._has(torch.bfloat16)

    @property
    def support_int64(self) -> bool:
        return self._has(torch.int64)

    def _has(self, dtype: torch.dtype) -> bool:
        return dtype not in machine.current().lacks(self.name)

    def get_vendor_name(self) -> str:
        return self.vendor_name

    def get_device_name(self) -> str:
        return self.name


device = DeviceDetector()


def torch_module() -> Any:
    """`torch.cuda`, or the corresponding module for this machine's device."""
    return getattr(torch, device.name)


def __getattr__(name: str) -> Any:
    if name == "torch_device_fn":
        return torch_module()
    if name == "torch_backend_device":
        return getattr(torch.backends, device.name, None)
    if name == "backend":
        return importlib.import_module("opmux.backends")
    why = left.refused("runtime", name)
    raise AttributeError(f"module 'flag_gems.runtime' of opmux has no attribute '{name}'" + (f": {why}" if why else ""))
