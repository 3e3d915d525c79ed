"""Cambricon's MLUs."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_name

# The usable NRAM of a core: 768 KiB (MLU370) or 512 KiB (MLU590), less 128 KiB that the compiler reserves (headers of
# Cambricon's mlu-ops). The number of cores is read from the device.
vendor_info = VendorInfoBase(
    vendor_name="cambricon",
    device_name="mlu",
    device_query_cmd="cnmon",
    dispatch_key="PrivateUse1",
    torch_package="torch_mlu",
    driver_files=("/dev/cambricon_ctl",),
    fp64_enabled=False,
    targets={
        "": Target(shared_memory=384 << 10),
        "mtp_372": Target(shared_memory=640 << 10),
        "mtp_592": Target(shared_memory=384 << 10),
    },
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The arch as Cambricon's compiler names it (--bang-mlu-arch)."""
    return by_name("mlu", index, {"MLU370": "mtp_372", "MLU590": "mtp_592"})
