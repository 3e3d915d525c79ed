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
    """Triton was imported to compile kernels, but this run must interpret them."""


@dataclass(frozen=True)
class Place:
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
                f"{name} on a SIMULATED {device}: no such device is here. Host memory, interpreted kernels; "
                f"what runs is {name}'s code, and nothing is said of its chips or its compiler"
            )
        if self.direct:
            return (
                f"{name}'s functions called directly on CPU tensors, kernels interpreted: no {device} takes part. "
                f"Dispatch, torch.compile and ATen are not checked"
            )
        return f"{name} on {self.device}: {chip(self.device)}"


def find(vendor: str | None, device: str | None) -> Place:
    """The requested vendor (by default this machine's), and where its impls can run."""
    package = _vendor(vendor)
    asked = None if device is None else _device(device, package)
    if asked is not None and asked.type == "cpu" != package.device:
        return Place(package, asked, DIRECT)
    if package.device in ("cpu", *devices.accelerators()):
        whose = devices.vendor_of(package.device)
        if whose is None or whose.name == package.name:
            return Place(package, _there(asked or torch.device(package.device)), DEVICE)
        raise BadOption(
            f"--vendor {package.name}: the {package.device} of this machine is {whose.name}'s. "
            f"OPMUX_VENDOR={package.name} says otherwise; {_on_cpu(package)}"
        )
    if package.device in NOT_SIMULATED or package.info.key != "PrivateUse1":
        raise BadOption(
            f"--vendor {package.name}: this machine has no {package.device}, and a device type of torch's own cannot "
            f"be simulated. Run it on the chip; {_on_cpu(package)}"
        )
    return Place(package, asked or torch.device("cpu"), SIMULATED)


def _on_cpu(package: Package) -> str:
    return f"or with --device cpu, which calls {package.name}'s functions on CPU tensors, kernels interpreted"


def _vendor(name: str | None) -> Package:
    if name is None:
        found = devices.vendor_of(devices.infer_device())
        if found is None:
            known = ", ".join(sorted(vendors.known()))
            raise BadOption(f"there is no accelerator here to check: name a vendor by --vendor. Known: {known}")
        return found
    found = vendors.get(name)
    if found is None:
        get_default_manager().prepare()  # a plugin may define the vendor
        found = vendors.get(name)
    if found is None:
        left_out = [f"({module} is skipped: {why})" for module, why in vendors.broken().items() if name in module]
        raise UnknownName("vendor", name, list(vendors.known()), hint=" ".join(left_out))
    return found


def _device(text: str, package: Package) -> torch.device | None:
    """The device of --device; None for one that has to be simulated first, as torch does not know its name."""
    kind, _, index = text.strip().casefold().partition(":")
    allowed = list(dict.fromkeys((package.device, "cpu")))
    if kind not in allowed or (index and not index.isdigit()):
        raise BadOption(f"--device {text!r} is not {package.name}'s. Allowed: {', '.join(allowed)}")
    try:
        return torch.device(text.strip().casefold())
    except RuntimeError:
        return None


def _there(device: torch.device) -> torch.device:
    count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    if (device.index or 0) >= count:
        allowed = f"{device.type}:0 to {device.type}:{count - 1}"
        raise BadOption(f"--device {device} is not on this machine. Allowed: {allowed}")
    return device


@contextmanager
def ready(place: Place) -> Iterator[Place]:
    """Set the device up: simulate it if necessary, and select the vendor if several share the device type."""
    if place.interpreted:
        if launch.compiles():
            raise NeedsFreshProcess
        launch.interpret()
    before, threads = os.environ.get(VENDOR.name), torch.get_num_threads()
    if place.interpreted:
        torch.set_num_threads(1)  # Python takes most of the time, and forked workers cannot use the parent's threads
    os.environ[VENDOR.name] = place.package.name
    try:
        if place.simulated:
            simulate(place.package.device)
            place = Place(place.package, torch.device(place.package.device, 0), SIMULATED)
        if place.interpreted:
            _interpret_rightly()
        _look_again()
        with _tiles_of(place):
            yield place
    finally:
        torch.set_num_threads(threads)
        os.environ.pop(VENDOR.name, None)
        if before is not None:
            os.environ[VENDOR.name] = before
        _look_again()


def _interpret_rightly() -> None:
    if importlib.util.find_spec("triton") is not None:
        from ...kernels.lib import interpret, quick_interpret

        interpret.install()
        quick_interpret.install()


def _tiles_of(place: Place) -> AbstractContextManager[None]:
    """Use the vendor's own tiles for interpreted kernels: the interpreter has no chip whose tiles would apply."""
    if not place.interpreted or importlib.util.find_spec("triton") is None:
        return nullcontext()
    from ...kernels.lib import config

    arch = None if place.direct else devices.arch_of(place.device.type)
    return config.as_on(devices.Chip(place.package.name, arch))


def _look_again() -> None:
    devices.forget()
    HERE.changed()
