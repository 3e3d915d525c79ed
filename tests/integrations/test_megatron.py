"""Megatron-Core's layer spec for Transformer Engine computes the same on opmux as its own layers in plain torch."""

import os
import sys
from pathlib import Path

import fresh
import pytest

pytest.importorskip("megatron.core", reason="needs megatron-core")
pytest.importorskip("einops")
ROOT = Path(__file__).parents[2]

PROGRAM = """
import opmux.te, contextlib, importlib, os, torch, types
import torch.nn.functional as F
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt import gpt_layer_specs as specs
from megatron.core.transformer.transformer_config import TransformerConfig

torch.distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel()
config = TransformerConfig(
    num_layers=2, hidden_size=32, num_attention_heads=4, normalization="RMSNorm", gated_linear_unit=True,
    activation_func=F.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
    use_cpu_initialization=True,
)
torch.manual_seed(0)
ours = GPTModel(config, specs.get_gpt_layer_with_transformer_engine_spec(), 64, 16)
torch.cuda.current_device = lambda: "cpu"  # Megatron's own layers ask for a GPU, and for its random state
attention = importlib.import_module("megatron.core.transformer.dot_product_attention")
attention.tensor_parallel.get_cuda_rng_tracker = lambda: types.SimpleNamespace(fork=contextlib.nullcontext)
plain = GPTModel(config, specs.get_gpt_layer_local_spec(normalization="RMSNorm"), 64, 16)
names = {"self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight"}
names |= {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"}
def renamed(name):
    for te, local in names.items():
        name = name.replace(te, local)
    return name
for name, parameter in ours.named_parameters():
    if "norm" in name:
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
states = {renamed(name): value for name, value in ours.state_dict().items() if torch.is_tensor(value)}
missing = set(dict(plain.named_parameters())) - set(states)
assert not missing, missing
plain.load_state_dict(states, strict=False)
ids = torch.randint(64, (2, 8))
positions = torch.arange(8).expand(2, -1)
mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
results = []
for model in (ours, plain):
    loss = model(ids, positions, mask, labels=ids).mean()
    loss.backward()
    results.append((loss, {renamed(name): p.grad for name, p in model.named_parameters()}))
torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
print("the same")
"""


def test_a_gpt_of_the_transformer_engine_spec_computes_the_same_as_of_the_local_spec(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    result = fresh.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("the same\n")
