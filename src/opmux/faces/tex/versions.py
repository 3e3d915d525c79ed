"""Which version of tex's interface is provided, and how the older one differs from the newest.

Specs have the newest signatures. A function that has other arguments in 2.9 is a wrapper here.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from ...core.errors import BadKnob
from .enums import ENUMS, NVTE_Mask_Type, NVTE_QKV_Format
from .settings import TEX_VERSION

NEWEST, OLDER = "2.20", "2.9"

# Functions that are newer than 2.9. Those with other arguments in 2.9: see below.
NEW = frozenset("""
    bgrad_group_quantize bulk_allocate copy_data_ptrs_to_device create_empty_quantized_tensor cusolvermp_ctx_create
    cusolvermp_ctx_destroy dglu dsituglu ep_combine ep_combine_bwd ep_dispatch ep_dispatch_bwd ep_finalize
    ep_get_zero_copy ep_handle_mem_size ep_initialize ep_prepare ep_zero_copy_supported
    fused_moe_aux_loss_fwd_graph_safe fused_topk_with_score_function_qb_fwd get_grouped_gemm_setup_workspace_size glu
    group_dequantize group_quantize group_requantize_inplace grouped_swizzle_for_gemm
    multi_tensor_compute_scale_inv_e8m0 multi_tensor_pad_last_dim multi_tensor_scale_tensor
    multi_tensor_swizzle_scales_for_gemm_
    multi_tensor_swizzle_scales_for_gemm_unchecked_ multi_tensor_transpose_to_bhsd mxfp8_scaling_compute_partial_amax
    mxfp8_scaling_partial_cast newton_schulz nvfp4_2d_compute_partial_amax nvfp4_2d_multi_tensor_transpose
    nvfp4_2d_partial_cast nvfp4_2d_scale_transpose nvfp4_compute_global_scale nvfp4_compute_per_block_scale
    nvfp4_data_transpose nvfp4_expand_scale_to_fp8 nvfp4_fused_scale nvfp4_group_quantize_with_amax
    nvfp4_multi_tensor_2d_partial_cast nvfp4_multi_tensor_compute_partial_amax nvfp4_multi_tensor_fused_scale
    nvfp4_quantize_with_amax nvte_built_with_cublasmp scaled_clamped_dswiglu scaled_clamped_swiglu scaled_dsituglu
    scaled_dsrelu scaled_dswiglu scaled_situglu scaled_srelu scaled_swiglu situglu splits_to_offsets
    splits_to_offsets_multi swizzle_scales_and_pack_ptrs_for_discrete_weights swizzle_scales_for_gemm_
    te_general_grouped_gemm_for_discrete_in te_general_grouped_gemm_for_discrete_out
    te_general_grouped_gemm_for_grouped_tensor thd_copy_valid_tokens_from_per_split_to_rank_local
    thd_cp_rank_order_to_sequence_order thd_sequence_order_to_cp_rank_order
""".split())  # fmt: skip

# Members of the newest enums that 2.9 lacks, and members that only 2.9 has; None for an enum that 2.9 lacks.
OLDER_ENUMS: dict[str, tuple[tuple[str, ...], dict[str, int]] | None] = {
    "NVTE_QKV_Format": (("NVTE_BHSD", "NVTE_QKV_Format_NOT_SET"), {}),
    "NVTE_QKV_Layout": (("NVTE_BHSD_BHSD_BHSD", "NVTE_QKV_Layout_NOT_SET"), {}),
    "NVTE_Fused_Attn_Backend": ((), {"NVTE_F16_max512_seqlen": 0}),
    "Float8BlockScaleTensorFormat": (("INVALID",), {}),
    "NVTEScalingMode": None,
    "NVTERoutingMapFormat": None,
    "NVTEQBHistogramMode": None,
}


def served() -> str:
    """The version to provide: the setting's, else the installed transformer_engine's, else the newest."""
    asked = TEX_VERSION.look()
    if asked.is_set and asked.value is not None:
        return _nearest(asked.value, asked.source)
    try:
        return _nearest(importlib.metadata.version("transformer_engine"), "")
    except importlib.metadata.PackageNotFoundError:
        return NEWEST


def _nearest(text: str, source: str) -> str:
    """The provided version for a version: 2.9 up to 2.9, the newest for all later ones."""
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise BadKnob(f"{source} is '{text}': expected a version of tex's interface, {OLDER} or {NEWEST}")
    asked = int(found[1]), int(found[2])
    if source and asked > (2, 20):
        raise BadKnob(f"{source} is '{text}': the newest version of tex's interface here is {NEWEST}")
    return OLDER if asked <= (2, 9) else NEWEST


def enums(version: str) -> dict[str, Any]:
    if version == NEWEST:
        return {e.__name__: e for e in ENUMS}
    made = {}
    for newest in ENUMS:
        change = OLDER_ENUMS.get(newest.__name__, ((), {}))
        if change is not None:
            lacks, more = change
            kept = {n: int(m) for n, m in newest.__members__.items() if n not in lacks}
            members = dict(sorted({**kept, **more}.items(), key=lambda row: row[1]))
            made[newest.__name__] = IntEnum(newest.__name__, members, module="transformer_engine_fl_torch")
    return made


def functions(version: str, newest: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of a version, derived from the newest ones."""
    if version == NEWEST:
        return newest
    return {n: f for n, f in newest.items() if n not in NEW} | wrappers_of_old_signatures(newest)


def wrappers_of_old_signatures(new: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions that have other arguments in 2.9, as wrappers of the newest ones."""
    import torch

    def clamped_swiglu(input, quantizer, limit=7.0, alpha=1.702):
        return new["clamped_swiglu"](input, quantizer, limit, alpha, 1.0)

    def clamped_dswiglu(grad, fwd_input, quantizer, limit=7.0, alpha=1.702):
        return new["clamped_dswiglu"](grad, fwd_input, quantizer, limit, alpha, 1.0)

    def split_quantize(tensor, split_sections, quantizer_list):
        return new["split_quantize"](tensor, split_sections, quantizer_list)

    def get_fused_attn_backend(
        is_training, q_dtype, kv_dtype, qkv_layout, bias_type, attn_mask_type, softmax_type, p_dropout,
        num_attn_heads, num_gqa_groups, max_seqlen_q, max_seqlen_kv, head_dim_qk, head_dim_v, window_size_left,
        window_size_right, return_max_logit,
    ):  # fmt: skip
        return new["get_fused_attn_backend"](
            is_training, q_dtype, kv_dtype, qkv_layout, bias_type, attn_mask_type, softmax_type, p_dropout,
            num_attn_heads, num_gqa_groups, max_seqlen_q, max_seqlen_kv, head_dim_qk, head_dim_v, window_size_left,
            window_size_right, return_max_logit, False, False,
        )  # fmt: skip

    def fused_attn_fwd(
        max_seqlen_q, max_seqlen_kv, is_training, attn_scale, p_dropout, set_zero, qkv_layout, bias_type,
        attn_mask_type, softmax_type, window_size, cu_seqlens_q, cu_seqlens_kv, Q, K, V, fake_dtype,
        cu_seqlens_q_padded, cu_seqlens_kv_padded, page_table_k, page_table_v, s_quantizer, o_quantizer, Bias,
        SoftmaxOffset, rng_gen, rng_elts_per_thread, return_max_logit,
    ):  # fmt: skip
        return new["fused_attn_fwd"](
            max_seqlen_q, max_seqlen_kv, is_training, attn_scale, p_dropout, set_zero, qkv_layout, NOT_SET, NOT_SET,
            bias_type, attn_mask_type, softmax_type, window_size, is_bottom_right(attn_mask_type), cu_seqlens_q,
            cu_seqlens_kv, Q, K, V, fake_dtype, cu_seqlens_q_padded, cu_seqlens_kv_padded, page_table_k, page_table_v,
            s_quantizer, o_quantizer, Bias, SoftmaxOffset, rng_gen, rng_elts_per_thread, return_max_logit, False,
        )  # fmt: skip

    def fused_attn_bwd(
        max_seqlen_q, max_seqlen_kv, attn_scale, p_dropout, set_zero, qkv_layout, bias_type, attn_mask_type,
        softmax_type, window_size, deterministic, cu_seqlens_q, cu_seqlens_kv, Q, K, V, O, dO,  # noqa: E741
        fake_dtype, dqkv_type,
        Aux_CTX_Tensors, cu_seqlens_q_padded, cu_seqlens_kv_padded, s_quantizer, dp_quantizer, dqkv_quantizer,
    ):  # fmt: skip
        return new["fused_attn_bwd"](
            max_seqlen_q, max_seqlen_kv, attn_scale, p_dropout, set_zero, qkv_layout, NOT_SET, NOT_SET, qkv_layout,
            NOT_SET, NOT_SET, bias_type, attn_mask_type, softmax_type, window_size, is_bottom_right(attn_mask_type),
            deterministic, cu_seqlens_q, cu_seqlens_kv, Q, K, V, O, dO, fake_dtype, Aux_CTX_Tensors,
            cu_seqlens_q_padded, cu_seqlens_kv_padded, s_quantizer, dp_quantizer, dqkv_quantizer, False,
        )  # fmt: skip

    def fused_rope_backward(output_grads, freqs, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank):
        return new["fused_rope_backward"](
            output_grads, freqs, None, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank
        )

    def fused_topk_with_score_function_fwd(
        logits, topk, use_pre_softmax, num_groups, group_topk, scaling_factor, score_function, expert_bias
    ):
        return new["fused_topk_with_score_function_fwd"](
            logits, topk, use_pre_softmax, num_groups, group_topk, scaling_factor, score_function, expert_bias
        )

    def fused_topk_with_score_function_bwd(
        num_tokens, num_experts, routing_map, intermediate_output, grad_probs, topk, use_pre_softmax, scaling_factor,
        score_function,
    ):  # fmt: skip
        grad = torch.empty_like(grad_probs)
        new["fused_topk_with_score_function_bwd"](
            routing_map, intermediate_output, grad_probs, grad, topk, use_pre_softmax, scaling_factor, score_function
        )
        return grad

    def fused_score_for_moe_aux_loss_fwd(logits, topk, score_function):
        return new["fused_score_for_moe_aux_loss_fwd"](logits, topk, score_function)

    def fused_score_for_moe_aux_loss_bwd(
        num_tokens, num_experts, intermediate_output, grad_scores, topk, score_function
    ):
        grad = torch.empty_like(grad_scores)
        new["fused_score_for_moe_aux_loss_bwd"](intermediate_output, grad_scores, grad, topk, score_function)
        return grad

    def fused_moe_aux_loss_fwd(
        probs, tokens_per_expert, total_num_tokens, num_experts, num_rows, num_cols, topk, coeff
    ):
        loss, kept = new["fused_moe_aux_loss_fwd"](
            probs, tokens_per_expert, total_num_tokens, num_experts, num_rows, num_cols, topk, coeff
        )
        return loss, kept[:1]

    own = {n: f for n, f in locals().items() if n not in ("new", "torch")}
    for name, fn in own.items():
        fn.__qualname__, fn.__doc__ = name, f"As in {OLDER}. {new[name].__doc__ or ''}"
    return own


NOT_SET = int(NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET)


def is_bottom_right(mask: Any) -> bool:
    """Whether a window is aligned to the bottom right: in 2.9 the mask alone determines it."""
    types = NVTE_Mask_Type
    return int(mask) in (types.NVTE_CAUSAL_BOTTOM_RIGHT_MASK, types.NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK)
