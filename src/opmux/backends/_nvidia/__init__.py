"""NVIDIA's chips."""

from opmux.backends import Target, VendorInfoBase

# The arch folder of a chip; keys are "major.minor" or "major" of its compute capability, or "sm_90".
ARCH_MAP = {"12": "blackwell", "10": "blackwell", "9": "hopper", "8": "ampere"}


def _chip(shared_kib: int) -> Target:
    """Cores are read from the device: chips of one capability differ (sm_90: 132 on an H200, 78 on an H20)."""
    return Target(shared_memory=shared_kib << 10, warp_size=32, registers=65_536)


vendor_info = VendorInfoBase(
    vendor_name="nvidia",
    device_name="cuda",
    device_query_cmd="nvidia-smi -L",
    driver_files=("/dev/nvidiactl", "/proc/driver/nvidia/version"),
    # source: CUDA C++ Programming Guide, technical specifications per compute capability
    targets={
        "": _chip(48),
        "sm_70": _chip(96),
        "sm_72": _chip(96),
        "sm_75": _chip(64),
        "sm_80": _chip(163),
        "sm_86": _chip(99),
        "sm_87": _chip(163),
        "sm_89": _chip(99),
        "sm_90": _chip(227),
        "sm_100": _chip(227),
        "sm_103": _chip(227),
        "sm_110": _chip(227),
        "sm_120": _chip(99),
        "sm_121": _chip(99),
    },
    verified={"nvidia": "H200: kernels tested and measured; sm_80, sm_100: compiled only; others: nothing was run"},
)
