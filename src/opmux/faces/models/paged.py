"""Attention for continuous batching of `transformers` (`model.generate_batch`), on its paged cache.

A batch is one sequence with the new tokens of all requests. Keys and values are in a paged cache. The model's layers
form groups: layers with full attention, and layers with a window, whose pages are a ring buffer. There are three cases:

- Each request has one new token, and `block_table` has its pages: attention reads the pages in place.
- Each request has one new token, but there is no block table, as in models with windows: `read_index` has the position
  of each key. It serves as a table of one-token pages, and attention reads the keys in place, too.
- Otherwise (prompts or parts of prompts), the cache's own method writes and reads it, and attention is packed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...functional.decode import attention_decode, write_kv_cache
from ...functional.scaled_dot_product import attention
from .interface import NAME, refuse
from .interface import attend as dense

PREFIXED = "paged|opmux"
FULL, SLIDING = "full_attention", "sliding_attention"
STEP = 256  # the width of the table of key positions is a multiple of this: each new width needs a new plan


class LayerCache(NamedTuple):
    """The cache of a layer."""

    k: Tensor  # [tokens, kv_heads, dim]
    v: Tensor
    page: int  # tokens per page
    group: int
    kind: str  # kind of its group
    window: int | None  # number of keys that a query attends to, including its own


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as continuous batching calls it.

    Args:
        module: the attention layer; its `layer_idx` is its index in the cache.
        query: [1, heads, tokens, dim], the new tokens of all requests.
        key: [1, kv_heads, tokens, dim], where kv_heads divides the query's heads.
        value: like `key`.
        attention_mask: must be None with a cache: a query attends to the keys of its request, up to its own.
        dropout: must be 0 with a cache.
        scaling: multiplies the scores; by default 1 / sqrt(dim).
        is_causal: without a cache it must be False (a layer of an encoder).
        softcap: scores become softcap * tanh(score / softcap).
        s_aux: [heads], an extra score per head in the softmax, which has no row of `value` (GPT-OSS).
        cache: transformers' `PagedAttentionCache`; modified.
        kwargs: `cu_seq_lens_q` and `cu_seq_lens_k`, int [requests + 1], the start of each request in the queries and in
            the keys; the maximum lengths; `read_index` and `write_index`, int [positions], or `block_table`, int
            [groups, requests, pages], the positions of keys. Arguments about keys may be dicts that map the kind of a
            layer to its value.

    Returns:
        o [1, tokens, heads, dim], and None for the probabilities, which are never stored.
    """
    if cache is None:
        if (getattr(module, "is_causal", True) if is_causal is None else is_causal) is not False:
            expected = f'be given: "{PREFIXED}" is for continuous batching (generate_batch); use "{NAME}" without it'
            raise BadArgument.of("attention", "cache", expected, "None")
        return dense(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            is_causal=False,
            softcap=softcap,
            s_aux=s_aux,
            **kwargs,
        )
    refuse(kwargs)
    if attention_mask is not None:
        raise BadArgument.of("attention", "attention_mask", "be None with {cache}", str(tuple(attention_mask.shape)))
    if dropout:
        raise BadArgument.of("attention", "dropout", "be 0 with {cache}", str(dropout))
    layer = _layer(cache, module.layer_idx)
    options = {"softcap": softcap or 0.0, "scale": scaling}
    starts, longest_q, longest_k = _sizes(kwargs, layer.kind)
    table = kwargs.get("block_table")
    if table is not None or (longest_q == 1 and kwargs["read_index"][layer.group].numel()):
        lengths = starts.diff()
        if table is not None:
            page, table = layer.page, table[layer.group]
        else:
            write, read = kwargs["write_index"][layer.group], kwargs["read_index"][layer.group]
            page, table = 1, _key_positions(read, write, starts, lengths, longest_k)
        k_cache, v_cache = (t.unflatten(0, (-1, page)) for t in (layer.k, layer.v))
        q, k, v = (t.permute(2, 0, 1, 3) for t in (query, key, value))  # [requests, 1, heads, dim]
        write_kv_cache(k, v, k_cache, v_cache, lengths, table=table)
        o = attention_decode(q, k_cache, v_cache, lengths, table=table, sinks=s_aux, **options)
        assert isinstance(o, Tensor)  # return_lse is False
        return o.transpose(0, 1), None
    k, v = _updated(cache, key, value, module.layer_idx, kwargs)
    o = attention(
        query[0].transpose(0, 1),
        k,
        v,
        causal=True,
        window=(-1 if layer.window is None else layer.window - 1, -1),
        sink=s_aux,
        cu_seqlens_q=kwargs["cu_seq_lens_q"],
        cu_seqlens_k=starts,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        **options,
    )
    return o[None], None


def _layer(cache: Any, index: int) -> LayerCache:
    if hasattr(cache, "layer_to_allocator"):  # transformers 5.23
        allocator = cache.layer_to_allocator[index]
        k, v = allocator._kv_token_views[index]  # both views end at the end of one buffer; k comes first
        window = getattr(allocator, "sliding_window", None)
        return LayerCache(k[: v.shape[0]], v, allocator.tokens_per_page, allocator.index, allocator.layer_type, window)
    if not hasattr(cache, "layer_index_to_group_indices"):
        raise BadArgument.of("attention", "cache", "be as in transformers 5.17 or 5.23", type(cache).__name__)
    group, slot = cache.layer_index_to_group_indices[index]
    window = cache.sliding_windows[index]  # 1 means that there is no window
    kind, span = (FULL, None) if window == 1 else (SLIDING, window)
    return LayerCache(cache.key_cache[slot], cache.value_cache[slot], cache.block_size, group, kind, span)


def _sizes(kwargs: dict[str, Any], kind: str) -> tuple[Tensor, int, int]:
    """For a kind of layer: where each request starts in the keys, and the maximum lengths of queries and keys."""
    name = "max_length" if "max_length_q" in kwargs else "max_seqlen"  # transformers 5.23, else 5.17
    starts, longest = kwargs["cu_seq_lens_k"], kwargs[f"{name}_k"]
    if isinstance(starts, dict):
        starts, longest = starts[kind], longest[kind]
    return starts, kwargs[f"{name}_q"], longest


def _key_positions(read: Tensor, write: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """The cache position of each key, [requests, keys]; the last key of a request is new, and at its write position."""
    index = torch.arange(-(-longest // STEP) * STEP, device=read.device)
    positions = read[(starts[:-1, None] + index).clamp_(max=read.shape[0] - 1)]
    return torch.where(index == lengths[:, None] - 1, write[:, None], positions)


def _updated(cache: Any, key: Tensor, value: Tensor, index: int, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Write the new keys and values to the cache; return all keys and values of the requests, [keys, kv_heads, dim]."""
    if hasattr(cache, "layer_to_allocator"):  # transformers 5.23 modifies its arguments
        k, v = cache.update(key_states=key, value_states=value, layer_idx=index, kwargs=dict(kwargs))
        return k[0].transpose(0, 1), v[0].transpose(0, 1)
    read, write = kwargs["read_index"], kwargs["write_index"]
    return cache.update(key_states=key, value_states=value, layer_idx=index, read_index=read, write_index=write)
