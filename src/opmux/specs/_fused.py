"""Float8 results of kernels as the tensors that quantizers make: for tex's norms and activations."""

from typing import Any

import torch
from torch import Tensor

from ._quantized import kind_of, transposes, wrapped_fp8
from ._tex import torch_dtype
from .quant import bytes_transpose


def fuses(quantizer: Any) -> bool:
    """Whether the result of a kernel can be cast as it is computed: the scale is known beforehand."""
    return kind_of(quantizer) == "delayed"


def fp8_of(quantizer: Any) -> torch.dtype:
    return torch_dtype(quantizer.dtype)


def fp8_tensor(quantizer: Any, data: Tensor, scale_inv: Tensor, dtype: torch.dtype, call: Any = None) -> Any:
    """A tensor of the quantizer's kind of bytes that a kernel has written, with their transpose where it is wanted."""
    turns = transposes(data.device)
    held = data if quantizer.rowwise_usage or not turns else None
    turned = (
        (bytes_transpose if call is None else call.bytes_transpose)(data)
        if turns and quantizer.columnwise_usage
        else None
    )
    return wrapped_fp8(quantizer, held, data.shape, dtype, turned, scale_inv)
