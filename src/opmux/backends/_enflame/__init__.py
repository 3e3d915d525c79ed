"""Enflame's GCUs."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_capability

vendor_info = VendorInfoBase(
    vendor_name="enflame",
    device_name="gcu",
    device_query_cmd="efsmi -q",
    dispatch_key="PrivateUse1",
    torch_package="torch_gcu",
    driver_files=("/dev/gcuctl",),
    fp64_enabled=False,
    int64_enabled=False,
    # The grids that Enflame's guide to TritonGCU recommends: on GCU300 a program of 4 warps takes 4 of 24 processors.
    targets={"gcu300": Target(cores=6), "gcu400": Target(cores=24)},
    verified="nothing was run on this hardware",
)


def arch_of(index: int) -> str | None:
    """The arch from the compute capability: an S60 has 3.0, which is gcu300."""
    return by_capability("gcu", index, "gcu", digits=2)
