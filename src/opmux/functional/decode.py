"""Decoding with a cache of keys and values, contiguous or paged; for inference, without gradients.

No function synchronizes with the device: lengths and tables stay there. Only `write_kv_cache` modifies the caches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import decode as ops


def attention_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    *,
    table: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The last tokens of each sequence attend to a cache: o = softmax(s) v, s = q k^T * scale.

    Query i of n is token lengths - n + i of its sequence, and attends to the keys up to its own position. The cache
    must already contain the keys and values of the new tokens: see `write_kv_cache`.

    Args:
        q: float [batch, queries, heads, dim], with one query or a few.
        k_cache: [batch, max_len, kv_heads, dim], or with a table [pages, page_size, kv_heads, dim]; of q's dtype or
            float8. Each head of the cache serves heads / kv_heads adjacent heads of q.
        v_cache: like k_cache, but with dim_v elements in the last dimension.
        lengths: int [batch], the tokens of each sequence, the new ones included.
        table: int [batch, max_pages], the pages of each sequence, in order.
        sinks: float [heads], an extra score per head; exp(sink) is added to the softmax's denominator only.
        k_scale: float32, multiplies the keys; one element, or one for each key head.
        v_scale: like k_scale, but multiplies the values.
        window: how many keys before its own position a query attends to; None for all.
        softcap: scores become softcap * tanh(s / softcap); 0 does not change them.
        scale: multiplies the scores; by default 1 / sqrt(dim).
        return_lse: whether to return lse too.

    Returns:
        o [batch, queries, heads, dim_v], of q's dtype; 0 for a query that attends to no key. With return_lse
        also the logarithm of the softmax's denominator, float32 [batch, heads, queries] (float64 for float64).
    """
    _need_no_gradient("attention_decode", q=q, k_cache=k_cache, v_cache=v_cache, sinks=sinks)
    left = -1 if window is None else window
    o, lse = ops.attention_decode(q, k_cache, v_cache, lengths, table, sinks, k_scale, v_scale, left, softcap, scale)
    return (o, lse) if return_lse else o


def mla_decode(
    q: Tensor,
    cache: Tensor,
    lengths: Tensor,
    rank: int = 512,
    *,
    table: Tensor | None = None,
    cache_scale: Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Multi-head latent attention of each sequence's last tokens to a cache, with absorbed up-projections (DeepSeek).

    All heads share one cache of latents. Each row of the cache is a key, and its first `rank` columns are the value;
    each row is read once.

    Args:
        q: float [batch, queries, heads, dim]: queries times the keys' up-projection, concatenated with the rope part.
        cache: [batch, max_len, dim], or with a table [pages, page_size, dim]; of q's dtype or float8.
        lengths: int [batch], the tokens of each sequence, the new ones included.
        rank: how many columns of the cache are the values.
        table: int [batch, max_pages], the pages of each sequence, in order.
        cache_scale: float32, multiplies the cache; one element.
        scale: multiplies the scores. Pass the model's scale: the default 1 / sqrt(dim) is wrong for absorbed
            projections.
        return_lse: whether to return lse too.

    Returns:
        o [batch, queries, heads, rank], of q's dtype, to be multiplied by the up-projection of the values. With
        return_lse also lse, float32 [batch, heads, queries] (float64 for float64).
    """
    _need_no_gradient("mla_decode", q=q, cache=cache)
    o, lse = ops.mla_decode(q, cache, lengths, rank, table, cache_scale, scale)
    return (o, lse) if return_lse else o


def write_kv_cache(
    k: Tensor,
    v: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor | None,
    lengths: Tensor,
    *,
    table: Tensor | None = None,
    counts: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Append the new tokens of each sequence to a cache, in place.

    New token i of n becomes token lengths - n + i of its sequence. A token beyond the end of the cache is not written.

    Args:
        k: [batch, tokens, kv_heads, dim]; [batch, tokens, dim] for the cache of `mla_decode`.
        v: [batch, tokens, kv_heads, dim_v]; None for the cache of `mla_decode`.
        k_cache: modified; [batch, max_len, kv_heads, dim], or with a table [pages, page_size, kv_heads, dim]; of k's
            dtype or float8, which saturates.
        v_cache: modified; like k_cache, but with dim_v elements in the last dimension.
        lengths: int [batch], the tokens of each sequence, the new ones included.
        table: int [batch, max_pages], the pages of each sequence, in order. Written pages must not be shared.
        counts: int [batch], how many tokens of k and v are new (the first ones); by default all.
        k_scale: float32, k is divided by it; one element, or one for each head.
        v_scale: like k_scale, but v is divided by it.
    """
    _need_no_gradient("write_kv_cache", k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    if k.dim() == 3 and k_cache.dim() == 3 and v is None:
        k, k_cache = k.unsqueeze(2), k_cache.unsqueeze(2)
    ops.write_kv_cache(k, v, k_cache, v_cache, lengths, table, counts, k_scale, v_scale)


def _need_no_gradient(op: str, **tensors: Tensor | None) -> None:
    """Raise if autograd would record the call: there is no backward, so gradients would be lost silently."""
    if not torch.is_grad_enabled():
        return
    for name, t in tensors.items():
        if t is not None and t.requires_grad:
            expected = "need no gradient, as there is none: call it under torch.no_grad()"
            raise BadArgument.of(op, name, expected, "requires_grad=True")
