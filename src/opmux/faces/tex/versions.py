"""Chooses the version of tex's interface, and derives the older version from the newest.

Specs have the newest signatures. Functions that have other arguments in Transformer Engine 2.9 are wrapped here.
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

# All functions of 2.9. Functions with other arguments in 2.9 are wrapped below. Do not add functions: new ones belong
# only to the newest interface.
IN_OLDER = frozenset(
    """
    bgrad_quantize bulk_overlap_ag_with_external_gemm clamped_dswiglu clamped_swiglu compute_amax
    convert_bshd_to_thd convert_thd_to_bshd copy_to_kv_cache create_nvshmem_tensor dbias_dgelu dbias_dqgelu
    dbias_drelu dbias_dsilu dbias_dsrelu dequantize device_supports_multicast dgeglu dgelu dqgeglu dqgelu dreglu
    drelu dropout_bwd dropout_fwd dsilu dsreglu dsrelu dswiglu fa_prepare_bwd fa_prepare_fwd
    fp8_block_scaling_compute_partial_amax fp8_block_scaling_partial_cast fp8_transpose
    fused_amax_and_scale_update_after_reduction fused_attn_bwd fused_attn_fwd fused_moe_aux_loss_bwd
    fused_moe_aux_loss_fwd fused_multi_row_padding fused_multi_row_unpadding fused_qkv_rope_backward
    fused_qkv_rope_forward fused_rope_backward fused_rope_forward fused_score_for_moe_aux_loss_bwd
    fused_score_for_moe_aux_loss_fwd fused_topk_with_score_function_bwd fused_topk_with_score_function_fwd geglu
    gelu generic_gemm get_cublasLt_version get_cudnn_version get_fused_attn_backend get_num_cublas_streams
    get_stream_priority_range init_nvshmem_backend layernorm_bwd layernorm_fwd moe_permute_bwd moe_permute_fwd
    moe_unpermute_bwd moe_unpermute_fwd multi_tensor_adam multi_tensor_adam_capturable
    multi_tensor_adam_capturable_master multi_tensor_adam_fp8 multi_tensor_adam_param_remainder
    multi_tensor_compute_scale_and_scale_inv multi_tensor_l2norm multi_tensor_quantize multi_tensor_scale
    multi_tensor_sgd multi_tensor_unscale_l2norm nvshmem_finalize nvshmem_send_on_current_stream
    nvshmem_wait_on_current_stream qgeglu qgelu quantize reglu relu rmsnorm_bwd rmsnorm_bwd_add rmsnorm_fwd
    scaled_aligned_causal_masked_softmax_backward scaled_aligned_causal_masked_softmax_forward
    scaled_masked_softmax_backward scaled_masked_softmax_forward scaled_softmax_backward scaled_softmax_forward
    scaled_upper_triang_masked_softmax_backward scaled_upper_triang_masked_softmax_forward silu split_quantize
    sreglu srelu swap_first_dims swiglu te_general_grouped_gemm thd_get_partitioned_indices thd_grad_correction
    thd_out_correction thd_read_half_tensor thd_read_second_half_lse thd_second_half_lse_correction
    ubuf_built_with_mpi
""".split()
)

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
    """The version to provide: that of the setting, else that of the installed transformer_engine, else the newest."""
    setting = TEX_VERSION.look()
    if setting.is_set and setting.value is not None:
        return _nearest(setting.value, setting.source)
    try:
        return _nearest(importlib.metadata.version("transformer_engine"), "")
    except importlib.metadata.PackageNotFoundError:
        return NEWEST


def _nearest(text: str, source: str) -> str:
    """The version to provide for the version `text`: 2.9 for 2.9 and older, else the newest."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise BadKnob(f"{source} is '{text}': expected a version of tex's interface, {OLDER} or {NEWEST}")
    version = int(match[1]), int(match[2])
    if source and version > (2, 20):
        raise BadKnob(f"{source} is '{text}': the newest version of tex's interface here is {NEWEST}")
    return OLDER if version <= (2, 9) else NEWEST


def enums(version: str) -> dict[str, Any]:
    if version == NEWEST:
        return {e.__name__: e for e in ENUMS}
    derived = {}
    for newest in ENUMS:
        change = OLDER_ENUMS.get(newest.__name__, ((), {}))
        if change is not None:
            missing, extra = change
            shared = {n: int(m) for n, m in newest.__members__.items() if n not in missing}
            members = dict(sorted({**shared, **extra}.items(), key=lambda row: row[1]))
            derived[newest.__name__] = IntEnum(newest.__name__, members, module="transformer_engine_fl_torch")
    return derived


def functions(version: str, newest: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions of a version, derived from the newest ones."""
    if version == NEWEST:
        return newest
    return {n: f for n, f in newest.items() if n in IN_OLDER} | wrappers_of_old_signatures(newest)


def wrappers_of_old_signatures(new: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The functions that have other arguments in 2.9, as wrappers of the newest functions."""
    import torch

    def clamped_swiglu(input, quantizer, limit=7.0, alpha=1.702):
        return new["clamped_swiglu"](input, quantizer, limit, alpha, 1.0)

    def clamped_dswiglu(grad, fwd_input, quantizer, limit=7.0, alpha=1.702):
        return new["clamped_dswiglu"](grad, fwd_input, quantizer, limit, alpha, 1.0)

    def split_quantize(tensor, split_sections, quantizer_list):
        return new["split_quantize"](tensor, split_sections, quantizer_list)

    def get_fused_attn_backend(
        is_training,
        q_dtype,
        kv_dtype,
        qkv_layout,
        bias_type,
        attn_mask_type,
        softmax_type,
        p_dropout,
        num_attn_heads,
        num_gqa_groups,
        max_seqlen_q,
        max_seqlen_kv,
        head_dim_qk,
        head_dim_v,
        window_size_left,
        window_size_right,
        return_max_logit,
    ):
        return new["get_fused_attn_backend"](
            is_training,
            q_dtype,
            kv_dtype,
            qkv_layout,
            bias_type,
            attn_mask_type,
            softmax_type,
            p_dropout,
            num_attn_heads,
            num_gqa_groups,
            max_seqlen_q,
            max_seqlen_kv,
            head_dim_qk,
            head_dim_v,
            window_size_left,
            window_size_right,
            return_max_logit,
            False,
            False,
        )

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
        num_tokens,
        num_experts,
        routing_map,
        intermediate_output,
        grad_probs,
        topk,
        use_pre_softmax,
        scaling_factor,
        score_function,
    ):
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
        loss, saved = new["fused_moe_aux_loss_fwd"](
            probs, tokens_per_expert, total_num_tokens, num_experts, num_rows, num_cols, topk, coeff
        )
        return loss, saved[:1]

    wrappers = {n: f for n, f in locals().items() if n not in ("new", "torch")}
    for name, fn in wrappers.items():
        fn.__qualname__, fn.__doc__ = name, f"As in {OLDER}. {new[name].__doc__ or ''}"
    return wrappers


NOT_SET = int(NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET)


def is_bottom_right(mask: Any) -> bool:
    """Whether a window is aligned to the bottom right: in 2.9 the mask alone determines it."""
    types = NVTE_Mask_Type
    return int(mask) in (types.NVTE_CAUSAL_BOTTOM_RIGHT_MASK, types.NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK)
