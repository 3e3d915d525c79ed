"""The names that vendor packages written for FlagGems import from a module of this name."""

from ..runtime.vendors import Autograd, Target, VendorInfoBase

VendorDescriptor = VendorInfoBase

__all__ = ["Autograd", "Target", "VendorDescriptor", "VendorInfoBase"]
