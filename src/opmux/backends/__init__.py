"""What a chip does differently: one folder `_<vendor>/` for each vendor, found by name when it is first needed."""

from ..runtime.detect import infer_device
from ..runtime.vendor import Autograd, BadVendor, Target
from .registry import VENDOR_REGISTRY, VendorInfo, VendorInfoBase, register_vendor

__all__ = [
    "VENDOR_REGISTRY",
    "Autograd",
    "BadVendor",
    "Target",
    "VendorInfo",
    "VendorInfoBase",
    "infer_device",
    "register_vendor",
]
