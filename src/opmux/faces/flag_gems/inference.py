"""FlagGems' ops for inference engines, with vLLM's signatures: cache writes, decoding, routing and mixtures of experts.

If vLLM passes tensors for the results, a function writes to these. No function copies data to the host, and none has a
gradient. A token whose slot in `slot_mapping` is negative is not written.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ...functional import decode, moe
from ...specs import decode as decode_ops
from .switch import everything

__all__ = [
    "apply_repetition_penalties",
    "concat_and_cache_mla",
    "flash_mla",
    "fused_experts_impl",
    "grouped_topk",
    "inplace_fused_experts",
    "moe_align_block_size",
    "moe_align_block_size_triton",
    "moe_sum",
    "outplace_fused_experts",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "topk_softmax",
    "topk_softplus_sqrt",
]

FLOAT8 = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
}


# ---- caches ---------------------------------------------------------------------------------------------------------


def _typed(cache: Tensor, kv_cache_dtype: str) -> Tensor:
    """The cache, viewed in the dtype that `kv_cache_dtype` names; vLLM passes float8 caches as uint8."""
    if kv_cache_dtype == "auto":
        return cache
    if kv_cache_dtype not in FLOAT8:
        raise ValueError(f"kv_cache_dtype must be one of {['auto', *FLOAT8]}; got {kv_cache_dtype!r}")
    return cache.view(FLOAT8[kv_cache_dtype]) if cache.dtype is torch.uint8 else cache


def _pages(slot_mapping: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Lengths and page table for `write_kv_cache`: each token is a sequence of one page, and ends at its slot."""
    slots = slot_mapping.clamp(min=0)
    lengths = torch.where(slot_mapping < 0, 0, slots % page_size + 1)
    return lengths.int(), (slots // page_size).int()[:, None]


@torch.no_grad()
def _write(k: Tensor, v: Tensor | None, caches: tuple[Tensor, Tensor | None], slots: Tensor, scales: Any) -> None:
    tokens = slots.shape[0]
    lengths, table = _pages(slots, caches[0].shape[1])
    k_scale, v_scale = scales
    v = None if v is None else v[:tokens, None].contiguous()
    decode_ops.write_kv_cache(k[:tokens, None].contiguous(), v, *caches, lengths, table, None, k_scale, v_scale)


def _scales(kv_cache_dtype: str, device: torch.device, *scales: Any) -> list[Tensor | None]:
    """The scales of a float8 cache; a cache of another dtype has none."""
    if kv_cache_dtype == "auto":
        return [None for _ in scales]
    as_tensor = functools.partial(torch.as_tensor, dtype=torch.float32, device=device)
    return [None if s is None else as_tensor(s).reshape(-1) for s in scales]


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
) -> None:
    """Write new tokens to the slots of a paged cache.

    Args:
        key: [tokens, heads, dim].
        value: like key.
        key_cache: modified; [pages, page_size, heads, dim].
        value_cache: like key_cache.
        slot_mapping: int [tokens], page * page_size + position.
        kv_cache_dtype: "auto" for a cache of key's dtype; "fp8", "fp8_e4m3" or "fp8_e5m2" for float8.
        k_scale: divides the keys of a float8 cache; one element, or one for each head.
        v_scale: like k_scale.
    """
    caches = _typed(key_cache, kv_cache_dtype), _typed(value_cache, kv_cache_dtype)
    _write(key, value, caches, slot_mapping, _scales(kv_cache_dtype, key.device, k_scale, v_scale))


@torch.no_grad()
def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Any,
    v_scale: Any,
) -> None:
    """`reshape_and_cache_flash` for vLLM's older layout of a cache.

    key_cache is [pages, heads, dim / x, page_size, x] and value_cache is [pages, heads, dim, page_size].
    """
    tokens, page_size = slot_mapping.shape[0], key_cache.shape[3]
    k_scale, v_scale = _scales(kv_cache_dtype, key.device, k_scale, v_scale)
    keys = key[:tokens].unflatten(-1, (-1, key_cache.shape[4]))
    for new, cache, order, scale in (
        (keys, _typed(key_cache, kv_cache_dtype), (0, 3, 1, 2, 4), k_scale),
        (value[:tokens], _typed(value_cache, kv_cache_dtype), (0, 3, 1, 2), v_scale),
    ):
        rows = decode_ops.written(new, cache.dtype, scale)
        to = cache.permute(order)
        if cache.dtype in FLOAT8.values():
            rows, to = rows.view(torch.uint8), to.view(torch.uint8)
        _put(to, rows, slot_mapping, page_size)


def _put(to: Tensor, rows: Tensor, slots: Tensor, page_size: int) -> None:
    """Write rows to [page, position] of `to`; a token without a slot repeats the write of the first token with one."""
    if not slots.numel():
        return
    valid = slots >= 0
    token = torch.where(valid, torch.arange(slots.numel(), device=slots.device), valid.long().argmax())
    at = slots[token].clamp(min=0).long()
    page, position = at // page_size, at % page_size
    to[page, position] = torch.where(valid.any(), rows[token], to[page, position])


def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """Write latents and rotary parts of new tokens to their slots in the cache that `flash_mla` reads.

    Args:
        kv_c: [tokens, rank].
        k_pe: [tokens, rope_dim].
        kv_cache: modified; [pages, page_size, rank + rope_dim].
        slot_mapping: int [tokens], page * page_size + position.
        kv_cache_dtype: "auto", or "fp8", "fp8_e4m3" or "fp8_e5m2" for a uint8 cache.
        scale: one element that divides the values of a float8 cache.
    """
    if kv_cache_dtype != "auto" and kv_cache.dtype is not torch.uint8:
        raise ValueError(f"kv_cache must be uint8 for kv_cache_dtype={kv_cache_dtype!r}; got {kv_cache.dtype}")
    if kv_cache_dtype == "auto" and kv_cache.dtype is not kv_c.dtype:
        raise ValueError(f"kv_cache must have the dtype of kv_c, {kv_c.dtype}; got {kv_cache.dtype}")
    tokens = slot_mapping.shape[0]
    new = torch.cat((kv_c[:tokens], k_pe[:tokens].reshape(tokens, -1)), -1)
    cache = _typed(kv_cache, kv_cache_dtype)
    (scale_of_cache,) = _scales(kv_cache_dtype, kv_c.device, scale)
    _write(new[:, None], None, (cache[:, :, None], None), slot_mapping, (scale_of_cache, None))


@torch.no_grad()
def flash_mla(
    q: Tensor,
    block_table: Tensor,
    blocked_k: Tensor,
    max_seqlen_pad: int,
    block_size: int,
    b: int,
    s_q: int,
    cache_seqlens: Tensor,
    h_q: int,
    h_kv: int,
    d: int,
    dv: int,
    causal: bool,
) -> Tensor:
    """`opmux.functional.mla_decode` with FlagGems' arguments; the scale is 1 / sqrt(d).

    Args:
        q: [b, s_q, h_q, d].
        block_table: int32 [b, pages], the pages of each sequence.
        blocked_k: [pages, block_size, 1, d].
        cache_seqlens: int32 [b], the number of tokens of each sequence, including the new ones.
        dv: how many columns of the cache, from the first, are the values.
        causal: must be True unless s_q is 1.

    Returns:
        [b, s_q, h_q, dv].
    """
    if not causal and s_q != 1:
        raise NotImplementedError("flag_gems.flash_mla: causal must be True if there are several queries")
    if h_kv != 1:
        raise ValueError(f"flag_gems.flash_mla: h_kv must be 1, as all heads share one latent; got {h_kv}")
    cache = blocked_k.reshape(-1, block_size, d)
    result = decode.mla_decode(
        q.reshape(b, s_q, h_q, d), cache, cache_seqlens.int(), dv, table=block_table.int(), scale=1 / math.sqrt(d)
    )
    assert isinstance(result, Tensor)
    return result


@torch.no_grad()
def apply_repetition_penalties(
    logits: Tensor, prompt_mask: Tensor, output_mask: Tensor, repetition_penalties: Tensor
) -> None:
    """Penalize repeated tokens in place.

    Their positive logits are divided by the penalty of their sequence; their other logits are multiplied by it.
    """
    penalty = torch.where(prompt_mask | output_mask, repetition_penalties[:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / penalty, logits * penalty))


# ---- routing --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool = False,
) -> None:
    """Write each token's k experts with the highest softmax(gating_output), best first, to the first arguments.

    Args:
        topk_weights: receives the probabilities, float32 [tokens, k].
        topk_indices: receives the experts, int32, uint32 or int64 [tokens, k].
        token_expert_indices: receives column * tokens + row.
        gating_output: [tokens, experts].
        renormalize: divide the probabilities of a token by their sum.
    """
    with everything:
        weights = torch.softmax(gating_output.float(), -1)
        weights, chosen = weights.topk(topk_weights.shape[-1])
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    topk_weights.copy_(weights)
    topk_indices.copy_(chosen)
    _number(token_expert_indices, by_column=True)


@torch.no_grad()
def topk_softplus_sqrt(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    routed_scaling_factor: float,
    correction_bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
) -> None:
    """Like `topk_softmax` with scores sqrt(softplus(gating_output)), which are multiplied by routed_scaling_factor.

    `correction_bias` [experts] is added to the scores only to choose the experts. With `input_ids` [tokens] and
    `tid2eid` [vocabulary, k] the experts are tid2eid[input_ids] instead. token_expert_indices receives
    row * k + column.
    """
    if (input_ids is None) != (tid2eid is None):
        raise ValueError("topk_softplus_sqrt: input_ids and tid2eid must be given together")
    scores = torch.nn.functional.softplus(gating_output.float()).sqrt()
    if input_ids is not None and tid2eid is not None:
        chosen = tid2eid[input_ids.long()].long()
    else:
        biased = scores if correction_bias is None else scores + correction_bias.float()
        chosen = biased.topk(topk_weights.shape[-1]).indices
    weights = scores.gather(-1, chosen)
    if renormalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    topk_weights.copy_(weights * routed_scaling_factor)
    topk_indices.copy_(chosen)
    _number(token_expert_indices, by_column=False)


def _number(indices: Tensor, by_column: bool) -> None:
    rows, columns = indices.shape
    count = torch.arange(rows * columns, device=indices.device)
    indices.copy_(count.view(columns, rows).t() if by_column else count.view(rows, columns))


@torch.no_grad()
def grouped_topk(
    scores: Tensor,
    n_group: int,
    topk_group: int,
    topk: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: Tensor,
    scoring_func: int = 0,
) -> tuple[Tensor, Tensor]:
    """Choose experts in the best groups (DeepSeek-V3): a group's score is the sum of its two best biased scores.

    Args:
        scores: float [tokens, experts].
        n_group: the number of equal groups of experts.
        topk_group: the number of groups that a token may choose experts from.
        topk: the number of experts of a token.
        renormalize: divide the weights of a token by their sum.
        routed_scaling_factor: multiplies the weights.
        bias: [experts], added to the scores only to choose the experts.
        scoring_func: 0 uses the scores, 1 their sigmoid.

    Returns:
        The weights, float32, and the experts, int32 [tokens, topk], best first. A token whose groups all have
        infinite or NaN scores gets the first experts with equal weights.
    """
    if scores.dim() != 2 or n_group < 1 or scores.shape[1] % n_group:
        raise ValueError(
            f"grouped_topk: n_group must divide the experts of scores {tuple(scores.shape)}; got {n_group}"
        )
    if scoring_func not in (0, 1):
        raise ValueError(f"grouped_topk: scoring_func must be 0 (none) or 1 (sigmoid); got {scoring_func}")
    if bias.numel() != scores.shape[1]:
        raise ValueError(f"grouped_topk: bias must have {scores.shape[1]} elements; got {bias.numel()}")
    tokens, experts = scores.shape
    values = scores.sigmoid() if scoring_func == 1 else scores
    biased = (values + bias.flatten().to(values.dtype)).float()
    groups = biased.view(tokens, n_group, experts // n_group)
    best = groups.topk(min(2, groups.shape[-1])).values.sum(-1).to(scores.dtype).float()
    best = best.masked_fill(~best.isfinite(), -torch.inf)
    picked = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(topk_group).indices, True)
    allowed = (picked & (best > -torch.inf)).repeat_interleave(experts // n_group, 1)
    chosen = biased.masked_fill(~allowed, -torch.inf).topk(topk).indices
    weights = values.gather(1, chosen).float()
    if renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    usable = (best > -torch.inf).any(-1, keepdim=True)
    first = torch.arange(topk, device=scores.device).expand_as(chosen)
    weights = torch.where(usable, weights * routed_scaling_factor, 1.0 / topk)
    return weights, torch.where(usable, chosen, first).int()


@torch.no_grad()
def moe_sum(input: Tensor, output: Tensor) -> None:
    """Write the sum over each token's k experts to `output` [tokens, hidden]; `input` is [tokens, k, hidden]."""
    with everything:
        output.copy_(input.sum(1))


def moe_align_block_size(
    topk_ids: Tensor,
    block_size: int,
    num_experts: int,
    expert_map: Tensor | None = None,
    pad_sorted_ids: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the entries of topk_ids by expert, and pad each expert's entries to a multiple of block_size.

    Args:
        topk_ids: the experts of each token, int [tokens, k].
        block_size: the rows that a block of a kernel computes.
        num_experts: the number of experts.
        expert_map: int [num_experts], the numbers that replace the experts in the second result.
        pad_sorted_ids: make the length of the first result a multiple of block_size.

    Returns:
        Indices into topk_ids.flatten(), int32, where padding is topk_ids.numel(); the expert of each block, int32; and
        the number of entries including padding, int32 [1].
    """
    size = topk_ids.numel() + num_experts * (block_size - 1)
    if pad_sorted_ids:
        size = -(-size // block_size) * block_size
    new = lambda n: torch.empty(n, dtype=torch.int32, device=topk_ids.device)
    sorted_ids, experts, total = new(size), new(-(-size // block_size)), new(1)
    moe_align_block_size_triton(topk_ids, num_experts, block_size, sorted_ids, experts, total)
    return sorted_ids, experts if expert_map is None else expert_map[experts.long()].int(), total


def moe_align_block_size_triton(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    num_tokens_post_pad: Tensor,
) -> None:
    """Like `moe_align_block_size`, but writes to the last three arguments. Unused blocks get expert 0."""
    ids, device = topk_ids.reshape(-1).long(), topk_ids.device
    count = ids.numel()
    valid = (ids >= 0) & (ids < num_experts)
    ids = torch.where(valid, ids, num_experts)  # invalid experts sort last, and are not written
    sizes = torch.zeros(num_experts + 1, dtype=torch.long, device=device).scatter_add_(0, ids, torch.ones_like(ids))
    padded = (sizes[:num_experts] + block_size - 1) // block_size * block_size
    ends = padded.cumsum(0)
    start_of = torch.cat((ends - padded, ends[-1:]))
    order = ids.argsort(stable=True)
    experts = ids[order]
    rank = torch.arange(count, device=device) - (sizes.cumsum(0) - sizes)[experts]
    room = sorted_token_ids.numel()
    at = torch.where(experts < num_experts, start_of[experts] + rank, room)
    result = torch.full((room + 1,), count, dtype=sorted_token_ids.dtype, device=device)
    result[at.clamp(max=room)] = order.to(result.dtype)
    sorted_token_ids.copy_(result[:room].view_as(sorted_token_ids))
    rows = torch.arange(expert_ids.numel(), device=device) * block_size
    block_of = torch.searchsorted(ends, rows, right=True)
    expert_ids.copy_(torch.where(rows < ends[-1], block_of, 0).view_as(expert_ids))
    num_tokens_post_pad.copy_(ends[-1:].view_as(num_tokens_post_pad))


# ---- experts --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def fused_experts_impl(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    inplace: bool = False,
    activation: Any = "silu",
    apply_router_weight_on_input: bool = False,
    use_fp8_w8a8: bool = False,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    ocp_mx_scheme: str | None = None,
    per_channel_quant: bool = False,
    global_num_experts: int = -1,
    expert_map: Tensor | None = None,
    w1_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    w1_zp: Tensor | None = None,
    w2_zp: Tensor | None = None,
    a1_scale: Tensor | None = None,
    a2_scale: Tensor | None = None,
    block_shape: list[int] | None = None,
    w1_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:
    """`opmux.functional.fused_moe` with vLLM's arguments.

    Quantized weights (float8 and int8) are converted to the dtype of hidden_states first, and activations are not
    quantized: results have smaller errors than with quantized activations, and the call needs more memory and time.

    Args:
        hidden_states: [tokens, hidden].
        w1: [experts, 2 * intermediate, hidden], the projections before the activation.
        w2: [experts, hidden, intermediate].
        topk_weights: [tokens, k].
        topk_ids: int [tokens, k]; with an expert_map, an id below 0 is no expert.
        inplace: write the result to hidden_states.
        activation: "silu", "gelu" or "gelu_tanh".
        apply_router_weight_on_input: multiply the tokens by their weights before w1, instead of after w2; only for k=1.
        expert_map: int [experts of all ranks], the row of w1 for each expert; -1 for experts of other ranks.
        w1_scale: multiplies a quantized w1: one element for each expert, each row, or each block of block_shape.
        w2_scale: like w1_scale.
        block_shape: the rows and columns of a block of quantized weights.

    int4 and MX weights, zero points and biases raise NotImplementedError.
    """
    unsupported = {"use_int4_w4a16": use_int4_w4a16, "ocp_mx_scheme": ocp_mx_scheme is not None}
    given = {"w1_zp": w1_zp, "w2_zp": w2_zp, "w1_bias": w1_bias, "w2_bias": w2_bias}
    unsupported |= {name: value is not None for name, value in given.items()}
    for name, is_set in unsupported.items():
        if is_set:
            raise NotImplementedError(f"flag_gems.fused_experts_impl: {name} is not supported")
    name = str(getattr(activation, "value", activation))
    if name not in ("silu", "gelu", "gelu_tanh"):
        raise NotImplementedError(
            f"flag_gems.fused_experts_impl: activation must be silu, gelu or gelu_tanh; got {name}"
        )
    x = hidden_states
    if w1.dtype is not x.dtype:
        if w1_scale is None or w2_scale is None:
            raise ValueError(f"flag_gems.fused_experts_impl: w1_scale and w2_scale must be given for w1 of {w1.dtype}")
        w1, w2 = (_dequantized(w, s, block_shape, x.dtype) for w, s in ((w1, w1_scale), (w2, w2_scale)))
    index, weights = topk_ids, topk_weights
    if expert_map is not None:
        mapped = torch.where(index < 0, -1, expert_map[index.clamp(min=0).long()])
        index = torch.where(mapped < 0, w1.shape[0], mapped)
    if apply_router_weight_on_input:
        if index.shape[-1] != 1:
            raise ValueError("flag_gems.fused_experts_impl: apply_router_weight_on_input needs topk_ids of one column")
        x, weights = (x * weights).to(x.dtype), torch.ones_like(weights)
    index = index if index.dtype in (torch.int32, torch.int64) else index.long()
    y = moe.fused_moe(x, w1, w2, index, weights.float(), name)
    return hidden_states.copy_(y) if inplace else y


def _dequantized(weight: Tensor, scale: Tensor, block: list[int] | None, dtype: torch.dtype) -> Tensor:
    """Quantized weights [experts, rows, columns] times their scales."""
    w, s = weight.float(), scale.float()
    if block is not None:
        s = s.repeat_interleave(block[0], 1)[:, : w.shape[1]].repeat_interleave(block[1], 2)[:, :, : w.shape[2]]
    else:
        s = s.reshape(s.shape[0], -1, 1) if s.numel() > 1 else s.view(1, 1, 1)
    return (w * s).to(dtype)


@torch.no_grad()
def inplace_fused_experts(
    hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_weights: Tensor, topk_ids: Tensor, *args: Any, **named: Any
) -> None:
    """Like `outplace_fused_experts`, but writes the result to hidden_states."""
    hidden_states.copy_(outplace_fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, *args, **named))


def outplace_fused_experts(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Any = "silu",
    apply_router_weight_on_input: bool = False,
    use_fp8_w8a8: bool = False,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    per_channel_quant: bool = False,
    global_num_experts: int = -1,
    w1_scale: Tensor | None = None,
    w2_scale: Tensor | None = None,
    a1_scale: Tensor | None = None,
    a2_scale: Tensor | None = None,
    block_shape: list[int] | None = None,
    w1_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:
    """`fused_experts_impl` without `inplace`, `expert_map`, MX formats and zero points."""
    return fused_experts_impl(
        hidden_states, w1, w2, topk_weights, topk_ids, activation=activation, use_int4_w4a16=use_int4_w4a16,
        apply_router_weight_on_input=apply_router_weight_on_input, w1_scale=w1_scale, w2_scale=w2_scale,
        block_shape=block_shape, w1_bias=w1_bias, w2_bias=w2_bias,
    )  # fmt: skip
