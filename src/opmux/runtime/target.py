"""The arch of a device type, and the accelerators of this machine, as torch tells them."""

from __future__ import annotations

import functools

import torch


@functools.cache
def accelerators() -> tuple[str, ...]:
    """The accelerator types torch can use here; empty on a machine with none, which is a supported machine."""
    if not torch.accelerator.is_available():
        return ()
    current = torch.accelerator.current_accelerator()
    return () if current is None else (current.type,)


@functools.cache
def arch_of(device_type: str, index: int | None = None) -> str | None:
    """'sm_90' for an NVIDIA chip, 'gfx942' for an AMD one; None where the device type states none."""
    if device_type != "cuda" or not torch.cuda.is_available():
        return None
    if torch.version.hip:
        return torch.cuda.get_device_properties(index or 0).gcnArchName.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"
