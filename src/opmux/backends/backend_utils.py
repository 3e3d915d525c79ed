"""The names that vendor packages written for FlagGems import from a module of this name.

It is imported as `backend_utils` too (opmux_startup.py), so its own imports name the package in full.
"""

from opmux.machine.vendors import Autograd, Target, VendorInfoBase

VendorDescriptor = VendorInfoBase

__all__ = ["Autograd", "Target", "VendorDescriptor", "VendorInfoBase"]
