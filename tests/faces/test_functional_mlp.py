"""Gated linear units and MLPs match torch in values and gradients; also tests the tensors saved for backward."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import opmux.functional as ours
import opmux.nn as modules
from opmux.core.errors import BadArgument

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def close(got, want, dtype=torch.float32):
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want.double(), rtol=8 * eps, atol=8 * eps)


def agree(fn, torchs, *leaves, dtype=torch.float32):
    """Compare values and gradients, with two backward passes through one graph; inputs must not be written."""
    leaves = [t.to(dtype).requires_grad_() for t in leaves]
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    before = [t.detach().clone() for t in leaves]
    y, want = fn(*leaves), torchs(*doubles)
    close(y, want, dtype)
    assert y.dtype is dtype
    dy = torch.cos(torch.arange(y.numel())).view(y.shape)
    dy = dy.to(dtype).double()  # representable in both dtypes
    cotangent = dy.to(dtype)
    grads = [torch.autograd.grad(y, leaves, cotangent, retain_graph=True) for _ in range(2)]
    for a, b, w in zip(*grads, torch.autograd.grad(want, doubles, dy), strict=True):
        assert torch.equal(a, b) and a.dtype is dtype
        close(a, w, dtype)
    assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True)) and torch.equal(cotangent.double(), dy)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_units_match_torch(dtype):
    a, b = torch.randn(2, 3, 17), torch.randn(2, 3, 17)
    agree(ours.swiglu, lambda a, b: F.silu(a) * b, a, b, dtype=dtype)
    agree(ours.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, a, b, dtype=dtype)
    agree(lambda a, b: ours.geglu(a, b, "none"), lambda a, b: F.gelu(a) * b, a, b, dtype=dtype)
    halves = lambda y: F.silu(y[..., :17]) * y[..., 17:]
    agree(ours.fused_gate_up_swiglu, halves, torch.cat([a, b], -1), dtype=dtype)


def test_swiglu_multiplies_gate_and_result():
    a, b = torch.randn(5, 8), torch.randn(5, 8)
    torchs = lambda a, b: F.silu(a * 0.5) * b * 3
    agree(lambda a, b: ours.swiglu(a, b, 0.5, 3.0), torchs, a, b)


def test_gated_units_accept_views_and_empty_input():
    wide = torch.randn(4, 6, 32)
    a, b = wide[..., :16], wide[..., 16:].transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(ours.swiglu(a, b), F.silu(a) * b)
    y = torch.randn(0, 3, 16, requires_grad=True)
    ours.fused_gate_up_swiglu(y).sum().backward()
    assert y.grad is not None and y.grad.shape == y.shape


def of_torch(act):
    return lambda x, g, u, d: F.linear(act(F.linear(x, g)) * F.linear(x, u), d)


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    return torch.randn(2, 5, 8), torch.randn(12, 8) / 3, torch.randn(12, 8) / 3, torch.randn(8, 12) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_mlps_match_torch(tensors, dtype):
    agree(ours.swiglu_mlp, of_torch(F.silu), *tensors, dtype=dtype)
    agree(ours.geglu_mlp, of_torch(lambda a: F.gelu(a, approximate="tanh")), *tensors, dtype=dtype)
    agree(lambda *t: ours.geglu_mlp(*t, "none"), of_torch(F.gelu), *tensors, dtype=dtype)
    scaled = lambda *t: of_torch(lambda a: F.silu(a * 0.5))(*t) * 3
    agree(lambda *t: ours.swiglu_mlp(*t, 0.5, 3.0), scaled, *tensors, dtype=dtype)


def test_mlp_in_bfloat16_is_within_its_rounding(tensors):
    x, *weights = (t.bfloat16().requires_grad_() for t in tensors)
    got, want = ours.swiglu_mlp(x, *weights), of_torch(F.silu)(x, *weights)
    for a, b in zip(*(torch.autograd.grad(y.sum(), (x, *weights)) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("frozen", range(4))
def test_frozen_arguments_get_no_gradient(tensors, frozen):
    """The other arguments get the same gradients as in torch."""
    leaves = [t.clone().requires_grad_(i != frozen) for i, t in enumerate(tensors)]
    needed = [t for t in leaves if t.requires_grad]
    got, want = (torch.autograd.grad(fn(*leaves).sin().sum(), needed) for fn in (ours.swiglu_mlp, of_torch(F.silu)))
    torch.testing.assert_close(got, want)


def saved(fn, x, *weights):
    """The number of elements saved for backward, except the weights; tensors that share memory count once."""
    saved_tensors = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved_tensors.setdefault(t.data_ptr(), t), lambda t: t):
        y = fn(x, *weights)
    assert y.requires_grad
    return sum(t.numel() for address, t in saved_tensors.items() if address not in {w.data_ptr() for w in weights})


def test_mlps_save_only_input_gate_and_up():
    x = torch.randn(10, 8, requires_grad=True)
    mlp = modules.SwiGLUMLP(8, 32)
    weights = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    assert saved(ours.swiglu_mlp, x, *weights) == x.numel() + 2 * 10 * 32  # input, gate and up
    assert saved(of_torch(F.silu), x, *weights) == x.numel() + 4 * 10 * 32
    call = lambda module: lambda x, *weights: module(x)
    assert saved(call(mlp), x, *weights) == x.numel() + 2 * 10 * 32
    tiled = modules.TiledSwiGLUMLP(8, 32, num_shards=5)
    assert saved(call(tiled), x, *tiled.parameters()) <= x.numel()
    assert saved(lambda y: ours.swiglu(y, y * 2), x) == 2 * x.numel()


def test_mlps_accept_an_empty_batch():
    mlp, x = modules.SwiGLUMLP(8, 16), torch.randn(0, 3, 8, requires_grad=True)
    mlp(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape and not mlp.gate_proj.weight.grad.any()


# ---- modules --------------------------------------------------------------------------------------------------------

CONFIG = {"hidden_size": 8, "intermediate_size": 12, "mlp_bias": False, "attention_bias": False}


def config(**more):
    return types.SimpleNamespace(**CONFIG, **more)


@pytest.mark.parametrize(
    "ours_of, model, name, act",
    [
        (modules.SwiGLUMLP, "llama", "LlamaMLP", "silu"),
        (modules.TiledSwiGLUMLP, "llama", "LlamaMLP", "silu"),
        (modules.GateUpSwiGLUMLP, "phi3", "Phi3MLP", "silu"),
        (modules.GEGLUMLP, "gemma", "GemmaMLP", "gelu_pytorch_tanh"),
        (modules.TiledGEGLUMLP, "gemma", "GemmaMLP", "gelu_pytorch_tanh"),
    ],
)
def test_modules_replace_those_of_transformers(ours_of, model, name, act):
    modeling = pytest.importorskip(f"transformers.models.{model}.modeling_{model}")
    settings = config(hidden_act=act, hidden_activation=act)
    theirs = getattr(modeling, name)(settings)
    more = {"num_shards": 3} if "Tiled" in ours_of.__name__ else {}
    mine = ours_of.from_config(settings, **more)
    assert mine.load_state_dict(theirs.state_dict()) and [*mine.state_dict()] == [*theirs.state_dict()]
    x = torch.randn(2, 7, 8)
    results = []
    for module in (mine, theirs):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        y.sin().sum().backward()
        results.append((y, leaf.grad, *(p.grad for p in module.parameters())))
    torch.testing.assert_close(*results)
    with torch.no_grad():
        torch.testing.assert_close(mine(x), theirs(x))


def test_layers_with_bias_hook_or_another_class_are_called():
    """The fused computation must not bypass a layer with a bias, a hook or another class."""
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    mlp = modules.SwiGLUMLP(8, 12, bias=True)
    want = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    torch.testing.assert_close(mlp(x), want)
    mlp, calls = modules.GEGLUMLP(8, 12), []
    mlp.up_proj.register_forward_hook(lambda *_: calls.append(1))
    mlp(x)
    assert calls == [1]

    class Adapted(nn.Linear):
        def forward(self, input):
            return super().forward(input) + 1

    mlp.down_proj = Adapted(12, 8)
    torch.testing.assert_close(mlp(x), F.linear(ours.geglu(mlp.gate_proj(x), mlp.up_proj(x)), mlp.down_proj.weight,
                                                mlp.down_proj.bias) + 1)  # fmt: skip


def test_falcon_multipliers_come_from_the_config():
    mlp = modules.SwiGLUMLP.from_config(config(hidden_act="silu", mlp_multipliers=[0.5, 3.0]))
    x = torch.randn(3, 8)
    want = mlp.down_proj(F.silu(mlp.gate_proj(x) * 0.5) * mlp.up_proj(x)) * 3
    torch.testing.assert_close(mlp(x), want)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), want)


@pytest.mark.parametrize("shards", [None, 1, 3, 7, 20])
def test_tiled_mlp_matches_the_untiled_one(shards):
    """Includes numbers of shards that do not divide the length, or are larger than it."""
    mlp = modules.SwiGLUMLP(8, 12)
    x = torch.randn(2, 7, 8, requires_grad=True)
    leaves = (x, *mlp.parameters())
    got = ours.tiled_mlp(lambda m, part: m(part), mlp, x, shards)
    want = mlp(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (got, want)))


def test_mlps_compile_without_graph_breaks():
    mlp, x = modules.SwiGLUMLP(8, 12), torch.randn(3, 8, requires_grad=True)
    got = torch.compile(mlp, backend="aot_eager", fullgraph=True)(x)
    leaves = (x, *mlp.parameters())
    torch.testing.assert_close(got, mlp(x))
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (got, mlp(x))))


def test_vmap_of_grad_matches_torch(tensors):
    x, *weights = tensors
    gradient = lambda fn: torch.func.grad(lambda x, w: fn(x, w, *weights[1:]).sin().sum())
    got, want = (torch.func.vmap(gradient(fn), (0, None))(x, weights[0]) for fn in (ours.swiglu_mlp, of_torch(F.silu)))
    torch.testing.assert_close(got, want)


def test_autocast_sets_the_compute_dtype():
    mlp, x = modules.SwiGLUMLP(8, 12), torch.randn(3, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = mlp(x)
        want = mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))
    assert y.dtype is want.dtype is torch.bfloat16
    y.float().sum().backward()
    assert x.grad.dtype is mlp.up_proj.weight.grad.dtype is torch.float32
    torch.testing.assert_close(y, want, rtol=2e-2, atol=2e-2)


def test_second_derivatives_match_torch(tensors):
    leaves = [t.requires_grad_() for t in tensors]
    results = []
    for fn in (lambda *t: ours.swiglu_mlp(*t, 0.5), of_torch(lambda a: F.silu(a * 0.5))):
        grads = torch.autograd.grad(fn(*leaves).sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: ours.geglu(t, t, "fast"), "approximate must be 'tanh' or 'none'"),
        (lambda t: ours.swiglu(t, t[1:]), "b must have shape"),
        (lambda t: ours.swiglu_mlp(t, t[:, :2], t, t), r"gate_weight must have shape \(4, 4\)"),
        (lambda t: ours.swiglu_mlp(t, t, t[:2], t), r"up_weight must have shape \(4, 4\)"),
        (lambda t: ours.swiglu_mlp(t, t, t, t[:, :3]), r"down_weight must have shape \(4, 4\)"),
        (lambda t: ours.tiled_mlp(lambda m, x: x, nn.Identity(), t, 0), "shards must be at least 1"),
        (lambda t: ours.tiled_mlp(lambda m, x: x, nn.Identity(), t[0]), "input must be"),
        (lambda t: modules.SwiGLUMLP.from_config(config(hidden_act="gelu")), "config must have a hidden_act of 'silu'"),
        (lambda t: modules.GEGLUMLP(4, 4, approximate="x"), "approximate must be"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(BadArgument, match=message):
        call(torch.randn(4, 4))
