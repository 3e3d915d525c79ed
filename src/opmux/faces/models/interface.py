"""`attn_implementation="opmux"`: attention for models of `transformers`, with every option that models pass.

The mask is the full bool tensor that transformers creates for "sdpa", so that a model may modify it. A summary of the
mask (causal, a window, which keys are padding) is an attribute of the tensor. Attention reads the summary instead of
the [queries, keys] mask. If there is no summary (the mask was modified, moved to another device or created by a user),
attention reads the complete mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...functional.decode import attention_decode
from ...functional.scaled_dot_product import attention

NAME = "opmux"
BRIEF = "_opmux_brief"  # the attribute of a mask tensor that contains its summary
# Unsupported arguments that would change the result -> their meaning.
NOT_TAKEN = {
    "cache": "the cache of continuous batching",
    "indices": "the keys that sparse attention selects",
    "block_indices": "the blocks of keys that sparse attention selects",
    "sinks": "sinks of each token",
}


class Brief(NamedTuple):
    """The summary of a mask."""

    bias: Tensor | None  # added to the scores, or bool: False masks a key
    causal: bool = False
    left: int = -1  # number of keys before its own position that a query attends to; -1: all


# ---- attention ------------------------------------------------------------------------------------------------------


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
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' `AttentionInterface` calls it.

    Args:
        module: the attention layer; its `is_causal` is used if the argument `is_causal` is None.
        query: [batch, heads, queries, dim].
        key: [batch, kv_heads, keys, dim], where kv_heads divides the query's heads.
        value: [batch, kv_heads, keys, dim_v].
        attention_mask: None, bools (False masks a key) or a bias, [batch or 1, heads or 1, queries or 1, keys].
        dropout: the probability with which an attention weight is dropped.
        scaling: multiplies the scores; by default 1 / sqrt(dim).
        is_causal: used if there is no mask; if True, a query attends to no key after its own position.
        softcap: scores become softcap * tanh(score / softcap).
        s_aux: [heads], an extra score per head in the softmax, which has no row of `value` (GPT-OSS).
        position_bias: added to the scores (T5).
        kwargs: other arguments that models pass. A sliding window is part of the mask.

    Returns:
        o [batch, queries, heads, dim_v], and None for the probabilities, which are never stored.
    """
    refuse(kwargs)
    if query.shape[0] != key.shape[0]:  # a batch of 1: all sequences share learned queries
        query = query.expand(key.shape[0], -1, -1, -1)
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is not None:
        brief = _brief(attention_mask, queries, keys)
    elif queries == 1:
        if position_bias is None and not dropout and _decodes(query, key, value, s_aux):
            return _decoded(query, key, value, scaling, softcap or 0.0, s_aux), None
        brief = Brief(None)
    else:
        brief = Brief(None, getattr(module, "is_causal", True) if is_causal is None else is_causal)
        if brief.causal and keys > queries:  # a prompt in a static cache: keys after the prompt are undefined
            key, value = key[:, :, :queries], value[:, :, :queries]
            position_bias = None if position_bias is None else position_bias[..., :queries]
    o = attention(
        query,
        key,
        value,
        causal=brief.causal,
        window=(brief.left, -1),
        top_left=True,
        bias=_sum(position_bias, brief.bias),
        softcap=softcap or 0.0,
        sink=s_aux,
        dropout_p=dropout,
        scale=scaling,
    )
    return o.transpose(1, 2).contiguous(), None


def refuse(options: dict[str, Any]) -> None:
    """Raise if a call has an argument that would change the result."""
    for name, what in NOT_TAKEN.items():
        if options.get(name) is not None:
            expected = f'be None: "{NAME}" does not take {what}; use another attn_implementation'
            raise BadArgument.of("attention", name, expected, type(options[name]).__name__)


def _brief(mask: Tensor, queries: int, keys: int) -> Brief:
    brief = None if torch.compiler.is_compiling() else getattr(mask, BRIEF, None)
    return brief if brief is not None and mask.shape[2:] == (queries, keys) else Brief(mask)


def _sum(position_bias: Tensor | None, bias: Tensor | None) -> Tensor | None:
    if position_bias is None or bias is None:
        return bias if position_bias is None else position_bias
    return position_bias.masked_fill(~bias, -torch.inf) if bias.dtype is torch.bool else position_bias + bias


def _decodes(*tensors: Tensor | None) -> bool:
    """Whether no gradient is needed, as in decoding."""
    return not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors)


def _decoded(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, softcap: float, sinks: Tensor | None
) -> Tensor:
    """Attention of one new token for each sequence, with the keys split over the whole GPU."""
    lengths = torch.full((query.shape[0],), key.shape[2], dtype=torch.int32, device=query.device)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    o = attention_decode(q, k, v, lengths, sinks=sinks, softcap=softcap, scale=scaling)
    assert isinstance(o, Tensor)  # return_lse is False
    return o


# ---- masks ----------------------------------------------------------------------------------------------------------


def mask(
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask of transformers' `AttentionMaskInterface` for "sdpa", with a summary as an attribute.

    Args:
        q_length: the number of queries.
        kv_length: the number of keys.
        attention_mask: bool [batch, keys], False for padding.
        local_size: the size of a sliding window or of a chunk.
        allow_is_causal_skip: the mask is causal (within `local_size` if given), and None may be returned for it.
        allow_is_bidirectional_skip: the mask hides only padding and keys outside `local_size`, and None may be
            returned for it.
        dtype: the dtype of the bias in the summary.
        config: the model's config; it says whether `local_size` is the size of a window.
        kwargs: more arguments of transformers' `sdpa_mask`.
    """
    from transformers.masking_utils import sdpa_mask

    sliding = local_size is not None and local_size == getattr(config, "sliding_window", None)
    sliding = sliding and getattr(config, "attention_chunk_size", None) is None
    if sliding and allow_is_causal_skip and kv_length <= (local_size or 0):
        local_size = None  # the window covers all keys
    tensor = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=allow_is_causal_skip,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        dtype=dtype,
        config=config,
        **kwargs,
    )
    if type(tensor) is not Tensor or torch.compiler.is_compiling():
        return tensor
    causal = allow_is_causal_skip and (sliding or local_size is None) and 1 < q_length == kv_length
    everything = allow_is_bidirectional_skip and local_size is None
    if (causal or everything) and (attention_mask is None or attention_mask.shape[-1] == kv_length):
        padding = None if attention_mask is None or attention_mask.all() else attention_mask[:, None, None]
        brief = Brief(_bias(padding, dtype), causal, -1 if local_size is None else local_size - 1)
    else:
        brief = Brief(_bias(tensor, dtype))
    setattr(tensor, BRIEF, brief)
    return tensor


def _bias(allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bias with -inf where the mask is False. Dimensions in which the mask is expanded have size 1."""
    if allowed is None:
        return None
    allowed = allowed[tuple(slice(None if step else 1) for step in allowed.stride()[:3])]
    return torch.zeros((), dtype=dtype, device=allowed.device).masked_fill(~allowed, -torch.inf)
