"""Hygon's DCUs, which torch sees through HIP, as `cuda`."""

from opmux.backends import Target, VendorInfoBase

# Waves of 64 and 64 KiB of LDS, from FlagGems' notes on Hygon. Cores are read from the device.
_DCU = Target(shared_memory=64 << 10, warp_size=64)

vendor_info = VendorInfoBase(
    vendor_name="hygon",
    device_name="cuda",
    device_query_cmd="hy-smi",
    driver_files=("/dev/mkfd", "/opt/hyhal"),
    triton_extra_name="hip",
    # Z100, Z100L, K100, K100 AI, BW1000, BW1101, as the flags of DTK builds name them
    targets={"": _DCU, **dict.fromkeys("gfx906 gfx926 gfx928 gfx936 gfx938".split(), _DCU)},
    verified="nothing was run on this hardware",
)
