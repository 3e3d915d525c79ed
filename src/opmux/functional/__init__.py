"""Functions for model code, with gradients: `import opmux.functional as F`.

The functions call ops; their modules import only `..specs` and `..core`. Read glu.py first, the shortest module. No
module may have the name of a function, because importing the module would hide the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import lazy

if TYPE_CHECKING:
    from .attention_variants import attn_res as attn_res
    from .attention_variants import mhc_apply as mhc_apply
    from .attention_variants import mhc_coeffs as mhc_coeffs
    from .attention_variants import mhc_forward as mhc_forward
    from .attention_variants import mhc_post_res as mhc_post_res
    from .attention_variants import mhc_pre as mhc_pre
    from .attention_variants import multi_token_attention as multi_token_attention
    from .attention_variants import neighborhood_attention as neighborhood_attention
    from .decode import attention_decode as attention_decode
    from .decode import mla_decode as mla_decode
    from .decode import write_kv_cache as write_kv_cache
    from .distillation import DistillationOutput as DistillationOutput
    from .distillation import fused_linear_distillation as fused_linear_distillation
    from .divergences import fused_linear_jsd as fused_linear_jsd
    from .divergences import jsd as jsd
    from .divergences import kl_div as kl_div
    from .divergences import tvd as tvd
    from .glu import fused_gate_up_swiglu as fused_gate_up_swiglu
    from .glu import geglu as geglu
    from .glu import swiglu as swiglu
    from .grpo import GRPOOutput as GRPOOutput
    from .grpo import fused_linear_grpo as fused_linear_grpo
    from .grpo import grpo_loss as grpo_loss
    from .grpo import token_log_probs as token_log_probs
    from .linear_layer import linear as linear
    from .losses import CrossEntropyOutput as CrossEntropyOutput
    from .losses import cross_entropy as cross_entropy
    from .losses import fused_linear_cross_entropy as fused_linear_cross_entropy
    from .mlp import geglu_mlp as geglu_mlp
    from .mlp import swiglu_mlp as swiglu_mlp
    from .mlp import tiled_mlp as tiled_mlp
    from .moe import fused_moe as fused_moe
    from .norms import add_rms_norm as add_rms_norm
    from .norms import dyt as dyt
    from .norms import group_norm as group_norm
    from .norms import layer_norm as layer_norm
    from .norms import modulated_rms_norm as modulated_rms_norm
    from .norms import poly_norm as poly_norm
    from .norms import rms_norm as rms_norm
    from .preference import KTOOutput as KTOOutput
    from .preference import PreferenceOutput as PreferenceOutput
    from .preference import fused_linear_cpo as fused_linear_cpo
    from .preference import fused_linear_dpo as fused_linear_dpo
    from .preference import fused_linear_kto as fused_linear_kto
    from .preference import fused_linear_orpo as fused_linear_orpo
    from .preference import fused_linear_simpo as fused_linear_simpo
    from .preference import linear_log_probs as linear_log_probs
    from .rotary import apply_multimodal_rotary_pos_emb as apply_multimodal_rotary_pos_emb
    from .rotary import apply_rotary_emb as apply_rotary_emb
    from .rotary import apply_rotary_pos_emb as apply_rotary_pos_emb
    from .rotary import apply_rotary_pos_emb_interleaved as apply_rotary_pos_emb_interleaved
    from .rotary import apply_rotary_pos_emb_vision as apply_rotary_pos_emb_vision
    from .rotary import rope as rope
    from .rows import embedding as embedding
    from .rows import relu_squared as relu_squared
    from .rows import softmax as softmax
    from .rows import sparsemax as sparsemax
    from .scaled_cross_entropy import ScaledCrossEntropyOutput as ScaledCrossEntropyOutput
    from .scaled_cross_entropy import fused_linear_scaled_cross_entropy as fused_linear_scaled_cross_entropy
    from .scaled_dot_product import attention as attention
    from .vocab_parallel import vocab_parallel_cross_entropy as vocab_parallel_cross_entropy
else:
    __getattr__, __dir__, __all__ = lazy.names(
        __name__,
        {
            "attention_variants": (
                "attn_res mhc_apply mhc_coeffs mhc_forward mhc_post_res mhc_pre multi_token_attention "
                "neighborhood_attention"
            ),
            "decode": "attention_decode mla_decode write_kv_cache",
            "distillation": "DistillationOutput fused_linear_distillation",
            "divergences": "fused_linear_jsd jsd kl_div tvd",
            "glu": "fused_gate_up_swiglu geglu swiglu",
            "grpo": "GRPOOutput fused_linear_grpo grpo_loss token_log_probs",
            "linear_layer": "linear",
            "losses": "CrossEntropyOutput cross_entropy fused_linear_cross_entropy",
            "mlp": "geglu_mlp swiglu_mlp tiled_mlp",
            "moe": "fused_moe",
            "norms": "add_rms_norm dyt group_norm layer_norm modulated_rms_norm poly_norm rms_norm",
            "preference": (
                "KTOOutput PreferenceOutput fused_linear_cpo fused_linear_dpo fused_linear_kto fused_linear_orpo "
                "fused_linear_simpo linear_log_probs"
            ),
            "rotary": (
                "apply_multimodal_rotary_pos_emb apply_rotary_emb apply_rotary_pos_emb "
                "apply_rotary_pos_emb_interleaved apply_rotary_pos_emb_vision rope"
            ),
            "rows": "embedding relu_squared softmax sparsemax",
            "scaled_cross_entropy": "ScaledCrossEntropyOutput fused_linear_scaled_cross_entropy",
            "scaled_dot_product": "attention",
            "vocab_parallel": "vocab_parallel_cross_entropy",
        },
    )
