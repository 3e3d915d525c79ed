"""The vendor of each device type: `VendorInfo`, `register_vendor`, `VENDOR_REGISTRY`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core import machine
from ..machine import devices, vendors
from ..machine.vendors import VendorInfo, VendorInfoBase, register_vendor

__all__ = ["VENDOR_REGISTRY", "VendorInfo", "VendorInfoBase", "register_vendor"]


class _Active(Mapping[str, VendorInfoBase]):
    """Device type -> its vendor on this machine, detected on first use."""

    def _devices(self) -> list[str]:
        present = [*machine.accelerators(), "cpu"]
        return [d for d in dict.fromkeys([*present, *(p.device for p in vendors.known().values())])]

    def __getitem__(self, device: str) -> VendorInfoBase:
        vendor = devices.vendor_of(device)
        if vendor is None:
            raise KeyError(device)
        return vendor.info

    def __iter__(self) -> Iterator[str]:
        return (d for d in self._devices() if devices.vendor_of(d) is not None)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr({device: info.vendor_name for device, info in self.items()})


VENDOR_REGISTRY = _Active()
