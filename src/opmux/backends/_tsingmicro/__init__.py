"""Tsingmicro's reconfigurable chips."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase

# 16 tiles, each with 3 MiB of SPM, of which the system keeps 64 KiB (FlagGems' folder for Tsingmicro).
_TX81 = Target(cores=16, shared_memory=(3 << 20) - (64 << 10))

vendor_info = VendorInfoBase(
    vendor_name="tsingmicro",
    device_name="txda",
    device_query_cmd="tsm_smi",
    dispatch_key="PrivateUse1",
    torch_package="torch_txda",
    driver_files=("/dev/accel_drv_mgr",),
    fp64_enabled=False,
    int64_enabled=False,
    targets={"": _TX81, "tx81": _TX81},
    verified="nothing was run on this hardware",
)
