"""Quantizers and quantized tensors of our own, for programs without Transformer Engine's Python layer.

They have the attributes that tex's functions read of that layer's classes, and nothing else; with the layer installed
its own classes are used.
"""

from .quantized import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    MXFP8Quantizer,
    MXFP8Tensor,
    NVFP4Quantizer,
    NVFP4Tensor,
)

__all__ = [
    "Float8BlockQuantizer", "Float8BlockwiseQTensor", "Float8CurrentScalingQuantizer", "Float8Quantizer",
    "Float8Tensor", "MXFP8Quantizer", "MXFP8Tensor", "NVFP4Quantizer", "NVFP4Tensor",
]  # fmt: skip
