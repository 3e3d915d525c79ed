"""tex on a GPU: row functions and Adam compared with the speed of a copy, and a complete layer with plain torch.

    python benchmarks/tex.py [--json FILE] [--only rows,adam,layer]

A share is the bandwidth for the bytes that must move, relative to a copy in the same run. Times are medians of
`do_bench`; ours and torch's are measured alternately. Every function's result is first checked against the reference.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BF16 = torch.bfloat16


def milliseconds(call: Callable[[], object], repeat: int = 100) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=20, rep=repeat, return_mode="median")


def copy_speed(device: str) -> float:
    """Bytes per second that a copy of 256 MiB reads and writes."""
    a = torch.randn(128 * 2**20, device=device).to(BF16)
    b = torch.empty_like(a)
    return 2 * a.nbytes / milliseconds(lambda: b.copy_(a)) * 1e3


def size(*tensors: Any) -> int:
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor))


# ---- rows -----------------------------------------------------------------------------------------------------------


def rows(tex: Any, device: str) -> dict[str, tuple[Callable[[], Any], int]]:
    """A call of each function, and the number of bytes that the call must move."""
    from opmux.faces.tex import tensors as light

    m, n = 16384, 8192
    x, dy, other = (torch.randn(m, n, device=device).to(BF16) for _ in range(3))
    w, b = (torch.randn(n, device=device).to(BF16) for _ in range(2))
    wide, half = torch.randn(m, 2 * n, device=device).to(BF16), dy
    _, mu, rs = tex.layernorm_fwd(x, w, b, 1e-5, None, None, BF16, 0, False)
    one = lambda v: torch.full((1,), v, device=device)
    delayed = light.Float8Quantizer(one(4.0), one(0.0), torch.float8_e4m3fn, rowwise=True, columnwise=False)
    both = light.Float8Quantizer(one(4.0), one(0.0), torch.float8_e4m3fn, rowwise=True, columnwise=True)
    current = light.Float8CurrentScalingQuantizer(torch.float8_e4m3fn, device=device, rowwise=True, columnwise=False)
    block = light.Float8BlockQuantizer(torch.float8_e4m3fn, rowwise=True, columnwise=False, block_scaling_dim=1)
    logits, dp = (torch.randn(8, 16, 1024, 1024, device=device).to(BF16) for _ in range(2))
    probs = torch.softmax(logits, -1)
    heads = torch.randn(2048, 8, 32, 128, device=device).to(BF16)
    freqs = torch.randn(2048, 1, 1, 128, device=device)
    sbhd = tex.NVTE_QKV_Format.NVTE_SBHD
    amax = one(0.0)
    return {
        "rmsnorm_fwd": (lambda: tex.rmsnorm_fwd(x, w, 1e-5, None, None, BF16, 0, False), 2 * size(x)),
        "rmsnorm_bwd": (lambda: tex.rmsnorm_bwd(dy, x, rs, w, 0, False), 3 * size(x)),
        "rmsnorm_bwd_add": (lambda: tex.rmsnorm_bwd_add(dy, x, other, rs, w, 0, False), 4 * size(x)),
        "layernorm_fwd": (lambda: tex.layernorm_fwd(x, w, b, 1e-5, None, None, BF16, 0, False), 2 * size(x)),
        "layernorm_bwd": (lambda: tex.layernorm_bwd(dy, x, mu, rs, w, 0, False), 3 * size(x)),
        "rmsnorm_fwd to fp8": (lambda: tex.rmsnorm_fwd(x, w, 1e-5, None, delayed, BF16, 0, False), size(x) * 3 // 2),
        "swiglu": (lambda: tex.swiglu(wide, None), size(wide) * 3 // 2),
        "dswiglu": (lambda: tex.dswiglu(half, wide, None), size(wide) * 5 // 2),
        "swiglu to fp8": (lambda: tex.swiglu(wide, delayed), size(wide) * 5 // 4),
        "gelu": (lambda: tex.gelu(x, None), 2 * size(x)),
        "dbias_dgelu": (lambda: tex.dbias_dgelu(dy, x, None), 3 * size(x)),
        "scaled softmax": (lambda: tex.scaled_softmax_forward(logits, 0.125), 2 * size(logits)),
        "scaled softmax bwd": (lambda: tex.scaled_softmax_backward(dp, probs, 0.125), 3 * size(logits)),
        "causal softmax": (
            lambda: tex.scaled_aligned_causal_masked_softmax_forward(logits, 0.125),
            size(logits) * 3 // 2,  # only half of the logits must be read
        ),
        "rope": (lambda: tex.fused_rope_forward(heads, freqs, None, sbhd, False, None, 1, 0), 2 * size(heads)),
        "rope bwd": (lambda: tex.fused_rope_backward(heads, freqs, None, sbhd, False, None, 1, 0), 2 * size(heads)),
        "quantize delayed": (lambda: tex.quantize(x, delayed), size(x) * 3 // 2),
        "quantize delayed, both ways": (lambda: tex.quantize(x, both), size(x) * 2),
        "quantize current": (lambda: tex.quantize(x, current), size(x) * 5 // 2),
        "quantize block 1x128": (lambda: tex.quantize(x, block), size(x) * 3 // 2),
        "compute_amax": (lambda: tex.compute_amax(x, amax), size(x)),
        "bgrad_quantize": (lambda: tex.bgrad_quantize(x, delayed), size(x) * 3 // 2),
    }


LEAST = {"rmsnorm_bwd": 0.75, "rmsnorm_bwd_add": 0.75, "layernorm_bwd": 0.75}  # lowest accepted shares; others: 0.85


def measure_rows(tex: Any, device: str, copy: float) -> dict[str, Any]:
    times = {}
    for name, (call, moved) in rows(tex, device).items():
        try:
            share = moved / milliseconds(call) * 1e3 / copy
        except Exception as error:  # one failure must not hide the other results
            times[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        else:
            times[name] = {"share": round(share, 3), "least": LEAST.get(name, 0.85)}
        print(f"  {name:30} {times[name]}", flush=True)
    return times


# ---- Adam -----------------------------------------------------------------------------------------------------------


def measure_adam(tex: Any, device: str, copy: float) -> dict[str, Any]:
    """Adam over 1.2 billion parameters in 150 tensors: ours, and torch's fused Adam."""
    times = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16 with float32 state", BF16)):
        times[name] = one_adam(tex, device, copy, dtype)
        print(f"  adam, {name}: {times[name]}", flush=True)
        torch.cuda.empty_cache()
    return times


def one_adam(tex: Any, device: str, copy: float, dtype: torch.dtype) -> dict[str, Any]:
    count, each = 150, 8_000_000
    g, p = ([torch.randn(each, device=device).to(dtype) for _ in range(count)] for _ in range(2))
    m, v = ([torch.zeros(each, device=device) for _ in range(count)] for _ in range(2))
    master = [t.float() for t in p] if dtype is BF16 else None
    noop = torch.zeros(1, dtype=torch.int32, device=device)
    lists = [g, p, m, v] + ([master] if master else [])
    moved = size(*g) + 2 * size(*p, *m, *v) + 2 * size(*(master or ()))
    moved -= size(*p) if master else 0  # with master weights, p is not read
    elapsed = milliseconds(lambda: tex.multi_tensor_adam(65536, noop, lists, 1e-4, 0.9, 0.95, 1e-8, 10, 1, 1, 0.1), 300)
    row = {"share": round(moved / elapsed * 1e3 / copy, 3), "ms": round(elapsed, 3)}
    if dtype is torch.float32:
        steps = [torch.tensor(10.0, device=device) for _ in range(count)]
        options = dict(lr=1e-4, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
        row["torch_ms"] = round(milliseconds(lambda: torch._fused_adamw_(p, g, m, v, [], steps, **options), 300), 3)
        row["of torch's time"] = round(elapsed / row["torch_ms"], 3)
    return row


# ---- a layer --------------------------------------------------------------------------------------------------------


class Plain(torch.nn.Module):
    """A GPT layer in plain torch: [seq, batch, hidden], pre-norm, causal, tanh gelu."""

    def __init__(self, hidden: int, ffn: int, heads: int, **options: Any):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(hidden, **options), torch.nn.LayerNorm(hidden, **options)
        self.qkv, self.proj = torch.nn.Linear(hidden, 3 * hidden, **options), torch.nn.Linear(hidden, hidden, **options)
        self.fc1, self.fc2 = torch.nn.Linear(hidden, ffn, **options), torch.nn.Linear(ffn, hidden, **options)

    def forward(self, x: Tensor) -> Tensor:
        s, b, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(s, b, self.heads, 3, h // self.heads).permute(3, 1, 2, 0, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.permute(2, 0, 1, 3).reshape(s, b, h))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class PlainLlama(torch.nn.Module):
    """A Llama layer in plain torch: RMS norm, rotary positions, swiglu, no biases."""

    def __init__(self, hidden: int, ffn: int, heads: int, angles: Tensor, **options: Any):
        super().__init__()
        self.heads, options = heads, {**options, "bias": False}
        plain = {n: v for n, v in options.items() if n != "bias"}
        self.norm1, self.norm2 = torch.nn.RMSNorm(hidden, **plain), torch.nn.RMSNorm(hidden, **plain)
        self.qkv, self.proj = torch.nn.Linear(hidden, 3 * hidden, **options), torch.nn.Linear(hidden, hidden, **options)
        self.fc1, self.fc2 = torch.nn.Linear(hidden, 2 * ffn, **options), torch.nn.Linear(ffn, hidden, **options)
        self.cos, self.sin = angles.cos().to(BF16), angles.sin().to(BF16)

    def turned(self, t: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return t * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x: Tensor) -> Tensor:
        s, b, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(s, b, self.heads, 3, h // self.heads).unbind(3)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (self.turned(q), self.turned(k), v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.permute(2, 0, 1, 3).reshape(s, b, h))
        gate, up = self.fc1(self.norm2(x)).chunk(2, -1)
        return x + self.fc2(F.silu(gate) * up)


def measure_layer(device: str) -> dict[str, Any]:
    """Time forward and backward of a GPT layer and a Llama layer, in plain torch and in Transformer Engine."""
    importlib.import_module("opmux.te")  # runs NVIDIA's layer on our tex
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    hidden, heads, seq, batch = 4096, 32, 2048, 4
    x = torch.randn(seq, batch, hidden, device=device).to(BF16).requires_grad_()
    options: dict[str, Any] = dict(
        hidden_dropout=0.0, attention_dropout=0.0, self_attn_mask_type="causal", fuse_qkv_params=True,
        params_dtype=BF16, device=device,
    )  # fmt: skip
    gpt = te.TransformerLayer(hidden, 16384, heads, **options)
    llama = te.TransformerLayer(
        hidden, 11008, heads, normalization="RMSNorm", activation="swiglu", bias=False, **options
    )
    angles = te.RotaryPositionEmbedding(hidden // heads)(seq).to(device)
    recipes = {
        "te bf16": None, "te fp8 delayed": recipe.DelayedScaling(), "te fp8 current": recipe.Float8CurrentScaling(),
        "te fp8 block": recipe.Float8BlockScaling(),
    }  # fmt: skip
    plain = Plain(hidden, 16384, heads, device=device, dtype=BF16)
    other = PlainLlama(hidden, 11008, heads, angles, device=device, dtype=BF16)
    return {
        "gpt": compared(te, x, plain, gpt, recipes),
        "llama": compared(te, x, other, lambda t: llama(t, rotary_pos_emb=angles), recipes),
    }


def compared(te: Any, x: Tensor, plain: Any, layer: Any, recipes: dict[str, Any]) -> dict[str, Any]:
    dy = torch.randn_like(x)

    def step(module: Callable[[Tensor], Tensor], recipe: Any = None) -> Callable[[], None]:
        def run() -> None:
            with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
                y = module(x)
            y.backward(dy)

        return run

    steps = {"eager": lambda: plain(x).backward(dy), "compile": step(torch.compile(plain))}
    steps |= {name: step(layer, recipe) for name, recipe in recipes.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for call in steps.values():
        for _ in range(3):
            call()
    for _ in range(4):  # alternating, because clocks drift
        for name, call in steps.items():
            times[name].append(milliseconds(call, 150))
    eager = statistics.median(times["eager"])
    row = {}
    for name, elapsed in times.items():
        ms = statistics.median(elapsed)
        row[name] = {"ms": round(ms, 3), "of eager's time": round(ms / eager, 3)}
        print(f"  layer, {name}: {row[name]}", flush=True)
    return row


def commit() -> str:
    if "OPMUX_COMMIT" in os.environ:
        return os.environ["OPMUX_COMMIT"]
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="keep the figures here")
    parser.add_argument("--only", default="rows,adam,layer")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: nothing to measure")
    import triton

    import transformer_engine_fl_torch as tex

    device, only = "cuda", options.only.split(",")
    copy = copy_speed(device)
    record: dict[str, Any] = {
        "chip": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "python": sys.version.split()[0], "date": str(date.today()), "commit": commit(),
        "copy_GBps": round(copy / 1e9, 1),
    }  # fmt: skip
    print(record, flush=True)
    if "rows" in only:
        record["rows"] = measure_rows(tex, device, copy)
    if "adam" in only:
        record["adam"] = measure_adam(tex, device, copy)
    if "layer" in only:
        record["layer"] = measure_layer(device)
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
