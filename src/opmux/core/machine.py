"""What dispatch needs to know about the machine: its accelerators, their archs, and what their vendors provide."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .. import wiring

if TYPE_CHECKING:
    from .choosing import Speeds

# Why a vendor's impls of an op come before our kernel: the reason, or a function that returns the reason, or None if
# they do not. The function may have two attributes: `always`, the reason for ops whose impls have no `when` to decide
# per call, and `under`, the reason as a function of the policy.
Preferred = str | Callable[[], str | None]


class Machine:
    """Core's interface to the machine, implemented by the package `machine`. This base class is a CPU-only machine."""

    def accelerators(self) -> tuple[str, ...]:
        """The accelerator types of this machine; may be empty."""
        return ()

    def arch_of(self, device_type: str) -> str | None:
        """The arch of a device type ("sm_90", "gfx942"), or None if unknown."""
        return None

    def vendor_of(self, device_type: str) -> str | None:
        """The vendor of a device type."""
        return None

    def vendors(self) -> Iterable[str]:
        """Every vendor whose chips are supported, whether or not this machine has one."""
        return ()

    def unused(self, device_type: str) -> Mapping[str, str]:
        """Key of an op -> why a device's vendor disables our kernels for it."""
        return {}

    def preferred(self, device_type: str) -> Mapping[str, Preferred]:
        """Key of an op -> why a device's vendor puts its impls before our generic kernels."""
        return {}

    def speeds(self, key: str, device_type: str) -> Speeds | None:
        """An op's measured times on a device; None if nothing was measured and no vendor's libraries are preferred."""
        return None

    def lacks(self, device_type: str) -> frozenset[torch.dtype]:
        """The dtypes that a device does not support."""
        return frozenset()

    def foreign_names(self) -> contextlib.AbstractContextManager[None]:
        """A context that provides other libraries' module names, so that packages written for them can be imported."""
        return contextlib.nullcontext()

    def register_vendor(self, plugin: Any, origin: Any) -> bool:
        """Register the object of an entry point, if it is a vendor's package; returns whether it is."""
        return False

    def register(self, registry: Any) -> None:
        """Add the impls of this machine's vendors to a registry."""

    def extras(self) -> Mapping[str, Any]:
        """Vendors' exports that are not ops, available in `opmux.ops` unchanged."""
        return {}


_machine: Machine | None = None


def set_machine(machine: Machine) -> None:
    """Set the machine that core uses."""
    global _machine
    _machine = machine


def current() -> Machine:
    """The machine that core uses; the first call imports the package `machine`."""
    global _machine
    if _machine is None:
        _machine = wiring.machine()
    return _machine


def arch_of(device_type: str) -> str | None:
    return current().arch_of(device_type)


def accelerators() -> tuple[str, ...]:
    return current().accelerators()


ACCELERATOR = "accelerator"  # in `OpImpl.devices`: any device type except the CPU


def runs_on(devices: frozenset[str] | None, device_type: str) -> bool:
    """Whether an impl for `devices` accepts tensors of `device_type`."""
    return devices is None or device_type in devices or (ACCELERATOR in devices and device_type != "cpu")


def arch_refusal(min_arch: str, device_type: str) -> str | None:
    """Why a device of this type does not meet `min_arch`, or None if it does."""
    have = arch_of(device_type)
    if have is None:
        return f"needs {min_arch}, and the arch of '{device_type}' is unknown"
    want_prefix, want = split_arch(min_arch)
    have_prefix, number = split_arch(have)
    if want_prefix != have_prefix:
        return f"needs {min_arch}, this is {have}"
    return None if number >= want else f"needs at least {min_arch}, this is {have}"


def split_arch(arch: str) -> tuple[str, int]:
    """'sm_90a' -> ('sm', 90); 'gfx90a' -> ('gfx', 0x90a): the number after gfx is hex."""
    match = re.fullmatch(r"(gfx)_?([0-9a-f]{1,9})|([a-z]+?)[_-]?([0-9]{1,9})[a-z]?", arch.strip().casefold())
    if match is None:
        raise ValueError(f"arch '{arch}' is not of the form 'sm_90' or 'gfx942'")
    gfx, digits, prefix, number = match.groups()
    return (gfx, int(digits, 16)) if gfx else (prefix, int(number))
