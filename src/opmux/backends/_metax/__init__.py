"""MetaX's GPUs, which torch sees as `cuda`."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_name

vendor_info = VendorInfoBase(
    vendor_name="metax",
    device_name="cuda",
    device_query_cmd="mx-smi -L",
    driver_files=("/dev/mxcd",),
    # Triton's driver for MACA has waves of 64 (its target is "maca", 80, 64). A whole C500 has 104 cores.
    targets={"": Target(warp_size=64), "xcore1000": Target(cores=104, warp_size=64)},
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The arch as MetaX' compiler names it (--offload-arch); torch's capability imitates a CUDA chip's."""
    return by_name("cuda", index, {"C500": "xcore1000", "C550": "xcore1000"})
