"""AMD's chips: Instinct (CDNA) and Radeon (RDNA)."""

from opmux.backends import Target, VendorInfoBase

# Arch name or prefix -> folder. CDNA 2 and 3 (gfx90a, gfx942) use this folder itself.
ARCH_MAP = {"gfx950": "cdna4", "gfx10": "rdna", "gfx11": "rdna", "gfx12": "rdna"}

# Source: "AMD GPU specifications" in ROCm's documentation. Cores are read from the device: an MI300X has 304, an MI300A
# 228.
_CDNA = Target(shared_memory=64 << 10, warp_size=64, registers=131_072)
_RDNA = Target(shared_memory=64 << 10, warp_size=32)
_RADEON = "gfx1030 gfx1031 gfx1032 gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1200 gfx1201"

vendor_info = VendorInfoBase(
    vendor_name="amd",
    device_name="cuda",
    # rocm-smi is not used: it succeeds on machines without a chip, and other vendors' copies of ROCm contain it.
    device_query_cmd="amd-smi list",
    driver_files=("/sys/module/amdgpu",),
    triton_extra_name="hip",
    targets={
        "": Target(shared_memory=64 << 10),
        "gfx908": _CDNA,
        "gfx90a": _CDNA,
        "gfx942": _CDNA,
        "gfx950": Target(shared_memory=160 << 10, warp_size=64, registers=131_072),
        **dict.fromkeys(_RADEON.split(), _RDNA),
    },
    verified={"amd": "gfx942: compiled only, without spills; nothing was run on this hardware"},
)
