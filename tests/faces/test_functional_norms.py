"""Norms of `opmux.functional` and `opmux.nn` match torch's, with options and gradients, and write no input."""

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
    """Compare results and gradients; run two backward passes through one graph, which must not write the incoming
    gradient.
    """
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
def test_rms_norm_matches_the_formula(weighted):
    x = leaf(2, 3, N)
    weight = leaf(N) if weighted else None
    leaves = [x] if weight is None else [x, weight]
    same(ours.rms_norm(x, weight, 1e-5, 0.5), plain_rms(x, weight, 1e-5, 0.5), leaves)
    same(ours.rms_norm(x.transpose(0, 1), weight), plain_rms(x.transpose(0, 1), weight), leaves)
    same(ours.rms_norm(x[:0], weight), plain_rms(x[:0], weight), leaves)


def test_add_rms_norm_matches_the_formula():
    x, residual, weight = leaf(2, 3, N), leaf(2, 3, N), leaf(N)
    y, s = ours.add_rms_norm(x, residual, weight)
    torch.testing.assert_close(s, x + residual)
    same(y + s.sin(), plain_rms(x + residual, weight) + (x + residual).sin(), [x, residual, weight])
    dx, dresidual = torch.autograd.grad(ours.add_rms_norm(x, residual, None)[0].sum(), [x, residual])
    assert torch.equal(dx, dresidual) and dx.data_ptr() != dresidual.data_ptr()


@pytest.mark.parametrize("shape", [(N,), (4, 6)], ids=str)
def test_layer_norm_matches_torch(shape):
    x, weight, bias = leaf(2, 3, *shape), leaf(*shape), leaf(*shape)
    same(ours.layer_norm(x, shape, weight, bias), F.layer_norm(x, shape, weight, bias), [x, weight, bias])
    same(ours.layer_norm(x, shape, None, bias), F.layer_norm(x, shape, None, bias), [x, bias])
    same(ours.layer_norm(x, shape), F.layer_norm(x, shape), [x])


def test_group_norm_matches_torch():
    x, weight, bias = leaf(2, 6, 3, 4), leaf(6), leaf(6)
    same(ours.group_norm(x, 3, weight, bias), F.group_norm(x, 3, weight, bias), [x, weight, bias])
    same(ours.group_norm(x, 2), F.group_norm(x, 2), [x])


def test_rms_norm_accepts_a_frozen_input_or_weight():
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


def test_modules_load_the_state_dict_of_the_modules_that_they_replace():
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


def test_rms_norm_modules_match_the_functions():
    x = torch.randn(3, N, dtype=torch.bfloat16)
    gemma = opmux.nn.RMSNorm(N, offset=1.0, casting="gemma", init="zeros", dtype=torch.bfloat16)
    assert gemma.weight.eq(0).all() and "casting='gemma'" in repr(gemma)
    assert torch.equal(gemma(x), ours.rms_norm(x, None, casting="gemma"))
    bare = opmux.nn.RMSNorm(N, elementwise_affine=False)
    assert not bare.state_dict() and torch.equal(bare(x), ours.rms_norm(x))
    fused = opmux.nn.AddRMSNorm(N, eps=1e-3, dtype=torch.bfloat16)
    assert list(fused.state_dict()) == ["weight"]
    y, s = fused(x, x)
    assert torch.equal(s, x + x)
    torch.testing.assert_close(y, ours.rms_norm(s, fused.weight, 1e-3))


def test_rms_norm_compiles_to_one_graph():
    module = opmux.nn.RMSNorm(N)
    x = leaf(3, N, dtype=torch.float32)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


# ---- norm variants --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(N,), (1, N), (4, N), (12, N), (4, 3, N)], ids=str)
def test_modulated_rms_norm_matches_the_formula(shape):
    """Scale and shift are the same for all rows, or differ per sample or per row."""
    x, weight, scale, shift = leaf(4, 3, N), leaf(N), leaf(*shape), leaf(*shape)
    for_rows = lambda t: t[:, None] if shape == (4, N) else t.view(4, 3, N) if shape == (12, N) else t
    want = plain_rms(x, weight, 1e-6, 0.5) * (1 + for_rows(scale)) + for_rows(shift)
    same(ours.modulated_rms_norm(x, weight, scale, shift, offset=0.5), want, [x, weight, scale, shift])
    same(ours.modulated_rms_norm(x, None, scale), plain_rms(x, None) * (1 + for_rows(scale)), [x, scale])


def test_modulations_of_a_wrong_shape_raise():
    x = torch.ones(4, 3, N)
    with pytest.raises(BadArgument, match=r"modulated_rms_norm: scale must have a number of rows that divides 12"):
        ours.modulated_rms_norm(x, None, torch.ones(5, N))
    with pytest.raises(BadArgument, match=r"modulated_rms_norm: shift must have the shape of scale, \(4, 24\)"):
        ours.modulated_rms_norm(x, None, torch.ones(4, N), torch.ones(N))


def test_poly_norm_matches_the_formula():
    x, weight, bias = leaf(2, 3, N), leaf(3), leaf(1)
    powers = sum(w * plain_rms(x**k, None) for w, k in zip(weight, (3, 2, 1), strict=True))
    same(ours.poly_norm(x, weight, bias), powers + bias, [x, weight, bias])
    module = opmux.nn.PolyNorm()
    torch.testing.assert_close(module.weight.detach(), torch.full((3,), 1 / 3))
    assert module.bias.item() == 1 and module(x.float()).shape == x.shape and repr(module)


def test_dyt_matches_the_formula():
    x, alpha, gamma, beta = leaf(2, 3, N), leaf(1), leaf(N), leaf(N)
    same(ours.dyt(x, alpha, gamma, beta), torch.tanh(alpha * x) * gamma + beta, [x, alpha, gamma, beta])
    same(ours.dyt(x, alpha, gamma), torch.tanh(alpha * x) * gamma, [x, alpha, gamma])
    same(ours.dyt(x[:0], alpha, gamma, beta), torch.tanh(alpha * x[:0]) * gamma + beta, [x, alpha, gamma, beta])
    assert list(opmux.nn.DyT(N).state_dict()) == ["alpha", "gamma", "beta"]
    bare = opmux.nn.DyT(N, beta=False, init_alpha=0.25)
    torch.testing.assert_close(bare(x.float()), torch.tanh(0.25 * x.float()))


def plain_sparsemax(x, dim):
    """Sparsemax by sorting; for autograd, the size of the support is constant."""
    ordered = x.movedim(dim, -1).sort(-1, descending=True).values
    count = torch.arange(1, ordered.shape[-1] + 1)
    size = (1 + count * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
    tau = (ordered.cumsum(-1).gather(-1, size - 1) - 1) / size
    return F.relu(x.movedim(dim, -1) - tau).movedim(-1, dim)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sparsemax_and_softmax_match_torch(dim):
    x = leaf(4, 5, N)
    same(ours.sparsemax(x, dim), plain_sparsemax(x, dim), [x])
    same(ours.softmax(x, dim), torch.softmax(x, dim), [x])
    assert torch.equal(opmux.nn.Sparsemax(dim)(x), ours.sparsemax(x, dim))
    assert torch.equal(opmux.nn.Softmax(dim)(x), ours.softmax(x, dim))


def test_softmax_and_sparsemax_accept_rows_over_65536_columns():
    x = leaf(2, 70_001) * 3
    same(ours.softmax(x), torch.softmax(x, -1), [x])
    same(ours.sparsemax(x), plain_sparsemax(x, -1), [x])
    with pytest.raises(BadArgument, match=r"sparsemax: dim must be a dimension of input, \(2, 70001\); got 2"):
        ours.sparsemax(x, 2)


def test_relu_squared_and_embedding_match_torch():
    x = leaf(3, N)
    same(ours.relu_squared(x), F.relu(x).square(), [x])
    assert torch.equal(opmux.nn.ReLUSquared()(x), ours.relu_squared(x))
    table, rows = leaf(10, N), torch.tensor([[1, 2, 1], [0, 9, 2]])
    same(ours.embedding(rows, table, 2), F.embedding(rows, table, 2), [table])
    module = opmux.nn.Embedding(10, N, padding_idx=0)
    assert torch.equal(module(rows), F.embedding(rows, module.weight, 0)) and list(module.state_dict()) == ["weight"]
