"""The CPU: kernels in C++, compiled on the machine when they are first called."""

from .. import VendorInfoBase

vendor_info = VendorInfoBase(
    vendor_name="cpu",
    device_name="cpu",
    verified={"cpu": "tested and measured on aarch64 (Neoverse N1), tested on x86-64"},
)
