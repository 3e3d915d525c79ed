"""Pairs of a Transformer Engine module and the same computation in plain torch, and functions that compare the two. The
torch function takes the module's parameters by name. In float64 it gives the exact result; in the module's dtype it
shows the error that the module may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Size(NamedTuple):
    hidden: int = 64
    ffn: int = 96
    heads: int = 4
    length: int = 16
    batch: int = 2


class Twin(NamedTuple):
    module: Callable[[Any, Size, dict], Any]
    """te, size, dict(params_dtype=, device=) -> the module"""
    plain: Callable[[dict[str, Tensor], Tensor, Size], Tensor]
    """its parameters by name, the input -> the result"""


def norm(p: dict[str, Tensor], x: Tensor, prefix: str, eps: float = 1e-5) -> Tensor:
    weight, bias = p[f"{prefix}weight"], p.get(f"{prefix}bias")
    if bias is None:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def gated(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def glu(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return act(a) * b

    return glu


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {"gelu": gelu, "swiglu": gated(F.silu), "geglu": gated(gelu), "relu": F.relu}


def mlp(act: str) -> Callable[..., Tensor]:
    def plain(p: dict[str, Tensor], x: Tensor, size: Size, prefix: str = "") -> Tensor:
        h = F.linear(norm(p, x, f"{prefix}layer_norm_"), p[f"{prefix}fc1_weight"], p.get(f"{prefix}fc1_bias"))
        return F.linear(ACTIVATIONS[act](h), p[f"{prefix}fc2_weight"], p.get(f"{prefix}fc2_bias"))

    return plain


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """[s, b, h, d] each -> [s, b, h * d]"""
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        s = scores.shape[-1]
        scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
    return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(-2)


def heads_attention(p: dict[str, Tensor], x: Tensor, size: Size, prefix: str = "", causal: bool = True) -> Tensor:
    first = f"{prefix}layernorm_qkv." if f"{prefix}layernorm_qkv.query_weight" in p else f"{prefix}qkv."
    h = norm(p, x, f"{first}layer_norm_") if "layernorm" in first else x
    split = [F.linear(h, p[f"{first}{n}_weight"], p.get(f"{first}{n}_bias")) for n in ("query", "key", "value")]
    d = size.hidden // size.heads
    mixed = attention(*(t.unflatten(-1, (-1, d)) for t in split), causal=causal)
    return F.linear(mixed, p[f"{prefix}proj.weight"], p.get(f"{prefix}proj.bias"))


def layer(act: str) -> Callable[..., Tensor]:
    def plain(p: dict[str, Tensor], x: Tensor, size: Size) -> Tensor:
        x = x + heads_attention(p, x, size, "self_attention.")
        return x + mlp(act)(p, x, size, "layernorm_mlp.")

    return plain


def packed_attention(p: dict[str, Tensor], x: Tensor, size: Size) -> Tensor:
    d = size.hidden // size.heads
    return attention(*(t.unflatten(-1, (-1, d)) for t in (x, x * 0.5, x.flip(-1))), causal=True)


class Packed(torch.nn.Module):
    """te.DotProductAttention with one input tensor for q, k and v."""

    def __init__(self, te: Any, size: Size):
        super().__init__()
        self.d = size.hidden // size.heads
        self.inner = te.DotProductAttention(size.heads, self.d, attn_mask_type="causal", attention_dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(*(t.unflatten(-1, (-1, self.d)).contiguous() for t in (x, x * 0.5, x.flip(-1))))


class Parted(torch.nn.Module):
    """te.GroupedLinear with two groups: the first quarter of the rows, and the rest."""

    def __init__(self, te: Any, size: Size, options: dict):
        super().__init__()
        self.inner = te.GroupedLinear(2, size.hidden, size.ffn, bias=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        first = rows.shape[0] // 4
        return self.inner(rows, [first, rows.shape[0] - first]).view(*x.shape[:-1], -1)


def parted(p: dict[str, Tensor], x: Tensor, size: Size) -> Tensor:
    rows = x.flatten(0, -2)
    parts = rows.split([rows.shape[0] // 4, rows.shape[0] - rows.shape[0] // 4])
    parts_out = [F.linear(r, p[f"inner.weight{i}"], p[f"inner.bias{i}"]) for i, r in enumerate(parts)]
    return torch.cat(parts_out).view(*x.shape[:-1], -1)


def made_of_ops(te: Any, size: Size, options: dict) -> Any:
    ops, device, dtype = te.ops, options["device"], options["params_dtype"]
    return ops.Sequential(
        ops.RMSNorm(size.hidden, device=device, dtype=dtype),
        ops.Linear(size.hidden, size.ffn, device=device, dtype=dtype),
        ops.GELU(),
        ops.Linear(size.ffn, size.hidden, bias=False, device=device, dtype=dtype),
    )


def plain_ops(p: dict[str, Tensor], x: Tensor, size: Size) -> Tensor:
    h = F.linear(norm(p, x, "0."), p["1.weight"], p["1.bias"])
    return F.linear(gelu(h), p["3.weight"])


def _layer(te: Any, size: Size, options: dict, **more: Any) -> Any:
    still = dict(hidden_dropout=0.0, attention_dropout=0.0)
    return te.TransformerLayer(size.hidden, size.ffn, size.heads, **still, **more, **options)


TWINS = {
    "Linear": Twin(
        lambda te, s, options: te.Linear(s.hidden, s.ffn, **options),
        lambda p, x, s: F.linear(x, p["weight"], p["bias"]),
    ),
    "LayerNorm": Twin(
        lambda te, s, options: te.LayerNorm(s.hidden, **_ops_place(options)), lambda p, x, s: norm(p, x, "")
    ),
    "RMSNorm": Twin(lambda te, s, options: te.RMSNorm(s.hidden, **_ops_place(options)), lambda p, x, s: norm(p, x, "")),
    "LayerNormLinear": Twin(
        lambda te, s, options: te.LayerNormLinear(s.hidden, s.ffn, **options),
        lambda p, x, s: F.linear(norm(p, x, "layer_norm_"), p["weight"], p["bias"]),
    ),
    "LayerNormMLP gelu": Twin(
        lambda te, s, options: te.LayerNormMLP(s.hidden, s.ffn, activation="gelu", **options), mlp("gelu")
    ),
    "LayerNormMLP swiglu": Twin(
        lambda te, s, options: te.LayerNormMLP(
            s.hidden, s.ffn, activation="swiglu", normalization="RMSNorm", **options
        ),
        mlp("swiglu"),
    ),
    "DotProductAttention": Twin(lambda te, s, options: Packed(te, s), packed_attention),
    "MultiheadAttention": Twin(
        lambda te, s, options: te.MultiheadAttention(
            s.hidden, s.heads, num_gqa_groups=s.heads // 2, attention_dropout=0.0, attn_mask_type="causal", **options
        ),
        heads_attention,
    ),
    "TransformerLayer": Twin(_layer, layer("gelu")),
    "TransformerLayer swiglu": Twin(
        lambda te, s, options: _layer(te, s, options, activation="swiglu", normalization="RMSNorm", bias=False),
        layer("swiglu"),
    ),
    "GroupedLinear": Twin(lambda te, s, options: Parted(te, s, options), parted),
    "ops.Sequential": Twin(made_of_ops, plain_ops),
}


def _ops_place(options: dict) -> dict:
    return {"device": options["device"], "dtype": options["params_dtype"]}


# ---- comparing ------------------------------------------------------------------------------------------------------

Results = dict[str, Tensor]


def settle(module: Any) -> None:
    """Give all parameters random values, because biases of 0 and norm weights of 1 would hide errors."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            fan = p.shape[-1] if p.dim() > 1 else 16
            of_a_norm = p.dim() == 1 and name.endswith("weight")
            p.copy_(torch.randn(p.shape, device=p.device) / fan**0.5 + float(of_a_norm))


def run_module(module: Any, x: Tensor, dy: Tensor, run: Callable[[Any, Tensor], Tensor] | None = None) -> Results:
    x = x.detach().clone().requires_grad_()
    y = module(x) if run is None else run(module, x)
    y.backward(dy)
    grads = {f"d{n}": p.grad.detach().clone() for n, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    assert len(grads) == len(list(module.parameters()))
    return {"y": y.detach(), "dx": x.grad, **grads}


def run_plain(twin: Twin, module: Any, size: Size, x: Tensor, dy: Tensor, dtype: torch.dtype) -> Results:
    """Run the torch function of the pair in a dtype, with the module's parameters."""
    p = {n: v.detach().to(dtype).clone().requires_grad_() for n, v in module.named_parameters()}
    x = x.detach().to(dtype).clone().requires_grad_()
    y = twin.plain(p, x, size)
    y.backward(dy.to(dtype))
    return {"y": y.detach(), "dx": x.grad, **{f"d{n}": v.grad for n, v in p.items()}}


def errors(got: Results, exact: Results) -> dict[str, float]:
    """The relative error of each result: the norm of the difference divided by the norm of the exact result.

    The divisor is at least a tenth of the norm of dx, because some exact gradients are 0 (for example of the key bias,
    which shifts all scores of a query equally).
    """
    relative, least = {}, 0.1 * exact["dx"].norm()
    for name, want in exact.items():
        assert got[name].shape == want.shape, f"{name}: {tuple(got[name].shape)}, not {tuple(want.shape)}"
        assert torch.isfinite(got[name]).all(), f"{name} is not finite"
        relative[name] = float((got[name].double() - want).norm() / torch.maximum(want.norm(), least))
    return relative


FLOOR = {torch.float32: 2e-5, torch.bfloat16: 2e-3, torch.float16: 3e-4}


def agrees(name: str, te: Any, dtype: torch.dtype, device: str, size: Size, factor: float = 1.5) -> dict[str, float]:
    """Assert that a module's errors are at most `factor` times those of plain torch in the same dtype."""
    twin = TWINS[name]
    module = twin.module(te, size, dict(params_dtype=dtype, device=device))
    settle(module)
    x = torch.randn(size.length, size.batch, size.hidden, device=device).to(dtype)
    dy = torch.randn(twin.plain(dict(module.named_parameters()), x, size).shape, device=device).to(dtype)
    exact = run_plain(twin, module, size, x, dy, torch.float64)
    ours = errors(run_module(module, x, dy), exact)
    theirs = errors(run_plain(twin, module, size, x, dy, dtype), exact)
    worse = {n: (e, theirs[n]) for n, e in ours.items() if e > factor * theirs[n] + FLOOR[dtype]}
    assert not worse, f"{name}: further off than plain torch (ours, theirs): {worse}"
    return ours


def near(name: str, te: Any, dtype: torch.dtype, device: str, size: Size, allowed: float, recipe: Any) -> None:
    """Assert that an fp8 module's errors in its second step, when delayed scales are set, are at most `allowed`."""
    twin = TWINS[name]
    module = twin.module(te, size, dict(params_dtype=dtype, device=device))
    settle(module)
    x = torch.randn(size.length, size.batch, size.hidden, device=device).to(dtype)
    dy = torch.randn(twin.plain(dict(module.named_parameters()), x, size).shape, device=device).to(dtype)

    def in_fp8(module: Any, x: Tensor) -> Tensor:
        with te.autocast(enabled=True, recipe=recipe):
            return module(x)

    exact = run_plain(twin, module, size, x, dy, torch.float64)
    for _ in range(2):
        got = run_module(module, x, dy, in_fp8)
    error = errors(got, exact)
    off = {n: e for n, e in error.items() if e > allowed}
    assert not off, f"{name}: further off than {allowed}: {off}"
    rounded = max(error["y"], error["dx"])
    assert rounded > 5e-3, f"{name}: only {rounded} off, as if nothing had been quantized"


# ---- activations offloaded to the host ------------------------------------------------------------------------------


def choose_attention(chosen: str, setenv: Callable[[str, str], None]) -> None:
    """Allow the layer only one attention backend: FUSED (ours) or UNFUSED (the layer's own torch code)."""
    from transformer_engine.pytorch.attention.dot_product_attention import dot_product_attention as module_of_layer

    for name in ("FUSED", "UNFUSED", "FLASH"):
        setenv(f"NVTE_{name}_ATTN", str(int(name == chosen)))
    module_of_layer._attention_backends["backend_selection_requires_update"] = True


def offloaded(te: Any, modules: list[Any], x: Tensor, dy: Tensor, enabled: bool) -> tuple[list[Tensor], float]:
    """Run a sequence of modules; return result and gradients, and how many MB Transformer Engine offloaded in the
    forward.
    """
    context, sync = te.get_cpu_offload_context(enabled=enabled, num_layers=len(modules) - 1, model_layers=len(modules))
    x = x.detach().clone().requires_grad_()
    y = x
    for module in modules:
        with context:
            y = module(y)
        y = sync(y)
    moved = context.offload_synchronizer.get_offloaded_total_size_mb() if enabled else 0.0
    parameters = [p for module in modules for p in module.parameters()]
    return [y.detach(), *torch.autograd.grad(y, (x, *parameters), dy)], moved
