"""Implements core's `Machine`: the accelerators, their vendors, and the vendors' ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from .. import imports
from ..core import machine
from ..core.choosing import Speeds
from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.lock import lock
from ..core.log import logger
from ..core.registry import OpImpl, OpRegistry
from ..tuning import provider_speed
from . import devices, vendor_ops, vendors
from .vendor_ops import VendorOps
from .vendors import Package


class LocalMachine(machine.Machine):
    """This machine. Vendors' ops are read once per device type, and again when a vendor is added or removed."""

    def __init__(self) -> None:
        # All keys start with the vendors' generation.
        self._ops: dict[tuple[int, str, str | None], VendorOps] = {}
        self._unused: dict[tuple[int, str], Mapping[str, str]] = {}
        self._lacks: dict[tuple[int, str], frozenset[torch.dtype]] = {}
        self._registered: list[tuple[str, OpImpl]] = []  # pairs (key, impl)

    def accelerators(self) -> tuple[str, ...]:
        return devices.accelerators()

    def arch_of(self, device_type: str) -> str | None:
        return devices.arch_of(device_type)

    def vendor_of(self, device_type: str) -> str | None:
        package = devices.vendor_of(device_type)
        return None if package is None else package.name

    def vendors(self) -> Iterable[str]:
        return vendors.known_so_far()

    def unused(self, device_type: str) -> Mapping[str, str]:
        key = vendors.generation(), device_type
        unused = self._unused.get(key)
        if unused is None:
            unused = self._unused[key] = vendor_ops.unused_by_key(self.ops(device_type))
        return unused

    def preferred(self, device_type: str) -> Mapping[str, machine.Preferred]:
        return self.ops(device_type).preferred

    def speeds(self, key: str, device_type: str) -> Speeds | None:
        return provider_speed.speeds(key, device_type)

    def lacks(self, device_type: str) -> frozenset[torch.dtype]:
        key = vendors.generation(), device_type
        dtypes = self._lacks.get(key)
        if dtypes is None:
            dtypes = self._lacks[key] = devices.lacks(device_type)
        return dtypes

    def foreign_names(self) -> AbstractContextManager[None]:
        return imports.foreign_names()

    def register_vendor(self, plugin: Any, origin: Any) -> bool:
        return vendors.register_plugin(plugin, origin)

    def devices(self) -> tuple[str, ...]:
        """This machine's device types, accelerators first."""
        return (*self.accelerators(), "cpu")

    def ops(self, device_type: str) -> VendorOps:
        """The ops of a device type's vendor for the chip of this machine."""
        package = devices.vendor_of(device_type)
        if package is None:
            return VendorOps()
        key = (vendors.generation(), package.name, self.arch_of(device_type))
        ops = self._ops.get(key)
        if ops is None:
            ops = self._ops.setdefault(key, vendor_ops.read(package, key[2]))
        return ops

    def register(self, registry: OpRegistry) -> None:
        """Add the impls of this machine's vendors to a registry, and remove those of other vendors.

        An impl that does not fit its op is logged and skipped. No lock is held while vendors' code is imported.
        """
        devices.check_setting()
        current = [
            (package, impl)
            for device in self.devices()
            if (package := devices.vendor_of(device)) is not None
            for impl in self.ops(device).impls
        ]
        with lock.held:
            keep = {id(impl) for _, impl in current}
            registry.remove_impls([(key, impl) for key, impl in self._registered if id(impl) not in keep])
            new = [(p, impl) for p, impl in current if all(impl is not i for i in registry.impls(impl.op_name))]
            self._register(registry, new)
            self._registered = [(impl.op_name, impl) for _, impl in current]

    def _register(self, registry: OpRegistry, new: list[tuple[Package, OpImpl]]) -> None:
        try:
            registry.add_impls([(impl, vendor_ops.origin_of(package, impl)) for package, impl in new])
        except OpmuxError as error:
            if len(new) > 1:  # one impl does not fit its op; find it by registering them one by one
                for pair in new:
                    self._register(registry, [pair])
            else:
                logger.warning("%s's %s is left out: %s", new[0][0].name, new[0][1].op_name, error)

    def extras(self) -> Mapping[str, Any]:
        extras: dict[str, Any] = {}
        for device in reversed(self.devices()):
            extras |= self.ops(device).extras
        return extras

    def changed(self) -> None:
        """Choose impls again after a vendor was added or removed, or another chip is assumed."""
        for cached in (self._ops, self._unused, self._lacks):
            cached.clear()
        manager = get_default_manager()
        if manager.started:
            self.register(manager.registry)
            manager.invalidate("the vendors have changed")


HERE = LocalMachine()
vendors.on_change(HERE.changed)
