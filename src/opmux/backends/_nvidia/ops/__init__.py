"""Ops for NVIDIA's chips by libraries: torch's cuBLAS, cuDNN and flash attention, and other installed libraries."""

from ....tuning.provider_speed import ForSomeCalls
from . import cublas, flash, grouped, providers
from .cudnn import batch_norm, batch_norm_bwd
from .flash import (
    attention,
    attention_bwd,
    attention_general,
    attention_general_bwd,
    attention_varlen,
    attention_varlen_bwd,
)

globals().update(cublas.IMPLS | grouped.IMPLS | providers.IMPLS)


def get_preferred_ops():
    """torch's products and attention come before our kernels, which run only if a policy names them."""
    ours = {cublas.faster: cublas.IMPLS, grouped.faster: grouped.IMPLS, flash.faster: flash.IMPLS}
    ours |= {flash.faster_without_options: flash.GENERAL}
    reasons = {fn.op: faster for faster, impls in ours.items() for fn in impls.values()}
    # cuBLAS multiplies FP8 blocks of some sizes only; for other sizes, the reference multiplies in float32.
    return reasons | {cublas.block_scaled_gemm.op: ForSomeCalls(cublas.faster)}


__all__ = [
    "attention",
    "attention_bwd",
    "attention_general",
    "attention_general_bwd",
    "attention_varlen",
    "attention_varlen_bwd",
    "batch_norm",
    "batch_norm_bwd",
]
__all__ += [*cublas.IMPLS, *grouped.IMPLS, *providers.IMPLS]
