"""Names that modules of Liger import from each other; programs also import them from there."""

from __future__ import annotations

# Module of Liger -> the modules that import names from it, and these names.
IMPORTED: dict[str, dict[str, str]] = {
    "utils": {
        "ops.cross_entropy": "infer_device infer_device_arch is_npu_available",
        "ops.dyt": "is_npu_available",
        "ops.fused_add_rms_norm": "is_npu_available",
        "ops.fused_linear_cross_entropy": "infer_device",
        "ops.fused_linear_jsd": "infer_device",
        "ops.geglu": "is_npu_available",
        "ops.group_norm": "infer_device is_npu_available",
        "ops.jsd": "infer_device",
        "ops.kl_div": "infer_device",
        "ops.layer_norm": "is_npu_available",
        "ops.modulated_rms_norm": "is_npu_available",
        "ops.poly_norm": "is_npu_available",
        "ops.rms_norm": "is_npu_available",
        "ops.swiglu": "infer_device_arch",
        "ops.utils": "infer_device",
        "ops.vocab_parallel_cross_entropy": "infer_device",
    },
    "ops.utils": {
        "ops.attn_res": "ensure_contiguous",
        "ops.cross_entropy": "compare_version element_mul_kernel is_hip",
        "ops.dyt": "compare_version ensure_contiguous get_npu_core_count infer_device",
        "ops.experimental.embedding": "ensure_contiguous",
        "ops.fused_add_rms_norm": (
            "calculate_settings compare_version ensure_contiguous get_npu_core_count set_large_grf_mode "
            "torch_to_triton_dtype"
        ),
        "ops.fused_linear_cross_entropy": "amp_custom_bwd amp_custom_fwd element_mul_kernel is_hip",
        "ops.fused_linear_jsd": "amp_custom_bwd amp_custom_fwd element_mul_kernel is_hip",
        "ops.fused_moe": "ensure_contiguous",
        "ops.fused_neighborhood_attention": "calculate_settings ensure_contiguous",
        "ops.geglu": "calculate_settings compare_version device_context ensure_contiguous",
        "ops.group_norm": "compare_version ensure_contiguous",
        "ops.jsd": "ensure_contiguous",
        "ops.kl_div": "ensure_contiguous is_hip",
        "ops.layer_norm": (
            "calculate_settings compare_version ensure_contiguous get_npu_core_count set_large_grf_mode"
        ),
        "ops.mhc": "ensure_contiguous",
        "ops.modulated_rms_norm": (
            "calculate_settings compare_version ensure_contiguous get_npu_core_count set_large_grf_mode "
            "torch_to_triton_dtype"
        ),
        "ops.multi_token_attention": "calculate_settings ensure_contiguous",
        "ops.poly_norm": ("calculate_settings compare_version ensure_contiguous get_npu_core_count set_large_grf_mode"),
        "ops.relu_squared": "calculate_settings ensure_contiguous",
        "ops.rms_norm": (
            "calculate_settings compare_version device_context ensure_contiguous get_npu_core_count "
            "set_large_grf_mode torch_to_triton_dtype"
        ),
        "ops.softmax": "calculate_settings ensure_contiguous",
        "ops.sparsemax": "calculate_settings ensure_contiguous",
        "ops.swiglu": "calculate_settings device_context ensure_contiguous",
        "ops.tiled_mlp": "ensure_contiguous",
        "ops.tvd": "ensure_contiguous",
        "ops.vocab_parallel_cross_entropy": "is_hip",
    },
    "ops": {
        "megatron.rms_norm": "LigerRMSNormFunction",
        "megatron.swiglu": "LigerFusedGateUpSiLUMulFunction",
        "transformers.cross_entropy": "LigerCrossEntropyFunction",
        "transformers.dyt": "LigerDyTFunction",
        "transformers.experimental.embedding": "LigerEmbeddingFunction",
        "transformers.functional": (
            "LigerAttnResFunction LigerCrossEntropyFunction LigerDyTFunction LigerFusedAddRMSNormFunction "
            "LigerFusedLinearCrossEntropyFunction LigerFusedLinearJSDFunction "
            "LigerFusedNeighborhoodAttentionFunction LigerGELUMulFunction LigerGroupNormFunction "
            "LigerJSDFunction LigerKLDivLossFunction LigerLayerNormFunction LigerMHCCoeffsFunction "
            "LigerMHCPostResFunction LigerMHCPreFunction LigerModulatedRMSNormFunction "
            "LigerMultiTokenAttentionFunction LigerPolyNormFunction LigerQwen2VLMRopeFunction "
            "LigerReLUSquaredFunction LigerRMSNormFunction LigerRopeFunction LigerSiLUMulFunction "
            "LigerSoftmaxFunction LigerSparsemaxFunction LigerTVDLossFunction"
        ),
        "transformers.fused_add_rms_norm": "LigerFusedAddRMSNormFunction",
        "transformers.fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyFunction",
        "transformers.fused_linear_jsd": "LigerFusedLinearJSDFunction",
        "transformers.fused_neighborhood_attention": "LigerFusedNeighborhoodAttentionFunction",
        "transformers.geglu": "LigerGELUMulFunction",
        "transformers.group_norm": "LigerGroupNormFunction",
        "transformers.grpo_loss": "GrpoLossFunction",
        "transformers.jsd": "LigerJSDFunction",
        "transformers.kl_div": "LigerKLDivLossFunction",
        "transformers.layer_norm": "LigerLayerNormFunction",
        "transformers.llama4_rope": "LigerLlama4RopeFunction",
        "transformers.modulated_rms_norm": "LigerModulatedRMSNormFunction",
        "transformers.multi_token_attention": "LigerMultiTokenAttentionFunction",
        "transformers.poly_norm": "LigerPolyNormFunction",
        "transformers.qwen2vl_mrope": "LigerQwen2VLMRopeFunction",
        "transformers.relu_squared": "LigerReLUSquaredFunction",
        "transformers.rms_norm": "LigerRMSNormFunction",
        "transformers.rope": "LigerRopeFunction",
        "transformers.softmax": "LigerSoftmaxFunction",
        "transformers.sparsemax": "LigerSparsemaxFunction",
        "transformers.swiglu": "LigerFusedMoEFunction LigerSiLUMulFunction",
        "transformers.tiled_mlp": "LigerGELUMulFunction LigerSiLUMulFunction apply_tiled_mlp",
        "transformers.tvd": "LigerTVDLossFunction",
    },
    "ops.cross_entropy": {
        "ops.fused_linear_cross_entropy": "liger_cross_entropy_kernel",
    },
    "ops.grpo_loss": {
        "transformers.grpo_loss": "fused_selective_log_softmax",
    },
    "ops.vocab_parallel_cross_entropy": {
        "transformers.vocab_parallel_cross_entropy": ("LigerVocabParallelCEFunction validate_formula_and_mode"),
    },
    "chunked_loss.cosine_similarity_loss": {
        "chunked_loss.functional": "LigerFusedLinearCosineSimilarityFunction",
    },
    "chunked_loss.cpo_loss": {
        "chunked_loss.functional": "LigerFusedLinearCPOFunction",
    },
    "chunked_loss.dpo_loss": {
        "chunked_loss.functional": "LigerFusedLinearDPOFunction",
    },
    "chunked_loss.fused_linear_distillation": {
        "chunked_loss.cosine_similarity_loss": "LigerFusedLinearDistillationBase",
        "chunked_loss.jsd_loss": "LigerFusedLinearDistillationBase",
    },
    "chunked_loss.fused_linear_ppo": {
        "chunked_loss.grpo_loss": "LigerFusedLinearPPOBase",
        "transformers.grpo_loss": "LigerFusedLinearPPOBase",
    },
    "chunked_loss.fused_linear_preference": {
        "chunked_loss.cpo_loss": "LigerFusedLinearPreferenceBase",
        "chunked_loss.dpo_loss": "LigerFusedLinearPreferenceBase",
        "chunked_loss.orpo_loss": "LigerFusedLinearPreferenceBase",
        "chunked_loss.simpo_loss": "LigerFusedLinearPreferenceBase",
    },
    "chunked_loss.fused_linear_unpaired_preference": {
        "chunked_loss.kto_loss": "LigerFusedLinearUnpairedPreferenceBase",
    },
    "chunked_loss.grpo_loss": {
        "transformers.grpo_loss": "get_gamma_weights",
        "chunked_loss.functional": "LigerFusedLinearGRPOFunction",
    },
    "chunked_loss.jsd_loss": {
        "chunked_loss.functional": "LigerFusedLinearJSDFunction",
    },
    "chunked_loss.kto_loss": {
        "chunked_loss.functional": "LigerFusedLinearKTOFunction",
    },
    "chunked_loss.orpo_loss": {
        "chunked_loss.functional": "LigerFusedLinearORPOFunction",
    },
    "chunked_loss.simpo_loss": {
        "chunked_loss.functional": "LigerFusedLinearSimPOFunction",
    },
    "transformers.cross_entropy": {
        "transformers.monkey_patch": "LigerCrossEntropyLoss",
    },
    "transformers.functional": {
        "transformers.cross_entropy": "CrossEntropyOutput",
        "transformers.fused_linear_cross_entropy": "CrossEntropyOutput",
        "transformers.mhc": "liger_mhc_coeffs liger_mhc_post_res liger_mhc_pre",
        "transformers.monkey_patch": "liger_cross_entropy",
    },
    "transformers.geglu": {
        "transformers.monkey_patch": "LigerGEGLUMLP LigerGEGLUMLPForGemma4",
    },
    "transformers.layer_norm": {
        "transformers.monkey_patch": "LigerLayerNorm",
    },
    "transformers.monkey_patch": {
        "transformers.auto_model": "MODEL_TYPE_TO_APPLY_LIGER_FN",
    },
    "transformers.qwen2vl_mrope": {
        "transformers.monkey_patch": "liger_multimodal_rotary_pos_emb",
    },
    "transformers.relu_squared": {
        "transformers.monkey_patch": "LigerReLUSquared",
    },
    "transformers.rms_norm": {
        "transformers.monkey_patch": "LigerRMSNorm",
    },
    "transformers.rope": {
        "transformers.monkey_patch": "liger_rotary_pos_emb liger_rotary_pos_emb_vision",
    },
    "transformers.swiglu": {
        "transformers.monkey_patch": ("LigerBlockSparseTop2MLP LigerExperts LigerPhi3SwiGLUMLP LigerSwiGLUMLP"),
    },
    "transformers.vocab_parallel_cross_entropy": {
        "megatron.cross_entropy": "LigerVocabParallelCrossEntropy",
    },
}
