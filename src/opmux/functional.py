"""Functions for model code, with gradients: `import opmux.functional as F`."""

from .faces.functional.attention import attn_res as attn_res
from .faces.functional.attention import mhc_apply as mhc_apply
from .faces.functional.attention import mhc_coeffs as mhc_coeffs
from .faces.functional.attention import mhc_forward as mhc_forward
from .faces.functional.attention import mhc_post_res as mhc_post_res
from .faces.functional.attention import mhc_pre as mhc_pre
from .faces.functional.attention import multi_token_attention as multi_token_attention
from .faces.functional.attention import neighborhood_attention as neighborhood_attention
from .faces.functional.decode import attention_decode as attention_decode
from .faces.functional.decode import mla_decode as mla_decode
from .faces.functional.decode import write_kv_cache as write_kv_cache
from .faces.functional.distillation import DistillationOutput as DistillationOutput
from .faces.functional.distillation import fused_linear_distillation as fused_linear_distillation
from .faces.functional.divergences import fused_linear_jsd as fused_linear_jsd
from .faces.functional.divergences import jsd as jsd
from .faces.functional.divergences import kl_div as kl_div
from .faces.functional.divergences import tvd as tvd
from .faces.functional.glu import fused_gate_up_swiglu as fused_gate_up_swiglu
from .faces.functional.glu import geglu as geglu
from .faces.functional.glu import swiglu as swiglu
from .faces.functional.grpo import GRPOOutput as GRPOOutput
from .faces.functional.grpo import fused_linear_grpo as fused_linear_grpo
from .faces.functional.grpo import grpo_loss as grpo_loss
from .faces.functional.grpo import token_log_probs as token_log_probs
from .faces.functional.linear import linear as linear
from .faces.functional.losses import CrossEntropyOutput as CrossEntropyOutput
from .faces.functional.losses import cross_entropy as cross_entropy
from .faces.functional.losses import fused_linear_cross_entropy as fused_linear_cross_entropy
from .faces.functional.mlp import geglu_mlp as geglu_mlp
from .faces.functional.mlp import swiglu_mlp as swiglu_mlp
from .faces.functional.mlp import tiled_mlp as tiled_mlp
from .faces.functional.moe import fused_moe as fused_moe
from .faces.functional.norms import add_rms_norm as add_rms_norm
from .faces.functional.norms import dyt as dyt
from .faces.functional.norms import group_norm as group_norm
from .faces.functional.norms import layer_norm as layer_norm
from .faces.functional.norms import modulated_rms_norm as modulated_rms_norm
from .faces.functional.norms import poly_norm as poly_norm
from .faces.functional.norms import rms_norm as rms_norm
from .faces.functional.preference import KTOOutput as KTOOutput
from .faces.functional.preference import PreferenceOutput as PreferenceOutput
from .faces.functional.preference import fused_linear_cpo as fused_linear_cpo
from .faces.functional.preference import fused_linear_dpo as fused_linear_dpo
from .faces.functional.preference import fused_linear_kto as fused_linear_kto
from .faces.functional.preference import fused_linear_orpo as fused_linear_orpo
from .faces.functional.preference import fused_linear_simpo as fused_linear_simpo
from .faces.functional.preference import linear_log_probs as linear_log_probs
from .faces.functional.rope import apply_multimodal_rotary_pos_emb as apply_multimodal_rotary_pos_emb
from .faces.functional.rope import apply_rotary_emb as apply_rotary_emb
from .faces.functional.rope import apply_rotary_pos_emb as apply_rotary_pos_emb
from .faces.functional.rope import apply_rotary_pos_emb_interleaved as apply_rotary_pos_emb_interleaved
from .faces.functional.rope import apply_rotary_pos_emb_vision as apply_rotary_pos_emb_vision
from .faces.functional.rope import rope as rope
from .faces.functional.rows import embedding as embedding
from .faces.functional.rows import relu_squared as relu_squared
from .faces.functional.rows import softmax as softmax
from .faces.functional.rows import sparsemax as sparsemax
from .faces.functional.scaled_cross_entropy import ScaledCrossEntropyOutput as ScaledCrossEntropyOutput
from .faces.functional.scaled_cross_entropy import (
    fused_linear_scaled_cross_entropy as fused_linear_scaled_cross_entropy,
)
from .faces.functional.scaled_dot_product import attention as attention
from .faces.functional.vocab_parallel import vocab_parallel_cross_entropy as vocab_parallel_cross_entropy

__all__ = [
    "fused_gate_up_swiglu",
    "geglu",
    "swiglu",
    "GRPOOutput",
    "fused_linear_grpo",
    "grpo_loss",
    "token_log_probs",
    "CrossEntropyOutput",
    "cross_entropy",
    "fused_linear_cross_entropy",
    "linear",
    "geglu_mlp",
    "swiglu_mlp",
    "tiled_mlp",
    "fused_moe",
    "add_rms_norm",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "KTOOutput",
    "PreferenceOutput",
    "fused_linear_cpo",
    "fused_linear_dpo",
    "fused_linear_kto",
    "fused_linear_orpo",
    "fused_linear_simpo",
    "linear_log_probs",
    "apply_multimodal_rotary_pos_emb",
    "apply_rotary_emb",
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleaved",
    "apply_rotary_pos_emb_vision",
    "rope",
    "DistillationOutput",
    "fused_linear_distillation",
    "attention",
    "attention_decode",
    "mla_decode",
    "write_kv_cache",
    "attn_res",
    "mhc_apply",
    "mhc_coeffs",
    "mhc_forward",
    "mhc_post_res",
    "mhc_pre",
    "multi_token_attention",
    "neighborhood_attention",
    "fused_linear_jsd",
    "jsd",
    "kl_div",
    "tvd",
    "ScaledCrossEntropyOutput",
    "fused_linear_scaled_cross_entropy",
    "vocab_parallel_cross_entropy",
    "modulated_rms_norm",
    "poly_norm",
    "dyt",
    "softmax",
    "sparsemax",
    "relu_squared",
    "embedding",
]
