"""The names in `liger_kernel.ops`, under which vendors' packages written for Liger export implementations."""

from __future__ import annotations

# An autograd.Function of Liger -> our op with the same arguments. A vendor's class with the function's name implements
# the op's forward and backward on the vendor's device.
FUNCTION_OPS = {
    "LigerDyTFunction": "dyt",
    "LigerFusedGateUpSiLUMulFunction": "silu_glu",
    "LigerGELUMulFunction": "gelu_tanh_mul",
    "LigerMHCPostResFunction": "mhc_post_res",
    "LigerMHCPreFunction": "mhc_pre",
    "LigerReLUSquaredFunction": "srelu",
    "LigerSiLUMulFunction": "silu_mul",
}

# Submodule of liger_kernel.ops -> the names in it that liger_kernel.ops also exports.
OPS = {
    "attn_res": "LigerAttnResFunction attn_res_forward attn_res_backward",
    "cross_entropy": "LigerCrossEntropyFunction cross_entropy_forward cross_entropy_backward",
    "dyt": "LigerDyTFunction",
    "experimental.embedding": "LigerEmbeddingFunction",
    "fused_add_rms_norm": "LigerFusedAddRMSNormFunction fused_add_rms_norm_forward fused_add_rms_norm_backward",
    "fused_linear_cross_entropy": (
        "LigerFusedLinearCrossEntropyFunction fused_linear_cross_entropy_forward fused_linear_cross_entropy_backward"
    ),
    "fused_linear_jsd": "LigerFusedLinearJSDFunction fused_linear_jsd_forward fused_linear_jsd_backward",
    "fused_linear_scaled_cross_entropy": "LigerFusedLinearScaledCrossEntropyFunction",
    "fused_moe": "LigerFusedMoEFunction",
    "fused_neighborhood_attention": "LigerFusedNeighborhoodAttentionFunction",
    "geglu": "LigerGELUMulFunction geglu_forward geglu_backward",
    "group_norm": "LigerGroupNormFunction group_norm_forward group_norm_backward",
    "grpo_loss": "GrpoLossFunction",
    "jsd": "LigerJSDFunction jsd_forward jsd_backward",
    "kl_div": "LigerKLDivLossFunction",
    "layer_norm": "LigerLayerNormFunction layer_norm_forward layer_norm_backward",
    "llama4_rope": "LigerLlama4RopeFunction",
    "mhc": "LigerMHCCoeffsFunction LigerMHCPreFunction LigerMHCPostResFunction",
    "mlp": "LigerMLPFunction",
    "modulated_rms_norm": "LigerModulatedRMSNormFunction modulated_rms_norm_forward modulated_rms_norm_backward",
    "multi_token_attention": "LigerMultiTokenAttentionFunction",
    "poly_norm": "LigerPolyNormFunction poly_norm_forward poly_norm_backward",
    "qwen2vl_mrope": "LigerQwen2VLMRopeFunction",
    "relu_squared": "LigerReLUSquaredFunction relu_squared_forward relu_squared_backward",
    "rms_norm": "LigerRMSNormFunction rms_norm_forward rms_norm_backward",
    "rope": "LigerRopeFunction rope_forward rope_backward",
    "softmax": "LigerSoftmaxFunction",
    "sparsemax": "LigerSparsemaxFunction",
    "swiglu": "LigerSiLUMulFunction LigerFusedGateUpSiLUMulFunction swiglu_forward swiglu_backward",
    "tiled_mlp": "LigerTiledMLPFunction apply_tiled_mlp",
    "tvd": "LigerTVDLossFunction",
    "vocab_parallel_cross_entropy": "LigerVocabParallelCEFunction",
}

NAMES = frozenset(name for names in OPS.values() for name in names.split())
