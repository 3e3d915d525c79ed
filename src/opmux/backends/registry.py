"""The vendor of each device type: `VendorInfo`, `register_vendor`, `VENDOR_REGISTRY`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..core import machine
from ..core.log import logger
from ..machine import devices, vendors
from ..machine.vendors import VendorInfo, VendorInfoBase, register_vendor

__all__ = [
    "IMPL_REGISTRY",
    "LIGER_KERNEL_IMPL_ENV",
    "VENDOR_REGISTRY",
    "ImplInfo",
    "VendorInfo",
    "VendorInfoBase",
    "register_impl",
    "register_vendor",
    "select_impl",
]


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


# ---- implementations of Liger, by name ------------------------------------------------------------------------------

LIGER_KERNEL_IMPL_ENV = "LIGER_KERNEL_IMPL"


@dataclass(frozen=True)
class ImplInfo:
    """An implementation for Liger-Kernel 0.8.2: its name, its devices, where it is the default, and its module."""

    name: str
    devices: tuple[str, ...]
    default_devices: tuple[str, ...] = ()
    module_path: str = ""

    def __post_init__(self) -> None:
        for argument, expected, wrong in (
            ("devices", "have at least one device", not self.devices),
            ("module_path", "be the import name of a module", not self.module_path),
            ("default_devices", f"be some of devices {self.devices}", not {*self.default_devices} <= {*self.devices}),
        ):
            if wrong:
                got = repr(getattr(self, argument))
                raise vendors.BadVendor(f"ImplInfo(name={self.name!r}): {argument} must {expected}; got {got}")


IMPL_REGISTRY: dict[str, ImplInfo] = {}


def register_impl(info: ImplInfo) -> None:
    """Store an implementation for `select_impl`. opmux does not run it: `register_vendor` does that."""
    IMPL_REGISTRY[info.name] = info
    logger.warning("register_impl(%r) is stored, but its functions are not used; call register_vendor", info.name)


def select_impl(device: str, explicit: str | None = None) -> ImplInfo | None:
    """The implementation named `explicit`, or else the first that is the default on a device; None if there is none."""
    if not explicit:
        return next((info for info in IMPL_REGISTRY.values() if device in info.default_devices), None)
    info = IMPL_REGISTRY.get(explicit)
    if info is None or device not in info.devices:
        known = ", ".join(sorted(IMPL_REGISTRY)) or "none"
        reason = f"registered: {known}" if info is None else f"it supports {', '.join(info.devices)}"
        raise RuntimeError(f"select_impl: there is no implementation {explicit!r} for {device!r}; {reason}")
    return info
