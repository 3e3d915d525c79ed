"""What a vendor says of itself: `VendorInfoBase`, the facts of its chips, and what it may ask of ATen."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from ..core.errors import OpmuxError


class BadVendor(OpmuxError, ValueError):
    """A vendor's package that cannot be used; the message names the file and what to change."""


class Autograd(Enum):
    """Whether the function of a `get_specific_ops` row can be differentiated as it stands.

    `disable`: it computes the result alone, and the gradient stays ATen's. `enable`: it is an autograd.Function, or
    made of ops that autograd knows, and brings its own gradient.
    """

    disable = "disable"
    enable = "enable"


@dataclass(frozen=True)
class Target:
    """A chip in figures; what is None is asked of the device, or not known."""

    cores: int | None = None  # multiprocessors, compute units, vector cores: what runs programs side by side
    shared_memory: int | None = None  # bytes that one program may have
    warp_size: int | None = None
    registers: int | None = None  # 32-bit ones of a core

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and (type(value) is not int or value < 1):
                raise BadVendor(f"Target({name}={value!r}): allowed is a number above 0, or None where it is not known")


@dataclass(frozen=True)
class VendorInfoBase:
    """A vendor, its device type, and how to find out whether such a device is here.

    `device_query_cmd` is a command that succeeds only on a machine with the vendor's chip; it is run without a shell
    and with a time limit, and only where torch itself cannot tell. `dispatch_key` is torch's key for the device's
    kernels: by default the device's name in capitals where torch has such a key, else PrivateUse1.
    """

    vendor_name: str
    device_name: str
    device_query_cmd: str = ""
    dispatch_key: str | None = None
    torch_package: str = ""  # the package that brings torch.<device>: imported before the device is looked for
    driver_files: tuple[str, ...] = ()  # paths that are there where the vendor's driver is: quicker than the query
    triton_extra_name: str | None = None  # of tl.extra.<name>.libdevice, where that is not the device's
    fp64_enabled: bool = True
    bf16_enabled: bool = True
    int64_enabled: bool = True
    targets: Mapping[str, Target] = field(default_factory=dict, hash=False)  # by arch; "" is any chip of the vendor
    verified: str = "nothing was run on this hardware"

    def __post_init__(self) -> None:
        where = f"VendorInfoBase(vendor_name={self.vendor_name!r})"
        for name in ("vendor_name", "device_name"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.replace("_", "a").isalnum():
                raise BadVendor(f"{where}: {name} = {value!r}. Allowed: a name of letters, digits and _")
        if not isinstance(self.device_query_cmd, str):
            raise BadVendor(f"{where}: device_query_cmd = {self.device_query_cmd!r}. Allowed: a command line, or ''")
        try:
            shlex.split(self.device_query_cmd)
        except ValueError as error:
            raise BadVendor(f"{where}: device_query_cmd = {self.device_query_cmd!r}: {error}") from None
        if self.dispatch_key is not None and not isinstance(self.dispatch_key, str):
            raise BadVendor(f"{where}: dispatch_key = {self.dispatch_key!r}. Allowed: a name such as 'PrivateUse1'")
        object.__setattr__(self, "targets", MappingProxyType(dict(self.targets)))

    @property
    def key(self) -> str:
        """torch's dispatch key for this device."""
        if self.dispatch_key is not None:
            return self.dispatch_key
        return {"cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}.get(self.device_name, "PrivateUse1")

    def target(self, arch: str | None) -> Target:
        """The figures of a chip of this arch, as far as they are known."""
        return self.targets.get(arch or "", self.targets.get("", Target()))


@dataclass(frozen=True)
class VendorInfo:
    """The short form: a vendor and its device type; its ops are the `ops` of the package that registers it."""

    vendor: str
    device: str

    def in_full(self) -> VendorInfoBase:
        return VendorInfoBase(self.vendor, self.device)
