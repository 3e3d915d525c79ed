"""Ops for Ascend: the exported functions replace our generic kernels on NPUs."""

from .geglu import gelu_mul, gelu_mul_bwd

__all__ = ["gelu_mul", "gelu_mul_bwd"]
