"""The chip behind a device type: its arch, its cores, the dtypes it lacks."""

from __future__ import annotations

import functools

import torch

from ..core.log import logger
from . import detect, packages


def accelerators() -> tuple[str, ...]:
    """The accelerator types torch can use here; empty on a machine with none, which is a supported machine."""
    return detect.available()


def arch_of(device_type: str, index: int | None = None) -> str | None:
    """'sm_90' for an NVIDIA chip, 'gfx942' for an AMD one; None where nothing tells it."""
    assumed = detect.assumed()
    if assumed is not None and device_type in detect.available():
        return assumed.arch
    return _arch_of(device_type, index, packages.generation())


@functools.cache
def _arch_of(device_type: str, index: int | None, generation: int) -> str | None:
    package = detect.vendor_of(device_type)
    if package is not None and package.arch_of is not None:
        try:
            return package.arch_of(index or 0)
        except Exception as error:  # a vendor's code
            logger.warning("%s's arch_of(%s) raised %s: %s", package.name, index, type(error).__name__, error)
            return None
    if device_type != "cuda" or not torch.cuda.is_available():
        return None
    if torch.version.hip:
        return torch.cuda.get_device_properties(index or 0).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def cores(device_type: str, index: int = 0) -> int | None:
    """How many programs a device runs side by side, as torch says, else as its vendor does."""
    properties = getattr(getattr(torch, device_type, None), "get_device_properties", None)
    told = None if properties is None else getattr(properties(index), "multi_processor_count", None)
    package = detect.vendor_of(device_type)
    return told or (None if package is None else package.info.target(arch_of(device_type, index)).cores)


def lacks(device_type: str) -> frozenset[torch.dtype]:
    """The dtypes that a vendor says its chips do not compute in."""
    package = detect.vendor_of(device_type)
    if package is None:
        return frozenset()
    flags = {
        torch.float64: package.info.fp64_enabled,
        torch.bfloat16: package.info.bf16_enabled,
        torch.int64: package.info.int64_enabled,
    }
    return frozenset(dtype for dtype, enabled in flags.items() if not enabled)


packages.on_change(_arch_of.cache_clear)
