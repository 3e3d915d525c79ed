"""Megatron-Core's layer spec for Transformer Engine, on opmux: a GPT trains on whatever device is there.

Run it from anywhere: python examples/megatron_layer_spec.py
It needs megatron-core, and Transformer Engine's Python layer: pip install '.[te]'.
"""

import os

import torch
import torch.nn.functional as F

import opmux.te  # isort: skip  # before transformer_engine; needed only if opmux is not installed
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

on_gpu = torch.cuda.is_available()
for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
    os.environ.setdefault(name, value)
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
parallel_state.initialize_model_parallel()
torch.manual_seed(0)
if on_gpu:
    model_parallel_cuda_manual_seed(0)

config = TransformerConfig(
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    ffn_hidden_size=128,
    normalization="RMSNorm",
    gated_linear_unit=True,
    activation_func=F.silu,
    add_bias_linear=False,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    use_cpu_initialization=True,
)
spec = get_gpt_layer_with_transformer_engine_spec()
model = GPTModel(config, spec, vocab_size=100, max_sequence_length=16).to("cuda" if on_gpu else "cpu")
device = next(model.parameters()).device

ids = torch.randint(100, (4, 16), device=device)
positions = torch.arange(16, device=device).expand(4, -1)
mask = torch.ones(1, 1, 16, 16, dtype=torch.bool, device=device).triu(1)  # True is masked
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
losses = []
for _ in range(8):
    loss = model(ids, positions, mask, labels=ids).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
norm = opmux.explain("rmsnorm_fwd").chosen
print(f"{type(model.decoder.layers[0].mlp.linear_fc1).__name__} on {device}, rmsnorm_fwd: {norm}")
print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}")
torch.distributed.destroy_process_group()
