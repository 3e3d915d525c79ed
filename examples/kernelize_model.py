"""Hugging Face's `kernels` takes our layers from a mapping, without a download.

Run it from anywhere: python examples/kernelize_model.py
"""

import kernels
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from opmux.integrations.kernels import mapping

# transformers prepares its norms if it supports the installed version of kernels. It does not prepare MLPs.
kernels.replace_kernel_forward_from_hub(LlamaRMSNorm, "RMSNorm")
kernels.replace_kernel_forward_from_hub(LlamaMLP, "SwiGLUMLP")

torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
)
model = transformers.LlamaForCausalLM(config)
ids = torch.randint(100, (2, 16))
expected = model(ids).logits
layers = mapping(model)
with kernels.use_kernel_mapping(layers):
    kernels.kernelize(model, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE)
print("our layers:", ", ".join(sorted(layers)))
print(f"largest difference of the logits: {(model(ids).logits - expected).abs().max():.0e}")
