"""The machine as core asks about it: its accelerators, whose they are, and what their vendors bring."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from ..core import facts
from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.lock import lock
from ..core.log import logger
from ..core.registry import OpRegistry
from . import detect, packages, target, vendor_ops
from .packages import Package
from .vendor_ops import Ops

# What packages written for other libraries import, and which of our modules that is.
FOREIGN = {
    "backend_utils": "opmux.backends.backend_utils",
    "liger_kernel.ops.backends.registry": "opmux.backends.registry",
}


class Here(facts.Machine):
    """This machine. What vendors bring is read once for each device type, and again when a vendor comes or goes."""

    def __init__(self) -> None:
        self._ops: dict[tuple[str, str | None], Ops] = {}
        self._registered: list[tuple[str, str]] = []
        self._unused: dict[str, Mapping[str, str]] = {}
        self._lacks: dict[str, frozenset[torch.dtype]] = {}

    def accelerators(self) -> tuple[str, ...]:
        return target.accelerators()

    def arch_of(self, device_type: str) -> str | None:
        return target.arch_of(device_type)

    def vendor_of(self, device_type: str) -> str | None:
        found = detect.vendor_of(device_type)
        return None if found is None else found.name

    def unused(self, device_type: str) -> Mapping[str, str]:
        found = self._unused.get(device_type)
        if found is None:
            found = self._unused[device_type] = vendor_ops.mapping_of(self.ops(device_type))
        return found

    def lacks(self, device_type: str) -> frozenset[torch.dtype]:
        found = self._lacks.get(device_type)
        if found is None:
            found = self._lacks[device_type] = target.lacks(device_type)
        return found

    def stand_ins(self) -> Mapping[str, ModuleType]:
        return {name: importlib.import_module(ours) for name, ours in FOREIGN.items()}

    def take_vendor(self, plugin: Any, origin: Any) -> bool:
        return packages.take(plugin, origin)

    def devices(self) -> tuple[str, ...]:
        """The device types of this machine, accelerators first."""
        return (*self.accelerators(), "cpu")

    def ops(self, device_type: str) -> Ops:
        """What the vendor of a device type brings for the chip that is here."""
        package = detect.vendor_of(device_type)
        if package is None:
            return Ops()
        key = (package.name, self.arch_of(device_type))
        if key not in self._ops:
            self._ops[key] = vendor_ops.read(package, key[1])
        return self._ops[key]

    def register(self, registry: OpRegistry) -> None:
        """Put the vendors' impls of this machine into a registry; an entry that does not fit is said, and left out."""
        self._registered = []
        for device in self.devices():
            package = detect.vendor_of(device)
            for made in self.ops(device).impls if package is not None else ():
                assert package is not None
                self._register_one(registry, package, made)

    def _register_one(self, registry: OpRegistry, package: Package, made: Any) -> None:
        try:
            registry.register_impl(made, origin=vendor_ops.origin_of(package, made))
            self._registered.append((made.op_name, made.impl_id))
        except OpmuxError as error:
            logger.warning("%s's %s is left out: %s", package.name, made.op_name, error)

    def extras(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for device in reversed(self.devices()):
            found |= self.ops(device).extras
        return found

    def changed(self) -> None:
        """A vendor has come or gone, or another chip is assumed: choose anew."""
        self._ops.clear()
        self._unused.clear()
        self._lacks.clear()
        manager = get_default_manager()
        if not manager._started:
            return
        with lock.held:
            for key, impl_id in self._registered:
                if any(i.impl_id == impl_id for i in manager.registry.impls(key)):
                    manager.registry.unregister(key, impl_id)
            self.register(manager.registry)
            manager.invalidate("the vendors have changed")


HERE = Here()
packages.on_change(HERE.changed)
