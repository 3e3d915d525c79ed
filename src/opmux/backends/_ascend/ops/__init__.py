"""Ops for Ascend: what is exported here replaces the kernels for any chip, on NPUs."""

from .geglu import gelu_mul, gelu_mul_bwd

__all__ = ["gelu_mul", "gelu_mul_bwd"]
