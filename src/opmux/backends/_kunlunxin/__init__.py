"""Kunlunxin's XPUs, which torch sees as `cuda`."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_name

vendor_info = VendorInfoBase(
    vendor_name="kunlunxin",
    device_name="cuda",
    # Intel's tool has the same name, but no such option.
    device_query_cmd="xpu-smi -m",
    driver_files=("/dev/xpuctrl",),
    triton_extra_name="xpu",
    fp64_enabled=False,
    # 12 clusters run programs in parallel (FlagGems' kernels for Kunlunxin). There are no warps (Triton's driver).
    targets={"xpu3": Target(cores=12)},
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The generation; torch's capability, 8.6, imitates a CUDA chip's."""
    return by_name("cuda", index, {"P800": "xpu3"})
