"""The arch of a device, for vendors whose torch does not report it directly."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def by_name(device_type: str, index: int, names: Mapping[str, str]) -> str | None:
    """The first arch whose key is part of the device's name; None if there is none."""
    name_of = getattr(getattr(torch, device_type, None), "get_device_name", None)
    name = str(name_of(index)).casefold() if callable(name_of) else ""
    return next((arch for part, arch in names.items() if part.casefold() in name), None)


def by_capability(device_type: str, index: int, prefix: str, digits: int = 1) -> str | None:
    """`prefix` and the capability's two numbers, the second padded to `digits`: mp_31, gcu300."""
    get_capability = getattr(getattr(torch, device_type, None), "get_device_capability", None)
    capability = get_capability(index) if callable(get_capability) else None
    if not isinstance(capability, tuple) or len(capability) < 2:
        return None
    return f"{prefix}{capability[0]}{capability[1]:0{digits}d}"
