"""The names that vendor packages written for FlagGems import from a module of this name.

opmux_startup.py also imports this module as `backend_utils`, so its own imports must be absolute.
"""

from opmux.machine.vendors import Autograd, Target, VendorInfoBase

VendorDescriptor = VendorInfoBase

__all__ = ["Autograd", "Target", "VendorDescriptor", "VendorInfoBase"]
