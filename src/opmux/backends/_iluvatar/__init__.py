"""Iluvatar CoreX' GPUs, which torch sees as `cuda`."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_name

_CORE = Target(warp_size=64)  # source: FlyDSL's backend for CoreX

vendor_info = VendorInfoBase(
    vendor_name="iluvatar",
    device_name="cuda",
    device_query_cmd="ixsmi -L",
    driver_files=("/dev/iluvatar0", "/sys/module/iluvatar"),
    triton_extra_name="corex",  # from Triton 3.6 on
    fp64_enabled=False,
    targets={"": _CORE, "ivcore10": _CORE, "ivcore11": _CORE},
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The arch as CoreX' compiler names it (--cuda-gpu-arch); torch's capability imitates a CUDA chip's."""
    return by_name("cuda", index, {"BI-V150": "ivcore11", "BI-V100": "ivcore10"})
