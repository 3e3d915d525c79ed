"""The processor itself: kernels in C++, compiled on the machine where they are first called."""

from .. import VendorInfoBase

vendor_info = VendorInfoBase(
    vendor_name="cpu",
    device_name="cpu",
    verified="run on aarch64 (Neoverse N1, NEON); the x86 paths (AVX2, AVX512) are torch's own at::vec",
)
