"""The names in the modules of `liger_kernel.transformers.model`."""

from __future__ import annotations

FILE = "model_forwards"
LOSSES = "LigerForCausalLMLoss unpack_cross_entropy_result"
# Names of a module -> the models whose modules have them. Each also has LOSSES.
MODELS_WITH = {
    "lce_forward LigerCausalLMOutputWithPast": (
        "exaone4 falcon_h1 gemma glm4 glm4v hunyuan_v1 llama4 ministral mistral mllama olmo2 olmo3 phi3 qwen2 qwen3"
    ),
    "lce_forward LigerMoeCausalLMOutputWithPast": "deepseek_v4 gpt_oss mixtral qwen3_moe qwen3_next",
    "lce_forward lce_maybe_trainable_lm_head LigerCausalLMOutputWithPast": "nemotron",
    "lce_forward lce_maybe_trainable_lm_head LigerCausalLMOutputWithPast PEFT_AVAILABLE": "llama smollm3",
    "lce_forward LigerCausalLMOutputWithPast logger": "gemma2",
    "causal_forward multimodal_forward LigerCausalLMOutputWithPast LigerGemma3CausalLMOutputWithPast logger": "gemma3",
    "causal_forward multimodal_forward LigerCausalLMOutputWithPast LigerGemma4CausalLMOutputWithPast logger": "gemma4",
    "lce_forward LigerGlm4vMoeCausalLMOutputWithPast": "glm4v_moe",
    "lce_forward LigerInternVLCausalLMOutputWithPast": "internvl",
    "lce_forward LigerLlavaCausalLMOutputWithPast": "llava",
    "lce_forward LigerPaliGemmaCausalLMOutputWithPast logger": "paligemma",
    "lce_forward LigerQwen2VLCausalLMOutputWithPast": "qwen2_vl",
    "lce_forward LigerQwen2_5_VLCausalLMOutputWithPast": "qwen2_5_vl",
    "lce_forward LigerQwen3VLCausalLMOutputWithPast": "qwen3_vl",
    "lce_forward LigerQwen3VLMoeCausalLMOutputWithPast": "qwen3_vl_moe",
    "lce_forward lce_forward_for_multimodal LigerCausalLMOutputWithPast LigerQwen3_5CausalLMOutputWithPast": "qwen3_5",
    "lce_forward lce_forward_conditional_generation LigerMoeCausalLMOutputWithPast "
    "LigerQwen3_5MoeCausalLMOutputWithPast": "qwen3_5_moe",
    "lce_forward": "smolvlm",
}
# Models whose forward transformers.monkey_patch imports, as <model>_lce_forward.
IMPORTED_BY_PATCHES = "falcon_h1 gemma gemma2 gpt_oss llama llava ministral mistral mixtral nemotron phi3 qwen2 smollm3"
OUTPUT_CLASSES = dict.fromkeys(
    name for names in MODELS_WITH for name in names.split() if name.startswith("Liger") and "Output" in name
)


def _home(name: str, model: str) -> str:
    """The file of this package that defines a name of a model's module; see `names.Homes`."""
    if name == "logger":
        return "launching"
    if name == "PEFT_AVAILABLE":
        return "patching"
    return f"{FILE}:{name}@{model}" if name.endswith("_forward") or "_forward_" in name else FILE


def tables() -> dict[str, dict[str, str]]:
    """Module of Liger -> its names and where they are defined."""
    found: dict[str, dict[str, str]] = {"transformers.model": {}, "transformers.model.pixtral": {}}
    for names, models in MODELS_WITH.items():
        for model in models.split():
            found[f"transformers.model.{model}"] = {n: _home(n, model) for n in f"{names} {LOSSES}".split()}
    losses = f"{LOSSES} fixed_fused_linear_cross_entropy CrossEntropyOutput"
    found["transformers.model.loss_utils"] = dict.fromkeys(losses.split(), FILE)
    found["transformers.model.output_classes"] = dict.fromkeys(OUTPUT_CLASSES, FILE)
    return found


def forwards_of_patches() -> dict[str, str]:
    """The names of forwards in transformers.monkey_patch, and where they are defined."""
    return {f"{model}_lce_forward": _home("lce_forward", model) for model in IMPORTED_BY_PATCHES.split()}
