"""Functions of `flag_gems.ops` that ATen does not have, or whose results differ from those of ATen's op.

They have FlagGems' arguments, and run on opmux's kernels through torch's or opmux's ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...functional import scaled_dot_product
from ...specs import norm, softmax
from .fused import _rows
from .quantized import (
    SUPPORTED_FP8_DTYPE,
    act_quant_triton,
    fp8_matmul,
    per_token_group_quant_fp8,
    w8a8_block_fp8_matmul,
)
from .switch import everything

__all__ = [
    "SUPPORTED_FP8_DTYPE",
    "ScaleDotProductAttention",
    "_assert_async",
    "_compute_linear_combination",
    "_list_to_tensor",
    "act_quant_triton",
    "contiguous",
    "flash_attn_varlen_func",
    "flash_attn_varlen_opt_func",
    "float_power_",
    "fp8_matmul",
    "gather_block_quantized",
    "hadamard_transform",
    "nll_loss_nd_backward",
    "nll_loss_nd_forward",
    "normed_cumsum",
    "per_token_group_quant_fp8",
    "rms_norm_backward",
    "rms_norm_forward",
    "rmsnorm",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_forward",
    "scaled_softmax_backward",
    "scaled_softmax_forward",
    "w8a8_block_fp8_matmul",
]


# ---- norms and softmax ----------------------------------------------------------------------------------------------


def rms_norm_forward(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The RMS norm over the last dimensions, and rsqrt(mean(x^2) + eps) of each row, float32 [rows]."""
    rows, n = _rows(x, normalized_shape)
    y, rstd = norm.rms_norm(rows, weight.reshape(n), eps)
    return y.view(x.shape), rstd.reshape(-1)


def rms_norm_backward(
    dy: Tensor, x: Tensor, inv_rms: Tensor, normalized_shape: Sequence[int], weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight; `inv_rms` is the second result of `rms_norm_forward`."""
    rows, n = _rows(x, normalized_shape)
    dx, dw = norm.rms_norm_bwd(dy.reshape(rows.shape), rows, weight.reshape(n), inv_rms.view(rows.shape[:-1]))
    return dx.view(x.shape), dw.view(weight.shape)


def rmsnorm(input_tensor: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The RMS norm over the last dimension."""
    return norm.rms_norm(input_tensor, weight, eps)[0]


def scaled_softmax_forward(input_t: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input_t) over the last dimension."""
    return softmax.scaled_softmax(input_t, None, scale_factor)


def scaled_softmax_backward(grad_output: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of `scaled_softmax_forward`, from its result."""
    return softmax.scaled_softmax_bwd(grad_output, softmax_results, scale_factor)


def normed_cumsum(inp: Tensor, dim: int = -1) -> Tensor:
    """The cumulative sum divided by the sum, along `dim`."""
    with everything:
        total = torch.cumsum(inp, dim)
        return total / total.narrow(dim, -1, 1)


def hadamard_transform(x: Tensor, scale: float = 1.0) -> Tensor:
    """Multiply each row by the Hadamard matrix of the next power of two, and by `scale`; rows are padded with zeros."""
    n = x.shape[-1]
    size = 1 << max(n - 1, 0).bit_length()
    y = torch.nn.functional.pad(x, (0, size - n))
    y = y if x.dtype is torch.float64 else y.float()
    for _ in range(size.bit_length() - 1):
        first, second = y[..., ::2], y[..., 1::2]
        y = torch.cat((first + second, first - second), -1)
    return (y * scale)[..., :n].to(x.dtype)


# ---- losses ---------------------------------------------------------------------------------------------------------


def nll_loss_nd_forward(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """nll_loss of scores [classes], [n, classes] or [n, classes, ...], and the total weight."""
    scores, labels = _planes(input, target)
    run = torch.ops.aten.nll_loss2d_forward if scores.dim() == 4 else torch.ops.aten.nll_loss_forward
    with everything:
        loss, total = run(scores, labels, weight, reduction, ignore_index)
    return (loss.view(target.shape) if reduction == 0 else loss), total


def nll_loss_nd_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    total_weight: Tensor | None = None,
) -> Tensor:
    """The gradient of `nll_loss_nd_forward`; `total_weight` is its second result."""
    scores, labels = _planes(input, target)
    if total_weight is None:
        total_weight = nll_loss_nd_forward(input, target, weight, reduction, ignore_index)[1]
    run = torch.ops.aten.nll_loss2d_backward if scores.dim() == 4 else torch.ops.aten.nll_loss_backward
    dy = grad_output.reshape(labels.shape) if reduction == 0 else grad_output
    with everything:
        return run(dy, scores, labels, weight, reduction, ignore_index, total_weight).view(input.shape)


def _planes(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and labels in the form that ATen's kernels take: [n, classes] or [n, classes, h, w]."""
    if input.dim() in (1, 2, 4):
        return input, target
    n, classes = input.shape[:2]
    size = math.prod(input.shape[2:])
    return input.reshape(n, classes, 1, size), target.reshape(n, 1, size)


# ---- attention ------------------------------------------------------------------------------------------------------


def scaled_dot_product_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention, and the natural logarithm of the softmax's denominator, float32 [batch, heads, queries]."""
    _check_heads(query, key, enable_gqa)
    with torch.no_grad():
        return scaled_dot_product.attention(
            query, key, value, causal=is_causal, top_left=True, bias=attn_mask, dropout_p=dropout_p, scale=scale,
            return_lse=True,
        )  # fmt: skip


def scaled_dot_product_attention_backward(
    do: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    o: Tensor,
    M: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value. Computes the forward again instead of reading `o` and `M`."""
    if dropout_p:
        raise NotImplementedError("flag_gems.scaled_dot_product_attention_backward: dropout_p must be 0; use autograd")
    _check_heads(query, key, enable_gqa)
    with torch.enable_grad():
        inputs = [t.detach().requires_grad_() for t in (query, key, value)]
        again = scaled_dot_product.attention(*inputs, causal=is_causal, top_left=True, bias=attn_mask, scale=scale)
        dq, dk, dv = torch.autograd.grad(again, inputs, do)
    return dq, dk, dv


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"flag_gems: key must have {query.shape[1]} heads, as query has, or enable_gqa must be True; "
            f"got {key.shape[1]}"
        )


class ScaleDotProductAttention:
    """`apply` is torch's scaled_dot_product_attention on opmux's kernels, with a gradient."""

    @staticmethod
    def apply(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        with everything:
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Any = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    s_aux: Tensor | None = None,
    num_splits: int = 0,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
    fa_version: int = 2,
) -> Any:
    """Attention of packed sequences of different lengths, as flash-attn's function of this name computes it.

    Args:
        q: [tokens, heads, dim].
        k: [tokens, kv_heads, dim]; with a block_table [pages, page_size, kv_heads, dim].
        v: like k.
        max_seqlen_q: the longest sequence of q.
        cu_seqlens_q: int32 [batch + 1], where each sequence starts.
        max_seqlen_k: the longest sequence of k.
        cu_seqlens_k: like cu_seqlens_q; not needed with block_table and seqused_k.
        seqused_k: int32 [batch], how many keys of each sequence are used; the rest is padding.
        softmax_scale: multiplies the scores; default 1 / sqrt(dim).
        causal: a query attends to no key after its own position; the last query is aligned with the last key.
        window_size: the numbers of keys before and after its own position that a query attends to; -1 for all.
        block_table: int32 [batch, max_pages], the pages of each sequence. The pages are copied.
        return_softmax_lse: also return the logarithm of the softmax's denominator, float32 [heads, tokens].
        out: receives the result.
        s_aux: [heads], for each head the score of an extra key whose value is 0.

    The other arguments must have their defaults, except those that only choose how FlagGems' kernels run
    (deterministic, scheduler_metadata, num_splits, fa_version).
    """
    if cu_seqlens_k is None and (block_table is None or seqused_k is None):
        raise ValueError("flag_gems.flash_attn_varlen_func: give cu_seqlens_k, or block_table and seqused_k")
    unsupported = {"q_v": q_v, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    unsupported |= {"return_attn_probs": return_attn_probs or None, "cp_world_size": None if cp_world_size == 1 else 2}
    for name, value in unsupported.items():
        if value is not None:
            raise NotImplementedError(f"flag_gems.flash_attn_varlen_func: {name} is not supported")
    if block_table is not None:
        if seqused_k is None and cu_seqlens_k is not None:
            seqused_k = cu_seqlens_k.diff()
        batch, pages = block_table.shape
        capacity = pages * k.shape[1]
        k, v = (t[block_table.long()].reshape(batch * capacity, *t.shape[2:]) for t in (k, v))
        cu_seqlens_k = torch.arange(batch + 1, device=q.device, dtype=torch.int32) * capacity
        max_seqlen_k = capacity
    left, right = (-1, -1) if window_size is None else window_size
    result, lse = scaled_dot_product.attention(
        q, k, v, causal=causal, window=(left, right), alibi=False if alibi_slopes is None else alibi_slopes,
        softcap=softcap, sink=s_aux, dropout_p=dropout_p, scale=softmax_scale,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        seqlens_k=seqused_k, return_lse=True,
    )  # fmt: skip
    result = result if out is None else out.copy_(result)
    return (result, lse) if return_softmax_lse else result


def flash_attn_varlen_opt_func(*args: Any, lse: Tensor | None = None, **named: Any) -> Any:
    """`flash_attn_varlen_func`; `lse` receives the logarithm of the softmax's denominator."""
    if lse is None:
        return flash_attn_varlen_func(*args, **named)
    result, new_lse = flash_attn_varlen_func(*args, **{**named, "return_softmax_lse": True})
    lse.copy_(new_lse)
    return (result, lse) if named.get("return_softmax_lse") else result


# ---- others ---------------------------------------------------------------------------------------------------------


def contiguous(inp: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    """`inp` if it is contiguous in this format, otherwise a copy that is."""
    with everything:
        return inp.contiguous(memory_format=memory_format)


def float_power_(self: Tensor, exponent: Any) -> Tensor:
    """self to the power of exponent, computed in float64 and written to self, which may have any floating dtype."""
    with everything:
        return self.copy_(torch.float_power(self, exponent))


def _assert_async(self: Tensor, assert_msg: str | None = None) -> None:
    """Raise (on a GPU: abort the kernel) unless `self` has one element that is not 0."""
    if assert_msg is None:
        torch.ops.aten._assert_async(self)
    else:
        torch.ops.aten._assert_async.msg(self, assert_msg)


def _list_to_tensor(self: Sequence[int]) -> Tensor:
    """A tensor of these integers, int64 on the CPU."""
    return torch.tensor(list(self), dtype=torch.int64)


def _compute_linear_combination(input: Tensor, coefficients: Tensor, out: Tensor | None = None) -> Tensor:
    """result[i, ...] = sum over k of coefficients[i, k] * input[k, ...]; with `out`, added to it."""
    with everything:
        total = torch.tensordot(coefficients.to(input.dtype), input, dims=1)
        return total if out is None else out.add_(total)


def gather_block_quantized(input_tensor: Tensor, indices: Tensor, dimension: int = 0) -> Tensor:
    """`torch.gather` on uint8 tensors that hold quantized blocks."""
    with everything:
        return torch.gather(input_tensor, dimension, indices)
