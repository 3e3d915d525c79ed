"""Intel's GPUs: Data Center Max, Arc, and the graphics of Core."""

from __future__ import annotations

import torch

from opmux.backends import Target, VendorInfoBase

# Sources: Intel's GPU occupancy calculator (12.55, 12.60) for shared memory and subgroups; product pages for cores. An
# Xe core of the Max series has eight engines with 64 KiB of registers each (oneAPI optimization guide).
_XE2 = Target(shared_memory=128 << 10, warp_size=32, registers=131_072)

vendor_info = VendorInfoBase(
    vendor_name="intel",
    device_name="xpu",
    # The subcommand excludes Kunlunxin's tool, which has the same name.
    device_query_cmd="xpu-smi discovery",
    triton_extra_name="intel",
    targets={
        "": Target(shared_memory=64 << 10, warp_size=32),
        "xe_1255": Target(cores=32, shared_memory=64 << 10, warp_size=32),  # Arc A770; Flex
        "xe_1260": Target(cores=64, shared_memory=128 << 10, warp_size=32, registers=131_072),  # a tile of Max 1550
        "xe_2001": _XE2,  # Arc B580
        "xe_2002": _XE2,
        "xe_2004": _XE2,  # Lunar Lake
    },
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The version of the graphics IP, "xe_1260" for 12.60: bits 22 to 31 and 14 to 21 of SYCL's `architecture`."""
    properties = getattr(torch.xpu, "get_device_properties", None)
    code = getattr(properties(index), "architecture", None) if properties is not None else None
    if not isinstance(code, int) or not code >> 22 & 0x3FF:
        return None
    return f"xe_{code >> 22 & 0x3FF}{code >> 14 & 0xFF:02d}"
