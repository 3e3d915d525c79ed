"""Ops for Ascend: the exported functions replace our generic kernels on NPUs."""

from .geglu import gelu_tanh_mul, gelu_tanh_mul_bwd

__all__ = ["gelu_tanh_mul", "gelu_tanh_mul_bwd"]
