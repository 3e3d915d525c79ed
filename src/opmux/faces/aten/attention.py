"""ATen's fused attention, which `F.scaled_dot_product_attention` calls on a GPU: flash and memory-efficient.

`_scaled_dot_product_..` takes [batch, heads, seq, dim]. The lower-level overloads take [batch, seq, heads, dim], or
packed sequences: [tokens, heads, dim] for flash, [1, tokens, heads, dim] for memory-efficient.

Both torch's kernels and ours return lse as a natural logarithm, so either forward works with either backward. Results
of flash attention have the memory layout of q, k and v, in torch and in opmux. Results of memory-efficient attention
always have the layout of a contiguous [batch, seq, heads, dim].

Left to torch: dropout, because our random numbers differ from those of torch's kernels; the debug mask; float64; ALiBi,
because torch's lse differs from ours; a paged cache; the gradient of a bias, because torch pads its rows.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.adapter import adapt
from ...core.errors import NotSupported
from ...specs.attention_general import attention_general, attention_general_bwd

Fn = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)
FLASH_WIDEST = 256  # the largest head dim that flash attention accepts
LSE_ALIGNMENT = 32  # the memory-efficient kernels pad rows of lse with +inf to a multiple of this
NO_MASK, TOP_LEFT, BOTTOM_RIGHT = 0, 1, 2  # custom_mask_type of the memory-efficient kernels
WHOLE = (None, None, None, None, 0, 0)  # cu_q, cu_k, q_sizes, k_sizes, max_q, max_k of unpacked sequences


def _fit(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, dtypes: tuple[torch.dtype, ...]) -> None:
    """Decline arguments that torch rejects or for which torch's result differs from ours."""
    if dropout_p:
        raise NotSupported("dropout draws torch's random numbers")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not (q.numel() and k.numel() and v.numel()):
        raise NotSupported("tensors that are not [batch, heads, seq, dim], or empty")
    if q.dtype not in dtypes or k.dtype is not q.dtype or v.dtype is not q.dtype:
        raise NotSupported(f"{q.dtype}, {k.dtype} and {v.dtype} are left to torch")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise NotSupported("shapes that do not fit")


def _options(
    left: int, right: int, at_end: bool, scale: float | None, packed: tuple[Any, ...] = WHOLE, seq_first: bool = False
) -> tuple[Any, ...]:
    """The arguments of `attention_general`, starting with `slopes`."""
    return None, None, None, *packed, left, right, at_end, 0.0, 0.0, scale, False, seq_first


def _fit_offsets(cu_q: Tensor, cu_k: Tensor | None) -> None:
    if cu_k is None or cu_q.shape != cu_k.shape or cu_q.dim() != 1 or cu_q.shape[0] < 2:
        raise NotSupported("offsets of packed sequences that torch refuses")
    if cu_q.dtype is not torch.int32 or cu_k.dtype is not torch.int32:
        raise NotSupported("offsets that are not int32, which torch refuses")


# ---- flash: causal is aligned to the bottom right -------------------------------------------------------------------


def _fit_flash(q: Tensor, k: Tensor, v: Tensor, dropout_p: float) -> None:
    _fit(q, k, v, dropout_p, HALVES)
    if q.shape[3] != v.shape[3] or q.shape[3] % 8 or q.shape[3] > FLASH_WIDEST:
        raise NotSupported("dims that flash attention refuses or pads")


def _all_have_keys(q: Tensor, k: Tensor, right: int) -> None:
    if right >= 0 and q.shape[2] > k.shape[2]:
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
    _fit_flash(query, key, value, dropout_p)
    right = 0 if is_causal else -1
    _all_have_keys(query, key, right)
    if return_debug_mask:
        raise NotSupported("the debug mask is that of torch's kernel")
    o, lse = call(query, key, value, None, *_options(-1, right, True, scale))
    return o, lse, None, None, query.shape[2], key.shape[2], *_nothing_dropped(query)


def _nothing_dropped(query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The last three results of flash attention without dropout: random state, an unused tensor, debug mask."""
    state = torch.empty((2,), dtype=torch.uint64, device=query.device)
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    return state, unused, query.new_empty((0,))


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
    _fit_flash(query, key, value, dropout_p)
    right = 0 if is_causal else -1
    _all_have_keys(query, key, right)
    _fit_gradient(grad_out, query, logsumexp, query.shape[:3])
    tensors = (grad_out, query, key, value, out, logsumexp, None)
    return call(*tensors, *_options(-1, right, True, scale))[:3]


def _fit_gradient(grad_out: Tensor | None, q: Tensor, lse: Tensor, shape: Any) -> None:
    if grad_out is None or grad_out.dtype is not q.dtype or lse.shape != shape:
        raise NotSupported("no gradient or one of another dtype, or statistics of another shape")


# ---- flash, [batch, seq, heads, dim] or packed ----------------------------------------------------------------------


def _heads_first(packed: bool, *tensors: Tensor) -> list[Tensor]:
    """[batch, heads, seq, dim] views of [batch, seq, heads, dim], or of packed [tokens, heads, dim]."""
    rank = 3 if packed else 4
    if any(t.dim() != rank for t in tensors):
        raise NotSupported(f"tensors of other than {rank} dimensions, which torch refuses")
    return [t.transpose(0, 1)[None] if packed else t.transpose(1, 2) for t in tensors]


def _seq_first(packed: bool, t: Tensor) -> Tensor:
    return t[0].transpose(0, 1) if packed else t.transpose(1, 2)


def _flash_options(
    q: Tensor,
    k: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool,
    left: int | None,
    right: int | None,
    scale: float | None,
    seqused_k: Tensor | None = None,
) -> tuple[Any, ...]:
    """The arguments of `attention_general`, starting with `slopes`, for flash attention's window sizes."""
    keys = k.shape[2] if cu_q is None else max_k
    left, right = (-1 if n is None or n < 0 or n >= keys else n for n in (left, right))
    right = 0 if is_causal else keys if left >= 0 > right else right
    if cu_q is None:
        if cu_k is not None or seqused_k is not None:
            raise NotSupported("lengths of sequences that are not packed")
        _all_have_keys(q, k, right)
        return _options(left, right, True, scale)
    _fit_offsets(cu_q, cu_k)
    sizes = (None, None) if seqused_k is None else (cu_q.diff(), seqused_k)
    return _options(left, right, True, scale, (cu_q, cu_k, *sizes, max_q, max_k))


@adapt("_flash_attention_forward", over=attention_general)
def flash_attention_forward(
    call: Fn,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    if return_debug_mask:
        raise NotSupported("the debug mask is that of torch's kernel")
    if alibi_slopes is not None or block_table is not None:
        raise NotSupported("ALiBi, where torch's lse differs, or a paged cache")
    packed = cum_seq_q is not None
    q, k, v = _heads_first(packed, query, key, value)
    _fit_flash(q, k, v, dropout_p)
    options = _flash_options(
        q, k, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right, scale, seqused_k
    )
    o, lse = call(q, k, v, None, *options)
    if cum_seq_q is not None:
        lse = lse[0]
        # torch's lse is +inf for a query without visible keys; only the device knows whether such a query exists
        if seqused_k is not None or cum_seq_k is None or cum_seq_q.data_ptr() != cum_seq_k.data_ptr():
            lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    return _seq_first(packed, o), lse, *_nothing_dropped(query)


@adapt("_flash_attention_backward", over=attention_general_bwd)
def flash_attention_backward(
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
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Any:
    packed = cum_seq_q is not None
    lse = logsumexp[None] if packed else logsumexp
    q, k, v, o = _heads_first(packed, query, key, value, out)
    _fit_flash(q, k, v, dropout_p)
    _fit_gradient(grad_out, q, lse, q.shape[:3])
    options = _flash_options(
        q, k, cum_seq_q, cum_seq_k, max_q, max_k, is_causal, window_size_left, window_size_right, scale
    )
    gradients = call(*_heads_first(packed, grad_out), q, k, v, o, lse, None, *options)
    return tuple(_seq_first(packed, t) for t in gradients[:3])


# ---- memory-efficient: causal is aligned to the top left -------------------------------------------------------------


def _fit_efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout_p: float) -> None:
    _fit(q, k, v, dropout_p, (*HALVES, torch.float32))
    if k.shape[1] != q.shape[1]:
        raise NotSupported("grouped heads, which torch refuses")
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
    options = _options(-1, 0 if is_causal else -1, False, scale, seq_first=True)
    o, lse = call(query, key, value, attn_bias, *options)
    batch, heads, queries = lse.shape
    if not compute_log_sumexp:
        lse = lse.new_empty((batch, heads, 0))
    elif queries % LSE_ALIGNMENT:
        lse = torch.nn.functional.pad(lse, (0, -queries % LSE_ALIGNMENT), value=torch.inf)
    # without dropout torch returns an uninitialized seed and offset; they are on the CPU, except during graph capture
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
    _bias_has_no_gradient(grad_input_mask[3])
    lse = logsumexp[..., : query.shape[2]]
    _fit_gradient(grad_out_, query, lse, query.shape[:3])
    options = _options(-1, 0 if is_causal else -1, False, scale, seq_first=True)
    dq, dk, dv, *_ = call(grad_out_, query, key, value, out, lse, attn_bias, *options)
    return dq, dk, dv, None


def _bias_has_no_gradient(wanted: bool) -> None:
    if wanted:
        raise NotSupported("torch's gradient of the bias has rows padded to 16 elements")


@adapt("_efficient_attention_backward", over=attention_general_bwd)
def efficient_attention_backward(
    call: Fn,
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> Any:
    """Inputs are [batch, seq, heads, dim]; packed sequences have a batch of 1."""
    q, k, v, o = _heads_first(False, query, key, value, out)
    _fit_efficient(q, k, v, bias, dropout_p)
    _bias_has_no_gradient(bias_requires_grad)
    if window_size or custom_mask_type not in (NO_MASK, TOP_LEFT, BOTTOM_RIGHT):
        raise NotSupported("a window, or a mask that torch does not know")
    if shared_storage_dqdkdv and not query.shape == key.shape == value.shape:
        raise NotSupported("gradients in one tensor of q, k and v of different shapes, which torch refuses")
    if cu_seqlens_q is None:
        packed, lse = WHOLE, logsumexp[..., : q.shape[2]]
        if bias is not None and bias.shape != (*q.shape[:3], k.shape[2]):
            raise NotSupported("a bias of another shape, which torch refuses")
    else:
        _fit_offsets(cu_seqlens_q, cu_seqlens_k)
        if bias is not None or q.shape[0] != 1:
            raise NotSupported("packed sequences with a bias or a batch, which torch refuses")
        packed = (cu_seqlens_q, cu_seqlens_k, None, None, max_seqlen_q, max_seqlen_k)
        lse = _by_token(logsumexp, cu_seqlens_q, q.shape[2])
    _fit_gradient(grad_out_, q, lse, q.shape[:3])
    right = -1 if custom_mask_type == NO_MASK else 0
    options = _options(-1, right, custom_mask_type == BOTTOM_RIGHT, scale, packed, seq_first=True)
    gradients = call(*_heads_first(False, grad_out_), q, k, v, o, lse, bias, *options)
    dq, dk, dv = (t.transpose(1, 2) for t in gradients[:3])
    if shared_storage_dqdkdv:
        dq, dk, dv = torch.stack((dq, dk, dv), 2).unbind(2)
    return dq, dk, dv, None


def _by_token(lse: Tensor, cu: Tensor, tokens: int) -> Tensor:
    """Reshape the memory-efficient kernels' lse, [sequences, heads, longest], to [1, heads, tokens]."""
    if lse.dim() != 3 or lse.shape[0] != cu.shape[0] - 1:
        raise NotSupported("statistics of another shape")
    token = torch.arange(tokens, dtype=cu.dtype, device=cu.device)
    sequence = torch.bucketize(token, cu[1:], right=True).clamp_(max=lse.shape[0] - 1)
    position = (token - cu[sequence]).clamp_(max=lse.shape[2] - 1)
    return lse[sequence, :, position].T[None]
