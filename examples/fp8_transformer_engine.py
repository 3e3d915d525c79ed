"""Trains a layer of Transformer Engine with FP8, on whatever device is there, without NVIDIA's compiled extension.

Run it from anywhere: python examples/fp8_transformer_engine.py
It needs Transformer Engine's Python layer: pip install '.[te]'. Without an accelerator FP8 is emulated, which is slower
but rounds in the same way.
"""

# `import opmux.te` provides the compiled extension of Transformer Engine. Then its Python layer can be imported.
import torch

import opmux.te  # isort: skip  # before transformer_engine; needed only if opmux is not installed
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

# Use the device that is there. On a CPU, everything except the FP8 matrix products is in float32.
accelerator = torch.accelerator.current_accelerator()
device = "cpu" if accelerator is None else accelerator.type
dtype = torch.float32 if device == "cpu" else torch.bfloat16

# One layer with attention and a gated MLP learns to reproduce random numbers. In each step the matrix products use FP8;
# the recipe given to `autocast` says how their scales are chosen. `explain` says which implementation computes them.
torch.manual_seed(0)
layer = te.TransformerLayer(
    128, 256, 4, activation="swiglu", normalization="RMSNorm", params_dtype=dtype, device=device,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
x = torch.randn(32, 4, 128, device=device, dtype=dtype)  # sequence, batch, hidden
target = torch.randn_like(x)
optimizer = torch.optim.AdamW(layer.parameters(), 1e-2)
losses = []
for _ in range(8):
    with te.autocast(enabled=True, recipe=DelayedScaling()):
        out = layer(x)
    loss = (out - target).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"{device}, {opmux.explain('generic_gemm').chosen}: loss {losses[0]:.2f}, then {losses[-1]:.2f}")
