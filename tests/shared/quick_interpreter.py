"""Triton's interpreter with less bookkeeping, as `opmux conform` runs it."""

from opmux.kernels.lib.quick_interpret import install

__all__ = ["install"]
