"""Under Transformer Engine, opmux keeps no GPU memory for modules on "meta", and none after `empty_cache`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("transformer_engine") is None:
    pytest.skip(
        "transformer_engine is not installed: install opmux[te], or put it on PYTHONPATH", allow_module_level=True
    )
pytestmark = [pytest.mark.gpu]

HERE = Path(__file__).parent
PRELUDE = """
import importlib.util, json, torch
import test_gpu_te
if importlib.util.find_spec("pydantic") is None:
    test_gpu_te._plain_dataclasses()
import opmux, opmux.te
import transformer_engine.pytorch as te

H = 1024
MADE = {
    "LayerNorm": lambda **on: te.LayerNorm(H, **on),
    "RMSNorm": lambda **on: te.RMSNorm(H, **on),
    "Linear": lambda **on: te.Linear(H, 2 * H, **on),
    "LayerNormLinear": lambda **on: te.LayerNormLinear(H, 2 * H, **on),
    "LayerNormMLP": lambda **on: te.LayerNormMLP(H, 2 * H, seq_length=64, **on),
    "MultiheadAttention": lambda **on: te.MultiheadAttention(H, 16, fuse_qkv_params=True, **on),
    "TransformerLayer": lambda **on: te.TransformerLayer(H, 3 * H, 16, fuse_qkv_params=True, seq_length=64, **on),
}
"""
ON_META = """
used = {name: 0 for name in MADE}
for name, make in MADE.items():
    layer = make(params_dtype=torch.bfloat16, device="meta")
    used[name] = torch.cuda.memory_allocated()
print(json.dumps(used))
"""
AFTER_WORK = """
import gc, sys
from transformer_engine.common import recipe

def work():
    for recipes in (None, recipe.DelayedScaling(amax_history_len=4), recipe.Float8CurrentScaling()):
        layer = MADE["TransformerLayer"](params_dtype=torch.bfloat16, device="cuda", attention_dropout=0.0)
        optimizer = te.optimizers.FusedAdam(layer.parameters(), lr=1e-3)
        for _ in range(2):
            x = torch.randn(64, 2, H, device="cuda", dtype=torch.bfloat16)
            with te.autocast(enabled=recipes is not None, recipe=recipes):
                y = layer(x)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with opmux.use():
        z = torch.nn.functional.layer_norm(torch.randn(64, H, device="cuda"), (H,)).softmax(-1)
        values = [torch.randn(H, device="cuda") for _ in range(3)]
        torch._foreach_mul_(values, 2.0)
        torch.randn(H, device="cuda").sort(), torch.randn(1 << 20, device="cuda").sum(), z.sum()

def released():
    te.quantization.FP8GlobalStateManager.reset()
    for module in list(sys.modules.values()):  # what the layer itself holds: workspaces, cumulative lengths
        if getattr(module, "__name__", "").startswith("transformer_engine"):
            for name, value in list(vars(module).items()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
                elif name.endswith("_cache") and isinstance(value, dict):
                    value.clear()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()

work()
before = released()
opmux.empty_cache()
after = released()
plain = (torch.Tensor, torch.nn.Parameter)
left = [f"{t.dtype} {t.shape}" for t in gc.get_objects() if type(t) in plain and t.is_cuda]
print(json.dumps({"before": before, "after": after, "left": left}))
"""


def in_a_fresh_process(text: str) -> dict:
    paths = [str(HERE.parents[1] / "src"), str(HERE), str(HERE.parent / "shared"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + text], env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_building_a_module_on_meta_allocates_nothing():
    assert not any(in_a_fresh_process(ON_META).values())


def test_nothing_stays_allocated_after_empty_cache():
    report = in_a_fresh_process(AFTER_WORK)
    assert report["after"] == 0, report
