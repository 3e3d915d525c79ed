"""Where a vendor's impls are run: on its device, on a simulated one, or called as functions on the CPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from ...core.default import get_default_manager
from ...core.errors import UnknownName
from ...machine import devices, vendors
from ...machine.here import HERE
from ...machine.vendors import Package
from ...settings import VENDOR
from ..arguments import BadOption
from ..runner.record import chip
from ..simulator import launch, simulate

DEVICE, SIMULATED, DIRECT = "device", "simulated", "direct"
# torch's own device types, which cannot be simulated.
NOT_SIMULATED = ("cpu", "cuda", "xpu", "mps", "hip", "hpu", "mtia", "meta", "xla", "vulkan", "ipu", "ve")


class NeedsFreshProcess(Exception):
    """Raised if Triton compiles kernels in this process, but they must be interpreted."""


@dataclass(frozen=True)
class ConformTarget:
    package: Package
    device: torch.device
    how: str

    @property
    def direct(self) -> bool:
        return self.how == DIRECT

    @property
    def simulated(self) -> bool:
        return self.how == SIMULATED

    @property
    def interpreted(self) -> bool:
        return self.how != DEVICE

    def __str__(self) -> str:
        """The first line of a report."""
        name, device = self.package.name, self.package.device
        if self.simulated:
            return (
                f"{name} on a SIMULATED {device}: this machine has no such device. Host memory, interpreted kernels; "
                f"this checks {name}'s code, not its chips or its compiler"
            )
        if self.direct:
            return (
                f"{name}'s functions called directly on CPU tensors, kernels interpreted: no {device} is used. "
                f"Dispatch, torch.compile and ATen are not checked"
            )
        return f"{name} on {self.device}: {chip(self.device)}"


def find(vendor: str | None, device: str | None) -> ConformTarget:
    """The requested vendor (by default this machine's), and where the vendor's impls can run."""
    package = _vendor(vendor)
    requested = None if device is None else _device(device, package)
    if requested is not None and requested.type == "cpu" != package.device:
        return ConformTarget(package, requested, DIRECT)
    if package.device in ("cpu", *devices.accelerators()):
        owner = devices.vendor_of(package.device)
        if owner is None or owner.name == package.name:
            return ConformTarget(package, _with_valid_index(requested or torch.device(package.device)), DEVICE)
        raise BadOption(
            f"--vendor {package.name}: the {package.device} of this machine is {owner.name}'s. "
            f"OPMUX_VENDOR={package.name} says otherwise; {_on_cpu(package)}"
        )
    if package.device in NOT_SIMULATED or package.info.key != "PrivateUse1":
        raise BadOption(
            f"--vendor {package.name}: this machine has no {package.device}, and a device type of torch's own cannot "
            f"be simulated. Run it on the chip; {_on_cpu(package)}"
        )
    return ConformTarget(package, requested or torch.device("cpu"), SIMULATED)


def _on_cpu(package: Package) -> str:
    return f"or with --device cpu, which calls {package.name}'s functions on CPU tensors, kernels interpreted"


def _vendor(name: str | None) -> Package:
    if name is None:
        package = devices.vendor_of(devices.infer_device())
        if package is None:
            known = ", ".join(sorted(vendors.known()))
            raise BadOption(f"there is no accelerator here to check: name a vendor by --vendor. Known: {known}")
        return package
    package = vendors.get(name)
    if package is None:
        get_default_manager().prepare()  # a plugin may define the vendor
        package = vendors.get(name)
    if package is None:
        left_out = [f"({module} is skipped: {why})" for module, why in vendors.broken().items() if name in module]
        raise UnknownName("vendor", name, list(vendors.known()), hint=" ".join(left_out))
    return package


def _device(text: str, package: Package) -> torch.device | None:
    """The device named by --device. None if torch does not know its name, so that it must be simulated first."""
    kind, _, index = text.strip().casefold().partition(":")
    allowed = list(dict.fromkeys((package.device, "cpu")))
    if kind not in allowed or (index and not index.isdigit()):
        raise BadOption(f"--device {text!r} is not {package.name}'s. Allowed: {', '.join(allowed)}")
    try:
        return torch.device(text.strip().casefold())
    except RuntimeError:
        return None


def _with_valid_index(device: torch.device) -> torch.device:
    count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    if (device.index or 0) >= count:
        allowed = f"{device.type}:0 to {device.type}:{count - 1}"
        raise BadOption(f"--device {device} is not on this machine. Allowed: {allowed}")
    return device


@contextmanager
def ready(target: ConformTarget) -> Iterator[ConformTarget]:
    """Set up the device for a block: simulate it if necessary, and select the vendor if several share it."""
    if target.interpreted:
        if launch.compiles():
            raise NeedsFreshProcess
        launch.interpret()
    before, threads = os.environ.get(VENDOR.name), torch.get_num_threads()
    if target.interpreted:
        torch.set_num_threads(1)  # Python takes most of the time, and forked workers cannot use a thread pool
    os.environ[VENDOR.name] = target.package.name
    try:
        if target.simulated:
            simulate(target.package.device)
            target = ConformTarget(target.package, torch.device(target.package.device, 0), SIMULATED)
        if target.interpreted:
            _install_interpreter()
        _probe_again()
        with _tiles_of(target):
            yield target
    finally:
        torch.set_num_threads(threads)
        os.environ.pop(VENDOR.name, None)
        if before is not None:
            os.environ[VENDOR.name] = before
        _probe_again()


def _install_interpreter() -> None:
    if importlib.util.find_spec("triton") is not None:
        from ...kernels.lib import interpret, quick_interpret

        interpret.install()
        quick_interpret.install()


def _tiles_of(target: ConformTarget) -> AbstractContextManager[None]:
    """Use the vendor's tiles for interpreted kernels, because no chip is present whose tiles would apply."""
    if not target.interpreted or importlib.util.find_spec("triton") is None:
        return nullcontext()
    from ...kernels.lib import config

    arch = None if target.direct else devices.arch_of(target.device.type)
    return config.as_on(devices.Chip(target.package.name, arch))


def _probe_again() -> None:
    devices.forget()
    HERE.changed()
