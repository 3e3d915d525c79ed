"""`opmux.functional` and `opmux.nn`: norms against torch's, their options, and what they leave as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
import opmux.nn
from opmux.core.errors import BadArgument

N = 24


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def same(got, want, leaves):
    """Results and gradients, twice through the same graph; the incoming gradient stays as it is."""
    torch.testing.assert_close(got, want)
    dy = torch.randn_like(want)
    before = dy.clone()
    grads = [torch.autograd.grad(y, leaves, dy, retain_graph=True) for y in (got, got, want)]
    for first, second, theirs in zip(*grads, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, theirs)
    assert torch.equal(dy, before)


def plain_rms(x, weight, eps=1e-6, offset=0.0):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y * (offset + (1.0 if weight is None else weight))


@pytest.mark.parametrize("weighted", [True, False], ids=["weight", "no weight"])
def test_rms_norm(weighted):
    x = leaf(2, 3, N)
    weight = leaf(N) if weighted else None
    leaves = [x] if weight is None else [x, weight]
    same(ours.rms_norm(x, weight, 1e-5, 0.5), plain_rms(x, weight, 1e-5, 0.5), leaves)
    same(ours.rms_norm(x.transpose(0, 1), weight), plain_rms(x.transpose(0, 1), weight), leaves)
    same(ours.rms_norm(x[:0], weight), plain_rms(x[:0], weight), leaves)


def test_add_rms_norm():
    x, residual, weight = leaf(2, 3, N), leaf(2, 3, N), leaf(N)
    y, s = ours.add_rms_norm(x, residual, weight)
    torch.testing.assert_close(s, x + residual)
    same(y + s.sin(), plain_rms(x + residual, weight) + (x + residual).sin(), [x, residual, weight])
    dx, dresidual = torch.autograd.grad(ours.add_rms_norm(x, residual, None)[0].sum(), [x, residual])
    assert torch.equal(dx, dresidual) and dx.data_ptr() != dresidual.data_ptr()


@pytest.mark.parametrize("shape", [(N,), (4, 6)], ids=str)
def test_layer_norm(shape):
    x, weight, bias = leaf(2, 3, *shape), leaf(*shape), leaf(*shape)
    same(ours.layer_norm(x, shape, weight, bias), F.layer_norm(x, shape, weight, bias), [x, weight, bias])
    same(ours.layer_norm(x, shape, None, bias), F.layer_norm(x, shape, None, bias), [x, bias])
    same(ours.layer_norm(x, shape), F.layer_norm(x, shape), [x])


def test_group_norm():
    x, weight, bias = leaf(2, 6, 3, 4), leaf(6), leaf(6)
    same(ours.group_norm(x, 3, weight, bias), F.group_norm(x, 3, weight, bias), [x, weight, bias])
    same(ours.group_norm(x, 2), F.group_norm(x, 2), [x])


def test_frozen_inputs_and_weights():
    x, weight = leaf(4, N), leaf(N)
    want = torch.autograd.grad(plain_rms(x, weight).sin().sum(), [x, weight])
    for frozen, (a, b) in {0: (x.detach(), weight), 1: (x, weight.detach())}.items():
        (got,) = torch.autograd.grad(ours.rms_norm(a, b).sin().sum(), [b, a][frozen])
        torch.testing.assert_close(got, want[1 - frozen])


def test_errors_name_the_arguments_of_the_function():
    with pytest.raises(BadArgument, match=r"rms_norm: weight must have shape \(24,\), \[n\] where input \(2, 24\)"):
        ours.rms_norm(torch.ones(2, N), torch.ones(3))
    with pytest.raises(BadArgument, match=r"add_rms_norm: residual must have shape"):
        ours.add_rms_norm(torch.ones(2, N), torch.ones(3, N))
    with pytest.raises(BadArgument, match=r"layer_norm: normalized_shape must be the last dimensions of input"):
        ours.layer_norm(torch.ones(2, N), (N + 1,))
    with pytest.raises(BadArgument, match=r"rms_norm: casting must be one of 'gemma', 'llama', 'none'; got 'olmo'"):
        ours.rms_norm(torch.ones(2, N), casting="olmo")
    with pytest.raises(BadArgument, match=r"RMSNorm: init must be one of 'ones', 'zeros'; got 'randn'"):
        opmux.nn.RMSNorm(N, init="randn")


# ---- modules --------------------------------------------------------------------------------------------------------


def test_modules_load_the_state_of_those_that_they_replace():
    pairs = [
        (opmux.nn.RMSNorm(N, eps=1e-5), torch.nn.RMSNorm(N, eps=1e-5), (3, N)),
        (opmux.nn.LayerNorm(N), torch.nn.LayerNorm(N), (3, N)),
        (opmux.nn.LayerNorm((2, N), bias=False), torch.nn.LayerNorm((2, N), bias=False), (3, 2, N)),
        (opmux.nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6), (2, 6, 5)),
    ]
    for mine, theirs, shape in pairs:
        for p in theirs.parameters():
            torch.nn.init.normal_(p)
        mine.load_state_dict(theirs.state_dict())
        x = torch.randn(shape)
        torch.testing.assert_close(mine(x), theirs(x))
        assert repr(mine)


def test_rms_norm_modules():
    x = torch.randn(3, N, dtype=torch.bfloat16)
    gemma = opmux.nn.RMSNorm(N, offset=1.0, casting="gemma", init="zeros", dtype=torch.bfloat16)
    assert gemma.weight.eq(0).all() and "casting='gemma'" in repr(gemma)
    assert torch.equal(gemma(x), ours.rms_norm(x, None, casting="gemma"))
    bare = opmux.nn.RMSNorm(N, elementwise_affine=False)
    assert not bare.state_dict() and torch.equal(bare(x), ours.rms_norm(x))
    fused = opmux.nn.AddRMSNorm(N, eps=1e-3, dtype=torch.bfloat16)
    assert list(fused.state_dict()) == ["weight"]
    y, s = fused(x, x)
    assert torch.equal(s, x + x) and torch.equal(y, ours.rms_norm(s, fused.weight, 1e-3))


def test_traced_as_one_graph():
    module = opmux.nn.RMSNorm(N)
    x = leaf(3, N, dtype=torch.float32)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
