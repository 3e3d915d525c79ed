"""Ops for VENDOR_TITLE's chips: a function exported under an op's name runs there instead of the kernel for any chip.

Names are those of `opmux.ops`; other names are added there unchanged. Ops of torch are listed as rows instead:

    def get_specific_ops():
        return (("mm", mm, Autograd.disable),)  # from opmux.backends import Autograd

    def get_unused_ops():
        return ("cumsum",)  # better left to torch
"""

from .silu_mul import silu_mul

__all__ = ["silu_mul"]
