"""ATen's fused attention, which `F.scaled_dot_product_attention` calls on a GPU: flash and memory-efficient.

lse is the natural logarithm in both, as ours, so a forward of torch's goes with a backward of ours and the reverse.
Left to torch: dropout, whose random numbers are those of torch's kernels; `return_debug_mask`; float64; queries that
see no key, where lse differs. The memory-efficient kernels give [batch, seq, heads, dim] memory whatever q has: other
layouts of q, k and v are left to torch too, as our results follow those.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs.attention import order
from ...specs.attention_general import attention_general, attention_general_bwd

Fn = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)
SEQ_FIRST = (0, 2, 1, 3)  # a contiguous [batch, seq, heads, dim]
LSE_ALIGNMENT = 32  # of the memory-efficient kernels; the padding is +inf


def _fit(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, dtypes: tuple[torch.dtype, ...]) -> None:
    """Decline what torch refuses, or computes in another way than we do."""
    if dropout_p:
        raise NotSupported("dropout draws torch's random numbers")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not (q.numel() and k.numel() and v.numel()):
        raise NotSupported("tensors that are not [batch, heads, seq, dim], or empty")
    if q.dtype not in dtypes or k.dtype is not q.dtype or v.dtype is not q.dtype:
        raise NotSupported(f"{q.dtype}, {k.dtype} and {v.dtype} are left to torch")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise NotSupported("shapes that do not fit")


def _options(is_causal: bool, at_end: bool, scale: float | None, bias_grad: bool = False) -> tuple[Any, ...]:
    """The arguments of `attention_general` from `slopes` on."""
    return *(None,) * 7, 0, 0, -1, 0 if is_causal else -1, at_end, 0.0, 0.0, scale, bias_grad


# ---- flash: causal is aligned to the bottom right -------------------------------------------------------------------


def _fit_flash(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool) -> None:
    _fit(q, k, v, dropout_p, HALVES)
    if q.shape[3] != v.shape[3] or q.shape[3] % 8:
        raise NotSupported("dims that flash attention refuses or pads")
    if is_causal and q.shape[2] > k.shape[2]:
        raise NotSupported("queries that see no key, where torch's lse is +inf")


@adapt("_scaled_dot_product_flash_attention", over=attention_general)
def flash(
    call: Fn,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    _fit_flash(query, key, value, dropout_p, is_causal)
    if return_debug_mask:
        raise NotSupported("the debug mask is that of torch's kernel")
    o, lse = call(query, key, value, None, *_options(is_causal, True, scale))
    state = torch.empty((2,), dtype=torch.uint64, device=query.device)
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    return o, lse, None, None, query.shape[2], key.shape[2], state, unused, query.new_empty((0,))


@adapt("_scaled_dot_product_flash_attention_backward", over=attention_general_bwd)
def flash_backward(
    call: Fn,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Any:
    _fit_flash(query, key, value, dropout_p, is_causal)
    if grad_out.dtype is not query.dtype or logsumexp.shape != query.shape[:3]:
        raise NotSupported("a gradient of another dtype, or statistics of packed sequences")
    dq, dk, dv, _, _ = call(
        grad_out, query, key, value, out, logsumexp, None, *_options(is_causal, True, scale)
    )  # fmt: skip
    return dq, dk, dv


# ---- memory-efficient: causal is aligned to the top left -------------------------------------------------------------


def _fit_efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float) -> None:
    _fit(q, k, v, dropout_p, (*HALVES, torch.float32))
    if k.shape[1] != q.shape[1]:
        raise NotSupported("grouped heads, which torch refuses")
    if any(order(t) != SEQ_FIRST for t in (q, k, v)):
        raise NotSupported("results would lie in memory otherwise than torch's")
    if bias is not None and (bias.dim() != 4 or bias.dtype is not q.dtype or bias.shape[3] != k.shape[2]):
        raise NotSupported("a bias that is not [batch, heads, queries, keys] of the dtype of q")


@adapt("_scaled_dot_product_efficient_attention", over=attention_general)
def efficient(
    call: Fn,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    _fit_efficient(query, key, value, attn_bias, dropout_p)
    o, lse = call(query, key, value, attn_bias, *_options(is_causal, False, scale))
    batch, heads, queries = lse.shape
    if not compute_log_sumexp:
        lse = lse.new_empty((batch, heads, 0))
    elif queries % LSE_ALIGNMENT:
        lse = torch.nn.functional.pad(lse, (0, -queries % LSE_ALIGNMENT), value=torch.inf)
    # without dropout torch's seed and offset are memory as it was: on the CPU, unless a graph is captured
    on = query.device if query.is_cuda and torch.cuda.is_current_stream_capturing() else "cpu"
    seed, offset = (torch.empty((), dtype=torch.int64, device=on) for _ in range(2))
    return o, lse, seed, offset


@adapt("_scaled_dot_product_efficient_attention_backward", over=attention_general_bwd)
def efficient_backward(
    call: Fn,
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    _fit_efficient(query, key, value, attn_bias, dropout_p)
    queries = query.shape[2]
    if grad_out_.dtype is not query.dtype or logsumexp.dim() != 3 or logsumexp.shape[2] < queries:
        raise NotSupported("a gradient of another dtype, or no statistics")
    if grad_input_mask[3]:
        raise NotSupported("torch's gradient of the bias has rows padded to 16 elements")
    dq, dk, dv, _, _ = call(
        grad_out_, query, key, value, out, logsumexp[..., :queries], attn_bias, *_options(is_causal, False, scale)
    )  # fmt: skip
    return dq, dk, dv, None
