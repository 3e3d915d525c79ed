"""The models that Liger patches, with the arguments of `apply_liger_kernel_to_<model>`."""

from __future__ import annotations

_LOSSES = "cross_entropy=False, fused_linear_cross_entropy=True"
_OF_LOGITS = "cross_entropy=True, fused_linear_cross_entropy=False"
# Arguments of `apply_liger_kernel_to_<model>` -> the models that have these arguments.
MODELS = {
    f"rope=True, {_LOSSES}, rms_norm=True, swiglu=True, model=None": (
        "exaone4 falcon_h1 hunyuan_v1_dense hunyuan_v1_moe llama ministral mistral mixtral olmo2 olmo3 phi3 qwen2 "
        "qwen2_5_vl qwen3 qwen3_moe qwen3_vl_moe smollm3"
    ),
    f"rope=False, {_LOSSES}, rms_norm=True, swiglu=True, model=None": (
        "glm4 glm4v glm4v_moe qwen3_5 qwen3_5_moe qwen3_next"
    ),
    f"rope=True, {_LOSSES}, rms_norm=True, swiglu=False, model=None": "gpt_oss qwen3_vl",
    f"rope=False, {_LOSSES}, rms_norm=True, swiglu=False, model=None": "deepseek_v4",
    f"rope=True, {_LOSSES}, rms_norm=True, swiglu=True, model=None, layer_norm=True": "llama4",
    f"rope=True, {_LOSSES}, layer_norm=True, rms_norm=True, swiglu=True, model=None": "mllama",
    f"rope=True, {_LOSSES}, rms_norm=True, layer_norm=True, swiglu=True, model=None": "qwen2_vl",
    f"rope=True, {_LOSSES}, rms_norm=True, geglu=True, model=None": "gemma gemma2 gemma3_text",
    f"rope=False, {_LOSSES}, rms_norm=True, geglu=True, model=None": "gemma4_text",
    f"rope=True, {_LOSSES}, layer_norm=True, rms_norm=True, geglu=True, model=None": "gemma3 paligemma",
    f"rope=False, {_LOSSES}, layer_norm=False, rms_norm=True, geglu=True, model=None": "gemma4",
    f"rope=True, {_OF_LOGITS}, rms_norm=True, swiglu=True, model=None": "granite",
    "rope=True, rms_norm=True, swiglu=True, model=None": "pixtral",
    f"relu_squared=True, {_LOSSES}, model=None, **kwargs": "nemotron",
    f"{_LOSSES}, model=None, **kwargs": "llava",
    f"{_LOSSES}, rms_norm=True, layer_norm=True, model=None, **kwargs": "internvl smolvlm",
}
# Other model types of transformers -> the model in MODELS whose patch they use.
TYPES = {
    "llama4_text": "llama4",
    "mllama_text_model": "mllama",
    **{
        f"{name}_text": name
        for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe")
    },
}
