"""`flag_gems.fused`: fused ops that both FlagGems and opmux have, with FlagGems' arguments.

The ops for inference engines are in `inference.py`. All other ops except `fused_add_rms_norm` have gradients. They
compute in float32 (float64 for float64) and round once; `skip_layer_norm` also rounds x + residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functional import norms, rotary
from ...functional.glu import check_approximate
from ...specs import activation
from . import names
from .inference import apply_repetition_penalties as apply_repetition_penalties
from .inference import concat_and_cache_mla as concat_and_cache_mla
from .inference import flash_mla as flash_mla
from .inference import fused_experts_impl as fused_experts_impl
from .inference import grouped_topk as grouped_topk
from .inference import inplace_fused_experts as inplace_fused_experts
from .inference import moe_align_block_size as moe_align_block_size
from .inference import moe_align_block_size_triton as moe_align_block_size_triton
from .inference import moe_sum as moe_sum
from .inference import outplace_fused_experts as outplace_fused_experts
from .inference import reshape_and_cache as reshape_and_cache
from .inference import reshape_and_cache_flash as reshape_and_cache_flash
from .inference import topk_softmax as topk_softmax
from .inference import topk_softplus_sqrt as topk_softplus_sqrt
from .quantized import cutlass_scaled_mm as cutlass_scaled_mm
from .switch import everything

__all__ = [
    "apply_repetition_penalties",
    "apply_rotary_pos_emb",
    "bincount",
    "concat_and_cache_mla",
    "cross_entropy_loss",
    "cutlass_scaled_mm",
    "dgeglu",
    "dreglu",
    "dswiglu",
    "flash_mla",
    "fused_add_rms_norm",
    "fused_experts_impl",
    "geglu",
    "gelu_and_mul",
    "grouped_topk",
    "inplace_fused_experts",
    "instance_norm",
    "matmul_bias_activation",
    "moe_align_block_size",
    "moe_align_block_size_triton",
    "moe_sum",
    "outer",
    "outplace_fused_experts",
    "reglu",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "rms_norm",
    "rwkv_ka_fusion",
    "rwkv_mm_sparsity",
    "silu_and_mul",
    "silu_and_mul_out",
    "skip_layer_norm",
    "swiglu",
    "topk_softmax",
    "topk_softplus_sqrt",
    "weight_norm",
]


# ---- gated units ----------------------------------------------------------------------------------------------------


def silu_and_mul(A: Tensor, B: Tensor) -> Tensor:
    """silu(A) * B, broadcast against each other."""
    return activation.silu_mul(*_alike(A, B))


def silu_and_mul_out(A: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """silu(A) * B, written to `out`."""
    return out.copy_(silu_and_mul(A, B))


def gelu_and_mul(x: Tensor, y: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x) * y, broadcast against each other; `approximate` is "none" or "tanh", as in torch's gelu."""
    check_approximate("gelu_and_mul", approximate)
    return (activation.gelu_tanh_mul if approximate == "tanh" else activation.gelu_mul)(*_alike(x, y))


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.dtype is not y.dtype:
        wide = torch.promote_types(x.dtype, y.dtype)
        x, y = x.to(wide), y.to(wide)
    return (x, y) if x.shape == y.shape else tuple(torch.broadcast_tensors(x, y))  # type: ignore[return-value]


def _no_quantizer(name: str, quantizer: Any) -> None:
    if quantizer is not None:
        raise NotImplementedError(f"flag_gems.{name}: quantizer must be None; opmux.tex.{name} takes one")


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    return first, second


def geglu(input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """gelu (tanh) of the first half of the last dimension, times the second half."""
    _no_quantizer("geglu", quantizer)
    return activation.gelu_tanh_mul(*_halves(input_tensor))


def reglu(input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """relu of the first half of the last dimension, times the second half."""
    _no_quantizer("reglu", quantizer)
    return activation.relu_mul(*_halves(input_tensor))


def swiglu(input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """silu of the first half of the last dimension, times the second half."""
    _no_quantizer("swiglu", quantizer)
    return activation.silu_glu(input_tensor)


def dgeglu(grad_output: Tensor, input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """The gradient of `geglu`."""
    return _gradient(geglu, grad_output, input_tensor, quantizer)


def dreglu(grad_output: Tensor, input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """The gradient of `reglu`."""
    return _gradient(reglu, grad_output, input_tensor, quantizer)


def dswiglu(grad_output: Tensor, input_tensor: Tensor, quantizer: Any = None) -> Tensor:
    """The gradient of `swiglu`."""
    return _gradient(swiglu, grad_output, input_tensor, quantizer)


def _gradient(fn: Any, grad_output: Tensor, x: Tensor, quantizer: Any) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(fn(x, quantizer), x, grad_output)
    return grad


# ---- norms ----------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) * weight, over the last dimensions, which have `normalized_shape`."""
    rows, n = _rows(x, normalized_shape)
    return norms.rms_norm(rows, weight.reshape(n), eps, casting="gemma").view(x.shape)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Write x + residual to `residual` and its rms_norm to `x`; return both. No gradient, as in FlagGems."""
    with torch.no_grad():
        rows, n = _rows(x, normalized_shape)
        y, total = norms.add_rms_norm(rows, residual.reshape(rows.shape), weight.reshape(n), eps, casting="gemma")
        x.copy_(y.view(x.shape))
        residual.copy_(total.view(residual.shape))
    return x, residual


def skip_layer_norm(
    x: Tensor, residual: Tensor, normalized_shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> Tensor:
    """layer_norm(x + residual). Unlike FlagGems' function, it has gradients."""
    with everything:
        return norms.layer_norm(x + residual, normalized_shape, weight, bias, eps)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """v * g / norm(v), with the norm over all dimensions except `dim`."""
    with everything:
        return torch._weight_norm(v, g, dim)


def _rows(x: Tensor, normalized_shape: Sequence[int]) -> tuple[Tensor, int]:
    dims = tuple(normalized_shape)
    if not dims or tuple(x.shape[-len(dims) :]) != dims:
        raise ValueError(f"normalized_shape must be the last dimensions of x {tuple(x.shape)}; got {dims}")
    n = math.prod(dims)
    return (x if len(dims) == 1 else x.reshape(*x.shape[: -len(dims)], n)), n


# ---- others ---------------------------------------------------------------------------------------------------------


def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    rotary_interleaved: bool = False,
    inplace: bool = False,
) -> tuple[Tensor, Tensor]:
    """Rotate q and k by the angles of their positions, whose cosines and sines are rows of `cos` and `sin`.

    Args:
        q: [batch, length, heads, d]; with position_ids, [..., heads, d].
        k: like q; the number of heads may differ.
        cos: [positions, d/2].
        sin: like cos.
        position_ids: int [...], the table row of each token; default: the index of the token in its sequence.
        rotary_interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d/2).
        inplace: write the results to q and k.
    """
    if position_ids is None:
        if q.dim() != 4:
            raise ValueError(f"q must have 4 dimensions if there are no position_ids; got {tuple(q.shape)}")
        cos, sin, y, z = cos[: q.shape[1]], sin[: q.shape[1]], q, k
    else:
        index = position_ids.reshape(-1)
        cos, sin = cos[index], sin[index]
        y, z = q.reshape(1, -1, *q.shape[-2:]), k.reshape(1, -1, *k.shape[-2:])
    y, z = rotary.rope(y, z, cos, sin, layout="bshd", interleaved=rotary_interleaved, per_pair=True)
    assert z is not None
    y, z = y.reshape(q.shape), z.reshape(k.shape)
    if not inplace:
        return y, z
    with torch.no_grad():
        return q.copy_(y), k.copy_(z)


def cross_entropy_loss(
    inp: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` with opmux's kernels."""
    with everything:
        return F.cross_entropy(
            inp, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )


def outer(inp: Tensor, weight: Tensor) -> Tensor:
    """The outer product of two vectors."""
    with everything:
        return torch.outer(inp, weight)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer from 0 on occurs in `input`; with weights, the sum of its weights."""
    with everything:
        return torch.bincount(input, weights, minlength)


def instance_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    cudnn_enable: bool = False,
) -> Tensor:
    """`torch.instance_norm`; `cudnn_enable` has no effect."""
    with everything:
        return torch.instance_norm(
            input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enable
        )


def matmul_bias_activation(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(input @ weight + bias) of matrices; bias is [n] or [1, n]."""
    with everything:
        return torch.relu(torch.addmm(bias.reshape(-1), input, weight))


def rwkv_ka_fusion(k: Tensor, kk: Tensor, a: Tensor, ka: Tensor, H: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """New keys, normalized keys, and normalized keys times `a`, for keys k [tokens, H * N] of RWKV-7.

    The results are k * (1 + (a - 1) * ka), u = k * kk / norm(k * kk) for each head of N elements, and u * a.
    """
    u = torch.nn.functional.normalize((k * kk).unflatten(-1, (H, N)).float(), dim=-1, eps=1e-6)
    u = u.flatten(-2).to(k.dtype)
    return (k * (1 + (a.float() - 1) * ka)).to(k.dtype), u, u * a


def rwkv_mm_sparsity(k: Tensor, v: Tensor) -> Tensor:
    """k @ v for a vector k, many of whose elements may be 0, and a matrix v."""
    with everything:
        return k @ v


def __getattr__(name: str) -> Any:
    why = names.left.refused("fused", name)
    module = names.submodule(f"fused.{name}") if why is None else None
    if module is None:
        raise AttributeError(f"module 'flag_gems.fused' of opmux has no '{name}'" + (f": {why}" if why else ""))
    return module
