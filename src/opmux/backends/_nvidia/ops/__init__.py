"""Ops for NVIDIA's chips by libraries: cuBLAS, cuDNN and flash attention as torch has them, and what is installed."""

from . import providers
from .cublas import linear, linear_bwd
from .cudnn import batch_norm, batch_norm_bwd
from .flash import attention, attention_bwd

globals().update(providers.IMPLS)

__all__ = ["attention", "attention_bwd", "batch_norm", "batch_norm_bwd", "linear", "linear_bwd"]
__all__ += providers.IMPLS
