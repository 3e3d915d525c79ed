"""Classes of `transformers` that `patch_model` replaces, by name.

Classes are recognized by their source (`forms.py`). If a version of transformers changes the source of a class, the
class is no longer replaced. If the class is in this table, a warning and the report say so. A test compares the table
with the installed transformers.
"""

from __future__ import annotations

# Part -> the classes in which we replace the part. Only classes of the tested model types are listed.
_NAMES = {
    "rms_norm": """
        DeepseekV2RMSNorm DeepseekV3RMSNorm Exaone4RMSNorm Gemma2RMSNorm Gemma3RMSNorm Gemma4RMSNorm GemmaRMSNorm
        Glm4MoeRMSNorm Glm4RMSNorm GptOssRMSNorm GraniteRMSNorm HeliumRMSNorm HunYuanDenseV1RMSNorm
        HunYuanMoEV1RMSNorm InternVLVisionRMSNorm Llama4TextRMSNorm LlamaRMSNorm MinistralRMSNorm MistralRMSNorm
        MixtralRMSNorm MllamaTextRMSNorm Olmo2RMSNorm Olmo3RMSNorm Phi3RMSNorm Qwen2MoeRMSNorm Qwen2RMSNorm
        Qwen2VLRMSNorm Qwen2_5_VLRMSNorm Qwen3MoeRMSNorm Qwen3NextRMSNorm Qwen3RMSNorm Qwen3VLMoeTextRMSNorm
        Qwen3VLTextRMSNorm SeedOssRMSNorm SmolLM3RMSNorm
    """,
    "glu": """
        Cohere2MLP DeepseekV2MLP DeepseekV3MLP Exaone4MLP Gemma2MLP Gemma3MLP Gemma4TextMLP Gemma4VisionMLP GemmaMLP
        Glm4MLP Glm4MoeMLP GraniteMLP HeliumMLP HunYuanDenseV1MLP HunYuanMoEV1MLP Llama4TextExperts Llama4TextMLP
        LlamaMLP MinistralMLP MistralMLP MllamaTextMLP Olmo2MLP Olmo3MLP Phi3MLP Qwen2MLP Qwen2MoeMLP Qwen2_5_VLMLP
        Qwen3MLP Qwen3MoeMLP Qwen3NextMLP Qwen3VLMoeTextMLP Qwen3VLTextMLP SeedOssMLP SmolLM3MLP
    """,
    "rope": """
        Cohere2Attention DeepseekV2Attention DeepseekV3Attention Exaone4Attention Gemma2Attention Gemma3Attention
        Gemma4TextAttention GemmaAttention Glm4Attention Glm4MoeAttention GptOssAttention GraniteAttention
        HeliumAttention HunYuanDenseV1Attention HunYuanMoEV1Attention Llama4TextAttention LlamaAttention
        MinistralAttention MistralAttention MixtralAttention MllamaTextSelfAttention NemotronAttention
        Olmo2Attention Olmo3Attention Phi3Attention Qwen2Attention Qwen2MoeAttention Qwen2VLAttention
        Qwen2_5_VLAttention Qwen2_5_VLVisionAttention Qwen3Attention Qwen3MoeAttention Qwen3NextAttention
        Qwen3VLMoeTextAttention Qwen3VLMoeVisionAttention Qwen3VLTextAttention Qwen3VLVisionAttention
        SeedOssAttention SmolLM3Attention VisionAttention
    """,
    "add_rms_norm": """
        DeepseekV2DecoderLayer DeepseekV3DecoderLayer Gemma2DecoderLayer Gemma3DecoderLayer GemmaDecoderLayer
        Glm4MoeDecoderLayer HeliumDecoderLayer HunYuanDenseV1DecoderLayer HunYuanMoEV1DecoderLayer LlamaDecoderLayer
        MinistralDecoderLayer MistralDecoderLayer MixtralDecoderLayer Qwen2DecoderLayer Qwen2MoeDecoderLayer
        Qwen2VLDecoderLayer Qwen2_5_VLDecoderLayer Qwen3DecoderLayer Qwen3MoeDecoderLayer Qwen3VLMoeTextDecoderLayer
        SeedOssDecoderLayer SmolLM3DecoderLayer
    """,
    "mask": """
        DeepseekV2Model DeepseekV3Model GemmaModel Glm4Model Glm4MoeModel GraniteModel HeliumModel
        HunYuanDenseV1Model HunYuanMoEV1Model LlamaModel MllamaTextModel NemotronModel Olmo2Model
        Qwen3VLMoeTextModel Qwen3VLTextModel SeedOssModel
    """,
    "loss": """
        Cohere2ForCausalLM DeepseekV2ForCausalLM DeepseekV3ForCausalLM Exaone4ForCausalLM Gemma2ForCausalLM
        Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma4ForCausalLM Gemma4ForConditionalGeneration
        GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM GptOssForCausalLM GraniteForCausalLM HeliumForCausalLM
        HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM InternVLForConditionalGeneration Llama4ForCausalLM
        LlamaForCausalLM LlavaForConditionalGeneration MinistralForCausalLM MistralForCausalLM MixtralForCausalLM
        MllamaForCausalLM MllamaForConditionalGeneration NemotronForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
        PaliGemmaForConditionalGeneration Phi3ForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM
        Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM
        Qwen3NextForCausalLM Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration SeedOssForCausalLM
        SmolLM3ForCausalLM SmolVLMForConditionalGeneration
    """,
    "moe": """
        DeepseekV2Experts DeepseekV3Experts Gemma4TextExperts Glm4MoeExperts HunYuanMoEV1Experts MixtralExperts
        Qwen2MoeExperts Qwen3MoeExperts Qwen3NextExperts Qwen3VLMoeTextExperts
    """,
}

PARTS_OF: dict[str, tuple[str, ...]] = {}  # class name -> parts
for _part, _names in _NAMES.items():
    for _name in _names.split():
        PARTS_OF[_name] = (*PARTS_OF.get(_name, ()), _part)
