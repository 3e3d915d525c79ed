"""Ops for Hopper: the exported functions come before those of `_nvidia/ops`."""

from .cudnn import attention, attention_bwd, attention_general, attention_general_bwd
from .gluon_attention import (
    attention_bwd_in_gluon,
    attention_in_gluon,
    attention_varlen_bwd_in_gluon,
    attention_varlen_in_gluon,
)
from .gluon_attention_general import attention_general_bwd_in_gluon, attention_general_in_gluon
from .gluon_blocks import block_scaled_gemm_in_gluon

__all__ = [
    "attention",
    "attention_bwd",
    "attention_bwd_in_gluon",
    "attention_general",
    "attention_general_bwd",
    "attention_general_bwd_in_gluon",
    "attention_general_in_gluon",
    "attention_in_gluon",
    "attention_varlen_bwd_in_gluon",
    "attention_varlen_in_gluon",
    "block_scaled_gemm_in_gluon",
]
