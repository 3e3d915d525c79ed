"""Moore Threads' GPUs."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_capability

vendor_info = VendorInfoBase(
    vendor_name="mthreads",
    device_name="musa",
    device_query_cmd="mthreads-gmi -L",
    dispatch_key="PrivateUse1",
    torch_package="torch_musa",
    driver_files=("/dev/mtgpu.0", "/dev/mtgpu0"),
    fp64_enabled=False,
    # Sources: Triton's driver for MUSA for warp sizes, musaInfo of an S5000 in Moore Threads' installation guide for
    # the rest.
    targets={
        "mp_21": Target(warp_size=128),  # S80, S3000
        "mp_22": Target(warp_size=128),  # S4000
        "mp_31": Target(cores=56, shared_memory=192 << 10, warp_size=32, registers=131_072),  # S5000
    },
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    return by_capability("musa", index, "mp_")
