"""The machine as dispatch knows it: its accelerators, their archs, what their vendors bring."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .. import wiring

# Why a vendor's own impls of an op come first; or a function that returns this, or None while they do not.
Preferred = str | Callable[[], str | None]


class Machine:
    """What core asks of the machine it runs on. The runtime layer answers; this one knows of a CPU and nothing else."""

    def accelerators(self) -> tuple[str, ...]:
        """The accelerator types of this machine; empty where there is none."""
        return ()

    def arch_of(self, device_type: str) -> str | None:
        """The arch of a device type ("sm_90", "gfx942"), or None where it states none."""
        return None

    def vendor_of(self, device_type: str) -> str | None:
        """Whose chip a device type is here."""
        return None

    def unused(self, device_type: str) -> Mapping[str, str]:
        """The ops (by key) that a device's vendor does not want our kernels for, and who says so."""
        return {}

    def preferred(self, device_type: str) -> Mapping[str, Preferred]:
        """The ops (by key) for which a device's vendor wants its own impls before our kernels for any chip, and why."""
        return {}

    def lacks(self, device_type: str) -> frozenset[torch.dtype]:
        """The dtypes that a device does not compute in."""
        return frozenset()

    def foreign_names(self) -> contextlib.AbstractContextManager[None]:
        """A block in which packages written for other libraries can be imported: their module names are served."""
        return contextlib.nullcontext()

    def take_vendor(self, plugin: Any, origin: Any) -> bool:
        """Take up what an entry point names, where that is a vendor's package."""
        return False

    def register(self, registry: Any) -> None:
        """Put what the vendors of this machine bring into a registry."""

    def extras(self) -> Mapping[str, Any]:
        """What vendors export under names that are no op: shown in `opmux.ops` as it is."""
        return {}


_machine: Machine | None = None


def set_machine(machine: Machine) -> None:
    """Tell core whom to ask about the machine."""
    global _machine
    _machine = machine


def current() -> Machine:
    """Whom to ask about the machine; the layer that knows it is loaded by the first call."""
    global _machine
    if _machine is None:
        _machine = wiring.machine()
    return _machine


def arch_of(device_type: str) -> str | None:
    return current().arch_of(device_type)


def accelerators() -> tuple[str, ...]:
    return current().accelerators()


ACCELERATOR = "accelerator"  # in `OpImpl.devices`: any device type but the CPU


def runs_on(devices: frozenset[str] | None, device_type: str) -> bool:
    """Whether an impl for these device types takes tensors of this one."""
    return devices is None or device_type in devices or (ACCELERATOR in devices and device_type != "cpu")


def arch_refusal(min_arch: str, device_type: str) -> str | None:
    """Why a device of this type does not meet `min_arch`, or None when it does."""
    have = arch_of(device_type)
    if have is None:
        return f"needs {min_arch}, and '{device_type}' states no arch"
    want_prefix, want = split_arch(min_arch)
    have_prefix, number = split_arch(have)
    if want_prefix != have_prefix:
        return f"needs {min_arch}, this is {have}"
    return None if number >= want else f"needs at least {min_arch}, this is {have}"


def split_arch(arch: str) -> tuple[str, int]:
    """'sm_90a' -> ('sm', 90); 'gfx90a' -> ('gfx', 0x90a): the number after gfx is hex."""
    found = re.fullmatch(r"(gfx)_?([0-9a-f]{1,9})|([a-z]+?)[_-]?([0-9]{1,9})[a-z]?", arch.strip().casefold())
    if found is None:
        raise ValueError(f"arch '{arch}' is not of the form 'sm_90' or 'gfx942'")
    gfx, digits, prefix, number = found.groups()
    return (gfx, int(digits, 16)) if gfx else (prefix, int(number))
