"""Norms and activations fused with quantization of the result, and with column sums (gradients of a bias).

Kernels exist for delayed, current and block scaling and MXFP8. With other quantizers, with an amax that is reduced over
ranks, and if fusion is slower, the result is computed first and then quantized.
"""

from typing import Any

import torch
from torch import Tensor

from ...specs.fused_quant import (
    NONE,
    act_fp8_blocks_into,
    act_fp8_cast_into,
    act_fp8_current_into,
    act_mxfp8_into,
    norm_fp8_blocks_into,
    norm_fp8_current_into,
    norm_mxfp8_into,
    result_shape,
)
from ...specs.quant import bytes_transpose, matrix, transposed_shape
from .quantized import (
    CASTS,
    empty,
    fp8_of,
    is_two_d,
    kind_of,
    per_tensor,
    quantized,
    recorded_amax,
    shaped,
    shared_amax,
    transposes,
    wrapped_fp8,
)

# The ops that the functions below call; adapters list them as `over`.
ACT_CASTS = (act_fp8_blocks_into, act_fp8_cast_into, act_fp8_current_into, act_mxfp8_into, *CASTS)
NORM_CASTS = (bytes_transpose, norm_fp8_blocks_into, norm_fp8_current_into, norm_mxfp8_into, *CASTS)


def is_delayed(quantizer: Any) -> bool:
    """Whether the scale is known before the result is computed."""
    return kind_of(quantizer) == "delayed"


def needs_transpose(quantizer: Any, device: torch.device) -> bool:
    return quantizer.columnwise_usage and transposes(device)


def fp8_tensor(call: Any, quantizer: Any, data: Tensor, scale_inv: Tensor, dtype: torch.dtype) -> Any:
    """Create a quantized tensor from bytes that a kernel has written; add the transpose of the bytes if needed."""
    gemms_need_transpose = transposes(data.device)
    rowwise = data if quantizer.rowwise_usage or not gemms_need_transpose else None
    transpose = call.bytes_transpose(data) if needs_transpose(quantizer, data.device) else None
    return wrapped_fp8(quantizer, rowwise, data.shape, dtype, transpose, scale_inv)


def _blocks(quantizer: Any) -> tuple[bool, bool, float]:
    return quantizer.block_scaling_dim == 2, quantizer.force_pow_2_scales, quantizer.amax_epsilon


def _in_rows(quantizer: Any, kind: str | None) -> bool:
    """Whether each block is within one row, so that a kernel can quantize a row as soon as it is computed."""
    if quantizer.columnwise_usage or not quantizer.rowwise_usage:
        return False
    return quantizer.block_scaling_dim == 1 if kind == "block" else kind == "mxfp8" and not is_two_d(quantizer)


def _two_passes_are_faster(kind: str, act: str, gated: bool, backward: bool) -> bool:
    """Whether one kernel that computes and one that quantizes are faster than the fused kernel. The bits are the same.

    Speed of the fused kernel relative to two passes on an H200, bfloat16 [8192, 4096] and [8192, 14336]:

    - 0.76 to 0.87 for a gate's gradient with blocks or MXFP8: the tiles of both halves compute the same derivative.
      Current scaling computes the derivative two more times; it was not measured.
    - 0.78 to 1.08 for MXFP8 with column sums and no activation.
    """
    return (kind != "delayed" and gated and backward) or (kind == "mxfp8" and act == NONE)


def act_quantized(
    call: Any, quantizer: Any, x: Tensor, dy: Tensor | None, act: str, gated: bool, dbias: Tensor | None = None
) -> Any:
    """Quantize f(x), or its gradient if dy is given; write column sums to dbias. None: use two passes instead."""
    kind = kind_of(quantizer)
    if kind not in ("delayed", "current", "block", "mxfp8") or not x.dim():
        return None
    if _two_passes_are_faster(kind, act, gated, dy is not None):
        return None
    if kind == "current" and quantizer.with_amax_reduction:
        return None
    shape, fp8 = result_shape(x, dy, gated), fp8_of(quantizer)
    output = empty(quantizer, shape, x.dtype, x.device)
    if kind == "block":
        buffers = shaped(output, shape, transposed_shape(shape))
        call.act_fp8_blocks_into(x, dy, *buffers, dbias, fp8, act, gated, *_blocks(quantizer))
        return output
    if kind == "mxfp8":
        buffers = shaped(output, shape, shape)
        call.act_mxfp8_into(x, dy, *buffers, dbias, fp8, act, gated, is_two_d(quantizer))
        return output
    buffers = (*per_tensor(output, shape), output._scale_inv)
    if kind == "delayed":
        amax = recorded_amax(quantizer)
        call.act_fp8_cast_into(x, dy, quantizer.scale, *buffers, amax, dbias, fp8, act, gated)
    else:
        pow2, eps = quantizer.force_pow_2_scales, quantizer.amax_epsilon
        call.act_fp8_current_into(x, dy, *buffers, dbias, fp8, act, gated, pow2, eps)
    return output


def with_sums(call: Any, x: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
    """Return the column sums of x, in the dtype of x, and the quantized x."""
    sums = x.new_empty(x.shape[-1:])
    output = act_quantized(call, quantizer, x, None, NONE, False, sums)
    if output is not None:
        return sums, output
    return x.reshape(matrix(x.shape)).sum(0), quantized(call, x.contiguous(), quantizer)


def norm_quantized(
    call: Any, quantizer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, offset: float, centred: bool
) -> tuple[Any, Tensor | None, Tensor] | None:
    """(quantized y, mean, rstd), where y is layer_norm(x) (`centred`) or rms_norm(x); None without a fused kernel."""
    kind = kind_of(quantizer)
    if kind not in ("current", "block", "mxfp8"):
        return None
    shape, fp8 = tuple(x.shape), fp8_of(quantizer)
    if _in_rows(quantizer, kind):
        output = empty(quantizer, shape, x.dtype, x.device)
        scaling = _blocks(quantizer)[1:] if kind == "block" else (True, 0.0)
        shared = (*shaped(output, shape, shape)[:2], fp8, eps, offset, *scaling)
        if centred:
            return output, *call.layer_norm_fp8_blocks_into(x, weight, bias, *shared)
        return output, None, call.rms_norm_fp8_blocks_into(x, weight, *shared)
    amax = x.new_zeros(1, dtype=torch.float32) if kind == "current" else None
    if centred:
        mean, rstd = call.layer_norm_stats(x, weight, bias, amax, eps, offset)
    else:
        mean, rstd = None, call.rms_norm_stats(x, weight, amax, eps, offset)
    output = empty(quantizer, shape, x.dtype, x.device)
    shared = (x, weight, bias, mean, rstd)
    if amax is not None:
        if quantizer.with_amax_reduction:
            shared_amax(amax, quantizer)
        buffers = (*per_tensor(output, shape), output._scale_inv)
        pow2, least = quantizer.force_pow_2_scales, quantizer.amax_epsilon
        call.norm_fp8_current_into(*shared, amax, *buffers, fp8, offset, pow2, least)
    elif kind == "block":
        call.norm_fp8_blocks_into(
            *shared, *shaped(output, shape, transposed_shape(shape)), fp8, offset, *_blocks(quantizer)
        )
    else:
        call.norm_mxfp8_into(*shared, *shaped(output, shape, shape), fp8, offset, is_two_d(quantizer))
    return output, mean, rstd
