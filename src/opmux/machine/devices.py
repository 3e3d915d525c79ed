"""The devices of this machine: which accelerators are available, their vendors, and their chips.

Everything is probed on first use and cached. torch's device modules tell which device types are available. If several
vendors share a type (`cuda`), the vendor is determined from the build of torch, then from driver files, then by the
vendors' query commands, which run without a shell and with a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..core.errors import UnknownName
from ..core.log import logger
from ..core.machine import split_arch
from ..settings import VENDOR
from . import vendors
from .vendors import Package

QUERY_TIMEOUT = 5.0  # seconds after which a query command is stopped
FIRST = ("cuda", "npu", "xpu")  # preferred by infer_device, in this order; other devices follow


class Assumed(NamedTuple):
    """A chip that is assumed to be present, in order to explain or compile for it."""

    vendor: str
    arch: str | None


_assumed: list[Assumed] = []


def infer_device() -> str:
    """The device type to use on this machine: an available accelerator, else "cpu"."""
    types = accelerators()
    return types[0] if types else "cpu"


def accelerators() -> tuple[str, ...]:
    """The usable accelerator types; the first is the default."""
    if _assumed:
        return (_package(_assumed[-1].vendor).device,)
    vendors.known()
    return _available(vendors.generation())


# The vendors' generation is part of the key, so that a result computed before a vendor is registered is not used later.
@functools.cache
def _available(generation: int) -> tuple[str, ...]:
    of_vendors = [p.device for p in vendors.known().values() if p.device != "cpu"]
    for package in vendors.known().values():
        _import_torch_package(package)
    current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    of_torch = [current.type] if current is not None else []
    return tuple(d for d in dict.fromkeys([*FIRST, *of_torch, *of_vendors]) if d in of_torch or is_available(d))


def is_available(device: str) -> bool:
    """Whether torch has this device type and can use it."""
    module = getattr(torch, device, None)
    probe = getattr(module, "is_available", None)
    try:
        return bool(probe()) if callable(probe) else False
    except Exception as error:  # a vendor's code may raise anything
        logger.warning("torch.%s.is_available() raised %s: %s", device, type(error).__name__, error)
        return False


def _import_torch_package(package: Package) -> None:
    """Import the package that adds a device type to torch, if it is installed and not loaded yet."""
    name = package.info.torch_package
    if not name or hasattr(torch, package.device):
        return
    try:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a vendor's code may raise anything
        logger.warning("%s's package %s cannot be imported: %s: %s", package.name, name, type(error).__name__, error)


def vendor_of(device: str) -> Package | None:
    """The vendor of a device type on this machine."""
    if _assumed and _package(_assumed[-1].vendor).device == device:
        return _package(_assumed[-1].vendor)
    vendors.known()
    return _vendor_of(device, vendors.generation())


def check_setting() -> None:
    """Raise if OPMUX_VENDOR names an unknown vendor. Called after plugins are loaded, as they may register vendors."""
    forced = VENDOR.get()
    if forced is not None:
        _package(forced)


@functools.cache
def _vendor_of(device: str, generation: int) -> Package | None:
    forced = vendors.get(VENDOR.get() or "")
    if forced is not None and forced.device == device:
        return forced
    claims = [p for p in vendors.known().values() if p.device == device]
    if len(claims) < 2 and device != "cuda":
        return claims[0] if claims else None
    return _detect_vendor(device, claims)


def _detect_vendor(device: str, claims: list[Package]) -> Package | None:
    """The vendor of a device type that is present. If none is found for `cuda`, the vendor that torch was built for."""
    built = "amd" if torch.version.hip else "nvidia" if torch.version.cuda else ""
    absent = {"nvidia", "amd"} - {built} if device == "cuda" and built else set()
    claims = [p for p in claims if p.name not in absent]
    if len(claims) == 1:
        return claims[0]
    installed = [p for p in claims if any(Path(f).exists() for f in p.info.driver_files)]
    if len(installed) == 1:
        return installed[0]
    by_query = next((p for p in installed or claims if query_succeeds(p)), None)
    if by_query is None and device == "cuda":
        return next((p for p in claims if p.name == built), None)
    return by_query or claims[-1]  # the last one: external packages come last, and were installed on purpose


@functools.cache
def query_succeeds(package: Package) -> bool:
    """Whether a vendor's query command succeeds."""
    command = shlex.split(package.info.device_query_cmd)
    program = shutil.which(command[0]) if command else None
    if program is None:
        return False
    query = f"{package.name}'s query `{package.info.device_query_cmd}`"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=QUERY_TIMEOUT,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        logger.warning(
            "%s was stopped after %g s and counts as failed. Set OPMUX_VENDOR to skip the query", query, QUERY_TIMEOUT
        )
        return False
    except OSError as error:
        logger.warning("%s cannot be run: %s", query, error)
        return False
    return done.returncode == 0


def _package(name: str) -> Package:
    package = vendors.get(name)
    if package is None:
        raise UnknownName("vendor", name, list(vendors.known()))
    return package


@contextlib.contextmanager
def assume(vendor: str, arch: str | None = None) -> Iterator[Package]:
    """Assume a chip of this vendor in a block, in order to explain or compile for it. Nothing can run on it."""
    package = _package(vendor)
    _assumed.append(Assumed(package.name, arch))
    try:
        yield package
    finally:
        _assumed.pop()


def assumed() -> Assumed | None:
    return _assumed[-1] if _assumed else None


def forget() -> None:
    """Clear the caches, so that devices are probed again on next use."""
    for cached in (_available, _vendor_of, query_succeeds):
        cached.cache_clear()


# ---- the chip behind a device type ----------------------------------------------------------------------------------


def arch_of(device_type: str, index: int | None = None) -> str | None:
    """The arch of a device: 'sm_90' for an NVIDIA chip, 'gfx942' for an AMD chip; None if unknown."""
    instead = assumed()
    if instead is not None and device_type in accelerators():
        return instead.arch
    return _arch_of(device_type, index, vendors.generation())


@functools.cache
def _arch_of(device_type: str, index: int | None, generation: int) -> str | None:
    package = vendor_of(device_type)
    if package is not None and package.arch_of is not None:
        try:
            return package.arch_of(index or 0)
        except Exception as error:  # a vendor's code may raise anything
            logger.warning("%s's arch_of(%s) raised %s: %s", package.name, index, type(error).__name__, error)
            return None
    if device_type != "cuda" or not torch.cuda.is_available():
        return None
    if torch.version.hip:
        return torch.cuda.get_device_properties(index or 0).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def cores(device_type: str, index: int = 0) -> int | None:
    """The number of cores (multiprocessors) of a device, according to torch, else according to its vendor."""
    properties = getattr(getattr(torch, device_type, None), "get_device_properties", None)
    from_torch = None if properties is None else getattr(properties(index), "multi_processor_count", None)
    package = vendor_of(device_type)
    return from_torch or (None if package is None else package.info.target(arch_of(device_type, index)).cores)


def lacks(device_type: str) -> frozenset[torch.dtype]:
    """The dtypes that a vendor declares unsupported by its chips."""
    package = vendor_of(device_type)
    if package is None:
        return frozenset()
    flags = {
        torch.float64: package.info.fp64_enabled,
        torch.bfloat16: package.info.bf16_enabled,
        torch.int64: package.info.int64_enabled,
    }
    return frozenset(dtype for dtype, enabled in flags.items() if not enabled)


@dataclass(frozen=True)
class Chip:
    """A chip, as a key of tuned values. The name is "" if the chip is not present: kernels are only compiled for it."""

    vendor: str | None
    arch: str | None
    name: str = ""
    driver: str = ""

    @classmethod
    def of_arch(cls, arch: str) -> Chip:
        """A chip that is not present, given by its arch: "sm_90", "gfx942", or with the vendor's name "ascend:910b"."""
        vendor, colon, name = arch.partition(":")
        if colon:
            return cls(vendor.casefold(), name or None)
        return cls({"sm": "nvidia", "gfx": "amd"}.get(split_arch(arch)[0]), arch)

    def __str__(self) -> str:
        known = " ".join(filter(None, (self.name, f"({self.arch})" if self.name and self.arch else self.arch)))
        return known or (f"a chip of {self.vendor}" if self.vendor else "?")


def current_chip() -> Chip | None:
    """The chip of the current device; None on a machine without accelerators."""
    kinds = accelerators()
    if not kinds:
        return None
    return chip_of(kinds[0])


def chip_of(device_type: str) -> Chip:
    """The chip of the current device of a type."""
    module = torch.get_device_module(device_type)
    at = module.current_device() if hasattr(module, "current_device") else 0
    return _chip(device_type, at if isinstance(at, int) else 0)  # for the CPU, `at` is "cpu"


@functools.cache
def _chip(kind: str, index: int) -> Chip:
    name_of = getattr(torch.get_device_module(kind), "get_device_name", None)
    name = kind if name_of is None else name_of(index)
    package = vendor_of(kind)
    return Chip(None if package is None else package.name, arch_of(kind, index), name, _driver(kind))


def _driver(kind: str) -> str:
    """The driver's version, on which tuned times depend; "" if unknown."""
    package = vendor_of(kind)
    module_name = {"nvidia": "nvidia", "amd": "amdgpu"}.get(package.name if package else "", kind)
    module = Path("/sys/module", module_name, "version")
    if module.is_file():
        return module.read_text(encoding="utf-8").strip()
    of_cuda: Callable[[], int] | None = getattr(torch._C, "_cuda_getDriverVersion", None)
    return str(of_cuda()) if kind == "cuda" and of_cuda is not None else ""


vendors.on_change(forget)
vendors.on_change(_arch_of.cache_clear)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
